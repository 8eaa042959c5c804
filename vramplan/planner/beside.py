"""Evaluation and generation between training steps, where they need more memory than training does.

The verdict stays that of training: what runs between its steps is said in a warning.
"""

from __future__ import annotations

from vramplan.planner.budget import Footprint, footprint
from vramplan.planner.judge import Judge
from vramplan.replay.evaluation import evaluation, generation_bytes
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.results import FITS, TIGHT
from vramplan.values.job import ResolvedJob

_FITS = ", and fits"


def exceeding(job: ResolvedJob, judge: Judge, setup: Setup, training: Record, peak: Footprint, micro: int) -> list[str]:
    """A sentence for each of them whose peak is above that of training, whose micro-batch is `micro`."""
    said = []
    batch = job.eval_batch_size
    if batch is not None:
        needed = evaluation_bytes(setup, training, batch, micro)
        if needed > peak.allocated:
            most = largest(setup, training, batch, peak.allocated, micro)
            hint = f"; {most} at a time need no more than training" if most else ""
            what = f"an evaluation of {batch} {_sequences(batch)} allocates"
            said.append(f"{what} {_against(judge, needed, peak, _FITS)}{hint}")
    batch, length = job.generation_batch_size, job.generation_length
    if batch is not None and length is not None:
        needed = generation_bytes(setup, training, batch, length, micro)
        if needed > peak.allocated:
            what = f"generating {batch} {_sequences(batch)} of {length} tokens allocates at least"
            said.append(f"{what} {_against(judge, needed, peak, '')}")
    return said


def evaluation_bytes(setup: Setup, training: Record, batch: int, micro: int) -> int:
    """The peak of an evaluation at a batch, beside training at a micro-batch."""
    return evaluation(setup, training, batch=min(batch, 2), micro=micro).peak_bytes(batch)


def largest(setup: Setup, training: Record, batch: int, limit_bytes: int, micro: int) -> int:
    """The largest smaller batch whose evaluation is within the limit; 0 if none."""
    if evaluation_bytes(setup, training, 1, micro) > limit_bytes:
        return 0
    record = evaluation(setup, training, micro=micro)
    low, high = 1, batch - 1
    while low < high:
        middle = (low + high + 1) // 2
        if record.peak_bytes(middle) <= limit_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"


def _sequences(batch: int) -> str:
    return "sequence" if batch == 1 else "sequences"


def _against(judge: Judge, needed_bytes: int, peak: Footprint, fits: str) -> str:
    """The peak beside that of training; `fits` is what is said where it fits: of a lower bound, nothing."""
    own = footprint(needed_bytes, judge.outside_bytes)
    verdict = {FITS: fits, TIGHT: ", and may not fit"}.get(judge.verdict(own), ", and does not fit")
    device = f" (device {_gib(own.device)})" if verdict else ""
    return f"{_gib(needed_bytes)}, more than the {_gib(peak.allocated)} of training{verdict}{device}"
