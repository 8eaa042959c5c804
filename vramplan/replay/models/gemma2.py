"""Gemma 2, as transformers 5.23 computes it (models/gemma2/modeling_gemma2.py): Gemma with a normalisation after
attention and MLP too, a tanh that bounds scores and logits, and windows in every second block.

It has no fused attention: `scaled_dot_product_attention` knows no such bound, and the original refuses it. So both
masks, of the blocks with and without a window, are whole tensors of the same size.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models import rope
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.four_norms import SandwichBlock
from vramplan.replay.models.gemma import TABLE, RMSNorm, scaled_embedding, scales
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.llama import Rotary, apply_rotary, repeat_kv
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Linear, Output, Recipe, output_embedding
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.models.positions import Positions
from vramplan.replay.models.projections import three
from vramplan.replay.models.recomputed import cached, recomputable
from vramplan.replay.models.windows import masks_of_kinds
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.elementwise import add, dropout, mul_scalar, tanh
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import matmul
from vramplan.replay.operators.views import contiguous, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Tensor
from vramplan.values.model import ModelShape


def eager_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, recipe: Recipe
) -> tuple[Tensor, Tensor]:
    """eager_attention_forward: bounded scores, softmax in fp32."""
    groups = recipe.shape.attention_heads // recipe.shape.key_value_heads
    keys = repeat_kv(key, groups)
    values = repeat_kv(value, groups)
    weights = mul_scalar(matmul(query, transpose(keys, 2, 3)))
    if recipe.shape.attention_softcap:
        weights = mul_scalar(weights)
        weights = tanh(weights)
        weights = mul_scalar(weights)
    assert mask is not None  # there is no other attention
    weights = add(weights, mask)
    weights = to(softmax(weights, FP32), query.dtype)
    weights = dropout(weights, recipe.attention_dropout)
    output = matmul(weights, values)
    output = contiguous(transpose(output, 1, 2))
    return output, weights


class Attention:
    """Gemma2Attention."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, query = shape.hidden_size, shape.attention_heads * shape.head_size
        key = shape.key_value_heads * shape.head_size
        self.recipe = recipe
        self.q_proj = Linear(tape, "q_proj", hidden, query, dtype, bias=shape.qkv_bias)
        self.k_proj = Linear(tape, "k_proj", hidden, key, dtype, bias=shape.qkv_bias)
        self.v_proj = Linear(tape, "v_proj", hidden, key, dtype, bias=shape.qkv_bias)
        self.o_proj = Linear(tape, "o_proj", query, hidden, dtype, bias=shape.output_bias)

    def __call__(
        self, hidden: Tensor, mask: Tensor | None, position_ids: Tensor, rotary: Rotary
    ) -> tuple[Tensor, Tensor | None]:
        shape = self.recipe.shape
        batch, length, _ = hidden.shape
        heads = (batch, length, shape.attention_heads, shape.head_size)
        kv_heads = (batch, length, shape.key_value_heads, shape.head_size)
        first, second, third = three(self, hidden)
        query = transpose(view(first(), heads), 1, 2)
        key = transpose(view(second(), kv_heads), 1, 2)
        value = transpose(view(third(), kv_heads), 1, 2)
        query, key = apply_rotary(query, key, *rotary)
        key, value = cached(key, value)
        output, weights = recomputable(self.recipe, self.core, query, key, value, mask, holds=position_ids)
        output = contiguous(view(output, (batch, length, shape.attention_heads * shape.head_size)))
        output = self.o_proj(output)
        return output, weights

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """eager_attention_forward, as the job's recipe has it, or the kernel of the flash-attn package."""
        if self.recipe.attention == "flash":
            found = scaled_dot_product(query, key, value, "flash", self.recipe.attention_dropout, None)
            return transpose(found, 1, 2), None
        return eager_attention(query, key, value, mask, self.recipe)


class Block(SandwichBlock):
    """Gemma2DecoderLayer."""

    attention = Attention
    norm = RMSNorm


class Gemma2(Positions):
    """Gemma2ForCausalLM, with its loss."""

    knows_old_code = True
    has_tensor_plan = True
    selective = SELECTIVE
    no_fused_attention = "its code has none"
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True

    @staticmethod
    def full_blocks(shape: ModelShape) -> int:
        """Every second block has a window, the first one too."""
        return shape.layers // 2

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            self.embed_tokens = tape.parameter(TABLE, (shape.vocabulary_size, shape.hidden_size), recipe.weight_dtype)

    @staticmethod
    def windowed(shape: ModelShape, block: int) -> bool:
        """Whether a block has a window: every second one, from the first on."""
        return shape.sliding_window is not None and block % 2 == 0

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> int:
        """Which of the two masks a block holds: Gemma2Config.__post_init__."""
        return block % 2

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the scale of the embeddings, and the inverse frequencies, kept twice, in fp32.

        Transformers 4 made the scale anew in each forward pass, on the host.
        """
        if self.recipe.old_code.one_table:
            return [4 * (self.recipe.shape.head_size // 2)]
        return [*scales(self.tape), *[4 * (self.recipe.shape.head_size // 2)] * 2]

    def kept(self) -> list[int]:
        """Bytes that scaled rotary positions keep from one step to the next."""
        return rope.kept(self.recipe, self.recipe.shape.head_size)

    def __call__(self, input_ids: Tensor, labels: Tensor, given: Tensor | None = None) -> Output:
        self.take(given)
        hidden = self.model(input_ids)
        weight = output_embedding(self.tape, self.recipe, self.embed_tokens)
        return causal_lm_output(hidden, weight, labels, self.recipe)

    def model(self, input_ids: Tensor) -> Tensor:
        """Gemma2Model.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = scaled_embedding(input_ids, self.embed_tokens)
        position_ids = self.position_ids(input_ids)
        scored = recipe._replace(attention="eager")  # its code has no fused attention but flash
        masks = (None, None) if recipe.attention == "flash" else masks_of_kinds(_embeds, scored)
        hidden = _embeds
        rotary = self.cosines_and_sines(hidden, recipe.shape.head_size)
        hidden = run_blocks(
            tape,
            recipe.segments,
            lambda i: Block(tape, recipe, masks[1 - i % 2], position_ids, rotary),
            hidden,
            kind=lambda i: self.block_kind(recipe.shape, i),
        )
        hidden = RMSNorm(tape, "norm", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = Gemma2
