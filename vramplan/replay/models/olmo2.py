"""OLMo 2 and OLMo 3, as transformers 5.23 computes them (models/olmo2 and olmo3, modeling_<type>.py):
Llama with norms after attention and feed-forward layer instead of before, with normalised queries and keys, and with
rotary positions in fp32. Three of four blocks of OLMo 3 have a window, and rotary positions of their own.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramplan.replay.models.blocks import FLOATS, GivenRotary, run_blocks
from vramplan.replay.models.llama import MLP, Llama, Rotary, rotate_half
from vramplan.replay.models.llama import Attention as LlamaAttention
from vramplan.replay.models.modules import HEAD_LOSSES, Recipe, in_tiles, rotary_kernel, words
from vramplan.replay.models.modules import RMSNorm as LlamaRMSNorm
from vramplan.replay.models.windows import are_alike, both_masks, has_window
from vramplan.replay.observers import Sharding
from vramplan.replay.operators.elementwise import add, add_scalar, mean_last, mul, pow_scalar, rsqrt
from vramplan.replay.operators.views import to
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Tensor
from vramplan.values.model import ModelShape


class RMSNorm(LlamaRMSNorm):
    """Olmo2RMSNorm: it multiplies by its weight in fp32, and casts then."""

    def composed(self, hidden: Tensor) -> Tensor:
        """The norm as the model's code has it."""
        dtype = hidden.dtype
        hidden = to(hidden, FP32)
        variance = mean_last(pow_scalar(hidden))
        hidden = mul(hidden, rsqrt(add_scalar(variance)))
        return to(mul(self.weight, hidden), dtype)


def apply_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> Rotary:
    """apply_rotary_pos_emb: in fp32, as cosines and sines are."""
    kernel = rotary_kernel(query.tape)
    if kernel is not None:
        return kernel(query, key, cos, sin)
    shape = (cos.shape[0], 1, *cos.shape[1:])
    cos, sin = cos.alias(shape, None, None), sin.alias(shape, None, None)
    query_embed = add(mul(query, cos), mul(rotate_half(query), sin))
    key_embed = add(mul(key, cos), mul(rotate_half(key), sin))
    return to(query_embed, query.dtype), to(key_embed, key.dtype)


class WholeNorms(LlamaAttention):
    """Attention whose queries are normalised over all heads together, and its keys too."""

    whole_norm: type[LlamaRMSNorm] = LlamaRMSNorm

    def norm(self, tape: Tape, name: str, heads: int) -> LlamaRMSNorm:
        """The norm of queries or keys."""
        return self.whole_norm(tape, name, heads * self.recipe.shape.head_size, self.recipe.weight_dtype)

    def projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each with its heads before its positions."""
        query = self.q_norm(self.q_proj(hidden))
        key = self.k_norm(self.k_proj(hidden))
        value = self.v_proj(hidden)
        query, key, value = (self.heads(one) for one in (query, key, value))
        return query, key, value


class Attention(WholeNorms):
    """Olmo2Attention, Olmo3Attention."""

    whole_norm = RMSNorm
    turn = staticmethod(apply_rotary)


class FloatBlock:
    """A block that is given cosines and sines in fp32, which FSDP2 casts on their way to it."""

    floats = FLOATS
    attention: type[LlamaAttention] = Attention
    norm: type[Any] = RMSNorm
    norm_names: tuple[str, ...] = ()

    def __init__(
        self, tape: Tape, recipe: Recipe, mask: Tensor | None, position_ids: Tensor, rotary: Rotary | None
    ) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.self_attn = self.attention(tape, recipe)
        self.mlp = self.feeds(tape, recipe)
        self.norms = [self.norm(tape, name, width, dtype) for name in self.norm_names]
        self.keep(mask, position_ids, rotary)

    def feeds(self, tape: Tape, recipe: Recipe) -> Callable[[Tensor], Tensor]:
        """The feed-forward layer, or the experts in its place."""
        mlp: Callable[[Tensor], Tensor] = in_tiles(MLP, tape, recipe)
        return mlp

    def keep(self, mask: Tensor | None, position_ids: Tensor, rotary: Rotary | None) -> None:
        """Have what blocks are given beside the hidden state."""
        self.mask = mask
        self.cos: Tensor | None = None
        self.sin: Tensor | None = None
        if rotary is not None:
            self.cos, self.sin = rotary
        self.position_ids = position_ids  # an unused argument, which a checkpoint keeps nevertheless

    @property
    def rotary(self) -> Rotary:
        """The cosines and sines of all positions."""
        assert self.cos is not None
        assert self.sin is not None
        return self.cos, self.sin

    def __call__(self, hidden: Tensor) -> Tensor:
        """What the block makes of the hidden state."""
        raise NotImplementedError


class Block(FloatBlock):
    """Olmo2DecoderLayer, Olmo3DecoderLayer."""

    norm_names = ("post_attention_layernorm", "post_feedforward_layernorm")

    def __call__(self, hidden: Tensor) -> Tensor:
        after_attention, after_mlp = self.norms
        residual = hidden
        hidden, _weights = self.self_attn(hidden, self.mask, self.position_ids, self.rotary)
        hidden = after_attention(hidden)
        hidden = add(residual, hidden)
        residual = hidden
        hidden = self.mlp(hidden.tape.role(Sharding).given(hidden))
        hidden = after_mlp(hidden)
        hidden = add(residual, hidden)
        return hidden


class Olmo2(Llama):
    """Olmo2ForCausalLM, Olmo3ForCausalLM, with their loss."""

    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    head_losses = HEAD_LOSSES
    float_block: type[FloatBlock] = Block

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> bool:
        """Whether a block has a window, as most of OLMo 3 do; each kind has its mask and its rotary positions."""
        return has_window(shape, block)

    def kinds(self) -> set[bool]:
        """Whether there are blocks with a window, and blocks without."""
        shape = self.recipe.shape
        return {self.block_kind(shape, i) for i in range(shape.layers)}

    def masks(self, hidden: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The masks of blocks without and with a window; Olmo3Model.forward makes both whichever blocks there are."""
        return both_masks(hidden, self.recipe)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: per kind the inverse frequencies, kept twice, in fp32."""
        return super().buffers() * len(self.kinds())

    def model(self, input_ids: Tensor) -> Tensor:
        """Olmo2Model.forward, Olmo3Model.forward.

        Source: transformers/models/olmo2/modeling_olmo2.py and olmo3/modeling_olmo3.py.
        """
        tape, recipe = self.tape, self.recipe
        _embeds = words(input_ids, self.embed_tokens)
        position_ids = self.position_ids(input_ids)
        masks = self.masks(_embeds)
        hidden = _embeds
        given = {
            kind: GivenRotary(tape, recipe.segments, self.fp32_rotary(hidden, recipe.shape.head_size))
            for kind in self.kinds()
        }

        def kind(i: int) -> bool:
            return self.block_kind(recipe.shape, i)

        def block(i: int) -> FloatBlock:
            return self.float_block(tape, recipe, masks[kind(i)], position_ids, given[kind(i)].own)

        hidden = run_blocks(
            tape,
            recipe.segments,
            block,
            hidden,
            kind=kind,
            alike=are_alike(recipe),
            handed=lambda i: given[kind(i)].handed,
        )
        width = recipe.shape.hidden_size
        norm: Callable[[Tensor], Tensor] = self.float_block.norm(tape, "norm", width, recipe.weight_dtype)
        hidden = norm(hidden)
        return hidden


FORWARD = Olmo2
