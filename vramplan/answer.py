"""The whole answer about one job: what `fit` prints, `check` gates and `validate` compares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vramplan.components import beside_whole, components_of, overheads_of, own_parameters
from vramplan.errors import InputError
from vramplan.flags import flags_of
from vramplan.job.echo import job_to_dict
from vramplan.memory.iteration import Setup
from vramplan.planner.accumulation import Schedule
from vramplan.planner.checkpoints import STRATEGIES
from vramplan.planner.choose import Choice, Rung, choose, strategies_of
from vramplan.planner.judge import Judge
from vramplan.planner.stacks import checkpoint_ranges_in
from vramplan.results import (
    DOES_NOT_FIT,
    TIGHT,
    Alternative,
    FitResult,
    Host,
    Peak,
    Recommendation,
    Remedy,
)
from vramplan.results.frozen import frozen
from vramplan.spec import (
    DEFAULT_GLOBAL_BATCH_SIZE,
    AnyJob,
    Assumption,
    Gpu,
    Job,
    ModelShape,
    TextbookJob,
)
from vramplan.tape.record import Record

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


class Decision(NamedTuple):
    """A job, what was chosen for it, and who judged it."""

    job: Job
    judge: Judge
    choice: Choice

    @property
    def judged(self) -> Job:
        """The job with every choice made."""
        rung = self.choice.rung
        return self.job._replace(
            micro_batch_size=rung.schedule.micro_batch_size,
            gradient_accumulation_steps=rung.schedule.gradient_accumulation_steps,
            global_batch_size=rung.schedule.global_batch_size,
            activation_checkpointing=rung.strategy,
        )

    @property
    def setup(self) -> Setup:
        """The iteration that was judged."""
        rung = self.choice.rung
        return self.judge.setup(rung.placement, rung.schedule.accumulates, self.stage)

    @property
    def record(self) -> Record:
        """Its replay, valid at the chosen micro-batch."""
        rung = self.choice.rung
        one = rung.schedule.micro_batch_size == 1
        return self.judge.record(rung.placement, rung.schedule.accumulates, one, self.stage)

    @property
    def stage(self) -> int:
        """The number of the stage that was judged: of a pipeline the most loaded one."""
        rung = self.choice.rung
        schedule = rung.schedule
        return self.judge.stage_at(rung.placement, schedule.micro_batch_size, schedule.accumulates)


def decide(job: Job, *, whole_ladder: bool = True) -> Decision:
    """Judge one job, choosing what it leaves open. Raises UsageError if the batch keys contradict each other.

    Without the `whole_ladder` a job that pins its checkpoints has no alternatives.
    """
    judge = Judge(job)
    choice = choose(job, judge, whole_ladder=whole_ladder)
    if judge.waits_for_steps:
        judge = judge.at_steps(choice.rung.schedule.gradient_accumulation_steps)
    return Decision(job, judge, choice)


def answer(job: AnyJob, larger_gpus: Callable[[], Iterable[Gpu]] = no_gpus) -> FitResult:
    """The whole answer about one job. Raises UsageError as `decide` does.

    `larger_gpus` gives the known cards; it is called only on a no.
    """
    if isinstance(job, TextbookJob):
        return _by_textbook(job)
    return describe(decide(job), larger_gpus)


def _by_textbook(job: TextbookJob) -> FitResult:
    from vramplan.planner import textbook  # only these jobs pay for it

    decision = textbook.decide(job)
    rung = decision.rung
    result = textbook.describe(decision, job_to_dict(decision.judged), _flags(rung.schedule, rung.strategy))
    if job.replay is not None:
        replayed = Judge(job.replay).footprint(rung.strategy, rung.schedule).allocated
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

        shape = job.model._replace(family=job.model.published_family or job.model.family)
        total = trainable = parameters_of(shape)
    remedies: tuple[Remedy, ...] = ()
    if rung.verdict == DOES_NOT_FIT and with_remedies:
        from vramplan.planner.remedies import remedies_for  # only a no pays for it

        remedies = remedies_for(choice, judge, larger_gpus, lambda change: _is_modelled(judged, change))
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
        recommended=_recommended(rung, job),
        checkpoints=checkpoint_ranges_in(rung.placement, judge.stacks),
        alternatives=tuple(_alternative(other, judge) for other in choice.ladder),
        remedies=remedies,
        assumptions=(*_taken(job, choice), *_choices(job, choice)),
        warnings=(
            *job.warnings,
            *_too_much_on_the_host(record, host, job),
            *_warnings(job, rung, usable, own_parameters(job, record)),
            *_narrower(judge, rung),
            *_managed(record),
            *_falls_back(decision),
            *_uncounted(record, rung.schedule.micro_batch_size),
            *_beside(decision),
            *_by_the_allocator(decision),
        ),
        active_parameters=_active(job, total),
        stages=_stages(decision),
        host=host,
        allocator=_allocator(decision),
        advice=_advice(job, rung.schedule, job.model),
    )
    return _sealed(result)


def _narrower(judge: Judge, rung: Rung) -> list[str]:
    """Of a tight verdict what would say more."""
    if rung.verdict != TIGHT:
        return []
    from vramplan.planner.narrowing import narrower  # only tight ones pay for it

    said = narrower(judge, rung.peak)
    return [] if said is None else [said]


def _stages(decision: Decision) -> tuple[StageRow, ...] | None:
    """What each device of a pipeline holds; None without one."""
    judge, rung = decision.judge, decision.choice.rung
    if not judge.stages:
        return None
    from vramplan.planner.staged import rows_of_stages  # only pipelines pay for it

    return rows_of_stages(judge, rung.placement, rung.schedule)


def _is_modelled(judged: Job, change: Mapping[str, Any]) -> bool:
    """Whether a change makes a job that can be computed: the code of a runtime, and what shares states, refuse some."""
    if judged.model.published_family is None and judged.sharding is None and judged.split is None:
        return True  # the remedies know what goes with what on one device
    from vramplan.errors import InputError
    from vramplan.job import build_job  # only such jobs pay for it

    keys = job_to_dict(judged)
    changed = {**keys, **change}
    if "parallel" in change:
        changed["parallel"] = {**keys["parallel"], **change["parallel"]}
    try:
        build_job(changed)
    except InputError:
        return False
    return True


def _allocator(decision: Decision) -> Allocator | None:
    """What the simulated allocator did; None where it is estimated."""
    judge, rung = decision.judge, decision.choice.rung
    found = judge.reservation(rung.placement, rung.schedule)
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


def _by_the_allocator(decision: Decision) -> list[str]:
    """What the simulated allocator says beside its figures."""
    judge, rung = decision.judge, decision.choice.rung
    found = judge.reservation(rung.placement, rung.schedule)
    if found is None:
        return []
    from vramplan.planner.reserving import remarks  # only these jobs pay for it

    return remarks(found, judge.usable_bytes - judge.outside_bytes)


def _host(record: Record, job: Job, schedule: Schedule) -> Host | None:
    """What is on the host; None if nothing is offloaded."""
    if not record.host and record.host_states is None:
        return None
    from vramplan.memory.host import host_of  # few jobs offload

    return host_of(record, job, schedule.micro_batch_size, schedule.gradient_accumulation_steps)


def _too_much_on_the_host(record: Record, host: Host | None, job: Job) -> tuple[str, ...]:
    """Why a run that its devices can hold does not fit after all."""
    given = job.host_memory_bytes
    kept = record.host_states
    said = () if kept is None else tuple(one for one in (kept.stops, kept.doubts) if one)
    if host is None or given is None or host.node_bytes <= given:
        return said
    from vramplan.units import format_gib  # few jobs offload

    need = f"its node needs {format_gib(host.node_bytes)}"
    return (*said, f"does not fit on the host: {need}, and host_memory is {format_gib(given)}")


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


def _recommended(rung: Rung, job: Job) -> Recommendation:
    if rung.verdict == DOES_NOT_FIT:
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
        recomputed_fraction=round(judge.recomputed_fraction(rung.placement), 4),
    )


def _taken(job: Job, choice: Choice) -> list[Assumption]:
    """The defaults of the job; the default global batch may have moved to one that can be reached."""
    if choice.accumulation.moved_from is None:
        return list(job.assumptions)
    reached = choice.rung.schedule.global_batch_size
    why = f"the nearest to the default of {DEFAULT_GLOBAL_BATCH_SIZE} that can be reached exactly"
    moved = Assumption("global_batch_size", reached, why)
    return [moved if assumption.key == moved.key else assumption for assumption in job.assumptions]


def _choices(job: Job, choice: Choice) -> list[Assumption]:
    """What the planner chose, and why."""
    made = []
    rung = choice.rung
    if job.activation_checkpointing is None:
        rows = ", ".join(STRATEGIES if len(strategies_of(job)) == 1 else strategies_of(job))
        why = (
            f"smallest peak of {rows}; none of them fits"
            if rung.verdict == DOES_NOT_FIT
            else f"the first of {rows} that {'fits' if rung.verdict != TIGHT else 'may fit'}"
        )
        made.append(Assumption("activation_checkpointing", rung.strategy, why))
    if job.micro_batch_size is None:
        why = "the largest that fits" if rung.verdict != DOES_NOT_FIT else "the smallest; not even it fits"
        made.append(Assumption("micro_batch_size", rung.schedule.micro_batch_size, why))
    return made


def _managed(record: Record) -> list[str]:
    """Paged optimizers hold their states where no figure of the allocator counts them."""
    size = record.managed_bytes
    if not size:
        return []
    return [
        f"{size / 2**30:.2f} GiB of optimizer states lie in managed memory and are in none of these figures: they stay "
        "on the GPU while there is room, and move to the host when there is not"
    ]


def _falls_back(decision: Decision) -> tuple[str, ...]:
    """What llm.c does where a device cannot hold all states."""
    if decision.job.model.family != "llmc" or decision.choice.rung.verdict != DOES_NOT_FIT:
        return ()
    from vramplan.memory.llmc import falls_back  # only its jobs pay for it

    rung, judge = decision.choice.rung, decision.judge
    return falls_back(decision.record, rung.peak.device, judge.usable_bytes)


def _uncounted(record: Record, micro: int) -> list[str]:
    """A library's workspace that is not known matters where the peak is reached beside it."""
    if record.operator_at(record.worst(micro)[1]) != "_linalg_svd":
        return []
    return [
        "the peak lies inside a singular value decomposition, whose workspace in cuSOLVER is not known and not counted:"
        " the run needs more than is said here"
    ]


def _active(job: Job, total: int) -> int | None:
    if job.model.experts is None:
        return None
    from vramplan.models.experts import active_parameters  # only models with experts pay for it

    return active_parameters(job.model, total, job.adapter)


def _beside(decision: Decision) -> list[str]:
    """Evaluation and generation that need more than training."""
    job = decision.job
    if job.eval_batch_size is None and job.generation_batch_size is None:
        return []
    from vramplan.planner.beside import exceeding  # only jobs that ask pay for it

    rung = decision.choice.rung
    return exceeding(job, decision.judge, decision.setup, decision.record, rung.peak)


def _has_a_part(job: Job) -> bool:
    """Whether the parameters that are counted are those of a part of the model."""
    return job.model.family == "megatron" or (job.split is not None and job.split.pipeline > 1)


def _warnings(job: Job, rung: Rung, usable_bytes: int, total_parameters: int) -> list[str]:
    said = []
    declared = job.model.declared_parameters
    if declared is not None and declared != total_parameters and not _has_a_part(job):
        said.append(
            f"{job.model.name} declares {declared:,} parameters, but its architecture has {total_parameters:,}: "
            "the answer is for the architecture"
        )
    if job.gpu.note:
        said.append(job.gpu.note)
    if job.model.task == "contrastive" and rung.schedule.accumulates:
        pairs = f"the {rung.schedule.micro_batch_size} pairs of a micro-batch"
        said.append(
            f"the contrastive loss compares {pairs} with each other: "
            "accumulation does not make it that of the global batch"
        )
    if rung.verdict == TIGHT and rung.peak.device > usable_bytes:
        said.append("tight with no headroom: more likely not")
    return said
