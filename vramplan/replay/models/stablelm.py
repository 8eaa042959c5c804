"""StableLM, as transformers 5.23 computes it (models/stablelm/modeling_stablelm.py): Llama with layer norms, rotary
positions on a part of each head, and of some models attention and feed-forward layer beside each other.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.models.cores import attend
from vramplan.replay.models.llama import Attention as LlamaAttention
from vramplan.replay.models.llama import Block as LlamaBlock
from vramplan.replay.models.llama import Rotary, apply_rotary
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, LayerNorm, Recipe, as_is
from vramplan.replay.models.nemotron import PartlyTurned
from vramplan.replay.models.projections import three
from vramplan.replay.models.recomputed import cached
from vramplan.replay.operators.elementwise import add, dropout
from vramplan.replay.operators.views import cat, contiguous, narrow, split, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor


class NormPerHead:
    """StableLmLayerNormPerHead: a norm of its own for each head of [B, a, S, d]."""

    def __init__(self, tape: Tape, recipe: Recipe, name: str, heads: int) -> None:
        size, dtype = recipe.shape.head_size, recipe.weight_dtype
        self.norms = [LayerNorm(tape, f"{name}.norms.{i}", size, dtype, bias=False) for i in range(heads)]

    def __call__(self, hidden: Tensor) -> Tensor:
        _states = split(hidden, 1, 1)
        return cat([norm(one) for norm, one in zip(self.norms, _states, strict=True)], 1)


class Attention(LlamaAttention):
    """StableLmAttention."""

    def norm(self, tape: Tape, name: str, heads: int) -> Callable[[Tensor], Tensor]:
        """What normalises queries or keys of so many heads."""
        return NormPerHead(tape, self.recipe, name, heads) if self.recipe.shape.qk_norm else as_is

    def projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each with its heads before its positions, in which they are normalised."""
        query, key, value = (self.heads(made()) for made in three(self, hidden))
        query = self.q_norm(query)
        key = self.k_norm(key)
        return query, key, value

    def __call__(
        self, hidden: Tensor, mask: Tensor | None, position_ids: Tensor | None, rotary: Rotary | None
    ) -> tuple[Tensor, Tensor | None]:
        assert rotary is not None
        recipe = self.recipe
        shape = recipe.shape
        batch, length, _ = hidden.shape
        query, key, value = self.projected(hidden)
        cos, sin = rotary
        rotated = cos.shape[-1]
        rest = shape.head_size - rotated
        query_rot, query_pass = narrow(query, -1, rotated), narrow(query, -1, rest)
        key_rot, key_pass = narrow(key, -1, rotated), narrow(key, -1, rest)
        query_rot, key_rot = apply_rotary(query_rot, key_rot, cos, sin)
        query = cat([query_rot, query_pass], -1)
        key = cat([key_rot, key_pass], -1)
        key, value = cached(key, value)
        output, weights = attend(recipe, query, key, value, mask, position_ids)
        output = contiguous(view(output, (batch, length, shape.attention_heads * shape.head_size)))
        output = self.o_proj(output)
        return output, weights


class Block(LlamaBlock):
    """StableLmDecoderLayer."""

    attention = Attention
    norm = LayerNorm

    def __init__(
        self,
        tape: Tape,
        recipe: Recipe,
        mask: Tensor | None,
        position_ids: Tensor | None,
        rotary: Rotary,
        block: int = 0,
    ) -> None:
        if recipe.shape.parallel_residual:
            self.norm_names = self.norm_names[:1]
        super().__init__(tape, recipe, mask, position_ids, rotary, block)
        self.p = recipe.hidden_dropout

    def __call__(self, hidden: Tensor) -> Tensor:
        before, *before_mlp = self.norms
        residual = hidden
        hidden = before(hidden)
        attention, _weights = self.self_attn(hidden, self.mask, self.position_ids, self.rotary)
        if not before_mlp:
            feed_forward = self.mlp(hidden)
            feed_forward = dropout(feed_forward, self.p)
            hidden = add(add(residual, attention), feed_forward)
        else:
            residual = add(residual, attention)
            feed_forward = self.mlp(before_mlp[0](residual))
            feed_forward = dropout(feed_forward, self.p)
            hidden = add(residual, feed_forward)
        return hidden


class StableLm(PartlyTurned):
    """StableLmForCausalLM, with its loss."""

    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    hands_groups_on = True  # `use_gqa_in_sdpa`
    text_block = Block


FORWARD = StableLm
