"""On a no: the single changes that would make it fit, each verified by a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from vramplan.planner.accumulation import Schedule
from vramplan.planner.behaviour import is_replicated, planning_of
from vramplan.planner.budget import Footprint
from vramplan.planner.checkpoints import OPTIMAL
from vramplan.planner.choose import strategies_of
from vramplan.planner.judge import Judge
from vramplan.planner.ladder import Choice
from vramplan.planner.setups import can_be_placed
from vramplan.replay.models import no_fused_attention, only_kernel_of
from vramplan.replay.precision import PRECISIONS
from vramplan.results import DOES_NOT_FIT, FITS, Remedy
from vramplan.values.job import Job
from vramplan.values.machine import Gpu

SHORTEST_SEQUENCE = 128  # below, nobody trains the same thing
SEQUENCE_STEP = 128
FUSED_ALONE = ("adamw", "adam")  # optimizers with a fused step that needs no master copy

Change = tuple[dict[str, Any], str, Job, Schedule]


def remedies_for(
    choice: Choice,
    judge: Judge,
    larger_gpus: Callable[[], Iterable[Gpu]],
    is_modelled: Callable[[Mapping[str, Any]], bool],
) -> tuple[Remedy, ...]:
    """Verified single changes, the cheapest kind first; those that are certain to fit before tight ones.

    `is_modelled` says of a change whether the job that it makes is one that can be computed.
    """
    rung = choice.rung
    base = judge.job._replace(activation_checkpointing=rung.strategy)
    found = []
    for change, cost, job, schedule in (
        *_whole_card(base, rung.schedule),
        *_expandable_segments(base, rung.schedule),
        *_smaller_micro_batch(choice, judge),
        *_other_kernels(base, rung.schedule),
        *_shared_states(base, rung.schedule),
        *_other_checkpointing(choice, judge),
        *_other_optimizer(base, rung.schedule),
        *_other_precision(base, rung.schedule),
        *_shorter_sequence(base, rung.schedule, judge),
    ):
        remedy = _judged(change, cost, job, schedule, rung.peak.device, judge) if is_modelled(change) else None
        if remedy is not None:
            found.append(remedy)
    found += _larger_gpu(base, rung.schedule, rung.peak.device, larger_gpus, judge)
    from vramplan.planner.lighter import lighter_training  # only a no pays for it

    for change, cost, job in lighter_training(base):
        remedy = _judged(change, cost, job, rung.schedule, rung.peak.device, judge) if is_modelled(change) else None
        if remedy is not None:
            found.append(remedy)
    certain = [remedy for remedy in found if remedy.verdict == FITS]
    return tuple(certain or found)


def _judged(
    change: dict[str, Any], cost: str, job: Job, schedule: Schedule, device_bytes: int, before: Judge
) -> Remedy | None:
    if job.sharding is not None:
        from vramplan.replay.sharding.traced import untraced_with_shards  # only jobs with several devices pay for it
        from vramplan.replay.techniques.evidence import untraced

        if untraced_with_shards(job) or untraced(job):
            return None
    judge, strategy = Judge(job, before.replays), job.activation_checkpointing or "none"
    settled = _settled(judge, strategy, schedule)
    if settled is None:
        return None
    peak, verdict = settled
    if judge.simulates and strategy != OPTIMAL:  # the estimate says that it is worth a simulation
        peak = judge.footprint(strategy, schedule, simulated=True)
        verdict = judge.verdict_at(strategy, schedule, peak)
        if verdict == DOES_NOT_FIT:
            return None
    return Remedy(change=change, saves_bytes=device_bytes - peak.device, cost=cost, verdict=verdict)


def _settled(judge: Judge, strategy: str, schedule: Schedule) -> tuple[Footprint, str] | None:
    """The peak and the verdict of a strategy at a schedule; None if it does not fit."""
    if strategy == OPTIMAL:
        from vramplan.planner.placements import fits, place

        return place(judge, strategy, schedule)[1:] if fits(judge, schedule, judge.limits.low) else None
    peak = judge.footprint(strategy, schedule)
    verdict = judge.verdict_at(strategy, schedule, peak)
    return None if verdict == DOES_NOT_FIT else (peak, verdict)


def _fits(judge: Judge, strategy: str, schedule: Schedule) -> bool:
    """Whether it fits for certain, without looking for the best way."""
    if strategy == OPTIMAL:
        from vramplan.planner.placements import fits

        return fits(judge, schedule, judge.limits.high)
    return judge.verdict_at(strategy, schedule, judge.footprint(strategy, schedule)) == FITS


def _whole_card(base: Job, schedule: Schedule) -> Iterator[Change]:
    """Of a card that others use too: all of it."""
    if base.gpu_free_bytes is not None and base.gpu_free_bytes < base.gpu.capacity_bytes:
        job = base._replace(gpu_free_bytes=None)
        yield {"gpu_free": None}, "none, once nothing else runs on the card", job, schedule


def _expandable_segments(base: Job, schedule: Schedule) -> Iterator[Change]:
    """Of a simulated allocator: segments that grow and do not fragment."""
    if base.allocator is not None and not base.allocator.expandable_segments:
        job = base._replace(allocator=base.allocator._replace(expandable_segments=True))
        change = {"allocator": "expandable_segments:True"}
        yield change, "none: PYTORCH_ALLOC_CONF of the run, from PyTorch 2.1 on", job, schedule


def _smaller_micro_batch(choice: Choice, judge: Judge) -> Iterator[Change]:
    """The largest smaller micro-batch that keeps the global batch."""
    rung = choice.rung
    schedule = rung.schedule
    if judge.job.optimizer_in_backward:
        return  # more micro-steps would have to accumulate gradients
    per_rank = schedule.micro_batch_size * schedule.gradient_accumulation_steps
    # none above the largest by the device figure fits, but micro-batch 1 may be tight
    most = min(schedule.micro_batch_size - 1, max(rung.largest_micro_batch_size, 1))
    for micro in range(most, 0, -1):
        if per_rank % micro:
            continue
        smaller = Schedule(micro, per_rank // micro, schedule.global_batch_size)
        if _fits(judge, rung.strategy, smaller) or (micro == 1 and _settled(judge, rung.strategy, smaller)):
            job = judge.job._replace(activation_checkpointing=rung.strategy)
            change = {"micro_batch_size": micro, "gradient_accumulation_steps": smaller.gradient_accumulation_steps}
            yield change, f"{smaller.gradient_accumulation_steps} smaller micro-steps, same global batch", job, smaller
            return


def _other_checkpointing(choice: Choice, judge: Judge) -> Iterator[Change]:
    """The first strategy of the ladder that fits with everything else as it is."""
    rung = choice.rung
    for name in (*strategies_of(judge.job), OPTIMAL):
        if rung.strategy in (name, OPTIMAL):  # nothing is smaller than the smallest peak
            continue
        if name == OPTIMAL and (judge.job.compile or not can_be_placed(judge.job)):
            continue
        settled = _settled(judge, name, rung.schedule)
        if settled is None or settled[0].device >= rung.peak.device:
            continue
        cost = "checkpoints placed by size"
        if name != OPTIMAL:
            cost = f"{judge.recomputed_fraction(name):.0%} more compute than no checkpointing"
        change: dict[str, Any] = {"activation_checkpointing": name}
        if judge.job.every_second_matmul:  # it belongs to the strategy that is left
            change["every_second_matmul"] = False
        yield change, cost, judge.job._replace(**change), rung.schedule
        return


def _other_kernels(base: Job, schedule: Schedule) -> Iterator[Change]:
    """Fused optimizer steps and fused attention: less memory for nothing."""
    if base.optimizer_implementation == "foreach" and base.optimizer in ("adamw", "adam"):
        job = base._replace(optimizer_implementation="fused")
        yield {"optimizer_implementation": "fused"}, "none: same arithmetic in one kernel", job, schedule
    only = only_kernel_of(base.model)
    fused = no_fused_attention(base.model.family) is None and (only is None or only[0] == "efficient")
    if base.attention == "eager" and fused and base.model.attention_heads:
        job = base._replace(attention="efficient")
        yield {"attention": "efficient"}, "none: faster, no attention weights to look at", job, schedule
    if base.hold_outputs:
        yield (
            {"hold_outputs": False},
            "none: drop the logits before backward",
            base._replace(hold_outputs=False),
            schedule,
        )


def _shared_states(base: Job, schedule: Schedule) -> Iterator[Change]:
    """Of replicas: gradients that are views of what is summed, or a part of the states on each device."""
    if is_replicated(base):
        for change, cost, job in planning_of(base).shared_states(base):
            yield change, cost, job, schedule


def _other_optimizer(base: Job, schedule: Schedule) -> Iterator[Change]:
    """Optimizers with fewer states."""
    if base.optimizer in ("adamw", "adam") and not PRECISIONS[base.precision].master:
        job = base._replace(optimizer="adafactor", optimizer_implementation="for-loop")
        change: dict[str, Any] = {"optimizer": "adafactor", "optimizer_implementation": "for-loop"}
        change, job = _without_fp32_states(change, job)
        yield change, "factored second moments, no momentum: other hyper-parameters", job, schedule
    if base.optimizer in ("adamw", "adam", "rmsprop", "sgd-momentum"):
        implementation = "fused" if PRECISIONS[base.precision].master else "foreach"
        job = base._replace(optimizer="sgd", optimizer_implementation=implementation)
        change = {"optimizer": "sgd", "optimizer_implementation": implementation}
        change, job = _without_fp32_states(change, job)
        yield change, "no moments: trains transformers badly", job, schedule


def _without_fp32_states(change: dict[str, Any], job: Job) -> tuple[dict[str, Any], Job]:
    """The same with states that follow the weights, where the job asks for others."""
    if not job.fp32_states:
        return change, job
    return {**change, "optimizer_state_dtype": None}, job._replace(fp32_states=False)


def _other_precision(base: Job, schedule: Schedule) -> Iterator[Change]:
    """16-bit weights and states instead of 32-bit ones."""
    if base.precision.startswith("pure-") or base.half_weights:
        return
    gpu = base.gpu
    if base.precision == "fp32":
        name = "amp-bf16" if gpu.bf16 is not False else "amp-fp16"
        yield (
            {"precision": name},
            "16-bit matrix products; fp16 wants loss scaling",
            base._replace(precision=name),
            schedule,
        )
    wide = base.precision.endswith("bf16") or base.precision == "fp8"
    half = "bf16" if wide or (base.precision == "fp32" and gpu.bf16 is not False) else "fp16"
    if (base.optimizer, half) in (("lars", "bf16"), ("lomo", "fp16")):
        return  # bitsandbytes has no such kernel; lomo would scale its loss
    change: dict[str, Any] = {"precision": f"pure-{half}"}
    job = base._replace(precision=change["precision"])
    if base.fp32_gradients:
        change["gradient_dtype"] = None
        job = job._replace(fp32_gradients=False)
    if base.grad_scaler:  # it belongs to autocast
        change["grad_scaler"] = False
        job = job._replace(grad_scaler=False)
    if PRECISIONS[base.precision].master and base.optimizer not in FUSED_ALONE:
        change["optimizer_implementation"] = "foreach"  # only the step over a master copy is fused
        job = job._replace(optimizer_implementation="foreach")
    yield change, "weights and states in 16 bits: less accurate updates", job, schedule


def _shorter_sequence(base: Job, schedule: Schedule, before: Judge) -> Iterator[Change]:
    """The longest sequence (in steps of 128 tokens) that fits."""
    if base.model.takes_images:
        return  # it has no tokens, or the images' are among them
    low, high = 0, (base.sequence_length - 1) // SEQUENCE_STEP
    best = 0
    while low < high:
        middle = (low + high + 1) // 2
        job = base._replace(sequence_length=middle * SEQUENCE_STEP)
        judge = Judge(job, before.replays)
        if _fits(judge, base.activation_checkpointing or "none", schedule):
            low = best = middle
        else:
            high = middle - 1
    length = best * SEQUENCE_STEP
    if length >= SHORTEST_SEQUENCE:
        job = base._replace(sequence_length=length)
        yield {"sequence_length": length}, f"{base.sequence_length - length} fewer tokens of context", job, schedule


def _larger_gpu(
    base: Job,
    schedule: Schedule,
    device_bytes: int,
    larger_gpus: Callable[[], Iterable[Gpu]],
    before: Judge,
) -> Sequence[Remedy]:
    """The smallest known GPU that fits and can run the same kernels."""
    from vramplan.replay.techniques.float8 import runs_float8
    from vramplan.replay.techniques.losses import fused_on  # only a no pays for it

    for gpu in sorted(larger_gpus(), key=lambda gpu: (gpu.capacity_bytes, gpu.name)):
        if gpu.capacity_bytes <= base.gpu.capacity_bytes or gpu.capacity_basis != "visible":
            continue  # a nominal capacity is not one to spend money on
        if (base.attention == "flash" and gpu.flash_attention is False) or (
            base.precision.endswith("bf16") and gpu.bf16 is False
        ):
            continue
        if base.loss == "fused" and fused_on(gpu) is None:
            continue
        if base.precision in ("fp8", "fsdp-fp8") and runs_float8(gpu) is False:
            continue
        size = f"{gpu.capacity_bytes / 2**30:.1f} GiB"
        change: dict[str, Any] = {"gpu": gpu.name}
        if base.gpu_free_bytes is not None:  # it is of the other card
            change["gpu_free"] = None
        job = base._replace(gpu=gpu, gpu_free_bytes=None)
        remedy = _judged(change, f"a {size} card", job, schedule, device_bytes, before)
        if remedy is not None and remedy.verdict == FITS:
            return [remedy]
    return []
