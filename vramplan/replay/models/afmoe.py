"""AFMoE (Trinity), as transformers 5.23 computes it (models/afmoe/modeling_afmoe.py): attention that is gated, windows
in most blocks and no positions in the others, four norms, and experts in all blocks but the first few.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.experts import GatedMLP, GroupedExperts, Routed, experts_of, has_experts
from vramplan.replay.models.llama import Attention as LlamaAttention
from vramplan.replay.models.llama import Llama, Rotary
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Linear, Recipe, words
from vramplan.replay.models.olmo2 import RMSNorm
from vramplan.replay.models.part_names import GATED_EXPERTS
from vramplan.replay.models.projections import three
from vramplan.replay.models.recomputed import cached, recomputable
from vramplan.replay.models.windows import both_masks, has_window
from vramplan.replay.observers import Outer
from vramplan.replay.operators.elementwise import add, add_scalar, mul, mul_scalar
from vramplan.replay.operators.experts import divide, gather_last, sigmoid, sum_last
from vramplan.replay.operators.views import contiguous, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, INT64, Tensor
from vramplan.values.model import ModelShape


class Attention(LlamaAttention):
    """AfmoeAttention: what it gives is gated by a projection of its own."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        super().__init__(tape, recipe)
        shape = recipe.shape
        width = shape.attention_heads * shape.head_size
        self.gate_proj = Linear(tape, "gate_proj", shape.hidden_size, width, recipe.weight_dtype, bias=False)

    def norm(self, tape: Tape, name: str, heads: int) -> RMSNorm:
        """What normalises each head of queries or keys."""
        return RMSNorm(tape, name, self.recipe.shape.head_size, self.recipe.weight_dtype)

    def __call__(
        self, hidden: Tensor, mask: Tensor | None, position_ids: Tensor | None, rotary: Rotary | None
    ) -> tuple[Tensor, Tensor | None]:
        recipe = self.recipe
        shape = recipe.shape
        batch, length, _ = hidden.shape
        heads = (batch, length, shape.attention_heads, shape.head_size)
        kv_heads = (batch, length, shape.key_value_heads, shape.head_size)
        first, second, third = three(self, hidden)
        query = view(first(), heads)
        key = view(second(), kv_heads)
        value = view(third(), kv_heads)
        gate = self.gate_proj(hidden)
        query = transpose(self.q_norm(query), 1, 2)
        key = transpose(self.k_norm(key), 1, 2)
        value = transpose(value, 1, 2)
        if rotary is not None:
            query, key = self.turn(query, key, *rotary)
        key, value = cached(key, value)
        output, weights = recomputable(recipe, self.core, query, key, value, mask, holds=position_ids)
        output = contiguous(view(output, (batch, length, shape.attention_heads * shape.head_size)))
        output = mul(output, sigmoid(gate))
        return self.o_proj(output), weights


class Router:
    """AfmoeTokenChoiceRouter: sigmoids in fp32, and a bias that only the choice sees."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.experts = experts_of(recipe)
        hidden, count = recipe.shape.hidden_size, self.experts.routed
        self.gate = Linear(tape, "gate", hidden, count, recipe.weight_dtype, bias=False)

    def __call__(self, hidden: Tensor) -> Routed:
        hidden = view(hidden, (hidden.shape[0] * hidden.shape[1], hidden.shape[2]))
        logits = to(self.gate(hidden), FP32)
        tape, batched, chosen = logits.tape, logits.batched, (logits.shape[0], self.experts.active)
        scores = sigmoid(logits)
        choice = tape.new("add", scores.shape, FP32, batched)
        _values = tape.new("topk", chosen, FP32, batched)
        indices = tape.new("topk", chosen, INT64, batched)
        del choice
        top_scores = gather_last(scores, indices)
        _denominator = add_scalar(sum_last(top_scores))
        top_scores = divide(top_scores, _denominator)
        top_scores = mul_scalar(top_scores)
        return logits, top_scores, indices


class SparseMoeBlock:
    """AfmoeSparseMoeBlock: its bias is a parameter that nobody trains."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        experts, first = experts_of(recipe), len(tape.parameters)
        assert experts.shared_intermediate_size is not None
        self.expert_bias = tape.parameter("expert_bias", (experts.routed,), recipe.weight_dtype, trainable=False)
        self.router = Router(tape, recipe)
        self.shared_experts = GatedMLP(tape, recipe, experts.shared_intermediate_size)
        self.experts = GroupedExperts(tape, recipe)
        self.parameters = tuple(tape.parameters[first:])

    def __call__(self, hidden: Tensor) -> Tensor:
        shape = hidden.shape
        with Outer(hidden, whole=self.parameters):
            flat = view(hidden, (shape[0] * shape[1], shape[2]))
            _logits, top_scores, selected = self.router(hidden)
            shared = view(self.shared_experts(flat), shape)
            routed = view(self.experts(flat, selected, top_scores), shape)
            return add(shared, routed)


class Block:
    """AfmoeDecoderLayer."""

    def __init__(
        self,
        tape: Tape,
        recipe: Recipe,
        dense: bool,
        mask: Tensor | None,
        position_ids: Tensor,
        rotary: Rotary,
        local: bool,
    ) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.self_attn = Attention(tape, recipe)
        self.input_layernorm = RMSNorm(tape, "input_layernorm", width, dtype)
        self.post_attention_layernorm = RMSNorm(tape, "post_attention_layernorm", width, dtype)
        self.pre_mlp_layernorm = RMSNorm(tape, "pre_mlp_layernorm", width, dtype)
        self.post_mlp_layernorm = RMSNorm(tape, "post_mlp_layernorm", width, dtype)
        wide = recipe.shape.intermediate_size
        self.mlp = GatedMLP(tape, recipe, wide) if dense else SparseMoeBlock(tape, recipe)
        self.mask, self.rotary, self.local = mask, rotary, local
        self.position_ids = position_ids  # an unused argument, which a checkpoint keeps nevertheless

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.input_layernorm(hidden)
        hidden, _weights = self.self_attn(hidden, self.mask, self.position_ids, self.rotary if self.local else None)
        hidden = self.post_attention_layernorm(hidden)
        hidden = add(residual, hidden)
        residual = hidden
        hidden = self.pre_mlp_layernorm(hidden)
        hidden = self.mlp(hidden)
        hidden = self.post_mlp_layernorm(hidden)
        hidden = add(residual, hidden)
        return hidden


class Afmoe(Llama):
    """AfmoeForCausalLM, with its loss."""

    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True

    @staticmethod
    def no_flat_training(shape: ModelShape) -> str | None:
        """Where no block has experts, each weight is trained."""
        why = "a flat parameter cannot hold its router's expert_bias, which is not trained, beside its weights"
        return why if has_experts(shape) else None

    keeps_fp32 = True  # norms and biases, `_keep_in_fp32_modules`

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> bool:
        """Whether a block has a window; each kind has its mask."""
        return has_window(shape, block)

    @staticmethod
    def adapted_experts(shape: ModelShape) -> dict[str, str]:
        """PEFT 0.21.2, _MOE_TARGET_MODULE_MAPPING, by the pattern that Transformers converts it with.

        The router's is the weight of a linear layer.
        """
        return GATED_EXPERTS

    def model(self, input_ids: Tensor) -> Tensor:
        """AfmoeModel.forward."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        _embeds = words(input_ids, self.embed_tokens)
        position_ids = self.position_ids(input_ids)
        masks = both_masks(_embeds, recipe._replace(packed=False))  # they are made without the position ids
        hidden = mul_scalar(_embeds) if shape.scaled_embeddings else _embeds
        rotary = self.rotary(hidden)
        dense = frozenset(experts_of(recipe).dense_layers)

        def block(i: int) -> Block:
            local = has_window(shape, i)
            return Block(tape, recipe, i in dense, masks[local], position_ids, rotary, local)

        state = [hidden]
        del hidden
        hidden = run_blocks(
            tape,
            recipe.segments,
            block,
            state,
            kind=lambda i: has_window(shape, i),
            alike=False,
            make_up=lambda i: i in dense,
        )
        return RMSNorm(tape, "norm", shape.hidden_size, recipe.weight_dtype)(hidden)


FORWARD: Any = Afmoe
