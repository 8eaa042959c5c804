"""A textbook job judged: the same choice and the same answer as for a replayed one, from closed forms.

No context, no allocator, no band: low = device = high = allocated, so nothing is ever tight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vramplan.planner.accumulation import LARGEST_MICRO_BATCH, OpenSchedules, Schedule
from vramplan.planner.checkpoints import STRATEGIES
from vramplan.planner.textbook import budget
from vramplan.results import (
    DOES_NOT_FIT,
    FITS,
    TEXTBOOK_PHASE,
    TIME,
    Alternative,
    Component,
    FitResult,
    Peak,
    Recommendation,
    Remedy,
)
from vramplan.tuples import NamedTuple
from vramplan.values.job import Assumption
from vramplan.values.textbook import TEXTS_GLOBAL_BATCH_SIZE, TextbookJob

NOT_A_PREDICTION = "textbook figures, not a prediction: no context, no allocator, no temporaries, logits or loss"


class EquationRung(NamedTuple):
    """One strategy at its own best schedule."""

    strategy: str
    schedule: Schedule
    components: tuple[Component, ...]
    verdict: str
    largest_micro_batch_size: int

    @property
    def total_bytes(self) -> int:
        """All that the textbook counts."""
        return sum(part.bytes for part in self.components)


class EquationDecision(NamedTuple):
    """A job, and what was chosen for it."""

    job: TextbookJob
    rung: EquationRung
    ladder: tuple[EquationRung, ...]
    accumulation: OpenSchedules

    @property
    def judged(self) -> TextbookJob:
        """The job with every choice made."""
        schedule = self.rung.schedule
        return self.job._replace(
            micro_batch_size=schedule.micro_batch_size,
            gradient_accumulation_steps=schedule.gradient_accumulation_steps,
            global_batch_size=schedule.global_batch_size,
            activation_checkpointing=self.rung.strategy,
        )


def decide(job: TextbookJob) -> EquationDecision:
    """Choose what the job leaves open: the first strategy that fits, and the largest exact micro-batch in it.

    Raises UsageError if the batch keys contradict each other.
    """
    accumulation = OpenSchedules(
        micro=job.micro_batch_size,
        steps=job.gradient_accumulation_steps,
        global_batch=job.global_batch_size or None,
        given=job.global_batch_given,
        data=job.data_parallel_size,
    )
    ladder = tuple(_best_rung(job, accumulation, strategy) for strategy in _strategies(job))
    pinned = job.activation_checkpointing
    open_to_choice = [rung for rung in ladder if pinned is None or rung.strategy == pinned]
    for rung in open_to_choice:
        if rung.verdict == FITS:
            return EquationDecision(job, rung, ladder, accumulation)
    return EquationDecision(job, min(open_to_choice, key=lambda rung: rung.total_bytes), ladder, accumulation)


def _strategies(job: TextbookJob) -> list[str]:
    """The rows that the job has figures for: a text's own factor has one, and so has a model without layers."""
    pinned = job.activation_checkpointing
    quoted = job.activation_model is not None or job.activation_bytes is not None
    if job.checkpoint_factor is not None or not quoted or job.model.layers is None:
        return [pinned or "none"]
    return list(STRATEGIES) if pinned is None or pinned in STRATEGIES else [*STRATEGIES, pinned]


def _best_rung(job: TextbookJob, accumulation: OpenSchedules, strategy: str) -> EquationRung:
    usable = job.gpu.capacity_bytes

    def total(micro: int) -> int:
        return sum(part.bytes for part in budget.components(job, strategy, micro))

    def within(micro: int) -> bool:
        return total(micro) <= usable

    if not budget.depends_on_micro_batch(job):
        schedule = accumulation.smallest()
        largest = schedule.micro_batch_size if within(schedule.micro_batch_size) else 0
    else:
        largest = _largest(within)
        if accumulation.free:
            schedule = accumulation.for_micro(max(largest, 1))
        else:
            schedules = list(accumulation.schedules())
            schedule = next((one for one in schedules if within(one.micro_batch_size)), schedules[-1])
    parts = budget.components(job, strategy, schedule.micro_batch_size)
    verdict = FITS if within(schedule.micro_batch_size) else DOES_NOT_FIT
    return EquationRung(strategy, schedule, parts, verdict, largest)


def _largest(within: Callable[[int], bool]) -> int:
    """The largest micro-batch for which `within` holds; bytes grow with it."""
    low, high = 0, LARGEST_MICRO_BATCH
    while low < high:
        middle = (low + high + 1) // 2
        if within(middle):
            low = middle
        else:
            high = middle - 1
    return low


def describe(decision: EquationDecision, echo: Mapping[str, Any], flags: str) -> FitResult:
    """A decision as the frozen values that are printed.

    `echo` is the judged job in the words of the job format, `flags` the options that pin the choice.
    """
    job, rung = decision.job, decision.rung
    total, usable = rung.total_bytes, job.gpu.capacity_bytes
    model, schedule = job.model, rung.schedule
    activations = sum(part.bytes for part in rung.components if part.name == "activations")
    fits = rung.verdict == FITS
    return FitResult(
        name=job.name,
        verdict=rung.verdict,
        job=echo,
        capacity_bytes=usable,
        usable_bytes=usable,
        headroom_bytes=usable - total,
        utilization=round(total / usable, 6),
        total_parameters=model.parameters,
        trainable_parameters=model.trained,
        peak=Peak(
            allocated_bytes=total,
            reserved_bytes=total,
            device_bytes=total,
            low_bytes=total,
            high_bytes=total,
            phase=TEXTBOOK_PHASE,
            operator="sum of closed forms",
            forward_bytes=total,
            backward_bytes=total,
            step_bytes=total,
            saved_bytes=activations,
        ),
        components=tuple(part._replace(basis=f"textbook: {part.basis}") for part in rung.components),
        overheads=(),
        recommended=Recommendation(
            micro_batch_size=schedule.micro_batch_size if fits else None,
            gradient_accumulation_steps=schedule.gradient_accumulation_steps if fits else None,
            global_batch_size=schedule.global_batch_size if fits else None,
            largest_micro_batch_size=rung.largest_micro_batch_size,
            activation_checkpointing=rung.strategy if fits else None,
            flags=flags if fits else None,
        ),
        checkpoints=(),  # the table counts checkpoints, it does not place them
        alternatives=tuple(_alternative(job, other) for other in decision.ladder),
        remedies=() if fits else tuple(_remedies(decision)),
        assumptions=tuple(_assumptions(decision)),
        warnings=(NOT_A_PREDICTION, *job.warnings, *([job.gpu.note] if job.gpu.note else [])),
    )


def _alternative(job: TextbookJob, rung: EquationRung) -> Alternative:
    return Alternative(
        activation_checkpointing=rung.strategy,
        verdict=rung.verdict,
        micro_batch_size=rung.schedule.micro_batch_size,
        gradient_accumulation_steps=rung.schedule.gradient_accumulation_steps,
        allocated_bytes=rung.total_bytes,
        device_bytes=rung.total_bytes,
        largest_micro_batch_size=rung.largest_micro_batch_size,
        recomputed_fraction=round(budget.recomputed_fraction(job, rung.strategy), 4),
    )


def _remedies(decision: EquationDecision) -> Iterator[Remedy]:
    """Single changes with which the equations fit: a smaller micro-batch, checkpointing, precision, sharding."""
    job, rung = decision.judged, decision.rung
    schedule = rung.schedule
    changes: list[tuple[dict[str, Any], str, TextbookJob]] = []
    if budget.depends_on_micro_batch(job):
        per_rank = schedule.micro_batch_size * schedule.gradient_accumulation_steps
        most = min(schedule.micro_batch_size - 1, rung.largest_micro_batch_size)
        micro = next((n for n in range(most, 0, -1) if per_rank % n == 0), None)
        if micro is not None:
            change = {"micro_batch_size": micro, "gradient_accumulation_steps": per_rank // micro}
            cost = f"{per_rank // micro} smaller micro-steps, same global batch"
            changes.append((change, cost, job._replace(micro_batch_size=micro)))
    for other in decision.ladder:
        if other.strategy != rung.strategy:
            strategy = other.strategy
            cost = f"{budget.recomputed_fraction(job, strategy):.0%} more compute than no checkpointing"
            one = job._replace(activation_checkpointing=strategy)
            changes.append(({"activation_checkpointing": strategy}, cost, one))
    if job.data_parallel_size > 1:
        for sharding in ("zero1", "zero2", "zero3"):
            cost = "each device holds a part of the states, and fetches the others'"
            changes.append(({"parallel": {"sharding": sharding}}, cost, job._replace(sharding=sharding)))
    for change, cost, changed in changes:
        parts = budget.components(changed, changed.activation_checkpointing or "none", changed.micro_batch_size or 1)
        total = sum(part.bytes for part in parts)
        if total <= job.gpu.capacity_bytes and total < rung.total_bytes:
            yield Remedy(change, rung.total_bytes - total, cost, FITS, TIME, total, job.gpu.capacity_bytes)


def _assumptions(decision: EquationDecision) -> Iterator[Assumption]:
    """The defaults of the job, and what was chosen."""
    job, rung = decision.job, decision.rung
    schedule, fits = rung.schedule, rung.verdict == FITS
    for taken in job.assumptions:
        if taken.key == "global_batch_size" and decision.accumulation.moved_from is not None:
            why = f"the nearest to the default of {TEXTS_GLOBAL_BATCH_SIZE} that can be reached exactly"
            yield Assumption(taken.key, schedule.global_batch_size, why)
        else:
            yield taken
    if job.activation_checkpointing is None:
        names = ", ".join(row.strategy for row in decision.ladder)
        why = f"the first of {names} that fits" if fits else f"the smallest of {names}; none of them fits"
        if len(decision.ladder) == 1:
            why = "nothing is known to recompute"
        yield Assumption("activation_checkpointing", rung.strategy, why)
    if job.micro_batch_size is None:
        why = "the largest that fits" if fits else "the smallest; not even it fits"
        if not budget.depends_on_micro_batch(job):
            why = "no figure here depends on it"
        yield Assumption("micro_batch_size", schedule.micro_batch_size, why)


def distance(decision: EquationDecision, attention: str, replayed_bytes: int) -> str:
    """How far the closed forms are from a replay of the same step, as a sentence; sizes in GB."""
    rung = decision.rung
    total = rung.total_bytes
    setting = f"micro-batch {rung.schedule.micro_batch_size}, checkpointing {rung.strategy}, {attention} attention"
    text = f"replayed, the same step ({setting}) allocates {replayed_bytes / 1e9:.1f} GB at its peak"
    if not total:
        return text
    share = (replayed_bytes - total) / total
    return f"{text}: {abs(share):.0%} {'more' if share >= 0 else 'less'} than the textbook's {total / 1e9:.1f} GB"
