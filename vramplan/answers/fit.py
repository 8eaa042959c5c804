"""The whole answer about one job: what `fit` prints, `check` gates and `validate` compares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramplan.answers import on_demand
from vramplan.answers.behaviour import wording_of
from vramplan.answers.components import beside_whole, components_of, overheads_of, own_parameters, parameters_of_all
from vramplan.answers.remarks import assumed, decisive, of_the_likeliest, remarks
from vramplan.answers.settings import settings_of
from vramplan.catalog.gpus import list_gpus
from vramplan.engines import imported
from vramplan.errors import InputError, Problem
from vramplan.job import build_any_job
from vramplan.job.echo import job_to_dict
from vramplan.options.flags import flags_of
from vramplan.planner.accumulation import Schedule
from vramplan.planner.decision import ALWAYS, Decision, decide
from vramplan.planner.judge import Judge
from vramplan.planner.ladder import Rung, has_room
from vramplan.planner.replays import Replays
from vramplan.planner.time.rates import missing_rate
from vramplan.planner.timed import host_held, step_time
from vramplan.replay.models.parts import is_batch_normalised
from vramplan.replay.placed import checkpoint_ranges_in
from vramplan.replay.precision import precision_of
from vramplan.replay.record import Record
from vramplan.results import (
    CODE,
    FITS,
    SETTING,
    Alternative,
    FitResult,
    Host,
    Peak,
    Recommendation,
    Remedy,
)
from vramplan.results.frozen import frozen
from vramplan.values.job import Assumption, ResolvedJob
from vramplan.values.length import NO_LENGTH
from vramplan.values.machine import Gpu
from vramplan.values.model import ModelShape
from vramplan.values.textbook import AnyJob, TextbookJob

if TYPE_CHECKING:
    from vramplan.job.typed import Typed
    from vramplan.results.advice import Advice
    from vramplan.results.allocator import Allocator
    from vramplan.results.run import Data, Run
    from vramplan.results.stages import StageRow
    from vramplan.results.time import Time


MAX = "max"  # a value that asks for the largest one
FEWEST = ("auto", "?", "any", "min", "minimum", "fewest", "how-many")  # numbers of devices that ask for the fewest
SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


class Cards(list[Gpu]):
    """Known GPUs, and the files of profiles that are left out as they are broken."""

    broken: tuple[str, ...] = ()


def no_gpus() -> Iterable[Gpu]:
    """No catalogue at hand: no larger card is proposed."""
    return ()


def known_gpus(profile_dirs: Sequence[Path]) -> Iterable[Gpu]:
    """The GPUs that a remedy may name, without those whose profile is broken (`vramplan profiles lint` says why)."""

    cards, problems = Cards(), list[Problem]()
    try:
        cards += [profile.gpu() for profile in list_gpus(profile_dirs, problems)]
    except InputError as error:
        problems += error.problems
    cards.broken = tuple(dict.fromkeys(problem.file for problem in problems if problem.file is not None))
    return cards


def typed_keys(keys: Mapping[str, Any], profile_dirs: Sequence[Path] = ()) -> Callable[[], Typed]:
    """What gives the keys of options or of the API as they were typed; it reads them again when it is asked."""
    return lambda: imported("vramplan.job.typed:Typed").of_keys(keys, profile_dirs)


def answered(
    keys: Mapping[str, Any],
    profile_dirs: Sequence[Path],
    largest: str | None = None,
    replays: Replays | None = None,
    *,
    enough: int | None = None,
    at_once: bool = False,
    opening: Callable[[FitResult], None] | None = None,
) -> FitResult:
    """The answer about the job that keys describe, as they were typed. Raises InputError.

    `largest`: what to solve for, in a word of `--max`. `enough`: how many of its remedies are of use, the first ones.
    `at_once` and `opening` as in `describe`.
    """

    def known() -> Iterable[Gpu]:
        return known_gpus(profile_dirs)

    if largest is not None or asks_for_itself(keys):
        found: FitResult = imported("vramplan.answers.solve:solved_keys")(keys, largest, profile_dirs, known, replays)
        return found
    job = build_any_job(keys, profile_dirs=profile_dirs)
    typed = typed_keys(keys, profile_dirs)
    return answer(job, known, replays, typed, closer_from=ALWAYS, enough=enough, at_once=at_once, opening=opening)


def asks_for_itself(keys: Mapping[str, Any]) -> bool:
    """Whether a value asks to be solved for: `max`, or `auto` devices."""
    inside = [part for part in keys.values() if isinstance(part, Mapping)]
    values = [*keys.items(), *(item for part in inside for item in part.items())]
    return any(
        value.lower() in (FEWEST if key == "data" else (MAX,)) for key, value in values if isinstance(value, str)
    )


def answer(
    job: AnyJob,
    larger_gpus: Callable[[], Iterable[Gpu]] = no_gpus,
    replays: Replays | None = None,
    typed: Callable[[], Typed] | None = None,
    *,
    closer_from: int | None = None,
    remedies_from: int | None = None,
    enough: int | None = None,
    at_once: bool = False,
    opening: Callable[[FitResult], None] | None = None,
) -> FitResult:
    """The whole answer about one job. Raises UsageError as `decide` does.

    `closer_from`: from which part of the usable memory on a short iteration goes through the simulated allocator, as in
    `decide`; `remedies_from` is the same of remedies, without it that of the answer. `larger_gpus` gives the known
    cards, and `typed` what the job was before defaults; they are called only where there are remedies. `enough`: how
    many remedies are of use, the first ones; of others some may be missing. `replays`: those of the answers before it,
    which are not made again (`vramplan.answers.session.Session` keeps them). `at_once` and `opening` as in `describe`.
    """
    if isinstance(job, TextbookJob):
        return _by_textbook(job, replays)
    decision = decide(job, replays, closer_from=closer_from)
    remedies_from = closer_from if remedies_from is None else remedies_from
    return describe(
        decision, larger_gpus, typed, closer_from=remedies_from, enough=enough, at_once=at_once, opening=opening
    )


def _by_textbook(job: TextbookJob, replays: Replays | None) -> FitResult:
    from vramplan.planner import equations  # only these jobs pay for it

    decision = equations.decide(job)
    rung = decision.rung
    echo = job_to_dict(decision.judged)
    result = equations.describe(decision, echo, _flags(rung.schedule, rung.strategy))
    result = result._replace(weight_dtype=echo["weight_dtype"])
    if job.replay is not None:
        replayed = Judge(job.replay, replays).footprint(rung.strategy, rung.schedule).allocated
        distance = equations.distance(decision, job.replay.attention, replayed)
        result = result._replace(warnings=(result.warnings[0], distance, *result.warnings[1:]))
    return _sealed(result._replace(advice=_advice(job, rung.schedule, job.model.shape)))


def describe(
    decision: Decision,
    larger_gpus: Callable[[], Iterable[Gpu]] = no_gpus,
    typed: Callable[[], Typed] | None = None,
    *,
    with_remedies: bool = True,
    closer_from: int | None = None,
    enough: int | None = None,
    at_once: bool = False,
    opening: Callable[[FitResult], None] | None = None,
) -> FitResult:
    """A decision as the frozen values that are printed. Remedies, on a no or a tight, cost more than all the rest.

    They are looked at as closely as the answer was: `closer_from`, as in `decide`; `enough` as in `answer`. `at_once`:
    several processes may look for them, copies of this one. `opening` is told the answer without them before that.
    """
    job, judge, choice = decision
    rung, judged, record = choice.rung, decision.judged, decision.record
    total, trainable = parameters_of_all(job, record)
    added = None
    if has_room(rung, judge.usable_bytes) and with_remedies:
        added = judge.accumulation_bytes(rung.placement, rung.schedule)
    usable = judge.usable_bytes
    host = host_held(record, job, rung.schedule)
    components = beside_whole(components_of(record, judged, rung, total, decision.setup.stage), judge, rung)
    data, time, run = time_and_run(decision, host, total)
    limits = on_demand.limits_of(judged, run) if judged.length.has_limits else ()
    likeliest = of_the_likeliest(decision)
    checkpoints = checkpoint_ranges_in(rung.placement, judge.stacks)
    micro, steps = rung.schedule.micro_batch_size, rung.schedule.gradient_accumulation_steps
    settings = settings_of(judged, micro, steps, rung.strategy, checkpoints, judge.stacks)
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
        components=components,
        overheads=overheads_of(rung.peak, judge),
        recommended=_recommended(rung, job, added),
        checkpoints=checkpoints,
        alternatives=tuple(_alternative(other, judge) for other in choice.ladder),
        remedies=() if rung.verdict == FITS else None,
        assumptions=(*assumed(decision), *(() if time is not None else _without_time(judged))),
        warnings=(
            *likeliest,
            *remarks(decision, host, own_parameters(job, record)),
            *(limit.why for limit in limits if not limit.kept),
        ),
        active_parameters=_active(job, total),
        stages=_stages(decision),
        host=host,
        allocator=_allocator(decision),
        advice=_advice(job, rung.schedule, job.model),
        settings=settings,
        settings_need_code=rung.is_code,
        weight_dtype=weight_dtype_of(judged),
        time=time,
        run=run,
        run_unknown=on_demand.why_no_run(judged) if time is None and judged.length != NO_LENGTH else None,
        limits=limits,
        decisive=(*decisive(judged, rung, components), *likeliest),
        data=data,
    )
    prints = wording_of(job).allocated_by
    result = _sealed(result if prints is None else result._replace(allocated_by=prints))
    if rung.verdict == FITS or not with_remedies or enough == 0:
        return result
    if opening is not None:
        opening(result)
    return _with_remedies(result, decision, larger_gpus, typed, closer_from=closer_from, enough=enough, at_once=at_once)


def _with_remedies(
    result: FitResult,
    decision: Decision,
    larger_gpus: Callable[[], Iterable[Gpu]],
    typed: Callable[[], Typed] | None,
    *,
    closer_from: int | None,
    enough: int | None,
    at_once: bool,
) -> FitResult:
    left_out: tuple[str, ...] = ()

    def cards() -> Iterable[Gpu]:
        nonlocal left_out
        found = larger_gpus()
        left_out = getattr(found, "broken", ())
        return found

    remedies_of = imported("vramplan.answers.remedies:remedies_of")
    remedies: tuple[Remedy, ...] = remedies_of(
        decision, cards, typed, closer_from=closer_from, enough=enough, at_once=at_once
    )
    return result._replace(
        remedies=tuple(remedy._replace(change=frozen(remedy.change)) for remedy in remedies),
        warnings=(*result.warnings, *map(_left_out, left_out)),
    )


def weight_dtype_of(job: ResolvedJob) -> str:
    """The element type of most weights on the GPU: of what is frozen where an adapter is trained beside it."""
    if job.quantization is not None:
        return job.quantization
    precision = precision_of(job.precision, half_weights=job.half_weights)
    frozen = precision.frozen if job.adapter is not None else None
    return SHORT[(frozen or precision.stored or precision.weights).name]


def _without_time(job: ResolvedJob) -> tuple[Assumption, ...]:
    missing = missing_rate(job)
    if missing is None:
        return ()
    return (Assumption(f"gpu.{missing[0]}", None, f"unknown for {job.gpu.name}: no step time is given"),)


def _left_out(file: str) -> str:
    return f"{file} is broken, so its GPU is not among the larger cards; vramplan profiles lint says why"


def _stages(decision: Decision) -> tuple[StageRow, ...] | None:
    """What each device of a pipeline holds; None without one."""
    judge, rung = decision.judge, decision.choice.rung
    if not judge.stages:
        return None
    return on_demand.rows_of_stages(judge, rung.placement, rung.schedule)


def _allocator(decision: Decision) -> Allocator | None:
    """What the simulated allocator did; None where it is estimated."""
    judge, rung = decision.judge, decision.choice.rung
    found = judge.reservation(rung.placement, rung.schedule, reported=True)
    if found is None:
        return None
    assert decision.job.allocator is not None
    end, room = found.failure, judge.usable_bytes - judge.outside_bytes
    return on_demand.Allocator(
        settings=on_demand.text_of(decision.job.allocator),
        reserved_bytes=found.reserved_bytes,
        allocated_bytes=found.allocated_bytes,
        first_reserved_bytes=found.first_reserved_bytes,
        first_allocated_bytes=found.first_allocated_bytes,
        held_bytes=found.held_bytes,
        largest_free_bytes=found.largest_free_bytes,
        retries=found.retries,
        out_of_memory=None
        if end is None
        else on_demand.OutOfMemory(
            *end,
            by_fragmentation=end.allocated_bytes + end.wanted_bytes <= room,
            expandable_segments_suffice=found.expandable_survives,
        ),
    )


def time_and_run(decision: Decision, host: Host | None, parameters: int) -> tuple[Data | None, Time | None, Run | None]:
    """What its data need, the time of a step, and the whole run; None where a rate or the length is not known."""
    rung, judged = decision.choice.rung, decision.judged
    time = step_time(judged, decision.judge, rung.placement, rung.schedule, host)
    if time is None or judged.length == NO_LENGTH:
        return None, time, None
    return on_demand.timed(judged, time, rung.schedule, parameters)


def _advice(job: AnyJob, schedule: Schedule, model: ModelShape | None) -> Advice | None:
    """What to change with the batch size; None if the job names no batch and learning rate to come from."""
    if job.base_batch_size is None or job.base_learning_rate is None:
        return None
    return on_demand.advise(
        base_batch_size=job.base_batch_size,
        base_learning_rate=job.base_learning_rate,
        optimizer=job.optimizer,
        micro=schedule.micro_batch_size,
        steps=schedule.gradient_accumulation_steps,
        data=job.data_parallel_size,
        batch_normalised=model is not None and is_batch_normalised(model.family),
        task=None if model is None else model.task,
    )


def _sealed(result: FitResult) -> FitResult:
    """The result with nothing in it that can be changed."""
    return result._replace(
        job=frozen(result.job),
        assumptions=tuple(taken._replace(value=frozen(taken.value)) for taken in result.assumptions),
    )


def _peak(record: Record, rung: Rung) -> Peak:
    micro = rung.schedule.micro_batch_size
    phases, record = record.peaks(micro), record.at_peak(micro)
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


def _recommended(rung: Rung, job: ResolvedJob, accumulation_bytes: int | None) -> Recommendation:
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


def _active(job: ResolvedJob, total: int) -> int | None:
    if job.model.experts is None:
        return None
    return on_demand.active_parameters(job.model, total, job.adapter)
