"""Command R and Aya, as transformers 5.23 computes them (models/cohere and cohere2, modeling_<type>.py): attention and
feed-forward layer beside each other, layer norms in fp32 without biases, rotary positions that turn neighbours, and
logits that are multiplied by a number. Three of four blocks of Cohere 2 have a window, and the others no positions.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramplan.replay.models.glm import rotate_half
from vramplan.replay.models.llama import Attention as LlamaAttention
from vramplan.replay.models.llama import Block as LlamaBlock
from vramplan.replay.models.llama import Llama, Rotary
from vramplan.replay.models.modules import HEAD_LOSSES_WITH_BIAS, SELECTIVE, as_is
from vramplan.replay.models.part_names import NORMS
from vramplan.replay.models.projections import three
from vramplan.replay.models.windows import both_masks, has_window
from vramplan.replay.operators.elementwise import add, add_scalar, mean_last, mul, pow_scalar, rsqrt
from vramplan.replay.operators.latent import sub
from vramplan.replay.operators.views import to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, DType, Tensor
from vramplan.values.model import ModelShape


class LayerNorm:
    """CohereLayerNorm: over the last dimension, with a weight for each element of all that it is told."""

    def __init__(self, tape: Tape, name: str, width: int, dtype: DType, *, heads: int | None = None) -> None:
        shape = (width,) if heads is None else (heads, width)
        with tape.building(NORMS):
            self.weight = tape.parameter(f"{name}.weight", shape, dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        dtype = hidden.dtype
        hidden = to(hidden, FP32)
        mean = mean_last(hidden)
        variance = mean_last(pow_scalar(sub(hidden, mean)))
        hidden = mul(sub(hidden, mean), rsqrt(add_scalar(variance)))
        hidden = mul(to(self.weight, FP32), hidden)
        return to(hidden, dtype)


def apply_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> Rotary:
    """apply_rotary_pos_emb: in fp32, whatever cosines and sines are in."""
    dtype = query.dtype
    query, key = to(query, FP32), to(key, FP32)
    shape = (cos.shape[0], 1, *cos.shape[1:])
    cos, sin = cos.alias(shape, None, None), sin.alias(shape, None, None)
    query_embed = add(mul(query, cos), mul(rotate_half(query), sin))
    key_embed = add(mul(key, cos), mul(rotate_half(key), sin))
    return to(query_embed, dtype), to(key_embed, dtype)


class Attention(LlamaAttention):
    """CohereAttention, Cohere2Attention."""

    turn = staticmethod(apply_rotary)

    def norm(self, tape: Tape, name: str, heads: int) -> Callable[[Tensor], Tensor]:
        """What normalises queries or keys: each head has weights of its own."""
        shape = self.recipe.shape
        return LayerNorm(tape, name, shape.head_size, self.recipe.weight_dtype, heads=heads) if shape.qk_norm else as_is

    def projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each with its heads before its positions."""
        query, key, value = (self.parted(made()) for made in three(self, hidden))
        query = self.q_norm(query)
        key = self.k_norm(key)
        return transpose(query, 1, 2), transpose(key, 1, 2), transpose(value, 1, 2)

    def parted(self, x: Tensor) -> Tensor:
        """A projection [B, S, a d] as [B, S, a, d]."""
        size = self.recipe.shape.head_size
        return view(x, (*x.shape[:2], x.shape[2] // size, size))


class Block(LlamaBlock):
    """CohereDecoderLayer, Cohere2DecoderLayer."""

    attention: type[LlamaAttention] = Attention
    norm: type[Any] = LayerNorm
    norm_names: tuple[str, ...] = ("input_layernorm",)

    def __call__(self, hidden: Tensor) -> Tensor:
        (before,) = self.norms
        residual = hidden
        hidden = before(hidden)
        rotary = self.rotary if self.turns else None
        attention, _weights = self.self_attn(hidden, self.mask, self.position_ids, rotary)
        feed_forward = self.mlp(hidden)
        hidden = add(add(residual, attention), feed_forward)
        return hidden


class Cohere(Llama):
    """CohereForCausalLM, Cohere2ForCausalLM, with their loss."""

    knows_old_code = True
    has_tensor_plan = True
    selective = SELECTIVE
    head_losses = HEAD_LOSSES_WITH_BIAS
    no_head_losses = "its logits are multiplied by a number, which Liger has no loss for"
    scales_logits = True
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    hands_groups_on = True  # `use_gqa_in_sdpa`
    text_block = Block

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> bool:
        """Whether a block has a window; each kind has its mask."""
        return has_window(shape, block)

    def masks(self, hidden: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The masks of blocks without and with a window; Cohere2Model makes both whichever blocks there are."""
        return both_masks(hidden, self.recipe)


FORWARD = Cohere
