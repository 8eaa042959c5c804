"""PyTorch's DistributedDataParallel: every device has everything, and gradients are averaged in buckets.

Source: torch 2.13, torch/nn/parallel/distributed.py; torch/csrc/distributed/c10d/reducer.cpp (Reducer).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

from vramplan.replay.gradients import gradient_states
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.sharding.units import ShardedWeight
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques import Shards
from vramplan.replay.tensors import BYTE, Parameter, Tensor

COMMUNICATION = "communication"  # component of the answer

BUCKET_BYTES = 25 * 2**20  # torch/nn/parallel/distributed.py, default of bucket_cap_mb
FIRST_BUCKET_BYTES = 2**20  # torch/csrc/distributed/c10d/reducer.hpp, kDefaultFirstBucketBytes


class Replicated(Shards):
    """Buckets as large as all gradients, for the whole run; gradients beside them, or views of them."""

    walks_others = False  # nobody wraps a model that does not train

    def __init__(
        self,
        tape: Tape,
        *,
        bucket_views: bool,
        resident: bool,
        outside: Callable[[], Sequence[ShardedWeight]],
    ) -> None:
        self.tape = tape
        self.resident = resident and not bucket_views
        self.accumulated: dict[Parameter, Tensor] | None = {} if resident and bucket_views else None
        self.bucket_views = bucket_views
        self.arrived: list[Parameter] = []  # in the order in which their gradients were complete
        self.outside = outside  # what is in no block
        self.later: list[int] = []  # bytes of gradients whose weights are made behind the blocks
        self.of_later: Tensor | None = None  # what stands for them
        self.in_block = False

    def units(self, make: Callable[[int], Any]) -> Callable[[int], Any]:
        """Blocks stay what they are."""

        def build(number: int) -> Any:
            self.in_block = True
            try:
                return make(number)
            finally:
                self.in_block = False

        return build

    def made(self, parameter: Parameter) -> None:
        """Earlier micro-steps left a gradient of it, which is no view yet.

        Source: reducer.cpp, Reducer::autograd_hook, which does nothing under no_sync.
        """
        if self.accumulated is not None and parameter.node is not None:
            if self.later and not self.in_block:
                self._stand_for(self.later[1:])
            made = self.tape.new("gradients", parameter.shape, parameter.dtype, False, category="gradients")
            self.accumulated[parameter] = made

    def after_accumulate(self, parameter: Parameter) -> None:
        """A gradient becomes a view of its bucket, and goes.

        Source: reducer.cpp, Reducer::mark_variable_ready_dense.
        """
        self.arrived.append(parameter)
        if not self.bucket_views:
            return
        parameter.grad = None
        if self.accumulated is not None:
            self.accumulated.pop(parameter, None)

    def before_forward(self) -> None:
        """Some parameters are there already; the gradients of those that are made behind the blocks are there too."""
        for one in self.tape.parameters:
            self.made(one)
        if self.accumulated is not None:
            trained = [one for one in self.outside() if one.trained]
            sizes = [rounded(prod(one.shape) * one.dtype.itemsize) for one in trained]
            self._stand_for(sizes[len(self.accumulated) :])

    def _stand_for(self, later: list[int]) -> None:
        self.later, self.of_later = later, None
        if later:
            self.of_later = self.tape.new("gradients", (sum(later),), BYTE, False, category="gradients")

    def before_backward(self, loss: Tensor) -> Tensor:
        """Every weight is there."""
        self._stand_for([])
        return loss

    def after_backward(self) -> list[Parameter]:
        """Every device steps every parameter; a gradient that never came is none."""
        if self.accumulated:
            self.accumulated.clear()
        return self.tape.parameters

    def states(self) -> list[StandingState]:
        """The buckets, and the gradients of earlier micro-steps beside them.

        They are filled in the order in which gradients came in the first iteration (Reducer::rebuild_buckets), and
        have room for what the loss does not depend on too, of which there never is a gradient.
        Source: reducer.cpp, Reducer::initialize_buckets; Transformers' Trainer looks for unused parameters
        (`ddp_find_unused_parameters`).
        """
        trained = [one for one in self.tape.parameters if one.node is not None or one.idle]
        came = {id(one) for one in self.arrived}
        turned = [*(one for one in trained if id(one) not in came), *reversed(self.arrived)]
        states = [StandingState(COMMUNICATION, sum(rounded(size) for size in bucket_sizes(turned)), 0)]
        if self.resident:
            states += gradient_states([one for one in trained if not one.idle], False)
        return states

    def drop(self) -> None:
        """Nothing more will be asked."""
        self.accumulated = None
        self.arrived.clear()


def bucket_sizes(parameters: list[Parameter]) -> list[int]:
    """Bytes of each bucket: gradients in the order in which backward makes them, of one element type.

    Source: reducer.cpp, compute_bucket_assignment_by_size.
    """
    sizes: list[int] = []
    limit = {one.dtype: FIRST_BUCKET_BYTES for one in parameters}
    filling = {one.dtype: 0 for one in parameters}
    for one in last_first(parameters):
        filling[one.dtype] += one.elements * one.dtype.itemsize
        if filling[one.dtype] >= limit[one.dtype]:
            sizes.append(filling[one.dtype])
            filling[one.dtype], limit[one.dtype] = 0, BUCKET_BYTES
    return sizes + [size for size in filling.values() if size]


def last_first(parameters: list[Parameter]) -> Iterator[Parameter]:
    """Every parameter, those of repeated blocks block by block."""
    run: list[Parameter] = []
    for one in reversed(parameters):
        if run and run[0].path != one.path:
            yield from run * run[0].copies
            run.clear()
        run.append(one)
    if run:
        yield from run * run[0].copies
