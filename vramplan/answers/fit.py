"""The whole answer about one job: what `fit` prints, `check` gates and `validate` compares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramplan.answers.components import beside_whole, components_of, overheads_of, own_parameters
from vramplan.answers.remarks import assumed, remarks
from vramplan.errors import InputError
from vramplan.job.echo import job_to_dict
from vramplan.options.flags import flags_of
from vramplan.planner.accumulation import Schedule
from vramplan.planner.decision import Decision, decide
from vramplan.planner.judge import Judge
from vramplan.planner.ladder import Rung, has_room
from vramplan.planner.replays import Replays
from vramplan.planner.stacks import checkpoint_ranges_in
from vramplan.replay.record import Record
from vramplan.results import (
    CODE,
    DOES_NOT_FIT,
    SETTING,
    Alternative,
    FitResult,
    Host,
    Peak,
    Recommendation,
    Remedy,
)
from vramplan.results.frozen import frozen
from vramplan.values.job import Job
from vramplan.values.machine import Gpu
from vramplan.values.model import ModelShape
from vramplan.values.textbook import AnyJob, TextbookJob

if TYPE_CHECKING:
    from vramplan.results.advice import Advice
    from vramplan.results.allocator import Allocator
    from vramplan.results.stages import StageRow


def no_gpus() -> Iterable[Gpu]:
    """No catalogue at hand: no larger card is proposed."""
    return ()


def known_gpus(profile_dirs: Sequence[Path]) -> Iterable[Gpu]:
    """The GPUs that a remedy may name, without those whose profile is broken (`vramplan profiles lint` says why)."""
    from vramplan.catalog.gpus import list_measured  # only a no pays for it

    try:
        return [profile.gpu() for profile in list_measured(profile_dirs)]
    except InputError:
        return []


def answer(
    job: AnyJob, larger_gpus: Callable[[], Iterable[Gpu]] = no_gpus, replays: Replays | None = None
) -> FitResult:
    """The whole answer about one job. Raises UsageError as `decide` does.

    `larger_gpus` gives the known cards; it is called only on a no. `replays`: those of the answers before it, which
    are not made again (`vramplan.answers.session.Session` keeps them).
    """
    if isinstance(job, TextbookJob):
        return _by_textbook(job, replays)
    return describe(decide(job, replays), larger_gpus)


def _by_textbook(job: TextbookJob, replays: Replays | None) -> FitResult:
    from vramplan.planner import textbook  # only these jobs pay for it

    decision = textbook.decide(job)
    rung = decision.rung
    result = textbook.describe(decision, job_to_dict(decision.judged), _flags(rung.schedule, rung.strategy))
    if job.replay is not None:
        replayed = Judge(job.replay, replays).footprint(rung.strategy, rung.schedule).allocated
        distance = textbook.distance(decision, job.replay.attention, replayed)
        result = result._replace(warnings=(result.warnings[0], distance, *result.warnings[1:]))
    return _sealed(result._replace(advice=_advice(job, rung.schedule, job.model.shape)))


def describe(
    decision: Decision, larger_gpus: Callable[[], Iterable[Gpu]] = no_gpus, *, with_remedies: bool = True
) -> FitResult:
    """A decision as the frozen values that are printed; on a no, remedies cost far more than all the rest."""
    job, judge, choice = decision
    rung, judged, record = choice.rung, decision.judged, decision.record
    total, trainable = record.parameters, record.trainable_parameters
    if job.split is not None:  # the record is of a device
        from vramplan.catalog.counting import parameters_of

        shape = job.model._replace(family=job.model.published_family or job.model.family, engine=None)
        total = trainable = parameters_of(shape)
    remedies: tuple[Remedy, ...] = ()
    if rung.verdict == DOES_NOT_FIT and with_remedies:
        from vramplan.planner.remedies import remedies_for  # only a no pays for it

        remedies = remedies_for(choice, judge, larger_gpus, _modelled(judged))
    added = None
    if has_room(rung, judge.usable_bytes) and with_remedies:
        added = judge.accumulation_bytes(rung.placement, rung.schedule)
    usable = judge.usable_bytes
    host = _host(record, job, rung.schedule)
    result = FitResult(
        name=job.name,
        verdict=rung.verdict,
        job=job_to_dict(judged),
        capacity_bytes=job.gpu.capacity_bytes,
        usable_bytes=usable,
        headroom_bytes=usable - rung.peak.device,
        utilization=round(rung.peak.device / usable, 6) if usable > 0 else float(rung.peak.device),
        total_parameters=total,
        trainable_parameters=trainable,
        peak=_peak(record, rung),
        components=beside_whole(components_of(record, judged, rung, total, decision.setup.stage), judge, rung),
        overheads=overheads_of(rung.peak, judge),
        recommended=_recommended(rung, job, added),
        checkpoints=checkpoint_ranges_in(rung.placement, judge.stacks),
        alternatives=tuple(_alternative(other, judge) for other in choice.ladder),
        remedies=remedies,
        assumptions=assumed(job, choice),
        warnings=remarks(decision, host, own_parameters(job, record)),
        active_parameters=_active(job, total),
        stages=_stages(decision),
        host=host,
        allocator=_allocator(decision),
        advice=_advice(job, rung.schedule, job.model),
    )
    return _sealed(result)


def _stages(decision: Decision) -> tuple[StageRow, ...] | None:
    """What each device of a pipeline holds; None without one."""
    judge, rung = decision.judge, decision.choice.rung
    if not judge.stages:
        return None
    from vramplan.planner.staged import rows_of_stages  # only pipelines pay for it

    return rows_of_stages(judge, rung.placement, rung.schedule)


def _modelled(judged: Job) -> Callable[[Mapping[str, Any]], bool]:
    """What says of a change whether it makes a job that can be computed.

    The code of a runtime, and what shares states, refuse some.
    """
    if judged.model.published_family is None and judged.sharding is None and judged.split is None:
        return lambda change: True  # the remedies know what goes with what on one device
    from vramplan.job.recheck import rechecker  # only such jobs pay for it

    return rechecker(judged)


def _allocator(decision: Decision) -> Allocator | None:
    """What the simulated allocator did; None where it is estimated."""
    judge, rung = decision.judge, decision.choice.rung
    found = judge.reservation(rung.placement, rung.schedule, reported=True)
    if found is None:
        return None
    from vramplan.job.allocator import text_of  # only these jobs pay for it
    from vramplan.results.allocator import Allocator, OutOfMemory

    assert decision.job.allocator is not None
    end, room = found.failure, judge.usable_bytes - judge.outside_bytes
    return Allocator(
        settings=text_of(decision.job.allocator),
        reserved_bytes=found.reserved_bytes,
        allocated_bytes=found.allocated_bytes,
        first_reserved_bytes=found.first_reserved_bytes,
        first_allocated_bytes=found.first_allocated_bytes,
        held_bytes=found.held_bytes,
        largest_free_bytes=found.largest_free_bytes,
        retries=found.retries,
        out_of_memory=None
        if end is None
        else OutOfMemory(
            *end,
            by_fragmentation=end.allocated_bytes + end.wanted_bytes <= room,
            expandable_segments_suffice=found.expandable_survives,
        ),
    )


def _host(record: Record, job: Job, schedule: Schedule) -> Host | None:
    """What is on the host; None if nothing is offloaded."""
    if not record.host and record.host_states is None:
        return None
    from vramplan.replay.host import host_of  # few jobs offload

    return host_of(record, job, schedule.micro_batch_size, schedule.gradient_accumulation_steps)


def _advice(job: AnyJob, schedule: Schedule, model: ModelShape | None) -> Advice | None:
    """What to change with the batch size; None if the job names no batch and learning rate to come from."""
    if job.base_batch_size is None or job.base_learning_rate is None:
        return None
    from vramplan.textbook.advice import advise  # few jobs ask for it

    return advise(
        base_batch_size=job.base_batch_size,
        base_learning_rate=job.base_learning_rate,
        optimizer=job.optimizer,
        micro=schedule.micro_batch_size,
        steps=schedule.gradient_accumulation_steps,
        data=job.data_parallel_size,
        family=job.model.family,
        task=None if model is None else model.task,
    )


def _sealed(result: FitResult) -> FitResult:
    """The result with nothing in it that can be changed."""
    return result._replace(
        job=frozen(result.job),
        remedies=tuple(remedy._replace(change=frozen(remedy.change)) for remedy in result.remedies),
        assumptions=tuple(taken._replace(value=frozen(taken.value)) for taken in result.assumptions),
    )


def _peak(record: Record, rung: Rung) -> Peak:
    micro = rung.schedule.micro_batch_size
    phases = record.peaks(micro)
    phase, moment = record.worst(micro)
    return Peak(
        allocated_bytes=rung.peak.allocated,
        reserved_bytes=rung.peak.reserved,
        device_bytes=rung.peak.device,
        low_bytes=rung.peak.low,
        high_bytes=rung.peak.high,
        phase=phase,
        operator=record.operator_at(moment),
        forward_bytes=phases["forward"],
        backward_bytes=phases["backward"],
        step_bytes=phases["step"],
        saved_bytes=record.saved_bytes(micro),
    )


def _recommended(rung: Rung, job: Job, accumulation_bytes: int | None) -> Recommendation:
    if not has_room(rung, job.usable_bytes):
        return Recommendation(
            micro_batch_size=None,
            gradient_accumulation_steps=None,
            global_batch_size=None,
            largest_micro_batch_size=rung.largest_micro_batch_size,
            activation_checkpointing=None,
            flags=None,
        )
    schedule = rung.schedule
    return Recommendation(
        micro_batch_size=schedule.micro_batch_size,
        gradient_accumulation_steps=schedule.gradient_accumulation_steps,
        global_batch_size=schedule.global_batch_size,
        largest_micro_batch_size=rung.largest_micro_batch_size,
        activation_checkpointing=rung.strategy,
        flags=_flags(schedule, rung.strategy),
        checkpointing_by=CODE if rung.is_code else SETTING,
        accumulation_adds_bytes=accumulation_bytes,
    )


def _flags(schedule: Schedule, strategy: str) -> str:
    """The options that pin a choice."""
    return flags_of(
        {
            "micro_batch_size": schedule.micro_batch_size,
            "gradient_accumulation_steps": schedule.gradient_accumulation_steps,
            "activation_checkpointing": strategy,
        }
    )


def _alternative(rung: Rung, judge: Judge) -> Alternative:
    return Alternative(
        activation_checkpointing=rung.strategy,
        verdict=rung.verdict,
        micro_batch_size=rung.schedule.micro_batch_size,
        gradient_accumulation_steps=rung.schedule.gradient_accumulation_steps,
        allocated_bytes=rung.peak.allocated,
        device_bytes=rung.peak.device,
        largest_micro_batch_size=rung.largest_micro_batch_size,
        recomputed_fraction=round(rung.recomputed_fraction, 4),
    )


def _active(job: Job, total: int) -> int | None:
    if job.model.experts is None:
        return None
    from vramplan.replay.models.experts import active_parameters  # only models with experts pay for it

    return active_parameters(job.model, total, job.adapter)
