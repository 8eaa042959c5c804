"""`vramplan.measure.record()`: the same figures of a step of somebody's own training loop."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from vramplan.answers.fit import describe
from vramplan.errors import UsageError
from vramplan.job import build_job, job_to_dict
from vramplan.measure.allocator import simulated
from vramplan.measure.cases import Known, append, case_of
from vramplan.measure.grid import today
from vramplan.planner.decision import decide
from vramplan.results.measure import GPU, CountedFigures, Predicted
from vramplan.version import __version__


class Recorded:
    """What one step took; filled when the block ends. Figures are integer bytes and seconds."""

    figures: CountedFigures | None = None
    predicted: Predicted | None = None

    @property
    def allocated_bytes(self) -> int | None:
        """`torch.cuda.max_memory_allocated()` of the block; None before it has ended."""
        return None if self.figures is None else self.figures.allocated_bytes

    @property
    def relative_error(self) -> float | None:
        """(predicted - measured) / measured, of the allocated bytes; None without a job, and of a run out of memory."""
        figures, predicted = self.figures, self.predicted
        if figures is None or predicted is None or figures.outcome != "fits" or not figures.allocated_bytes:
            return None
        return (predicted.allocated_bytes - figures.allocated_bytes) / figures.allocated_bytes


@contextmanager
def record(job: Mapping[str, Any] | None = None, *, output: str | None = None) -> Iterator[Recorded]:
    """Measure one training step on the current GPU, all micro-steps and the optimizer's step, after a first one.

    `job`: the keys of the job format that describe the run, to compare with the prediction; `output`: the file of cases
    to which it is appended, which needs a job. A run out of memory is recorded and raised again. Raises InputError for
    a job that cannot be computed, and where there is no GPU.
    """
    import torch

    if output is not None and job is None:
        raise UsageError("needs a job, whose case it is", key="output", hint="record({'model': ..., 'gpu': ...})")
    if not torch.cuda.is_available():
        raise UsageError("PyTorch finds no GPU to measure", key="record", hint="vramplan measure --trace needs none")
    recorded = Recorded()
    keys: dict[str, Any] | None = None
    if job is not None:
        keys, recorded.predicted = _described(job)

    def finish(outcome: str, seconds: float | None) -> None:
        recorded.figures = _figures(torch.cuda.memory_stats(), outcome, seconds)
        if output is None or keys is None or recorded.predicted is None:
            return
        named = {**keys, "name": Known(output).free(str(keys["name"]))}
        environment = {
            "vramplan": __version__,
            "date": today(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name(),
        }
        append(output, case_of(named, GPU, recorded.predicted, recorded.figures, environment, 1))

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    begin = perf_counter()
    try:
        yield recorded
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        finish("oom", None)
        raise
    finish("fits", perf_counter() - begin)


def _described(job: Mapping[str, Any]) -> tuple[dict[str, Any], Predicted]:
    decision = decide(simulated(build_job(job)))
    result = describe(decision, with_remedies=False)
    peak = result.peak
    predicted = Predicted(result.verdict, peak.allocated_bytes, peak.reserved_bytes, peak.device_bytes)
    return job_to_dict(decision.judged), predicted


def _figures(stats: Mapping[str, int], outcome: str, seconds: float | None) -> CountedFigures:
    return CountedFigures(
        outcome=outcome,
        allocated_bytes=stats["allocated_bytes.all.peak"],
        requested_bytes=stats.get("requested_bytes.all.peak"),
        reserved_bytes=stats["reserved_bytes.all.peak"],
        step_seconds=seconds,
    )
