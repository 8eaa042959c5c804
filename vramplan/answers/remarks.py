"""What is said beside the figures of an answer: what was assumed and chosen, and what to know of it."""

from __future__ import annotations

from collections.abc import Iterable

from vramplan.answers import on_demand
from vramplan.answers.behaviour import wording_of
from vramplan.job.echo import allocator_of
from vramplan.job.resolver import classifies
from vramplan.planner.bands import OUTSIDE_CALIBRATED
from vramplan.planner.checkpoints import STRATEGIES
from vramplan.planner.choose import strategies_of
from vramplan.planner.decision import MOST_EVENTS, Decision, shares_states
from vramplan.planner.judge import Judge
from vramplan.planner.ladder import Choice, Rung, has_room
from vramplan.replay.record import Record
from vramplan.results import DOES_NOT_FIT, FITS, TIGHT, Component, Host
from vramplan.units import format_gib, format_needed_gib
from vramplan.values.job import Assumption, ResolvedJob

WIDE = 0.2  # of the likely figure: from here on a range is said to be wide


def assumed(decision: Decision) -> tuple[Assumption, ...]:
    """The defaults that were taken and the choices that were made, each with its reason."""
    job, judge, choice = decision
    return (*_taken(job, choice), *_choices(job, choice), *_simulated(decision), *_range(judge))


def _simulated(decision: Decision) -> list[Assumption]:
    """That the allocator is simulated although the job does not say so."""
    job = decision.job
    if job.allocator is None or job.allocator_offered is None:
        return []
    why = "the step makes few enough allocations"
    if decision.events > MOST_EVENTS:
        why = "an estimate is less exact where devices share the states"
        if not shares_states(job):
            why = "the estimate is tight"
    return [Assumption("allocator", allocator_of(job), f"PyTorch's allocator is simulated: {why}")]


def _range(judge: Judge) -> list[Assumption]:
    """What the range of the peak rests on, where that is not what it usually is."""
    said = []
    runtime = judge.job.runtime
    if judge.is_calibrated:
        basis = runtime.notes.get("calibrated") or runtime.calibrated
        why = f"calibrated on this machine ({basis}): the low end of the range has {OUTSIDE_CALIBRATED} % of it"
        said.append(Assumption("context", format_gib(judge.outside_bytes), why))
    if judge.doubts and runtime.caches:
        margin = judge.simulated_margin if judge.simulates else judge.margin
        said.append(Assumption("range", f"-{margin.below} %, +{margin.above} %", f"wider: {'; '.join(judge.doubts)}"))
    return said


def remarks(decision: Decision, host: Host | None, own_parameters: int) -> tuple[str, ...]:
    """Everything to know of an answer; `own_parameters` are those of the model without an adapter's."""
    job, judge, choice = decision
    rung, record = choice.rung, decision.record
    return (
        *job.warnings,
        *_of_masked_tokens(job),
        *(f"{one}: the range is wider" for one in job.composed),
        *_of_the_host(record, host, job),
        *_warnings(job, rung, judge.usable_bytes, own_parameters),
        *_narrower(judge, rung),
        *_managed(record),
        *wording_of(job).remarks(decision),
        *_left_before(record, rung.schedule.micro_batch_size),
        *_uncounted(record, rung.schedule.micro_batch_size),
        *_beside(decision),
        *_by_the_allocator(decision),
    )


def of_the_likeliest(decision: Decision) -> tuple[str, ...]:
    """Of a tight run that leaves something open: that what was chosen is the likeliest to fit."""
    job, judge, choice = decision
    open_keys = [key for key in ("micro_batch_size", "activation_checkpointing") if getattr(job, key) is None]
    if not open_keys or choice.rung.verdict != TIGHT or not has_room(choice.rung, judge.usable_bytes):
        return ()
    return ("no open choice surely fits: the plan is the one most likely to fit",)


def _of_masked_tokens(job: ResolvedJob) -> list[str]:
    """That the head is that of pre-training, which seldom is what people train an encoder with."""
    if job.model.task != "mlm" or job.loss != "standard" or not classifies(job.model.transformers_model_type):
        return []
    tokens = f"with logits over {job.model.vocabulary_size:,} of them"
    others = "a classifier, a reranker or an embedding model has none (--loss classification)"
    return [f"the loss is that of masked tokens, {tokens}; {others}"]


def decisive(job: ResolvedJob, rung: Rung, components: Iterable[Component]) -> tuple[str, ...]:
    """The warnings that say why a part is as large as it is, where it is most of the memory of what does not fit."""
    if rung.verdict != DOES_NOT_FIT or not job.reasons:
        return ()
    most = {part.name for part in components if 2 * part.bytes > rung.peak.device}
    return tuple(said for part, said in job.reasons if part in most)


def _taken(job: ResolvedJob, choice: Choice) -> list[Assumption]:
    """The defaults of the job; the batch of a recipe may have moved to one that can be reached."""
    if choice.accumulation.moved_from is None:
        return list(job.assumptions)
    reached = choice.rung.schedule.global_batch_size
    why = (
        f"the nearest to the {job.global_batch_size} that {job.model.name} was trained with that can be reached exactly"
    )
    moved = Assumption("global_batch_size", reached, why)
    return [moved if assumption.key == moved.key else assumption for assumption in job.assumptions]


def _choices(job: ResolvedJob, choice: Choice) -> list[Assumption]:
    """What the planner chose, and why."""
    made = []
    rung = choice.rung
    room = has_room(rung, job.usable_bytes)
    if job.activation_checkpointing is None:
        rows = ", ".join(STRATEGIES if len(strategies_of(job)) == 1 else strategies_of(job))
        if not room:
            why = f"the smallest peak among {rows}; none of them fits"
        elif choice.chosen_by_time:
            why = f"clearly the fastest among {rows} that fits"
        elif rung.verdict == FITS:
            why = f"the least recomputation among {rows} that fits"
        else:
            why = f"none of {rows} fits for certain; the smallest peak among them is the likeliest to fit"
        made.append(Assumption("activation_checkpointing", rung.strategy, why))
    if job.micro_batch_size is None:
        among = "that" if choice.accumulation.free else "that divides the global batch and"
        if not room:
            why = "the smallest, and even that does not fit"
        elif rung.verdict == FITS:
            why = f"the largest {among} fits"
        else:
            why = "none fits for certain; the smallest peak is the likeliest to fit"
        made.append(Assumption("micro_batch_size", rung.schedule.micro_batch_size, why))
    return made


def _of_the_host(record: Record, host: Host | None, job: ResolvedJob) -> tuple[str, ...]:
    """Why a run that its devices can hold does not fit after all; where nobody says what a node has, what it must."""
    given = job.host_memory_bytes
    kept = record.host_states
    said = () if kept is None else tuple(one for one in (kept.stops, kept.doubts) if one)
    if host is None or (given is not None and host.node_bytes <= given):
        return said

    need = format_needed_gib(host.node_bytes)
    if given is None:
        return (*said, f"each node must have {need} of host memory: --host-memory SIZE checks that")
    return (*said, f"does not fit on the host: its node needs {need}, and host_memory is {format_gib(given)}")


def _warnings(job: ResolvedJob, rung: Rung, usable_bytes: int, total_parameters: int) -> list[str]:
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
    if rung.is_code and has_room(rung, usable_bytes):
        said.append(
            f"checkpointing {rung.strategy} is code and not a setting of {job.runtime.name}: "
            f"`vramplan checkpoints` with the same options, --checkpointing {rung.strategy} and --emit python prints it"
        )
    if rung.verdict == TIGHT and rung.peak.device > usable_bytes:
        said.append(
            "tight: the estimate is above the usable memory and only the low end of its range fits, so more likely not"
        )
    return said


def _has_a_part(job: ResolvedJob) -> bool:
    """Whether the parameters that are counted are those of a part of the model."""
    return (
        wording_of(job).counts_a_part or job.planned is not None or (job.split is not None and job.split.pipeline > 1)
    )


def _narrower(judge: Judge, rung: Rung) -> list[str]:
    """Of a tight verdict, or of a wide range, what would say more; nothing changes a no, whose low end is too much."""
    if rung.verdict == DOES_NOT_FIT:
        return []
    if rung.verdict != TIGHT and rung.peak.high - rung.peak.low < WIDE * rung.peak.device:
        return []
    said = on_demand.narrower(judge, rung.peak)
    return [] if said is None else [said]


def _managed(record: Record) -> list[str]:
    """Paged optimizers hold their states where no figure of the allocator counts them."""
    size = record.managed_bytes
    if not size:
        return []
    return [
        f"{size / 2**30:.2f} GiB of optimizer states lie in managed memory and are in none of these figures: they stay "
        "on the GPU while there is room, and move to the host when there is not"
    ]


def _left_before(record: Record, micro: int) -> list[str]:
    """Which iteration a figure is of, where the first one needs less than the others."""
    size = record.left_before_bytes(micro)
    if not size:
        return []
    kept = " and ".join(one.name.removesuffix(" of the iteration before") for one in record.carried)
    return [
        f"the peak is that of every iteration but the first, which needs {size / 2**30:.2f} GiB less: the loop keeps "
        f"the {kept} of the iteration before until forward is over"
    ]


def _uncounted(record: Record, micro: int) -> list[str]:
    """A library's workspace that is not known matters where the peak is reached beside it."""
    record = record.at_peak(micro)
    if record.operator_at(record.worst(micro)[1]) != "_linalg_svd":
        return []
    return [
        "the peak lies inside a singular value decomposition, whose workspace in cuSOLVER is not known and not counted:"
        " the run needs more than is said here"
    ]


def _beside(decision: Decision) -> list[str]:
    """Evaluation and generation that need more than training."""
    job = decision.job
    if job.eval_batch_size is None and job.generation_batch_size is None:
        return []
    rung = decision.choice.rung
    micro = rung.schedule.micro_batch_size
    return on_demand.exceeding(job, decision.judge, decision.setup, decision.record, rung.peak, micro)


def _by_the_allocator(decision: Decision) -> list[str]:
    """What the simulated allocator says beside its figures."""
    judge, rung = decision.judge, decision.choice.rung
    found = judge.reservation(rung.placement, rung.schedule, reported=True)
    if found is None:
        return []
    said = on_demand.remarks(found, judge.usable_bytes - judge.outside_bytes)
    simulation = judge.simulation(rung.placement, rung.schedule)
    if decision.job.varied_lengths and simulation is not None:
        said = [on_demand.of_varied_lengths(simulation), *said]
    return said
