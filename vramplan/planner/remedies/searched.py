"""Changes to a number: the largest micro-batch and the longest sequence below those of the answer that fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vramplan.planner.accumulation import divisors
from vramplan.planner.candidate import Candidate
from vramplan.planner.remedies.trial import Trials
from vramplan.results import TIME, TRAINING
from vramplan.values.job import ResolvedJob

SEQUENCE_STEP = 128
SHORTEST = 4  # of the sequence one part in so many: with less, nobody trains the same thing


def smaller_micro_batch(base: ResolvedJob, trials: Trials) -> list[Candidate]:
    """The largest smaller micro-batch that keeps the global batch, by more accumulation.

    Where none fits alone, the smallest one may beside another change.
    """
    micro, steps = base.micro_batch_size, base.gradient_accumulation_steps
    assert micro is not None
    assert steps is not None
    per_rank = micro * steps
    smaller = [one for one in divisors(micro, steps) if one < micro]

    def change(number: int) -> dict[str, Any]:
        return {"micro_batch_size": number, "gradient_accumulation_steps": per_rank // number}

    if not smaller:
        return []
    found = _first(smaller, change, trials) or smaller[-1]
    words = f"{per_rank // found} smaller micro-batches per step, same global batch"
    return [Candidate(change(found), TIME, words)]


def shorter_sequence(base: ResolvedJob, trials: Trials) -> list[Candidate]:
    """The longest sequence (in steps of 128 tokens) that fits."""
    if base.model.takes_images:
        return []  # it has no tokens, or the images' are among them
    most = (base.sequence_length - 1) // SEQUENCE_STEP
    least = max(1, base.sequence_length // (SHORTEST * SEQUENCE_STEP))
    lengths = range(most * SEQUENCE_STEP, (least - 1) * SEQUENCE_STEP, -SEQUENCE_STEP)
    found = _first(lengths, lambda number: {"sequence_length": number}, trials)
    if found is None:
        return []
    words = f"{base.sequence_length - found} fewer tokens of context"
    return [Candidate({"sequence_length": found}, TRAINING, words)]


def _first(numbers: range | list[int], change: Callable[[int], Mapping[str, Any]], trials: Trials) -> int | None:
    """The first of descending numbers whose estimated peak surely fits; the last where none does and it may."""

    def needs(number: int, figure: str) -> bool:
        job = trials.typed(change(number))
        return job is not None and trials.smallest(job).is_within(figure)

    if not numbers or not needs(numbers[-1], "low"):
        return None
    low, high = 0, len(numbers) - 1  # the answer is at high, if anywhere
    while low < high:
        middle = (low + high) // 2
        if needs(numbers[middle], "high"):
            high = middle
        else:
            low = middle + 1
    return numbers[high]
