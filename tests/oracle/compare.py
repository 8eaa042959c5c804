"""Predict traced rows and compare: shared by the tests and by the generator of docs/accuracy.md."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from vramplan.job import read_job_file
from vramplan.memory.iteration import Setup, replay
from vramplan.planner import judge
from vramplan.spec import Job

HERE = Path(__file__).parent
FIGURES = ("peak", "forward", "backward", "step", "saved")
ROWS = {
    "suite": 192,
    "random": 330,
    "families": 252,
    "optimizers": 200,
    "selective": 220,
    "losses": 174,
    "resnet": 36,
    "vision": 102,
    "precisions": 177,
    "steps": 8,
    "seq2seq": 156,
    "adapters": 305,
    "moe": 245,
    "attention": 246,
    "heads": 140,
    "smoothing": 77,
    "preference": 80,
    "padding": 61,
    "checkpoints": 200,
    "fp8": 65,
    "fp8_more": 181,
    "frozen": 262,
    "adapted": 91,
    "adapters_more": 221,
    "halves": 192,
    "fully_shard": 158,
    "fully_shard_more": 146,
    "replicated": 20,
    "galore": 141,
    "master": 36,
    "pairs": 462,
    "quantized": 187,
    "losses_more": 536,
    "selective_more": 463,
}
"""How many rows each file has: none may get lost."""
FILES = tuple(ROWS)
COMPILED = {"compile": 83, "compile_more": 119}
"""The same of the files of compiled steps, which are not exact to the byte."""


class Row(NamedTuple):
    """One traced row: predicted and traced bytes of each figure."""

    job: Job
    predicted: dict[str, int]
    traced: dict[str, int]
    parameters: int  # counted by the replay

    def error(self, figure: str) -> float:
        """Relative error of a figure."""
        return abs(self.predicted[figure] - self.traced[figure]) / self.traced[figure]


def setup_of(job: Job) -> Setup:
    """The iteration of a fully pinned job."""
    assert job.activation_checkpointing is not None
    assert job.gradient_accumulation_steps is not None
    return judge.setup_of(job, job.activation_checkpointing, job.gradient_accumulation_steps > 1)


@cache
def rows(file: str, *, direct: bool = False) -> tuple[Row, ...]:
    """All rows of a file, predicted by the quick replay or, with `direct`, by the one that plays every block."""
    result = []
    for entry in read_job_file(HERE / f"{file}.json"):
        job = entry.job
        assert job is not None, entry.problems
        batch = job.micro_batch_size
        assert batch is not None
        if direct:
            record = replay(setup_of(job), batch=batch, direct=True)
        else:
            record = replay(setup_of(job), batch=1 if batch == 1 else 2)
        phases = record.peaks(batch)
        trace, measured = job.case["trace"], job.case["measured"]
        result.append(
            Row(
                job,
                {"peak": max(phases.values()), **phases, "saved": record.saved_bytes(batch)},
                {
                    "peak": measured["peak_bytes"],
                    **trace["phase_peaks"],
                    "saved": trace["end_of_forward_saved_bytes"],
                },
                record.parameters,
            )
        )
    return tuple(result)
