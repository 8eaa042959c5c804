"""How wide the band around a peak is: margins by situation, in percent, from the errors of docs/measured.md.

Where what is reserved is estimated, the margins are shares of what the allocator has to hold; where it is simulated, of
what the simulation reserves. The context and communicators add half of themselves at the lower end.
"""

from __future__ import annotations

from typing import NamedTuple


class Margin(NamedTuple):
    """Percent below and above."""

    below: int
    above: int

    def widest(self, other: Margin) -> Margin:
        """The wider of two at each end."""
        return Margin(max(self.below, other.below), max(self.above, other.above))


# No peak in tests/oracle/compile.json or compile_more.json is as far from its prediction.
COMPILED = Margin(10, 10)

# Estimated (docs/job-format.md, "The verdict"): nothing below, and 10 % above what is allocated.
PLAIN = Margin(0, 10)
BEYOND_PLAIN = {
    "shared": 16,  # FSDP and ZeRO: gathered tensors and buckets leave holes that others do not fit
    "split": 3,  # tensor and pipeline parallelism
    "compiled": COMPILED.above,
}
"""How much higher the upper end is."""

SIMULATED = {
    "plain": Margin(5, 5),  # of the runs on one device
    "shared": Margin(5, 6),
    "split": Margin(5, 11),
    "compiled": COMPILED,
    "unmeasured": Margin(6, 8),  # of which no run on a GPU was published: a little more than those that were
}
MEASURED_FAMILIES = ("llama", "phi", "neox", "bert", "bloom", "gpt2")  # of docs/measured.md
MEASURED_SHARING = ("ddp", "fsdp")  # over several data-parallel devices alone: none of those peaks is of ZeRO


def estimated(*, compiled: bool, shared: bool, split: bool) -> Margin:
    """The margin where what is reserved is a factor of what is allocated."""
    situations = {"compiled": compiled, "shared": shared, "split": split}
    above = max((BEYOND_PLAIN[name] for name, holds in situations.items() if holds), default=0)
    return Margin(COMPILED.below if compiled else PLAIN.below, PLAIN.above + above)


def is_measured(family: str, sharing: str | None) -> bool:
    """Whether peaks of such runs were published; `sharing` is how several data-parallel devices do, if that is all."""
    return family in MEASURED_FAMILIES and (sharing is None or sharing.startswith(MEASURED_SHARING))


def simulated(*, measured: bool, compiled: bool, shared: bool, split: bool) -> Margin:
    """The margin where the allocator is simulated."""
    found = SIMULATED["plain"]
    situations = {"compiled": compiled, "shared": shared, "split": split, "unmeasured": not measured}
    for name, holds in situations.items():
        if holds:
            found = found.widest(SIMULATED[name])
    return found
