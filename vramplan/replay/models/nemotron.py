"""Nemotron 3 and 4, and Minitron, as transformers 5.23 computes them (models/nemotron/modeling_nemotron.py): Arcee's
feed-forward layer, layer norms whose weight is around 0, and rotary positions on a part of each head.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.replay.models import rope
from vramplan.replay.models.arcee import MLP
from vramplan.replay.models.llama import Attention as LlamaAttention
from vramplan.replay.models.llama import Block as LlamaBlock
from vramplan.replay.models.llama import Llama, Rotary
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE
from vramplan.replay.models.modules import LayerNorm as PlainLayerNorm
from vramplan.replay.models.neox import apply_rotary
from vramplan.replay.operators.elementwise import add_scalar
from vramplan.replay.operators.normalised import layer_norm
from vramplan.replay.operators.views import to
from vramplan.replay.tensors import DType, Tensor


def cast_all(dtype: DType | None, *given: Tensor | None) -> Iterator[Tensor | None]:
    """_cast_if_autocast_enabled: each tensor in the element type of autocast, which keeps none of these casts."""
    for one in given:
        yield one if dtype is None or one is None else to(one, dtype)


class LayerNorm(PlainLayerNorm):
    """NemotronLayerNorm1P: the weight plus 1, under autocast all in its element type."""

    def __call__(self, x: Tensor) -> Tensor:
        tape = x.tape
        outer = tape.autocast
        given, weight, bias = cast_all(outer, x, add_scalar(self.weight), self.bias)
        assert given is not None
        tape.autocast = None
        try:
            return layer_norm(given, weight, bias)
        finally:
            tape.autocast = outer


class Attention(LlamaAttention):
    """NemotronAttention."""

    turn = staticmethod(apply_rotary)


class Block(LlamaBlock):
    """NemotronDecoderLayer."""

    attention = Attention
    norm = LayerNorm
    feed_forward = MLP


class PartlyTurned(Llama):
    """A model whose rotary positions turn a part of each head."""

    @property
    def rotated(self) -> int:
        """Elements of each head that have rotary positions."""
        return int(self.recipe.shape.head_size * self.recipe.shape.partial_rotary_factor)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies, kept twice, in fp32."""
        return [4 * (self.rotated // 2)] * 2

    def kept(self) -> list[int]:
        """Bytes that scaled rotary positions keep from one step to the next."""
        return rope.kept(self.recipe, self.rotated)

    def rotary(self, hidden: Tensor, size: int | None = None) -> Rotary:
        """The cosines and sines of all positions."""
        return super().rotary(hidden, size or self.rotated)


class Nemotron(PartlyTurned):
    """NemotronForCausalLM, with its loss."""

    has_tensor_plan = True
    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    hands_groups_on = True  # `use_gqa_in_sdpa`
    text_block = Block


FORWARD = Nemotron
