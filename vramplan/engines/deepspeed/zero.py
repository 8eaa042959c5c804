"""DeepSpeed's ZeRO, stages 1 and 2: each device steps its part of one flat buffer; gradients pass through a bucket.

Every device has all weights in 16 bits. Stage 1 has whole gradients until backward is over, stage 2 those that are on
their way into the bucket alone; of both the averaged gradients of a device's own part are kept in one buffer, in which
each parameter that has something in the part is whole.

To use it for parameters that tensor or pipeline parallelism has split already, give `ZeroIteration` the order of the
local parameters (`zero_layout.Order`: their sizes, the blocks that they are in, the order of their gradients) and the
number of data-parallel devices that share them; everything else follows.

Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/stage_1_and_2.py (DeepSpeedZeroOptimizer); deepspeed/runtime/engine.py
(DeepSpeedEngine.backward); deepspeed/ops/adam/fused_adam.py (FusedAdam).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from vramplan.engines.deepspeed.layout import Flush, Layout, flushes
from vramplan.engines.deepspeed.order import Order
from vramplan.engines.deepspeed.start import Weight, start_of_stages_1_and_2
from vramplan.engines.deepspeed.worst_device import DeviceHoldings, Worst, WorstDevicePolicy
from vramplan.replay.observers import Accumulation, Resident
from vramplan.replay.operators.elementwise import mul_scalar
from vramplan.replay.optimizers import STEP_COUNTER_BYTES, numbers_on_device, step_group
from vramplan.replay.record import Record
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques import Shards
from vramplan.replay.tensors import BOOL, BYTE, FP32, FP64, DType, Parameter, Tensor
from vramplan.values.parallel import MOST_GRADIENTS

COMMUNICATION = "communication"  # component of the answer

OVERFLOW_BUFFER_BYTES = rounded(4)  # of FusedAdam: one int32 (_dummy_overflow_buf)
NORM_BYTES = rounded(4)  # the total norm of the last step, which the engine keeps (_global_grad_norm)


def scale_by_norm(tape: Tape) -> None:
    """The factor that bounds the norm of a flat gradient, which it is multiplied by in place.

    Source: stage_1_and_2.py and stage3.py, unscale_and_clip_grads.
    """
    _clip = tape.new("clamp", (), FP32, False)
    _combined = tape.new("mul", (), FP32, False)
    inverse = tape.new("reciprocal", (), FP32, False)
    factor = tape.new("mul", (), FP32, False)
    del inverse, factor


def step_flat(tape: Tape, elements: int, steps: tuple[str, str] | None) -> None:
    """The scratch of PyTorch's own optimizer over one flat tensor in fp32.

    Source: stage_1_and_2.py and stage3.py, _optimizer_step.
    """
    if steps is not None:
        step_group(tape, [Parameter(tape, "flat", (elements,), FP32, 1, True)], *steps)


def left_of_whole(sizes: Sequence[int], dtype: DType, steps: tuple[str, str] | None) -> int:
    """Bytes of what PyTorch's Adagrad made of whole parameters, before DeepSpeed cut them and made another Adagrad.

    The engine keeps the first one. A model that `deepspeed.zero.Init` has cut before leaves nothing.
    Source: torch/optim/adagrad.py, Adagrad.__init__; stage_1_and_2.py and stage3.py, initialize_optimizer_states;
    engine.py, _configure_optimizer (basic_optimizer).
    """
    if steps is None or steps[0] != "adagrad":
        return 0
    counts = numbers_on_device(*steps, master=False) * STEP_COUNTER_BYTES
    return sum(rounded(size * dtype.itemsize) + counts for size in sizes)


class ZeroIteration(Shards):
    """The walk of one iteration: buckets, the part's own gradients, and the step."""

    clips = True  # the norm of all gradients is taken whether they are clipped or not
    divides_loss = True
    walks_others = False  # the engine is around the model that trains alone
    steps_on_host = False

    def __init__(self, tape: Tape, policy: WorstDevicePolicy, order: Order) -> None:
        self.tape, self.policy, self.order = tape, policy, order
        self.layout = Layout(order.sizes, policy.shards)
        most = self.layout.most_loaded(last=policy.partitions_gradients)
        follows = policy.rank is None and policy.shards > 1
        self.rank = most if policy.rank is None or policy.rank == MOST_GRADIENTS else policy.rank
        # stage 1 waits until all of backward is over, unless it is told to overlap
        self.averages_as_they_come = policy.partitions_gradients or policy.overlap_comm
        arrivals = order.arrivals if self.averages_as_they_come else sorted(order.arrivals)
        self.flushes = flushes(self.layout, arrivals, policy.reduce_bucket_size, self.rank)
        self.arrivals = arrivals
        self.worst = self.follow() if follows else None
        self.walks = 0
        self.came = 0  # gradients until now
        self.buckets: list[Tensor] = []
        self.large: Parameter | None = None  # whose gradient has no room in any bucket
        self.left: list[Tensor] = []  # such gradients that stage 1 has no use for, and keeps
        self.looked_at: list[tuple[int, int]] = []  # from which event on which device
        self.held: DeviceHoldings | None = None  # what the device has that is looked at, where that changes
        self.own: Tensor | None = None  # averaged gradients of the parameters of the part
        self.earlier: Tensor | None = None  # those of earlier micro-steps
        self.accumulated: dict[Parameter, Tensor] = {}  # whole gradients of earlier micro-steps
        self.later: list[int] = []  # elements of those whose parameters are made behind the blocks
        self.of_later: Tensor | None = None  # what stands for them
        self.of_blocks: list[Tensor] = []  # what stands for those of all blocks
        self.in_block = self.has_begun = False
        self.outside: list[Parameter] = []  # what is trained in no block, as it was made
        self.padding: Tensor | None = None
        self.losses: list[Tensor] = []
        self.stepped: list[int] = []  # the flat gradient, as a storage
        if policy.accumulating and not policy.partitions_gradients:
            tape.enlist(Accumulation, Resident())

    def follow(self) -> Worst:
        """The walk over the devices."""
        return Worst(self.layout, self.policy, self.arrivals, self.flushes)

    # ------------------------------------------------------------------------------------------------ the model
    def units(self, make: Callable[[int], Any]) -> Callable[[int], Any]:
        """Blocks stay what they are."""
        self.walks += 1

        def build(number: int) -> Any:
            self.in_block = True
            try:
                return make(number)
            finally:
                self.in_block = False

        return build

    def apart(self) -> list[int]:
        """The blocks of this walk in whose backward a bucket is averaged, or that bring the first gradient."""
        if not self.averages_as_they_come:
            return []
        coming = [one for one in (0, *self.flushes) if one < len(self.arrivals)]
        places = [self.order.places[self.arrivals[one]] for one in coming]
        return sorted({place[1] for place in places if place is not None and place[0] == self.walks - 1})

    def made(self, parameter: Parameter) -> None:
        """Stage 1: earlier micro-steps left a gradient of it. What is made before the iteration is seen then."""
        if not self.has_begun:
            return
        if parameter.node is not None and not self.in_block:
            self.outside.append(parameter)
        if self.of_blocks and self.in_block:
            return
        if self.tape.role(Accumulation).resident and parameter.node is not None:
            if self.later and not self.in_block:
                self._stand_for(self.later[1:])
            made = self.tape.new("gradients", parameter.shape, parameter.dtype, False, category="gradients")
            self.accumulated[parameter] = made

    def begin(self) -> None:
        """What is there when the iteration begins."""
        self.has_begun = True
        for one in self.tape.parameters:
            self.made(one)

    def before_forward(self) -> None:
        """Earlier micro-steps left gradients: stage 1 whole ones, and its bucket; stage 2 those of the part."""
        self.begin()
        if not self.policy.accumulating:
            return
        self._stand_for_all()
        if self.policy.partitions_gradients:
            self.earlier = self._own_gradients()
        else:
            self._make_buckets()

    def _stand_for_all(self) -> None:
        """Gradients of earlier micro-steps are there before the replay makes their parameters."""
        if self.tape.role(Accumulation).resident:
            if not self.averages_as_they_come:  # they stay until all are averaged
                self.of_blocks = self._of_blocks()
            self._stand_for([self.order.sizes[one] for one in self._numbers_outside()[len(self.outside) :]])

    def _of_blocks(self) -> list[Tensor]:
        """What stands for the gradients of all blocks, which are there before the first block runs.

        Of what an allocator plays, each gradient: one that is as large as all leaves a hole that nothing else fills.
        """
        sizes = [size for size, place in zip(self.order.sizes, self.order.places, strict=True) if place is not None]
        found = [rounded(size * self.policy.dtype.itemsize) for size in sizes]
        if not self.tape.unrolled:
            found = [sum(found)] if found else []
        return [self.tape.new("gradients", (size,), BYTE, False, category="gradients") for size in found]

    def _numbers_outside(self) -> list[int]:
        return [one for one in self.order.made if self.order.places[one] is None]

    def _stand_for(self, later: list[int]) -> None:
        """Gradients whose parameters the replay makes when forward comes to them are there all the same."""
        self.later, self.of_later = later, None
        if later:
            itemsize = self.policy.dtype.itemsize
            size = sum(rounded(one * itemsize) for one in later)
            self.of_later = self.tape.new("gradients", (size,), BYTE, False, category="gradients")

    def before_backward(self, loss: Tensor) -> Tensor:
        """The loss over the number of micro-steps, and scaled.

        Source: engine.py, DeepSpeedEngine.backward; base_optimizer.py, ZeROOptimizer.scale_if_loss.
        """
        mean = mul_scalar(loss)
        scaled = mul_scalar(mean)
        self.losses = [loss, mean, scaled]
        self._stand_for([])
        return scaled

    # ----------------------------------------------------------------------------------------------- gradients
    def _make_buckets(self) -> None:
        """Source: stage_1_and_2.py, setup_buckets."""
        policy = self.policy
        size = (policy.reduce_bucket_size,)
        for _ in range(2 if policy.overlap_comm else 1):
            self.buckets.append(self.tape.new("empty", size, policy.dtype, False, category=COMMUNICATION))

    def _own_gradients(self) -> Tensor:
        """Source: stage_1_and_2.py, copy_grads_in_partition."""
        size = (self.layout.whole_elements(self.rank),)
        return self.tape.new("empty", size, self.policy.dtype, False, category="gradients")

    def partly_accumulated(self, parameter: Parameter) -> None:
        """A gradient of a tile is there: nothing is averaged yet, but the bucket is made.

        Source: stage_1_and_2.py, process_gradients, which looks at `ds_grad_is_ready` after `setup_buckets`.
        """
        if not self.buckets:
            self._make_buckets()

    def after_accumulate(self, parameter: Parameter) -> None:
        """A gradient is complete: stage 2 puts it into the bucket, where there is room.

        Source: stage_1_and_2.py, process_gradients, reduce_independent_p_g_buckets_and_remove_grads.
        """
        if not self.buckets:
            self._make_buckets()
        if not self.averages_as_they_come:
            return
        flush = self.flushes.get(self.came)
        if flush is not None:
            self._average(flush)
        if parameter in self.accumulated:
            parameter.grad = self.accumulated.pop(parameter)
        if parameter.elements > self.policy.reduce_bucket_size:
            self.large = parameter
            self.set_aside(parameter)
        else:
            parameter.grad = None
        self.came += parameter.copies

    def set_aside(self, parameter: Parameter) -> None:
        """A gradient that has no room in any bucket stays where it is."""

    def keep_own(self, flush: Flush) -> None:
        """What belongs to the device's part is copied into its buffer."""
        if self.own is None:
            self.own = self._own_gradients()

    def _average(self, flush: Flush) -> None:
        """Source: stage_1_and_2.py, reduce_ipg_grads, allreduce_bucket."""
        for elements in flush.copies:
            copy = self.tape.new("cat", (elements,), self.policy.dtype, False, category=COMMUNICATION)
            del copy
        self.keep(flush)
        if self.large is not None:
            if self.worst is None and not flush.brings_own and not self.policy.partitions_gradients:
                assert self.large.grad is not None
                self.left.append(self.large.grad)
            self.large.grad = None
            self.large = None
            if self.worst is not None:
                self.look_at(self.worst.left(flush))

    def keep(self, flush: Flush) -> None:
        """What the device keeps of a bucket that was averaged."""
        if self.worst is not None:
            self.look_at(self.worst.kept(flush))
        elif flush.brings_own:
            self.keep_own(flush)

    def look_at(self, held: DeviceHoldings) -> None:
        """Go over to the device that holds most now: what the one before had goes, and what this one has is there."""
        if held == self.held:
            return
        had_earlier = self.earlier is not None
        self.own = self.earlier = None
        self.left.clear()
        self.rank, self.held = held.rank, held
        self.looked_at.append((len(self.tape.events), held.rank))
        if had_earlier:
            self.earlier = self._own_gradients()
        if held.has_own:
            self.own = self._own_gradients()
        for one in held.left:
            size = (self.layout.sizes[one],)
            self.left.append(self.tape.new("gradients", size, self.policy.dtype, False, category="gradients"))

    def after_backward(self) -> list[Parameter]:
        """Stage 1 averages all gradients, in the order of the parameters; stage 2 what is left in the bucket.

        Source: stage_1_and_2.py, reduce_gradients and independent_gradient_partition_epilogue.
        """
        if self.averages_as_they_come:
            last = self.flushes.get(len(self.arrivals))
            if last is not None:
                self._average(last)
            for one in self.tape.parameters:
                one.grad = None
        else:
            self._average_all()
        self.losses.clear()
        if self.earlier is not None:
            self.own, self.earlier = self.earlier, None
        if self.worst is not None:
            self.look_at(self.worst.averaged())
        self._pad()
        self.buckets.clear()
        self.left.clear()
        return [*self._parts(), *(one for one in self.tape.parameters if one.node is None and not one.idle)]

    def _pad(self) -> None:
        missing = self.layout.part - sum(self.layout.slices(self.rank))
        if missing:
            self.padding = self.tape.new("zeros", (missing,), self.policy.dtype, False, category="gradients")

    def _average_all(self) -> None:
        """Whole gradients go into the bucket one by one; each is freed when it is there."""
        sizes = [rounded(one * self.policy.dtype.itemsize) for one in self.order.sizes]
        for number, one in zip(self._numbers_outside(), self.outside, strict=False):
            if one.grad is not None and one.grad.storage is not None:  # which may be a view of something larger
                sizes[number] = self.tape.size_of(one.grad.storage)
        bounds = [0, *self.flushes]
        groups = [self.arrivals[low:high] for low, high in pairwise(bounds)]
        amounts = [sum(sizes[one] for one in group) for group in groups]
        held = self._let_go()
        if amounts:
            amounts[-1] += held - sum(amounts)  # those of blocks may be, too
        waiting = [self._booked(amount) for amount in amounts]
        waiting.reverse()
        for group, flush in zip(groups, self.flushes.values(), strict=True):
            large = self.order.sizes[group[0]] > self.policy.reduce_bucket_size
            if large:
                self._average(flush)
                if self.worst is None and not flush.brings_own:
                    self.left.append(waiting[-1])
            waiting.pop()
            if large and self.worst is not None:
                self.look_at(self.worst.left(flush))
            if not large:
                self._average(flush)

    def _let_go(self) -> int:
        """Forget all gradients, and say how many bytes they were: they are booked anew, in groups."""
        storages: dict[int, int] = {}
        for one in self.tape.parameters:
            gradient = self.accumulated.get(one) or one.grad
            if gradient is not None and gradient.storage is not None:
                storages[gradient.storage.index] = self.tape.size_of(gradient.storage) * one.copies
        self.accumulated.clear()
        for one in self.tape.parameters:
            one.grad = None
        for of_blocks in self.of_blocks:
            if of_blocks.storage is not None:
                storages[of_blocks.storage.index] = self.tape.size_of(of_blocks.storage)
        self.of_blocks.clear()
        return sum(storages.values())

    def _booked(self, size: int) -> Tensor:
        made = self.tape.new("gradients", (size,), BYTE, False, category="gradients")
        assert made.storage is not None
        self.tape.relabelled.add(made.storage.index)
        return made

    # ------------------------------------------------------------------------------------------------- the step
    def _parts(self) -> list[Parameter]:
        """The part of the flat buffer, as the optimizer sees it."""
        return [Parameter(self.tape, "flat", (self.layout.part,), self.policy.dtype, 1, True)]

    def before_step(self) -> None:
        """The norm of the part's gradients, one by one in fp64; then they are one flat gradient, in fp32.

        Source: stage_1_and_2.py, step, get_grad_norm_direct; deepspeed/runtime/utils.py, get_norm_dtype.
        """
        tape, layout = self.tape, self.layout
        if self.worst is not None:
            self.padding = None
            self.look_at(self.worst.stepping())
            self._pad()
        tape.category = "temporaries"
        if self.policy.dtype is not FP32:
            self._look_for_overflow()
        slices = layout.slices(self.rank)
        norms: list[Tensor] = []
        for elements in slices:
            wide = tape.new("_to_copy", (elements,), FP64, False)
            norms.append(tape.new("linalg_vector_norm", (), FP64, False))
            del wide
        self._masked(norms)
        norms.clear()
        scaled = tape.new("where", (), FP32, False)
        total = tape.new("div", (), FP32, False)
        tensors = len(slices) + (self.padding is not None)
        flat = (
            tape.new("cat", (layout.part,), self.policy.dtype, False, category="gradients")
            if tensors > 1
            else self.whole_own()
        )
        self.fp32: Tensor | None = flat
        if self.policy.dtype is not FP32:
            self.fp32 = tape.new("_to_copy", (layout.part,), FP32, False, category="gradients")
        if self.fp32 is not None and self.fp32.storage is not None:
            self.stepped.append(self.fp32.storage.index)
        del flat
        self.let_own_go()
        if self.policy.bounds_norm:
            scale_by_norm(tape)
        step_flat(tape, layout.part, self.policy.steps)
        del scaled, total

    def whole_own(self) -> Tensor | None:
        """The gradient of the only parameter that the part has something of."""
        return self.own

    def let_own_go(self) -> None:
        """The averaged gradients go: they were put together."""
        self.own = self.padding = None

    def _look_for_overflow(self) -> None:
        """Whether the largest and the smallest number of each gradient are finite: none but scalars, most for the last.

        Gradients in fp32 are not looked at.
        Source: deepspeed/runtime/engine.py, _configure_zero_optimizer (check_grad_overflow); stage_1_and_2.py,
        has_overflow_partitioned_grads_serial; deepspeed/runtime/utils.py, has_inf_or_nan;
        aten/src/ATen/native/TensorCompare.cpp, isfinite.
        """
        tape = self.tape
        count = tape.new("zeros", (1,), FP32, False)
        largest = tape.new("mul", (), BOOL, False)
        smallest = tape.new("amin", (), self.policy.dtype, False)
        masks = [tape.new(name, (), BOOL, False) for name in ("eq", "abs", "ne", "mul")]
        del count, largest, smallest, masks

    def _masked(self, norms: list[Tensor]) -> None:
        """The norm of all, beside those of each, and what looks for one that is no number.

        Source: deepspeed/runtime/utils.py, mask_nan_or_inf_with_val_inplace.
        """
        stacked = self.tape.new("stack", (len(norms),), FP64, False)
        squares = self.tape.new("pow", (len(norms),), FP64, False)
        del stacked
        total = self.tape.new("sum", (), FP64, False)
        del squares
        masks = [self.tape.new(name, (), BOOL, False) for name in ("isinf", "isnan", "logical_or")]
        invalid = self.tape.new("tensor", (), FP32, False)
        del total, masks, invalid

    def after_step(self) -> None:
        """The flat gradient goes."""
        self.fp32 = None

    def states(self) -> list[StandingState]:
        """The flat buffer beside the part that is counted with the weights, and two scalars."""
        layout, itemsize = self.layout, self.policy.dtype.itemsize
        rest = rounded(layout.padded * itemsize) - rounded(layout.part * itemsize)
        beside = NORM_BYTES + (OVERFLOW_BUFFER_BYTES if self.policy.own_adam else 0)
        beside += left_of_whole(self.order.sizes, self.policy.dtype, self.policy.steps)
        return [StandingState("weights", rest, 0), StandingState("optimizer", beside, 0)]

    def drop(self) -> None:
        """Nothing more will be asked."""
        self.accumulated.clear()
        self.outside.clear()

    def annotate(self, record: Record) -> None:
        """Which device holds most, from when on; and what the allocator alone has to know."""
        record.looked_at = tuple(self.looked_at)
        if self.tape.unrolled:
            record.stated_behind = tuple(self.stepped)
            weights = [
                Weight(one.stored_bytes, one.stored_bytes, one.node is not None or one.idle)
                for one in self.tape.parameters
                for _ in range(one.copies)
            ]
            layout, dtype = self.layout, self.policy.dtype
            on_device, on_host = self.policy.flat_on_device, self.steps_on_host
            record.start = start_of_stages_1_and_2(
                weights, layout.padded, layout.part, dtype, flat_on_device=on_device, steps_on_host=on_host
            )
