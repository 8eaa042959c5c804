"""What would make the range of an estimate narrower."""

from __future__ import annotations

from vramplan.planner.budget import Footprint
from vramplan.planner.judge import Judge
from vramplan.values.allocator import DEFAULT

CONTEXT_SHARE = 0.1  # of the range that the doubt about the context has to be, to be worth a word
GIB = 2**30


def _is_narrower(judge: Judge) -> bool:
    """Whether a simulation of the allocator leaves less in doubt than the factor does."""
    simulated = Judge(judge.job._replace(allocator=DEFAULT)).simulated_margin
    return sum(simulated) < sum(judge.margin)


def narrower(judge: Judge, peak: Footprint) -> str | None:
    """One sentence that says why the range is wide, and which option makes it narrower; None if none is known to."""
    job, width = judge.job, peak.high - peak.low
    why, ways = "", []
    if not judge.simulates and job.runtime.caches and _is_narrower(judge):
        why = ", as reserved memory is taken as a fixed factor"
        ways.append("--allocator simulate is tighter")
    if job.compile:
        why = why or ", as compiled steps are modelled by rules"
        ways.append("--no-compile is tighter")
    doubt = judge.context_bytes / 2
    if job.pytorch_version is None and doubt >= CONTEXT_SHARE * width:
        ways.append(f"--pytorch-version pins the CUDA context ({doubt / GIB:.1f} GiB of it)")
    if not ways:
        return None
    return f"the estimate is uncertain by {width / GIB:.1f} GiB{why}: {', or '.join(ways)}"
