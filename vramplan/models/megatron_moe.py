"""MoELayer of megatron-core 0.16 (core/transformer/moe/moe_layer.py): a router, a dispatcher, and a device's experts.

Names that start with an underscore are locals of that code which outlive their use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.models.modules import Recipe
from vramplan.tape.dispatch import (
    all_to_all,
    copied_rows,
    gather_rows,
    gating,
    indices_of,
    kept_by_dispatcher,
    masked_select,
    reduce_scatter_rows,
    routed,
    sort_chunks,
    split_rows,
    sum_rows,
    weighted_swiglu,
)
from vramplan.tape.experts import top_k
from vramplan.tape.operators import softmax
from vramplan.tape.tape import Tape
from vramplan.tape.tensor_parallel import parallel_linear
from vramplan.tape.tensors import FP32, Parameter, Tensor, round_up
from vramplan.tape.views import cat, contiguous, to, transpose, view

if TYPE_CHECKING:
    from vramplan.spec import Experts

EXPERTS = "experts"  # the part of a model that expert parallelism divides


def experts_of(recipe: Recipe) -> Experts:
    """The mixture of the model."""
    found = recipe.shape.experts
    assert found is not None
    return found


def rows_of_each(recipe: Recipe) -> int:
    """Tokens of one sample that each expert of the most loaded device gets, from all devices that share them.

    On average as many as the device has itself, times the experts of a token; `expert_imbalance` times that, and never
    more than all tokens there are.
    """
    part, experts = recipe.slice, experts_of(recipe)
    tokens = recipe.sequence_length  # of one device, or of those that share each expert together
    here = experts.routed // part.expert
    load = part.imbalance if part.expert > 1 else 1.0  # one device has them all, however they are loaded
    rows = -(-int(tokens * experts.active * load * 1024) // (here * 1024))
    return round_up(min(rows, tokens * part.expert), part.tensor)


class Expert:
    """MLP of one expert: both of its matrices may be split over the tensor-parallel devices."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        hidden, inner = recipe.shape.hidden_size, experts_of(recipe).intermediate_size // recipe.slice.tensor
        self.fc1 = self.matrix(tape, recipe, "linear_fc1.weight", (2 * inner, hidden))
        self.fc2 = self.matrix(tape, recipe, "linear_fc2.weight", (hidden, inner))

    @staticmethod
    def matrix(tape: Tape, recipe: Recipe, name: str, shape: tuple[int, int]) -> Parameter:
        """A weight of the part that expert parallelism divides."""
        with tape.building(EXPERTS):
            made = tape.parameter(name, shape, recipe.weight_dtype)
        made.in_linear = True
        return made

    def __call__(self, tokens: Tensor, weights: Tensor) -> Tensor:
        _inner = parallel_linear(tokens, self.fc1)
        _activated = weighted_swiglu(_inner, weights)
        return parallel_linear(_activated, self.fc2)


class MoELayer:
    """MoELayer with TopKRouter, MoEAlltoAllTokenDispatcher and SequentialMLP; nothing is dropped."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.recipe, self.mixture = recipe, experts_of(recipe)
        shape = (self.mixture.routed, recipe.shape.hidden_size)
        self.router = tape.parameter("router.weight", shape, recipe.weight_dtype)
        self.experts = [Expert(tape, recipe) for _ in range(self.mixture.routed // recipe.slice.expert)]

    def __call__(self, hidden: Tensor) -> tuple[Tensor, None]:
        part, mixture, shape = self.recipe.slice, self.mixture, hidden.shape
        tokens = shape[0] * shape[1]
        sent = tokens * mixture.active
        received = rows_of_each(self.recipe) * shape[1] * len(self.experts) // part.tensor
        rows = view(hidden, (tokens, shape[2]))
        weights, chosen = self.route(rows)
        mask = contiguous(transpose(chosen, 0, 1))
        indices = indices_of(rows, mask, sent)
        weights = masked_select(contiguous(transpose(weights, 0, 1)), mask, sent)
        _permuted = copied_rows(rows, indices)
        del mask, rows
        _dispatched = all_to_all(_permuted, received, part.expert)
        weights = all_to_all(weights, received, part.expert)
        output = self.compute(_dispatched, weights)
        output = all_to_all(output, sent, part.expert)
        return view(sum_rows(output, indices, tokens), shape), None

    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """TopKRouter.forward."""
        _logits = gating(rows, self.router)
        scores, indices = top_k(_logits, self.mixture.active)
        probabilities = to(softmax(scores, FP32), _logits.dtype)
        return routed(probabilities, indices, self.mixture.routed)

    def compute(self, rows: Tensor, weights: Tensor) -> Tensor:
        """MoELayer.routed_experts_compute."""
        devices, here = self.recipe.slice.tensor, len(self.experts)
        rows, weights = gather_rows(rows, devices), gather_rows(weights, devices)
        if here > 1:
            rows, weights = sort_chunks(rows), sort_chunks(weights)
        _output = self.each(rows, weights)
        output = sort_chunks(_output) if here > 1 else _output
        return reduce_scatter_rows(output, devices)

    def each(self, rows: Tensor, weights: Tensor) -> Tensor:
        """SequentialMLP.forward."""
        here, width = len(self.experts), rows.shape[1]
        if here == 1:
            out = self.experts[0](view(rows, (rows.shape[0], 1, width)), weights)
            return view(out, rows.shape)
        outputs = []
        for expert, tokens, scale in zip(self.experts, split_rows(rows, here), split_rows(weights, here), strict=True):
            outputs.append(view(expert(view(tokens, (tokens.shape[0], 1, width)), scale), tokens.shape))
        return cat(outputs, 0)


def kept_bytes(recipe: Recipe) -> list[int]:
    """Of one sample, what each dispatcher keeps until the next micro-batch."""
    mixture, part = experts_of(recipe), recipe.slice
    tokens = recipe.sequence_length // (part.tensor if part.sequence_parallel else 1)
    return kept_by_dispatcher(tokens, mixture.routed, mixture.active, recipe.weight_dtype.itemsize)
