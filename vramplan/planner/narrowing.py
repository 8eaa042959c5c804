"""What would make the band of a tight verdict narrower."""

from __future__ import annotations

from vramplan.planner.budget import Footprint
from vramplan.planner.judge import Judge
from vramplan.values.allocator import DEFAULT

CONTEXT_SHARE = 0.1  # of the band that the doubt about the context has to be, to be worth a word
GIB = 2**30


def _is_narrower(judge: Judge) -> bool:
    """Whether a simulation of the allocator leaves less in doubt than the factor does."""
    simulated = Judge(judge.job._replace(allocator=DEFAULT)).simulated_margin
    return sum(simulated) < sum(judge.margin)


def narrower(judge: Judge, peak: Footprint) -> str | None:
    """One sentence that names what is in doubt and the option that says more; None if nothing is known to help."""
    job, width = judge.job, peak.high - peak.low
    ways = []
    if not judge.simulates and job.runtime.caches and _is_narrower(judge):
        ways.append("--allocator simulate, as what is reserved is a factor so far")
    if job.compile:
        ways.append("--no-compile, as compiled steps are modelled by rules")
    doubt = judge.context_bytes / 2
    if job.pytorch_version is None and doubt >= CONTEXT_SHARE * width:
        ways.append(f"--pytorch-version, as {doubt / GIB:.2f} GiB of it are doubt about the CUDA context")
    if not ways:
        ways.append("`vramplan measure` on such a card, as nothing more is known of this job")
    return f"the band is {width / GIB:.2f} GiB wide; narrower with {'; or '.join(ways)}"
