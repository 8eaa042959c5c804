"""MoELayer of megatron-core 0.16 (core/transformer/moe/moe_layer.py): a router, a dispatcher, and a device's experts.

Names that start with an underscore are locals of that code which outlive their use.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from vramplan.engines.megatron.adapters import Beside, Form, beside
from vramplan.engines.megatron.expert_capacity import (
    places_of_capacity,
    sorted_rooms,
    weights_of_capacity,
    within_capacity,
)
from vramplan.engines.megatron.fp8 import fp8_linear
from vramplan.engines.megatron.layers import ColumnParallelLinear, DuplicatedLinear, RowParallelLinear
from vramplan.engines.megatron.tensor_parallel import parallel_linear, swiglu
from vramplan.engines.megatron.token_dispatcher import (
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
    weighted_squared_relu,
    weighted_swiglu,
)
from vramplan.replay.models.modules import Recipe
from vramplan.replay.operators.elementwise import add, gelu
from vramplan.replay.operators.experts import top_k
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.views import cat, contiguous, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Parameter, Tensor, round_up

if TYPE_CHECKING:
    from vramplan.values.model import Experts

EXPERTS = "experts"  # the part of a model that expert parallelism divides


def experts_of(recipe: Recipe) -> Experts:
    """The mixture of the model."""
    found = recipe.shape.experts
    assert found is not None
    return found


def tokens_of(recipe: Recipe) -> int:
    """Tokens of one sample that a device routes."""
    return recipe.sequence_length // (recipe.slice.tensor if recipe.slice.sequence_parallel else 1)


def room_of_each(recipe: Recipe) -> int:
    """Tokens of one sample that each expert takes at most of those that one device routes.

    Megatron rounds up once for a micro-batch, here each sample is: the difference is less than a token of each.
    Source: moe_utils.py, get_capacity.
    """
    mixture, factor = experts_of(recipe), recipe.slice.capacity
    assert factor is not None
    return ceil(tokens_of(recipe) * mixture.active / mixture.routed * factor)


def rows_sent(recipe: Recipe) -> int:
    """Tokens of one sample that a device sends, each as often as it has experts, where least are dropped."""
    mixture, part = experts_of(recipe), recipe.slice
    chosen = tokens_of(recipe) * mixture.active
    if part.capacity is None:
        return chosen
    rooms = room_of_each(recipe) * mixture.routed
    return rooms if part.pads else min(chosen, rooms)


def rows_of_each(recipe: Recipe) -> int:
    """Tokens of one sample that each expert of the most loaded device gets, from all devices that share them.

    On average as many as the device has itself, times the experts of a token; `expert_imbalance` times that, and never
    more than all tokens there are, nor than it takes. A padded expert gets what it takes, whatever was chosen.
    """
    part, experts = recipe.slice, experts_of(recipe)
    room = None if part.capacity is None else room_of_each(recipe) * part.expert * part.tensor
    if room is not None and part.pads:
        return room
    tokens = recipe.sequence_length  # of one device, or of those that share each expert together
    here = experts.routed // part.expert
    load = part.imbalance if part.expert > 1 else 1.0  # one device has them all, however they are loaded
    rows = -(-int(tokens * experts.active * load * 1024) // (here * 1024))
    rows = min(rows, tokens * part.expert)
    return round_up(rows if room is None else min(rows, room), part.tensor)


class Expert:
    """MLP of one expert: both of its matrices may be split over the tensor-parallel devices.

    `groups`: it stands for so many experts, whose matrices lie in one.
    """

    def __init__(self, tape: Tape, recipe: Recipe, groups: int = 1) -> None:
        self.groups = groups
        mixture, self.gated = experts_of(recipe), recipe.shape.gated_mlp
        hidden, inner = (
            mixture.latent_size or recipe.shape.hidden_size,
            mixture.intermediate_size // recipe.slice.tensor,
        )
        width = inner * (2 if self.gated else 1)
        self.fc1 = self.matrix(tape, recipe, "linear_fc1.weight", (width * groups, hidden))
        self.fc2 = self.matrix(tape, recipe, "linear_fc2.weight", (hidden * groups, inner))
        self.biases: tuple[Parameter | None, Parameter | None] = (None, None)
        if recipe.shape.mlp_bias:
            with tape.building(EXPERTS):
                first = tape.parameter("linear_fc1.bias", self.fc1.shape[:1], recipe.weight_dtype)
                self.biases = first, tape.parameter("linear_fc2.bias", (hidden * groups,), recipe.weight_dtype)
        self.product = fp8_linear if recipe.float8 else parallel_linear
        self.adapters: tuple[Beside | None, Beside | None] = (None, None)

    def adapted(self, tape: Tape, recipe: Recipe) -> tuple[Beside | None, Beside | None]:
        """The adapters of its two layers, which all experts of a device share, as those of grouped layers do.

        Source: Megatron-Bridge, src/megatron/bridge/peft/lora.py, share_expert_adapters.
        """
        with tape.building(EXPERTS):
            of_fc1 = beside(tape, self.fc1, "linear_fc1", recipe, Form(groups=self.groups))
            return of_fc1, beside(tape, self.fc2, "linear_fc2", recipe, Form(row=True, groups=self.groups))

    @staticmethod
    def matrix(tape: Tape, recipe: Recipe, name: str, shape: tuple[int, int]) -> Parameter:
        """A weight of the part that expert parallelism divides."""
        with tape.building(EXPERTS):
            made = tape.parameter(name, shape, recipe.weight_dtype)
        made.in_linear = True
        return made

    def __call__(self, tokens: Tensor, weights: Tensor) -> Tensor:
        of_fc1, of_fc2 = self.adapters
        _inner = self.product(tokens, self.fc1, self.biases[0], groups=self.groups)
        if of_fc1 is not None:
            _inner = of_fc1(_inner, tokens)
        _activated = (weighted_swiglu if self.gated else weighted_squared_relu)(_inner, weights)
        out = self.product(_activated, self.fc2, self.biases[1], groups=self.groups)
        return out if of_fc2 is None else of_fc2(out, _activated)


PLAYED = 16  # experts of a device that are replayed one by one; of more several stand in one, as grouped products do


def groups_of(here: int) -> int:
    """How many experts of a device stand in one, so that no more than those are replayed."""
    return next(size for size in range(1, here + 1) if here % size == 0 and here // size <= PLAYED)


class SharedExperts:
    """SharedExpertMLP: what every token passes, split over the tensor-parallel devices like a plain MLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        inner, hidden = experts_of(recipe).shared_intermediate_size, recipe.shape.hidden_size
        assert inner is not None
        self.gated = recipe.shape.gated_mlp
        width = inner * (2 if self.gated else 1)
        self.linear_fc1 = ColumnParallelLinear(tape, recipe, "linear_fc1", hidden, width, bias=False)
        self.linear_fc2 = RowParallelLinear(tape, recipe, "linear_fc2", inner, hidden, bias=False)

    def __call__(self, hidden: Tensor) -> Tensor:
        inner = self.linear_fc1(hidden)
        if not self.gated:
            return self.linear_fc2(gelu(inner))[0]  # a squared ReLU is fused, and keeps its input as gelu does
        length, batch, width = inner.shape
        inner = view(swiglu(view(inner, (length * batch, width)), None), (length, batch, width // 2))
        return self.linear_fc2(inner)[0]


class MoELayer:
    """MoELayer with TopKRouter, MoEAlltoAllTokenDispatcher and SequentialMLP."""

    sharing: type[SharedExperts] = SharedExperts

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.recipe, self.mixture = recipe, experts_of(recipe)
        shape = (self.mixture.routed, recipe.shape.hidden_size)
        self.router = tape.parameter("router.weight", shape, recipe.weight_dtype)
        here = self.mixture.routed // recipe.slice.expert
        groups = groups_of(here)
        self.experts = [Expert(tape, recipe, groups) for _ in range(here // groups)]
        self.here = here
        self.shared = None if self.mixture.shared_intermediate_size is None else self.sharing(tape, recipe)
        self.latents: tuple[DuplicatedLinear, DuplicatedLinear] | None = None
        narrow, hidden = self.mixture.latent_size, recipe.shape.hidden_size
        if narrow is not None:
            into = DuplicatedLinear(tape, recipe, "fc1_latent_proj", hidden, narrow)
            self.latents = into, DuplicatedLinear(tape, recipe, "fc2_latent_proj", narrow, hidden)
        adapters = self.experts[0].adapted(tape, recipe)
        for expert in self.experts:
            expert.adapters = adapters

    def __call__(self, hidden: Tensor) -> tuple[Tensor, None]:
        part, mixture, shape = self.recipe.slice, self.mixture, hidden.shape
        tokens = shape[0] * shape[1]
        sent = rows_sent(self.recipe) * shape[1]
        received = rows_of_each(self.recipe) * shape[1] * self.here // part.tensor
        _shared = None if self.shared is None else self.shared(hidden)
        rows = view(hidden, (tokens, shape[2]))
        weights, chosen = self.route(rows)
        if self.latents is not None:
            narrow = self.latents[0](hidden)
            rows = view(narrow, (tokens, narrow.shape[2]))
            del narrow
        width = rows.shape[1]
        if part.pads:
            indices = places_of_capacity(chosen, sent // mixture.routed)
            weights = weights_of_capacity(weights, indices)
        else:
            mask = contiguous(transpose(chosen, 0, 1))
            indices = indices_of(rows, mask, sent)
            weights = masked_select(contiguous(transpose(weights, 0, 1)), mask, sent)
            del mask
        _permuted = copied_rows(rows, indices)
        del rows
        _dispatched = all_to_all(_permuted, received, part.expert)
        weights = all_to_all(weights, received, part.expert)
        output = self.compute(_dispatched, weights)
        output = all_to_all(output, sent, part.expert)
        found = view(sum_rows(output, indices, tokens), (*shape[:2], width))
        if self.latents is not None:
            found = self.latents[1](found)
        return (found if _shared is None else add(found, _shared)), None

    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """TopKRouter.forward."""
        mixture, part = self.mixture, self.recipe.slice
        _logits = gating(rows, self.router)
        if mixture.active == 1:  # --moe-router-pre-softmax, without which Megatron refuses it
            probabilities, indices = top_k(to(softmax(_logits, FP32), _logits.dtype), 1)
        else:
            scores, indices = top_k(_logits, mixture.active)
            probabilities = to(softmax(scores, FP32), _logits.dtype)
        if part.capacity is None:
            return routed(probabilities, indices, mixture.routed)
        weights, chosen = routed(probabilities, indices, mixture.routed, kept=False)
        room = room_of_each(self.recipe) * (rows.shape[0] // tokens_of(self.recipe))
        return within_capacity(weights, chosen, room, pad=part.pads)

    def compute(self, rows: Tensor, weights: Tensor) -> Tensor:
        """MoELayer.routed_experts_compute."""
        devices, here = self.recipe.slice.tensor, self.here
        rows, weights = gather_rows(rows, devices), gather_rows(weights, devices)
        if here > 1:
            rows, weights = self.sorted(rows), self.sorted(weights)
        _output = self.each(rows, weights)
        output = self.sorted(_output) if here > 1 else _output
        return reduce_scatter_rows(output, devices)

    def sorted(self, rows: Tensor) -> Tensor:
        """Rows in the order of the experts, or back in that of the devices."""
        part = self.recipe.slice
        if part.pads:
            return sorted_rooms(rows, part.expert * part.tensor, self.here)
        return sort_chunks(rows)

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
    routed_experts, itemsize = experts_of(recipe).routed, recipe.weight_dtype.itemsize
    return kept_by_dispatcher(tokens_of(recipe), routed_experts, rows_sent(recipe), itemsize)
