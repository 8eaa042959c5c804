"""What the project itself measured on a GPU, beside predictions: shared by the tests and by the pages."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from tests.measured.compare import HERE
from vramplan.answers.fit import describe
from vramplan.answers.validation import counted_bytes
from vramplan.job import read_job_file
from vramplan.planner.decision import decide
from vramplan.planner.time import fitted
from vramplan.results import DOES_NOT_FIT, FITS, FitResult
from vramplan.results.listings import ErrorStats
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob

CASES = 122
CONVOLVED = ("h100 resnet-50 256 images amp-bf16", "h100 vit-large-patch16-224 64 images amp-bf16 flash")
"""The jobs from whose allocations the copies of convolutions, and the number of their parts, were learned."""
LOOP, TIME = "loop", "time of a step"


class Own(NamedTuple):
    """A job that was run, and the answer about it."""

    job: ResolvedJob
    result: FitResult
    measured: dict[str, Any]
    trace: dict[str, Any]

    @property
    def came_through(self) -> bool:
        return bool(self.measured["outcome"] == "fits")

    @property
    def bytes(self) -> dict[str, tuple[int, int]]:
        """By metric: predicted and measured."""
        peak = self.result.peak
        return {
            "allocated": (counted_bytes(self.result), self.measured["peak_bytes"]),
            "reserved": (peak.reserved_bytes, self.trace["reserved_bytes"]),
            "device": (peak.device_bytes, self.trace["device_bytes"]),
        }

    @property
    def seconds(self) -> tuple[float, float]:
        """The same of a step; the loop that was measured loads no data and logs nothing, so that it is left out."""
        time = self.result.time
        assert time is not None
        return time.step_seconds * (1 - time.shares[LOOP]), self.measured["step_seconds"]


def jobs() -> tuple[ResolvedJob, ...]:
    """Their jobs, not answered."""
    found = [entry.job for entry in read_job_file(HERE / "h100.yaml")]
    assert len(found) == CASES
    assert all(isinstance(job, ResolvedJob) for job in found)
    return tuple(job for job in found if isinstance(job, ResolvedJob))


def names() -> list[str]:
    """Of those that came through."""
    return [job.name for job in jobs() if job.case["measured"]["outcome"] == "fits"]


@cache
def all_cases() -> tuple[Own, ...]:
    """Those that ran out of memory too."""
    return tuple(answered(job) for job in jobs())


def answered(job: ResolvedJob) -> Own:
    """One of them."""
    result = describe(decide(job, whole_ladder=False), with_remedies=False)
    return Own(job, result, job.case["measured"], job.case["trace"])


def ran() -> tuple[Own, ...]:
    """Those that came through."""
    return tuple(own for own in all_cases() if own.came_through)


def counted(name: str) -> tuple[Own, ...]:
    """Those from which no figure of a metric was chosen."""
    patterns = CONVOLVED if name in ("reserved", "device") else ()
    if name == TIME:
        patterns = tuple(pattern for one in fitted.FITTED_FROM for pattern in one.fitted_from)
    return tuple(own for own in ran() if not any(fnmatchcase(own.job.name, pattern) for pattern in patterns))


def section() -> Iterator[str]:
    """Every one of them, for docs/measured.md."""
    yield "## An H100, measured by this project\n"
    yield (
        "The jobs of `tests/measured/grid.yaml` and `grid_mixed.yaml`, run with `vramplan measure --grid` on an NVIDIA "
        "H100 of 80 GB with PyTorch 2.11 and transformers 5.17 on 2026-11-26.\n"
        "*Allocated*, *reserved* and *device* are peaks; a step is the median of three, on a card that had been idle, "
        "and its prediction is without the time of data loading and logging, which this loop has not.\n"
        "What sums over many rows take for a moment is in what was measured of ViT and CLIP, and in no prediction.\n"
    )
    yield "| Job | Allocated GiB | Error | Reserved GiB | Error | Device error | Step | Error |"
    yield "|---|---|---|---|---|---|---|---|"
    yield from map(line, ran())
    yield ""
    died = [own for own in all_cases() if not own.came_through]
    verdicts = ", ".join(f"{own.job.name.removeprefix('h100 ')}: {own.result.verdict}" for own in died)
    yield f"{len(died)} more ran out of memory: {verdicts}.\n"


def line(own: Own) -> str:
    """What the page says of one that came through."""
    (ours, theirs), name = own.seconds, own.job.name.removeprefix("h100 ")
    cells = [name]
    for metric in ("allocated", "reserved"):
        predicted, measured = own.bytes[metric]
        cells += [f"{measured / 2**30:.2f}", _percent(predicted / measured - 1)]
    predicted, measured = own.bytes["device"]
    cells += [_percent(predicted / measured - 1), f"{1000 * theirs:.0f} ms", _percent(ours / theirs - 1)]
    return f"| {' | '.join(cells)} |"


def summary() -> Iterator[str]:
    """How good they are, for docs/accuracy-published.md."""
    yield "## An H100, measured by this project\n"
    yield (
        f"{len(ran())} jobs that ran there, [each of them](measured.md#an-h100-measured-by-this-project) with all of "
        "its peaks; where workspaces of cuBLAS come, and which gradients are summed in place, was learned from the "
        "events of seven of them. A figure that was chosen in sight of some (the parts that cuDNN sums, rates of a few "
        "kernels) counts the others alone.\n"
    )
    yield "| | Count | Median | 90th percentile | Worst | Bias |"
    yield "|---|---|---|---|---|---|"
    errors = {name: [p / m - 1 for p, m in (own.bytes[name] for own in counted(name))] for name in ran()[0].bytes}
    errors[TIME] = [ours / theirs - 1 for ours, theirs in (own.seconds for own in counted(TIME))]
    for name, found in errors.items():
        stats = ErrorStats.of(found)
        cells = (f"{100 * (value or 0):.1f} %" for value in (stats.median, stats.p90, stats.worst))
        yield f"| {name} | {stats.count} | {' | '.join(cells)} | {_percent(stats.bias)} |"
    yield ""
    right = [own for own in all_cases() if own.result.verdict != (DOES_NOT_FIT if own.came_through else FITS)]
    yield f"Of {len(all_cases())} jobs {len(right)} came through or ran out of memory as the verdict says.\n"


def in_one_line() -> str:
    """For README.md."""
    worst = max(abs(p / m - 1) for p, m in (own.bytes["allocated"] for own in ran()))
    return f"{len(ran())} peaks that were measured on an H100 are met within {100 * worst:.1f} %"


def _percent(share: float | None) -> str:
    return f"{100 * (share or 0):+.1f} %"
