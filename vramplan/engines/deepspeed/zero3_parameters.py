"""Stage 3 with its parameters on the host, and an optimizer that stays on the device.

The parts of the 16-bit weights come from pinned memory each time that they are gathered. Gradients, the fp32 copy and
the moments are those of stage 3 on the device; the step writes the new parts back to the host.
Source: DeepSpeed 0.19.6, deepspeed/runtime/zero/stage3.py (_configure_offloading, _move_to_flat_buffer,
_reassign_or_swap_out_partitioned_parameters).
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.engines.deepspeed.zero3 import Zero3
from vramplan.engines.deepspeed.zero3_offload import Offloaded3
from vramplan.replay.sharding.hosted import HostStates
from vramplan.replay.standing import StandingState
from vramplan.replay.tensors import Parameter


class HostedParameters3(Offloaded3):
    """The walk of one iteration: what is gathered comes from the host, what is stepped does not."""

    def keep_own(self, members: Sequence[int]) -> None:
        """Gradients stay."""
        Zero3.keep_own(self, members)

    def after_backward(self) -> list[Parameter]:
        """The groups that are stepped, of which no 16-bit weights are on the device."""
        groups = Zero3.after_backward(self)
        for one in groups:
            one.quantized = (0,)
        return groups

    def before_step(self) -> None:
        """As of stage 3."""
        Zero3.before_step(self)

    def after_step(self) -> None:
        """Small parameters are gathered again."""
        Zero3.after_step(self)
        super().after_step()

    def states(self) -> list[StandingState]:
        """Those of stage 3 without its weights, but what of quantized ones is no parameter."""
        others = [one for one in Zero3.states(self) if one.category != "weights"]
        return [StandingState("weights", self.order.kept_bytes, 0), *others]

    def host_states(self, small: int) -> HostStates:
        """The parts of the parameters, all of them pinned."""
        parameters, blocks = self._parameters_on_host()
        itemsize, elements = self.policy.dtype.itemsize, sum(self.trained_parts)
        up = (self.gathered - small) * itemsize
        return HostStates(
            bytes=parameters,
            pinned_bytes=blocks,
            pageable_bytes=0,
            to_host_bytes=elements * itemsize,
            to_device_bytes=up + small * itemsize,
            each_to_host_bytes=0,
            each_to_device_bytes=up,
        )
