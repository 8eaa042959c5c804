"""ZeRO-Offload, stages 1 and 2: the optimizer and the averaged gradients of a device's part are on the host.

The device keeps weights and buckets; when a bucket is averaged, each piece of the part goes to the host in fp32, after
its norm was taken. The host steps the part and sends it back in 16 bits.

Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/stage_1_and_2.py (copy_grads_in_partition, step,
set_norm_for_param_grad_in_gpu, async_inplace_copy_grad_to_fp32_buffer_from_gpu, async_accumulate_grad_in_cpu_via_gpu);
deepspeed/ops/adam/cpu_adam.py, DeepSpeedCPUAdam; arXiv:2101.06840.
"""

from __future__ import annotations

from vramplan.engines.deepspeed.layout import Flush
from vramplan.engines.deepspeed.worst_device import SCALAR_BYTES, DeviceHoldings, Worst, WorstOnHost
from vramplan.engines.deepspeed.zero import ZeroIteration
from vramplan.replay.record import Record
from vramplan.replay.recorder import rounded
from vramplan.replay.sharding.hosted import HostStates
from vramplan.replay.standing import StandingState
from vramplan.replay.tensors import BYTE, FP32, FP64, Parameter, Tensor

MOMENTS = 2  # of Adam


class Offloaded(ZeroIteration):
    """The walk of one iteration whose step is on the host."""

    steps_on_host = True

    def __init__(self, *arguments: object) -> None:
        self.norms: list[Tensor] = []
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.hosted = self.host_states()

    def before_forward(self) -> None:
        """Stage 1: earlier micro-steps left whole gradients, and the bucket."""
        self.begin()
        self._stand_for_all()
        if self.policy.accumulating and not self.policy.partitions_gradients:
            self._make_buckets()

    def set_aside(self, parameter: Parameter) -> None:
        """A gradient that has no room in any bucket is copied, so that nobody else holds it."""
        gradient = parameter.grad
        if gradient is not None:
            parameter.grad = self.tape.new("clone", gradient.shape, gradient.dtype, False, category="gradients")

    def follow(self) -> Worst:
        """The walk over the devices, which differ in the pieces that pass by."""
        self.on_host = WorstOnHost(self.layout, self.policy, self.arrivals, self.flushes)
        return self.on_host

    def keep(self, flush: Flush) -> None:
        """Nothing but norms; who has the largest piece is looked at while the pieces pass by."""
        if self.worst is None:
            super().keep(flush)
            return
        self.look_at(self.on_host.kept(flush))
        self.keep_own(flush._replace(own=self.on_host.of(flush, self.rank)))
        self.look_at(self.on_host.most())

    def look_at(self, held: DeviceHoldings) -> None:
        """Go over to another device, with its norms."""
        if held == self.held:
            return
        self.norms.clear()
        super().look_at(held)
        if held.norms:
            elements = (held.norms * SCALAR_BYTES // FP32.itemsize,)
            self.norms.append(self.tape.new("linalg_vector_norm", elements, FP32, False))

    def keep_own(self, flush: Flush) -> None:
        """Each piece of the part has its norm taken in fp64, and goes to the host in fp32."""
        for elements in flush.own:
            wide = self.tape.new("_to_copy", (elements,), FP64, False)
            self.norms.append(self.tape.new("linalg_vector_norm", (), FP64, False))
            del wide
            cast = self.tape.new("_to_copy", (elements,), FP32, False)
            del cast

    def after_backward(self) -> list[Parameter]:
        """Nothing is stepped on the device."""
        owned = super().after_backward()
        self.padding = None
        return [one for one in owned if one.node is None]

    def before_step(self) -> None:
        """The norms are added up on the host."""
        if self.worst is not None:
            self.look_at(self.on_host.stepping())
        flag = self.tape.new("zeros", (1,), BYTE, False, category="temporaries")
        del flag
        self.norms.clear()

    def states(self) -> list[StandingState]:
        """The flat buffer, and one as large as the largest parameter, that gradients come back through."""
        itemsize = self.policy.dtype.itemsize
        return [
            StandingState("weights", rounded(self.layout.padded * itemsize), 0),
            StandingState("communication", rounded(max(self.layout.sizes) * itemsize), 0),
        ]

    def annotate(self, record: Record) -> None:
        """What is on the host."""
        super().annotate(record)
        record.host_states = self.hosted

    def host_states(self) -> HostStates:
        """Pinned are the master copy, its gradients, the 16-bit copy and the buffers; the moments are not."""
        part, width = self.layout.part, self.policy.dtype.itemsize
        largest = max(self.layout.sizes) * width
        pinned = [part * FP32.itemsize, part * FP32.itemsize, part * width, largest]
        between = 0
        if self.policy.accumulating and self.policy.partitions_gradients:
            each = [self.layout.sizes[one] * width for one in self.layout.members(self.rank)]
            pinned += each
            between = sum(each)
        moments = MOMENTS * part * FP32.itemsize
        return HostStates(
            bytes=sum(pinned) + moments,
            pinned_bytes=sum(1 << (size - 1).bit_length() for size in pinned if size),
            pageable_bytes=moments,
            to_host_bytes=sum(self.layout.slices(self.rank)) * FP32.itemsize + between,
            to_device_bytes=part * width,
            each_to_host_bytes=between,
            each_to_device_bytes=between,
        )
