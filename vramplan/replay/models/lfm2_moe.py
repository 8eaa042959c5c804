"""LFM2 with experts, as transformers 5.23 computes it (models/lfm2_moe/modeling_lfm2_moe.py): LFM2's blocks.

All of them but the first few have experts.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.autograd import dropped
from vramplan.replay.models import lfm2
from vramplan.replay.models.experts import GroupedExperts, Look, Routed, TopKRouter, experts_of
from vramplan.replay.models.llama import Rotary
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Recipe
from vramplan.replay.observers import Outer
from vramplan.replay.operators.contrastive import div
from vramplan.replay.operators.elementwise import add, add_scalar, mul_scalar
from vramplan.replay.operators.experts import gather_last, sigmoid, sum_last, top_k
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.views import view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor
from vramplan.values.model import ModelShape


class SigmoidRouter(TopKRouter):
    """Lfm2MoeTopKRouter: sigmoids, and a bias that only the choice sees, in a graph that leads nowhere."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        super().__init__(tape, recipe)
        self.bias = tape.constant((self.experts.routed,), recipe.buffer_dtype, False)

    def base(self, hidden: Tensor, look: Look | None = None) -> Routed:
        """The router as it is in the model; `look` gives its weight where an adapter changes it."""
        logits = linear(hidden, self.weight if look is None else look("gate.weight"))
        weights = sigmoid(logits)
        with dropped(hidden.tape) as _choice:
            _scores = add(weights, self.bias)
            _values, indices = top_k(_scores, self.experts.active)
        weights = gather_last(weights, indices)
        if self.experts.normalized:
            weights = div(weights, add_scalar(sum_last(weights)))
        weights = mul_scalar(weights)
        return logits, weights, indices


class Mixture:
    """Lfm2MoeSparseMoeBlock."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        first = len(tape.parameters)
        self.experts = GroupedExperts(tape, recipe)
        self.gate = SigmoidRouter(tape, recipe)
        self.parameters = tuple(tape.parameters[first:])

    def __call__(self, hidden: Tensor) -> Tensor:
        shape = hidden.shape
        flat = view(hidden, (shape[0] * shape[1], shape[2]))
        with Outer(flat, whole=self.parameters):
            _logits, weights, indices = self.gate(flat)
            output = self.experts(flat, indices, weights)
        return view(output, shape)


class Block(lfm2.Block):
    """Lfm2MoeDecoderLayer."""

    def __init__(
        self, tape: Tape, recipe: Recipe, i: int, mask: Tensor | None, position_ids: Tensor | None, rotary: Rotary
    ) -> None:
        self.dense = i in experts_of(recipe).dense_layers
        super().__init__(tape, recipe, i, mask, position_ids, rotary)

    def feedforward(self, tape: Tape, recipe: Recipe) -> lfm2.MLP | Mixture:
        """Dense in the first blocks."""
        return lfm2.MLP(tape, recipe) if self.dense else Mixture(tape, recipe)


class Lfm2Moe(lfm2.Lfm2):
    """Lfm2MoeForCausalLM, with its loss."""

    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    block = Block

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> bool:
        """Whether a block has a convolution; each kind has its mask."""
        return lfm2.Lfm2.block_kind(shape, block)

    @staticmethod
    def make_up(shape: ModelShape, block: int) -> object:
        """What the modules of a block are."""
        assert shape.experts is not None
        return lfm2.Lfm2.block_kind(shape, block), block in shape.experts.dense_layers

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies, twice, in fp32, and a bias of each router.

        The bias has the dtype of the weights, as after `model.to(dtype)`.
        """
        shape, experts = self.recipe.shape, experts_of(self.recipe)
        itemsize = self.recipe.buffer_dtype.itemsize
        return [*super().buffers(), *[itemsize * experts.routed] * (shape.layers - len(experts.dense_layers))]


FORWARD = Lfm2Moe
