"""Qwen3-Next and Qwen3.5 for text, as transformers 5.23 computes them (models/qwen3_next/modeling_qwen3_next.py, and
the same in models/qwen3_5 and models/qwen3_5_moe): a gated delta net in three of four blocks, gated attention in the
others, and experts in those of Qwen3-Next and of the larger Qwen3.5.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.delta_net import FusedDeltaNet, GatedDeltaNet, linear_of
from vramplan.replay.models.gemma import RMSNorm
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.llama import MLP, Llama, Rotary, apply_rotary
from vramplan.replay.models.llama import Attention as LlamaAttention
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Linear, Output, Recipe, output_embedding, words
from vramplan.replay.models.part_names import GATED_EXPERTS
from vramplan.replay.models.projections import three
from vramplan.replay.models.qwen_moe import SparseMoeBlock as QwenMoeBlock
from vramplan.replay.models.recomputed import cached, recomputable
from vramplan.replay.models.recurrent import recurrent_mask
from vramplan.replay.operators.elementwise import add, mul, mul_scalar
from vramplan.replay.operators.experts import sigmoid
from vramplan.replay.operators.views import cat, contiguous, narrow, split, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Tensor
from vramplan.values.model import ModelShape

AXES = 3  # of the positions of Qwen3.5: time, height and width
FUSED = "qwen3_next"  # whose delta net has two projections in the place of four, and whose positions have one axis


def apply_partial_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> Rotary:
    """apply_rotary_pos_emb: the first elements of each head turn, the others stay."""
    turned = cos.shape[-1]
    query_rot, query_pass = narrow(query, -1, turned), narrow(query, -1, query.shape[-1] - turned)
    key_rot, key_pass = narrow(key, -1, turned), narrow(key, -1, key.shape[-1] - turned)
    query_embed, key_embed = apply_rotary(query_rot, key_rot, cos, sin)
    query_embed = cat([query_embed, query_pass], -1)
    key_embed = cat([key_embed, key_pass], -1)
    return query_embed, key_embed


class Attention(LlamaAttention):
    """Qwen3NextAttention: what it gives is gated, by a half of what the queries' projection gives."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, query = shape.hidden_size, shape.attention_heads * shape.head_size
        key = shape.key_value_heads * shape.head_size
        self.recipe = recipe
        self.q_proj = Linear(tape, "q_proj", hidden, 2 * query, dtype, bias=shape.qkv_bias)
        self.k_proj = Linear(tape, "k_proj", hidden, key, dtype, bias=shape.qkv_bias)
        self.v_proj = Linear(tape, "v_proj", hidden, key, dtype, bias=shape.qkv_bias)
        self.o_proj = Linear(tape, "o_proj", query, hidden, dtype, bias=shape.output_bias)
        self.q_norm = RMSNorm(tape, "q_norm", shape.head_size, dtype)
        self.k_norm = RMSNorm(tape, "k_norm", shape.head_size, dtype)

    def __call__(
        self, hidden: Tensor, mask: Tensor | None, position_ids: Tensor | None, rotary: Rotary | None
    ) -> tuple[Tensor, Tensor | None]:
        recipe = self.recipe
        shape = recipe.shape
        batch, length, _ = hidden.shape
        width = shape.attention_heads * shape.head_size
        heads = (batch, length, shape.attention_heads, 2 * shape.head_size)
        kv_heads = (batch, length, shape.key_value_heads, shape.head_size)
        first, second, third = three(self, hidden)
        query, gate = split(view(first(), heads), shape.head_size)
        gate = view(gate, (batch, length, width))
        query = transpose(self.q_norm(query), 1, 2)
        key = transpose(self.k_norm(view(second(), kv_heads)), 1, 2)
        value = transpose(view(third(), kv_heads), 1, 2)
        assert rotary is not None
        query, key = apply_partial_rotary(query, key, *rotary)
        key, value = cached(key, value)
        output, weights = recomputable(recipe, self.core, query, key, value, mask, holds=position_ids)
        output = contiguous(view(output, (batch, length, width)))
        output = mul(output, sigmoid(gate))
        output = self.o_proj(output)
        return output, weights


class SparseMoeBlock(QwenMoeBlock):
    """Qwen3NextSparseMoeBlock: Qwen2-MoE's."""


class Block:
    """Qwen3NextDecoderLayer, Qwen3_5DecoderLayer."""

    def __init__(
        self, tape: Tape, recipe: Recipe, i: int, mask: Tensor | None, position_ids: Tensor | None, rotary: Rotary
    ) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.linear_attn: GatedDeltaNet | None = None
        if i in linear_of(recipe).layers:
            fused = shape.transformers_model_type == FUSED
            self.linear_attn = (FusedDeltaNet if fused else GatedDeltaNet)(tape, recipe)
        else:
            self.self_attn = Attention(tape, recipe)
        dense = shape.experts is None or i in shape.experts.dense_layers
        self.mlp = MLP(tape, recipe) if dense else SparseMoeBlock(tape, recipe)
        self.input_layernorm = RMSNorm(tape, "input_layernorm", shape.hidden_size, dtype)
        self.post_attention_layernorm = RMSNorm(tape, "post_attention_layernorm", shape.hidden_size, dtype)
        self.mask, self.rotary = mask, rotary
        self.position_ids = position_ids

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.input_layernorm(hidden)
        if self.linear_attn is not None:
            hidden = self.linear_attn(hidden, self.mask)
        else:
            hidden, _weights = self.self_attn(hidden, self.mask, self.position_ids, self.rotary)
        hidden = add(residual, hidden)
        residual = hidden
        hidden = self.post_attention_layernorm(hidden)
        hidden = self.mlp(hidden)
        hidden = add(residual, hidden)
        return hidden


class Qwen3Next(Llama):
    """Qwen3NextForCausalLM, Qwen3_5ForCausalLM and Qwen3_5MoeForCausalLM, with their loss."""

    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    padding: Tensor | None = None  # the mask that comes with padded sequences

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> bool:
        """Whether a block has linear attention; each kind has its mask."""
        assert shape.linear_attention is not None
        return block in shape.linear_attention.layers

    @staticmethod
    def adapted_experts(shape: ModelShape) -> dict[str, str]:
        """PEFT 0.21.2 takes those of Qwen3-Next by the rule of qwen2_moe, and has no rule for Qwen3.5.

        Source: peft 0.21.2, _MOE_TARGET_MODULE_MAPPING; transformers 5.23, conversion_mapping.py,
        _MODEL_TO_CONVERSION_PATTERN.
        """
        return GATED_EXPERTS if shape.transformers_model_type == FUSED else {}

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies, kept twice, in fp32."""
        return [4 * (turned_of(self.recipe.shape) // 2)] * 2

    def kept(self) -> list[int]:
        """Nothing is kept from one step to the next."""
        return []

    def __call__(self, input_ids: Tensor, labels: Tensor, given: Tensor | None = None) -> Output:
        self.positions = given if self.recipe.packed else None
        self.padding = given if self.recipe.padded else None
        hidden = self.model(input_ids)
        weight = output_embedding(self.tape, self.recipe, self.embed_tokens)
        return causal_lm_output(hidden, weight, labels, self.recipe)

    def model(self, input_ids: Tensor) -> Tensor:
        """Qwen3NextModel.forward, Qwen3_5TextModel.forward."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        _embeds = words(input_ids, self.embed_tokens)
        position_ids = self.position_ids(input_ids)
        masks = mask_of(_embeds, recipe), recurrent_mask(self.padding)
        hidden = _embeds
        rotary = self.rotary(hidden, turned_of(shape))
        dense = frozenset(range(shape.layers)) if shape.experts is None else frozenset(shape.experts.dense_layers)

        def kind(i: int) -> bool:
            return self.block_kind(shape, i)

        def block(i: int) -> Block:
            return Block(tape, recipe, i, masks[kind(i)], position_ids, rotary)

        hidden = run_blocks(
            tape, recipe.segments, block, hidden, kind=kind, alike=False, make_up=lambda i: (i in dense, kind(i))
        )
        hidden = RMSNorm(tape, "norm", shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden

    def rotary(self, hidden: Tensor, size: int | None = None) -> Rotary:
        """Qwen3NextRotaryEmbedding.forward; Qwen3_5TextRotaryEmbedding.forward, over three axes."""
        if self.recipe.shape.transformers_model_type == FUSED:
            return super().rotary(hidden, size)
        return rotary_of_axes(hidden, turned_of(self.recipe.shape))


def turned_of(shape: ModelShape) -> int:
    """Elements of a head that rotary positions turn."""
    return int(shape.head_size * shape.partial_rotary_factor)


def rotary_of_axes(hidden: Tensor, size: int) -> Rotary:
    """Qwen3_5TextRotaryEmbedding.forward: the same of three axes, of packed sequences too."""
    tape, (batch, length, _) = hidden.tape, hidden.shape
    half, whole = (AXES, batch, length, size // 2), (batch, length, size)
    positions = tape.new("to", (AXES, batch, length, 1), FP32, True)
    frequencies = tape.new("mul", half, FP32, True)
    del positions
    cos = mul_scalar(tape.new("cos", half, FP32, True))
    sin = mul_scalar(tape.new("sin", half, FP32, True))
    sin = tape.new("cat", whole, FP32, True)  # written in place, and twice
    cos = tape.new("cat", whole, FP32, True)
    del frequencies
    return to(cos, hidden.dtype), to(sin, hidden.dtype)


FORWARD = Qwen3Next
