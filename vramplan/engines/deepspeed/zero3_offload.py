"""ZeRO-3 with its states away: the optimizer and its gradients on the host or on NVMe, and the parameters on the host.

The device keeps the bucket, and the 16-bit parts of the weights unless they are on the host as well. Each part of an
averaged gradient goes to the host in 16 bits, where micro-steps are summed up, and comes back: its norm is taken on the
device in fp64, and it goes to the host again in fp32. Of offloaded parameters each gathering begins with a copy of the
device's parts.

On NVMe are the weights in fp32, the moments, and what of the gradients is a multiple of what the drive is written in.
The rest is a view of the gradient in fp32, which therefore stays on the device until the step: that is what DeepSpeed
does, and with parts of odd sizes it is most of the gradients.

Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/stage3.py (partition_grads, _offload_grad_partition_at_boundary,
complete_grad_norm_calculation_for_cpu_offload, _create_fp32_partitions, _create_param_groups_fp16_flat_cpu_memory,
initialize_optimizer_states, _post_step); partition_parameters.py (_partition_param, all_gather_coalesced);
deepspeed/runtime/swap_tensor/partitioned_optimizer_swapper.py (PartitionedOptimizerSwapper), utils.py
(SwapBufferManager); deepspeed/ops/adam/cpu_adam.py, DeepSpeedCPUAdam; arXiv:2104.07857 (ZeRO-Infinity).
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.engines.deepspeed.offload import MOMENTS
from vramplan.engines.deepspeed.order import Order
from vramplan.engines.deepspeed.zero import COMMUNICATION
from vramplan.engines.deepspeed.zero3 import Zero3
from vramplan.engines.deepspeed.zero3_gathered import GATHERED
from vramplan.engines.deepspeed.zero3_policy import Zero3Policy
from vramplan.engines.deepspeed.zero3_turning import TurningPlan
from vramplan.replay.record import Record
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.sharding.hosted import HostStates, pinned_block
from vramplan.replay.standing import StandingState
from vramplan.replay.tensors import BOOL, FP32, FP64, Parameter, Tensor

SWAPPABLE_BYTES = 2**20  # smaller tensors stay (swap_tensor/utils.py, MIN_AIO_BYTES; block_size of aio)
ALIGNED_ELEMENTS = 256  # of 4 bytes: what is written is a multiple of AIO_ALIGNED_BYTES, for aio's one thread
SCALARS_OF_A_NORM = ("zeros", "pow", "isinf", "isnan", "logical_or", "zeros")  # of a group's, when all are added up


class Offloaded3(Zero3):
    """The walk of one iteration whose step is on the host."""

    def __init__(
        self,
        tape: Tape,
        policy: Zero3Policy,
        order: Order,
        words: tuple[str, ...],
        plan: TurningPlan | None = None,
        *,
        accumulating: bool,
    ) -> None:
        super().__init__(tape, policy, order, plan)
        self.hosts_parameters, self.accumulating = "parameters" in words, accumulating
        self.hosted_words = frozenset(words)
        self.gathered = 0  # elements of the device's parts that came from the host
        self.came = 0  # of small parameters that one device has by itself
        self.on_drive = self._members_on_drive()
        self.kept: list[Tensor] = []  # gradients in fp32 that did not go to the drive as they are

    # -------------------------------------------------------------------------------------------- the parameters
    def _gather(self, wanted: Sequence[int]) -> None:
        """Parts that are on the host are copied to the device first, beside what they are gathered into."""
        super()._gather(wanted)
        if self.hosts_parameters and self.policy.shards > 1:
            copies = [self._copied(one) for one in wanted]
            del copies

    def _copied(self, one: int, category: str = COMMUNICATION) -> Tensor | None:
        """The device's part of a parameter."""
        self.gathered += self.parts[one] * self.tape.copies
        return self._new("_to_copy", self.parts[one], category)

    def _gather_small(self) -> None:
        """What comes from the host then does so after the step: an iteration finds it there."""
        before = self.gathered
        super()._gather_small()
        self.came, self.gathered = self.gathered - before, before

    def _arrive(self, one: int, category: str = GATHERED) -> Tensor | None:
        """One device has the whole parameter on its host."""
        return self._copied(one, category) if self.hosts_parameters else None

    # --------------------------------------------------------------------------------------------- the gradients
    def keep_own(self, members: Sequence[int]) -> None:
        """Each part comes back from the host; its norm is taken in fp64, and it goes there again in fp32."""
        written: list[Tensor] = []
        for one in members:
            part = self._new("_to_copy", self.parts[one], "gradients")
            wide = self.tape.new("_to_copy", (self.parts[one],), FP64, False)
            self.norms.append(self.tape.new("linalg_vector_norm", (), FP64, False))
            del wide
            cast = self.tape.new("_to_copy", (self.parts[one],), FP32, False)
            if one in self.on_drive:
                (written if self._swapped(one) == self.parts[one] else self.kept).append(cast)
            del cast, part
            self.partitioned(one)
        written.clear()

    def _members_on_drive(self) -> frozenset[int]:
        """The parameters of the groups that are large enough to go to NVMe, by their numbers.

        Source: deepspeed/runtime/swap_tensor/optimizer_utils.py, is_swappable_tensor.
        """
        if self.policy.zero.drive_buffers is None:
            return frozenset()
        found: list[int] = []
        start = 0
        for count, group in zip(self.counts(), self.groups(), strict=True):
            if group * FP32.itemsize >= SWAPPABLE_BYTES:
                found += self.trained[start : start + count]
            start += count
        return frozenset(found)

    def _swapped(self, one: int) -> int:
        """Elements of a gradient's part that are written to the drive; the rest of it waits where it is, as a view.

        Source: optimizer_utils.py, _adjust_for_misaligned_lengths and _swap_out_gradients.
        """
        part = self.parts[one]
        return part - part % ALIGNED_ELEMENTS if part * FP32.itemsize >= SWAPPABLE_BYTES else 0

    def after_backward(self) -> list[Parameter]:
        """Nothing is stepped on the device."""
        super().after_backward()
        return []

    # ------------------------------------------------------------------------------------------------- the step
    def before_step(self) -> None:
        """Everything is partitioned, and the norms are added up."""
        self.whole.clear()
        self.tape.category = "temporaries"
        scalars = [self.tape.new(name, (), BOOL, False) for name in SCALARS_OF_A_NORM]
        del scalars

    def after_step(self) -> None:
        """Small parameters are gathered again, together."""
        self.kept.clear()
        self.norms.clear()
        small = [one for one, stays in enumerate(self.stays) if stays]
        before = self.gathered
        copies = [self._copied(one) for one in small] if self.hosts_parameters and self.policy.shards > 1 else []
        self._gather_small()
        self.gathered += self.came
        copies.clear()
        self.whole.clear()
        self.hosted = self.host_states(self.gathered - before)

    def states(self) -> list[StandingState]:
        """The parts of the weights, unless they are on the host, and the bucket."""
        itemsize = self.policy.dtype.itemsize
        weights = 0
        if not self.hosts_parameters:
            weights = rounded(sum(self.trained_parts) * itemsize) + self.frozen_bytes
        weights += self.order.kept_bytes
        return [
            StandingState("weights", weights, 0),
            *self._bucket_states(itemsize),
        ]

    def annotate(self, record: Record) -> None:
        """What is on the host."""
        super().annotate(record)
        record.host_states = self.hosted

    def host_states(self, small: int) -> HostStates:
        """Pinned are gradients, in 16 bits and in fp32, and parameters; the master copy and the moments are not.

        `small` are the elements of the parts that came to the device after the step, of parameters that stay whole.
        """
        itemsize, elements = self.policy.dtype.itemsize, sum(self.trained_parts)
        drive = self.policy.zero.drive_buffers is not None
        away = [group for group in self.groups() if drive and group * FP32.itemsize >= SWAPPABLE_BYTES]
        here = [group for group in self.groups() if group not in away]
        pinned = [elements * itemsize, *(group * FP32.itemsize for group in here)]
        buffers = (self.policy.zero.drive_buffers or 0) * _aligned(max(self.groups())) * FP32.itemsize
        parameters, blocks = self._parameters_on_host() if self.hosts_parameters else (0, 0)
        pageable = (1 + MOMENTS) * sum(here) * FP32.itemsize
        files = (1 + MOMENTS) * sum(map(_aligned, away)) * FP32.itemsize
        gradients = sum(self._swapped(one) for one in self.on_drive) * FP32.itemsize
        each_up = (self.gathered - small + elements if self.hosts_parameters else elements) * itemsize
        last_up = small * itemsize if self.hosts_parameters else elements * itemsize
        return HostStates(
            bytes=sum(pinned) + parameters + buffers + pageable,
            pinned_bytes=sum(map(pinned_block, pinned)) + blocks + buffers,
            pageable_bytes=pageable,
            to_host_bytes=elements * (itemsize + FP32.itemsize),
            to_device_bytes=each_up + last_up,
            each_to_host_bytes=elements * itemsize,
            each_to_device_bytes=each_up,
            drive_bytes=files + gradients,
            to_drive_bytes=files + gradients,
            from_drive_bytes=files + gradients,
        )

    def _parameters_on_host(self) -> tuple[int, int]:
        """Bytes of the parts, and of the pinned blocks.

        Each part was pinned by itself before those that are trained were one buffer: its block stays with PyTorch's
        allocator of pinned memory. The others stay as they are.
        """
        itemsize = self.policy.dtype.itemsize
        whole = sum(self.trained_parts) * itemsize
        left = [part * itemsize for part, stays in zip(self.parts, self.stays, strict=True) if not stays]
        left += [self.parts[one] * itemsize for one in self.frozen if self.stays[one]]
        frozen = sum(self.parts[one] for one in self.frozen) * itemsize
        return whole + frozen, pinned_block(whole) + sum(map(pinned_block, left))


def _aligned(elements: int) -> int:
    """Buffers and files are of whole pieces that the drive is written in."""
    return -(-elements // ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS
