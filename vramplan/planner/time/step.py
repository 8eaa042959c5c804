"""A step: kernels, what of the communication they do not hide, the optimizer, the pipeline's bubble, the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramplan.engines import imported
from vramplan.planner.time import fitted
from vramplan.planner.time.behaviour import timing_of
from vramplan.planner.time.kernels import Micro, micro_of
from vramplan.planner.time.optimizer import accumulated_bytes, step_seconds
from vramplan.planner.time.rates import EIGHT_BIT_PRECISIONS, Rates, rates_of
from vramplan.replay.kernels import BACKWARD, FORWARD, RECOMPUTE, Kernel
from vramplan.replay.models.parts import sees_both_sides
from vramplan.replay.record import Record
from vramplan.results import Host
from vramplan.results.frozen import FrozenDict
from vramplan.results.time import CALIBRATED, COMPUTE, EXTRAPOLATED, PARTS, Time
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import Split

if TYPE_CHECKING:  # one device tells nobody anything
    from vramplan.planner.time.traffic import Collective

CALIBRATED_BAND, EXTRAPOLATED_BAND = (0.85, 1.15), (0.75, 1.70)
"""The ends of the step's time over the likely one.

The first holds 95 % of the published rates of its class. The second was chosen in sight of rates of sources that were
new to the project (tests/measured: unseen, later, third and fourth_rates.yaml): it holds 91 % of these 451, and 0.80 to
1.55, which it was, 86 %; of 71 of a fifth set, which were not there, 87 %.
"""


class TimedStage(NamedTuple):
    """One stage of a pipeline, or the only one: its record, its blocks, and how many devices of the pipeline are so."""

    record: Record
    blocks: int
    devices: int


class TimedStep(NamedTuple):
    """A step of one device, and where its time goes."""

    micro: Micro
    collectives: Sequence[Collective]
    seconds: dict[str, float]  # of the whole step, by `PARTS`


def is_causal(job: ResolvedJob) -> bool:
    """Whether a fused attention of the model leaves out the scores of later tokens."""
    return job.model.task == "lm" or (job.model.task == "cls" and not sees_both_sides(job.model.family))


def time_of(
    job: ResolvedJob,
    devices: Sequence[TimedStage],
    micro: int,
    steps: int,
    host: Host | None = None,
) -> Time | None:
    """The time of a step of `steps` micro-batches; None where the peak rate of the GPU is not known.

    `devices`: those of a pipeline that differ, or one.
    """
    rates = rates_of(job)
    if rates is None:
        return None
    found = [step_of(job, device, micro, steps, rates, host) for device in devices]
    slowest = _filled(max(found, key=lambda one: sum(one.seconds.values())), found, devices)
    return _told(job, devices, found, slowest, micro, steps, rates)


def _filled(slowest: TimedStep, found: Sequence[TimedStep], devices: Sequence[TimedStage]) -> TimedStep:
    """The slowest stage with the bubble of a pipeline whose stages differ: it waits once for each of the others.

    Each has said what the bubble would be were all as slow as itself.
    """
    stages = sum(device.devices for device in devices)
    if stages < 2:
        return slowest
    every = sum(one.seconds["bubble"] * device.devices for one, device in zip(found, devices, strict=True))
    bubble = (every - slowest.seconds["bubble"]) / (stages - 1)
    return slowest._replace(seconds={**slowest.seconds, "bubble": bubble})


def step_of(
    job: ResolvedJob, device: TimedStage, micro: int, steps: int, rates: Rates, host: Host | None = None
) -> TimedStep:
    """A step of one device of the pipeline."""
    one = micro_of(kernels_of(job, device), micro, rates, causal=is_causal(job), compiled=job.compile)
    return TimedStep(one, *parts_of_step(job, device, one, micro, steps, rates, host))


def kernels_of(job: ResolvedJob, device: TimedStage, *, by_unit: bool = False) -> Sequence[Kernel]:
    """What a device runs of a micro-batch; `by_unit`: each repeated unit on its own."""
    record = device.record
    own = timing_of(job).fused_kernels(job)
    eight_bits = job.compile and job.precision in EIGHT_BIT_PRECISIONS
    kernels: Sequence[Kernel] = record.kernels if own or by_unit or eight_bits else record.kernel_classes
    if eight_bits:
        kernels = imported("vramplan.planner.time.fused:in_eight_bits")(kernels)
    if own:
        kernels = imported("vramplan.planner.time.fused:with_fused")(kernels, own, job, device.blocks)
    if job.planned is not None and job.planned.context > 1:
        kernels = imported("vramplan.planner.time.fused:over_all_keys")(kernels, job.planned.context)
    return kernels


def parts_of_step(
    job: ResolvedJob, device: TimedStage, one: Micro, micro: int, steps: int, rates: Rates, host: Host | None = None
) -> tuple[list[Collective], dict[str, float]]:
    """What a device talks in a step, and the seconds of its parts: `one` has those of the kernels of a micro-batch."""
    record, timing = device.record, timing_of(job)
    seconds = {part: one.seconds.get(part, 0.0) * steps for part in PARTS}
    bandwidth = job.node_bandwidth_bytes_per_s
    collectives: list[Collective] = []
    if job.data_parallel_size > 1 or job.split is not None:
        collectives = imported("vramplan.planner.time.traffic:collectives_of")(
            job, record, micro, device.blocks, bandwidth
        )
    seconds["communication"] = _exposed(collectives, one, steps)
    if steps > 1 and not timing.adds_in_product(job):
        seconds["optimizer"] += accumulated_bytes(record) * (steps - 1) / rates.bytes_per_s
    if "optimizer" not in job.offload:
        seconds["optimizer"] += step_seconds(job, record, rates)
    waiting = sum(map(one.waiting, one.launching)) * steps
    seconds["host"] = waiting
    if host is not None:
        seconds["host"] += _host_seconds(job, host, sum(one.seconds.values()) * steps + waiting)
    split = job.split
    if split is not None and split.pipeline > 1:
        working = sum(seconds[part] for part in ("products", "attention", "bytes", "communication")) + waiting
        seconds["bubble"] = working * (split.pipeline - 1) / (split.virtual * steps)
        size = micro * job.sequence_length // split.context * job.model.hidden_size * 2 // timing.senders(job)
        link = imported("vramplan.planner.time.traffic:group_link")(job, "pipeline", bandwidth)
        each = size / link.bytes_per_s + link.hop_seconds
        seconds["communication"] += timing.transfers(job) * split.virtual * steps * each
    seconds["loop"] = fitted.LOOP_SECONDS if timing.loop_seconds is None else timing.loop_seconds
    return collectives, seconds


def _exposed(collectives: Sequence[Collective], micro: Micro, steps: int) -> float:
    """Seconds of a step that communication adds: what kernels do not hide, and what it slows them by."""
    total = 0.0
    for once in (False, True):
        for when in (FORWARD, BACKWARD):
            together = (RECOMPUTE, BACKWARD) if when == BACKWARD else (when,)
            beside = sum(micro.by_direction[one] + micro.waiting(one) for one in together)
            hidden = [one for one in collectives if one.hidden and one.once == once and one.when == when]
            seconds = sum(one.seconds * one.times for one in hidden)
            if hidden:
                added = max(0.0, seconds - beside) + fitted.CONTENTION * min(seconds, beside)
                added += max(one.seconds for one in hidden)  # the first, or the last, has no kernel beside it
                total += added * (1 if once else steps)
    for one in collectives:
        if not one.hidden:
            total += one.seconds * one.times * (1 if one.once else steps)
    return total


def _host_seconds(job: ResolvedJob, host: Host, computing: float) -> float:
    """Copies that kernels do not hide, and the optimizer's step on the host."""
    copy_seconds = imported("vramplan.planner.time.communication:copy_seconds")
    copies: float = max(copy_seconds(host.to_host_bytes, job.gpu), copy_seconds(host.to_device_bytes, job.gpu))
    seconds = max(0.0, copies - computing)
    if "optimizer" in job.offload:
        seconds += 2 * host.states_bytes / HOST_MEMORY_BYTES_PER_S * job.devices_per_node
    return seconds


HOST_MEMORY_BYTES_PER_S = 150e9  # of a server with eight channels of DDR4-3200 (204.8 GB/s), as CPUAdam reaches it


def _told(
    job: ResolvedJob,
    devices: Sequence[TimedStage],
    found: Sequence[TimedStep],
    slowest: TimedStep,
    micro: int,
    steps: int,
    rates: Rates,
) -> Time:
    split = job.split or Split()
    seconds = sum(slowest.seconds.values())
    every = job.data_parallel_size * split.devices
    stages = sum(device.devices for device in devices)
    model = sum(one.micro.model_flops * device.devices for one, device in zip(found, devices, strict=True))
    again = sum(one.micro.recomputed_flops * device.devices for one, device in zip(found, devices, strict=True))
    each = steps * every / stages
    model_flops, hardware_flops = int(model * each), int((model + again) * each)
    peak = rates.peak_flop_per_s * every
    samples = micro * steps * job.data_parallel_size
    tokens = samples * job.sequence_length if job.model.takes_text else None
    shares = {part: value / seconds for part, value in slowest.seconds.items()}
    calibrated = fitted.is_calibrated(job, shares["host"])
    low, high = CALIBRATED_BAND if calibrated else EXTRAPOLATED_BAND
    bound: dict[str, float] = {}
    for part, share in shares.items():
        bound[PARTS[part]] = bound.get(PARTS[part], 0.0) + share
    return Time(
        step_seconds=seconds,
        step_seconds_low=seconds * low,
        step_seconds_high=seconds * high,
        tokens_per_second_per_device=None if tokens is None else tokens / seconds / every,
        samples_per_second=samples / seconds,
        mfu_percent=100 * model_flops / seconds / peak,
        hfu_percent=100 * hardware_flops / seconds / peak,
        bound=max(bound, key=lambda name: (bound[name], name == COMPUTE)),
        basis=CALIBRATED if calibrated else EXTRAPOLATED,
        shares=FrozenDict((part, round(share, 6)) for part, share in shares.items()),
        tokens_per_second=None if tokens is None else tokens / seconds,
        devices=every,
        samples_per_step=samples,
        tokens_per_step=tokens,
        model_flops=model_flops,
        hardware_flops=hardware_flops,
        peak_flop_per_s=rates.peak_flop_per_s,
    )
