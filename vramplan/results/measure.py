"""What `vramplan measure` answers, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.errors import Problem
from vramplan.tuples import NamedTuple

GPU, TRACE = "gpu", "trace"  # how a job was run
MEASURED, TRACED, OOM, SKIPPED, ERROR = "measured", "traced", "oom", "skipped", "error"
STATUSES = (MEASURED, TRACED, OOM, SKIPPED, ERROR)


class CountedFigures(NamedTuple):
    """What counters said of the steps; None is what this way of running does not tell."""

    outcome: str  # fits | oom
    allocated_bytes: int | None = None  # torch.cuda.max_memory_allocated(); of a trace the storages alive
    requested_bytes: int | None = None  # before the allocator rounds up
    reserved_bytes: int | None = None  # torch.cuda.max_memory_reserved()
    device_bytes: int | None = None  # of the process, what nvidia-smi shows
    forward_bytes: int | None = None  # the highest level of each phase, of a trace
    backward_bytes: int | None = None
    step_bytes: int | None = None
    evaluation_bytes: int | None = None  # the highest level of what runs between steps, of a trace
    generation_bytes: int | None = None
    micro_steps: int | None = None  # of an accumulation that were run: after the second they are alike
    step_seconds: float | None = None  # the median of the measured steps, of so many micro-steps
    oom_phase: str | None = None  # model | forward | backward | step


class Predicted(NamedTuple):
    """The figures of `fit` for the same job."""

    verdict: str
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int


class MeasuredRow(NamedTuple):
    """One job: run, or skipped because the output has it, or in `problems` why it could not be run."""

    name: str
    status: str
    predicted: Predicted | None = None
    figures: CountedFigures | None = None
    environment: Mapping[str, Any] | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def relative_error(self) -> float | None:
        """(predicted - measured) / measured, of the allocated bytes; None without a peak."""
        figures = self.figures
        if self.predicted is None or figures is None or figures.outcome != "fits" or not figures.allocated_bytes:
            return None
        return (self.predicted.allocated_bytes - figures.allocated_bytes) / figures.allocated_bytes


class Measurement(NamedTuple):
    """Every job of a call, in its order, and the file that has the cases."""

    rows: tuple[MeasuredRow, ...]
    output: str

    def count(self, status: str) -> int:
        """How many jobs ended so."""
        return sum(row.status == status for row in self.rows)


class Calibration(NamedTuple):
    """What a few small steps on the GPU of this machine took, and the profile that says so."""

    gpu: str
    architecture: str
    torch: str
    cuda: str | None
    date: str
    context_bytes: int  # after three steps
    first_context_bytes: int  # after the first tensor
    workspace_bytes: int  # of one thread
    process_group_bytes: int | None  # of a communicator of two ranks; None: there are no two GPUs
    used_by_others_bytes: int | None  # None: no tool says it, and they are taken to use nothing
    reserved_bytes: int  # by PyTorch's allocator after a fixed sequence
    simulated_bytes: int  # by the simulated one
    allocator_agrees: bool  # after every part of the sequence
    file: str | None
    text: str
