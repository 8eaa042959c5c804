"""How long a step takes, as a frozen value: seconds, rates, utilisation and what the time is spent on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.tuples import NamedTuple

CALIBRATED, EXTRAPOLATED = "calibrated", "extrapolated"
"""Whether published rates of this program on this GPU were at hand when the constants were fitted."""

COMPUTE, MEMORY, COMMUNICATION, BUBBLE, HOST, DATA = (
    "compute",
    "memory-bandwidth",
    "communication",
    "bubble",
    "host",
    "data",
)
BOUNDS = (COMPUTE, MEMORY, COMMUNICATION, BUBBLE, HOST, DATA)
"""What may bound a step: the largest share of its time."""

PARTS = {
    "products": COMPUTE,
    "attention": COMPUTE,
    "bytes": MEMORY,
    "optimizer": MEMORY,
    "communication": COMMUNICATION,
    "bubble": BUBBLE,
    "host": HOST,
    "loop": HOST,
}
"""The parts of a step's time, and what each of them is bound by.

`products` are matrix products and convolutions, `bytes` all kernels that wait for the memory, `optimizer` the step and
the sums of gradients over micro-batches, `communication` what no computation hides, `host` copies to the host and back
that none hides and kernels that it launches too slowly, `loop` what the training loop does between steps. A step that
waits for its data has that time (`DATA`) beside these.
"""


class Time(NamedTuple):
    """The time of one optimizer step with all of its micro-batches. Rates are steady ones: no restart is in them."""

    step_seconds: float
    step_seconds_low: float
    step_seconds_high: float
    tokens_per_second_per_device: float | None  # None: the model takes images alone
    samples_per_second: float  # of all devices together
    mfu_percent: float  # model FLOPs over peak: what forward and backward need, nothing that is computed again
    hfu_percent: float  # hardware FLOPs over peak: with what checkpoints compute again
    bound: str  # one of BOUNDS
    basis: str  # calibrated | extrapolated
    shares: Mapping[str, float]  # of the step, by PARTS; they sum to 1
    tokens_per_second: float | None  # of all devices together
    devices: int
    samples_per_step: int
    tokens_per_step: int | None
    model_flops: int  # of a step, all devices together
    hardware_flops: int
    peak_flop_per_s: float  # of one device, at the precision of the products

    def to_dict(self) -> dict[str, Any]:
        """As the JSON documents have it."""
        return {**self._asdict(), "shares": dict(self.shares)}
