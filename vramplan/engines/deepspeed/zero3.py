"""DeepSpeed's ZeRO, stage 3: what stages 1 and 2 share, and the parameters too (zero3_gathering.py).

Each device holds a part of every parameter, of its averaged gradient and of its states. Parameters that are not trained
have no gradient and no states, and their parts are in no buffer.

Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/stage3.py (DeepSpeedZeroOptimizer_Stage3);
deepspeed/runtime/comm/coalesced_collectives.py, reduce_scatter_coalesced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any

from vramplan.engines.deepspeed.order import Order
from vramplan.engines.deepspeed.start import Weight, start_of_stage_3
from vramplan.engines.deepspeed.walk import order_of
from vramplan.engines.deepspeed.zero import (
    COMMUNICATION,
    NORM_BYTES,
    OVERFLOW_BUFFER_BYTES,
    left_of_whole,
    scale_by_norm,
    step_flat,
)
from vramplan.engines.deepspeed.zero3_policy import Zero3Policy
from vramplan.engines.deepspeed.zero3_reference import Again3, Reference3
from vramplan.engines.deepspeed.zero3_turning import Turning, TurningPlan
from vramplan.replay.observers import Trained
from vramplan.replay.operators.elementwise import mul_scalar
from vramplan.replay.record import Record
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.standing import StandingState
from vramplan.replay.start import Start
from vramplan.replay.techniques import Shards
from vramplan.replay.tensors import BOOL, FP16, FP32, FP64, Parameter, Tensor

MODEL_AND_HEAD = 2  # modules around all that has parameters: the model with its head, and the model
MOST_PADDING = 64  # tensors that are recorded one by one


class Zero3(Turning, Shards):
    """The walk of one iteration: gradients are reduced to the parts of their devices, which step them."""

    clips = True
    divides_loss = True
    walks_others = False

    def __init__(self, tape: Tape, policy: Zero3Policy, order: Order, plan: TurningPlan | None = None) -> None:
        super().__init__(tape, policy, order, plan)
        self.linear_is_function = policy.zero.memory_efficient_linear
        self.losses: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.stepped: list[int] = []  # the flat gradient of each group, as a storage

    # ------------------------------------------------------------------------------------------------ the model
    hosts_parameters = False
    hosted_words: frozenset[str] = frozenset()  # what of the states is on the host

    def beside(self, recipe: Any, same: Trained | None) -> Reference3 | None:
        """A reference has an engine of its own, unless it is the model itself."""
        function = self.linear_is_function
        if same is not None:
            key = ("switched off", self.order.sizes, self.order.trained)
            order = order_of(recipe, same, key, with_uses=True, forward_alone=True, linear_is_function=function)
            return Again3(self, order, hosts_parameters=self.hosts_parameters)
        order = order_of(
            *(recipe, Trained(), ("reference",)), with_uses=True, forward_alone=True, linear_is_function=function
        )
        zero = self.policy.zero
        if zero.beside is not None:
            ahead, small = zero.beside
            zero = zero._replace(prefetch_bucket_size=ahead, param_persistence_threshold=small)
        policy = self.policy._replace(zero=zero, keeps_frozen=False)
        return Reference3(self.tape, policy, order, hosts_parameters=self.hosts_parameters)

    def before_forward(self) -> None:
        """Small parameters are there, and the modules that hold the others begin to gather them."""
        self._gather_small()
        for _ in range(self.policy.outer_modules - MODEL_AND_HEAD):
            self._prefetch()
        self.model_asks()  # the model with its head
        self._prefetch()

    def after_model(self, loss: Tensor) -> Tensor:
        """The loss itself."""
        self.model_over()
        return loss

    def before_backward(self, loss: Tensor) -> Tensor:
        """The loss over the number of micro-steps, and scaled.

        Source: engine.py, DeepSpeedEngine.backward; base_optimizer.py, ZeROOptimizer.scale_if_loss.
        """
        self.is_turned = True
        if self.order.asked:
            self.model_asks()
        mean = mul_scalar(loss)
        scaled = mul_scalar(mean)
        self.losses = [loss, mean, scaled]
        return scaled

    # --------------------------------------------------------------------------------------------- the gradients
    def after_accumulate(self, parameter: Parameter) -> None:
        """A gradient goes into the bucket, where there is room.

        Source: stage3.py, reduce_independent_p_g_buckets_and_remove_grads, __add_grad_to_ipg_bucket.
        """
        number = self._number(parameter)
        if number in self.leaf_of:
            self._of_leaf(number, parameter)
            return
        if number in self.after:
            self.waiting[self.after[number]] = parameter
            return
        self._add(parameter)
        bias = self.waiting.pop(number, None)
        if bias is not None:
            self._add(bias)

    def partly_accumulated(self, parameter: Parameter) -> None:
        """The gradient of a tile before the last: the bucket makes room for what is not ready yet.

        Source: stage3.py, reduce_independent_p_g_buckets_and_remove_grads (ds_grad_is_ready).
        """
        if self.bucket and self.filled + parameter.elements > self.policy.zero.reduce_bucket_size:
            self._reduce()

    def _of_leaf(self, number: int, parameter: Parameter) -> None:
        """Gradients of a leaf wait until its backward is over: its input has a gradient, the sum of all in it.

        Source: stage3.py, create_reduce_and_remove_grad_hooks, reduce_leaf_module_grads;
        torch/utils/hooks.py, BackwardHook.setup_input_hook.
        """
        self.of_leaf[number] = parameter
        inside = self.around.backward
        if not (inside and inside[-1].is_leaf and inside[-1].is_told):
            self.leaf_over(number)

    def leaf_over(self, number: int) -> None:
        """Its gradients go into the bucket, once all of them are there."""
        trained = [one for one in self.leaf_of[number] if one not in self.frozen]
        if all(one in self.of_leaf for one in trained):
            for one in sorted(trained):
                self._add(self.of_leaf.pop(one))

    def _add(self, parameter: Parameter) -> None:
        limit = self.policy.zero.reduce_bucket_size
        if self.bucket and self.filled + parameter.elements > limit:
            self._reduce()
        if not self.policy.zero.contiguous_gradients:
            self.unmoved[self._number(parameter)] = parameter
        elif self.filled + parameter.elements <= limit:
            self._copied_away(parameter)
        else:
            self.large = parameter
        self.bucket.append(self._number(parameter))
        self.filled += parameter.elements

    def _copied_away(self, parameter: Parameter) -> None:
        """The stream of the reductions copies a gradient, so its memory is free when that has come so far."""
        if parameter.grad is not None:
            self.tape.freed_late(parameter.grad)
        parameter.grad = None

    def partitioned(self, number: int) -> None:
        """The device's part of a gradient is where it is kept: one that was not copied into the bucket goes.

        Source: stage3.py, partition_grads, one by one.
        """
        parameter = self.unmoved.pop(number, None)
        if parameter is not None:
            self._copied_away(parameter)

    def _reduce(self) -> None:
        """Source: coalesced_collectives.py, reduce_scatter_coalesced."""
        self.reductions += 1
        self.tape.waits_for_device()
        shards, sizes = self.policy.shards, [self.sizes[one] for one in self.bucket]
        copy: Tensor | None = None
        if len(sizes) > 1 or sizes[0] % shards:
            padding = [
                tensor for size in sizes if size % shards for tensor in self._padding(size, -(-size // shards), shards)
            ]
            copy = self._apart("cat", sum(-(-size // shards) for size in sizes) * shards, COMMUNICATION)
            del padding
        self.keep_own(sorted(self.bucket))
        del copy
        if self.large is not None:
            self._copied_away(self.large)
            self.large = None
        for one in [*self.unmoved]:
            self.partitioned(one)
        self.bucket.clear()
        self.filled = 0

    def _padding(self, size: int, part: int, shards: int) -> Iterator[Tensor]:
        """What makes the parts of a gradient equal: one tensor for each device that has less of it than others."""
        whole, rest = divmod(size, part)
        if rest:
            yield self._apart("empty", part - rest, COMMUNICATION)
        empty = shards - whole - (rest > 0)
        if empty > MOST_PADDING and not self.tape.unrolled:  # thousands of devices: equal ones are one event
            yield self.tape.several("empty", (part,), self.policy.dtype, empty, COMMUNICATION)
        else:
            for _ in range(empty):
                yield self._apart("empty", part, COMMUNICATION)

    def keep_own(self, members: Sequence[int]) -> None:
        """The device's parts of averaged gradients go into a buffer that is there already."""

    def after_backward(self) -> list[Parameter]:
        """The last gradients are reduced, and what is still whole goes.

        Source: stage3.py, independent_gradient_partition_epilogue.
        """
        self.tape.ignore(self)
        if self.bucket:
            self._reduce()
        self._let_go()
        for one in [one for one in self.whole if not self.stays[one]]:
            del self.whole[one]
        self.coming.clear()
        self.viewed.clear()
        self.losses.clear()
        return [Parameter(self.tape, "flat", (group,), self.policy.dtype, 1, True) for group in self.groups()]

    def counts(self) -> list[int]:
        """How many parameters each group of parts has that is stepped at a time.

        Source: stage3.py, _create_fp16_sub_groups.
        """
        limit = self.policy.zero.sub_group_size
        parts = self.trained_parts
        if limit >= sum(parts):
            return [len(parts)]
        found, count, size = [], 0, 0
        for part in parts:
            count, size = count + 1, size + part
            if size >= limit:
                found.append(count)
                count = size = 0
        return [*found, count] if count else found

    def groups(self) -> list[int]:
        """Elements of each of these groups."""
        ends = (0, *accumulate(self.counts()))
        parts = self.trained_parts
        return [sum(parts[low:high]) for low, high in pairwise(ends)]

    @property
    def trained_parts(self) -> list[int]:
        """Elements of the parts of what is trained."""
        return [self.parts[one] for one in self.trained]

    # ------------------------------------------------------------------------------------------------- the step
    def before_step(self) -> None:
        """Everything is partitioned; the norm is taken part by part in fp64, and each group is stepped in fp32.

        Source: stage3.py, step, has_overflow, get_grad_norm_direct and _prepare_fp32_grad_for_sub_group.
        """
        self.whole.clear()
        tape = self.tape
        tape.category = "temporaries"
        for name in ("isinf", "isnan") if self.policy.dtype is FP16 else ():  # whose loss is scaled
            found = tape.new(name, (sum(self.trained_parts),), BOOL, False)
            some = tape.new("any", (), BOOL, False)
            del found, some
        ends = (0, *accumulate(self.counts()))
        for low, high in pairwise(ends):  # a norm of each group, ...
            self.norms.append(self._norm(self.trained[low:high]))
        self.norms += [tape.new("where", (), FP64, False) for _ in range(2)]  # that of all, and that of the last step
        for group in self.groups():
            flat = tape.new("cat", (group,), self.policy.dtype, False, category="gradients")
            if self.policy.dtype is not FP32:
                flat = tape.new("_to_copy", (group,), FP32, False, category="gradients")
            assert flat.storage is not None
            self.stepped.append(flat.storage.index)
            if self.policy.bounds_norm:
                scale_by_norm(tape)
            step_flat(tape, group, self.policy.steps)
            del flat

    def _norm(self, members: Sequence[int]) -> Tensor:
        """The norm of a group: beside those of its parts, what looks for one that is no number.

        Source: stage3.py, get_grad_norm_direct.
        """
        tape, norms = self.tape, []
        for parts, times in self._rows(members):
            for _ in tape.repeat(times, first=False, last=False, stride=0):
                for part in parts:
                    wide = tape.new("_to_copy", (part,), FP64, False)
                    norms.append(tape.new("norm", (), FP64, False))
                    del wide
        stacked = tape.new("stack", (len(members),), FP64, False)
        squares = tape.new("pow", (len(members),), FP64, False)
        del stacked
        _total = tape.new("sum", (), FP64, False)
        del squares
        _root = tape.new("pow", (), FP64, False)
        _masks = [tape.new(name, (), BOOL, False) for name in ("isinf", "isnan", "logical_or")]
        _invalid = tape.new("tensor", (), FP32, False)
        return tape.new("where", (), FP64, False)

    def _rows(self, members: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int]]:
        """The elements of these parts block by block, and how many blocks in a row have the same."""
        blocks = (
            tuple([self.parts[one] for one in block]) for _, block in groupby(members, self.order.places.__getitem__)
        )
        return ((parts, sum(1 for _ in row)) for parts, row in groupby(blocks))

    def after_step(self) -> None:
        """Small parameters are gathered again, each by itself.

        Source: stage3.py, _post_step; partition_parameters.py, _allgather_params_coalesced.
        """
        self._gather_small()
        self.norms.clear()
        self.whole.clear()

    def states(self) -> list[StandingState]:
        """The parts of the gradients, the bucket, and what groups of parts leave of the flat buffer.

        Parts of what is not trained are in no buffer.
        """
        itemsize = self.policy.dtype.itemsize
        whole = rounded(sum(self.trained_parts) * itemsize)
        rest = whole - sum(rounded(group * itemsize) for group in self.groups())
        beside = NORM_BYTES + rounded(1) + (OVERFLOW_BUFFER_BYTES if self.policy.own_adam else 0)
        whole_sizes = [self.order.sizes[one] for one in self.trained]
        beside += left_of_whole(whole_sizes, self.policy.dtype, self.policy.steps)
        return [
            StandingState("weights", rest + self.frozen_bytes + self.order.kept_bytes, 0),
            StandingState("gradients", whole, 0),
            *self._bucket_states(itemsize),
            StandingState("optimizer", beside, 0),
        ]

    def _bucket_states(self, itemsize: int) -> list[StandingState]:
        """Source: stage3.py, initialize_optimizer_states or _setup_for_real_optimizer (`contiguous_gradients`)."""
        zero = self.policy.zero
        if not zero.contiguous_gradients:
            return []
        return [StandingState(COMMUNICATION, rounded(zero.reduce_bucket_size * itemsize), 0)]

    def drop(self) -> None:
        """Nothing more will be asked."""
        self.numbers.clear()

    def annotate(self, record: Record) -> None:
        """What the allocator alone has to know."""
        if self.tape.unrolled:
            record.stated_behind = tuple(self.stepped)
            record.start = self._start()

    def _start(self) -> Start | None:
        itemsize = self.policy.dtype.itemsize
        weights = [
            Weight(rounded(whole * itemsize), rounded(part * itemsize), one not in self.frozen)
            for one, (whole, part) in enumerate(zip(self.wholes, self.parts, strict=True))
        ]
        bucket = sum(state.at(1) for state in self._bucket_states(itemsize))
        return start_of_stage_3(weights, self.groups(), self.policy.dtype, bucket, offload=self.hosted_words)
