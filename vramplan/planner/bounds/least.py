"""Bounds of a job's time that hold without a replay of its own: those of a plain one (`plain.py`).

What shares a model or its states adds kernels, copies and communication, and takes nothing away from what has to be
computed. So one plain replay bounds every way to share, every degree of parallelism and every offloading.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from vramplan.planner.accumulation import OpenSchedules, Schedule
from vramplan.planner.bounds.plain import Plain, parts_of, samples_within
from vramplan.planner.choose import accumulation_of
from vramplan.planner.time.kernels import Micro, micro_of
from vramplan.planner.time.rates import Rates
from vramplan.planner.time.step import TimedStage, is_causal, kernels_of, parts_of_step
from vramplan.replay.kernels import ATTENTION, CONVOLUTION, NOTHING, PRODUCT, Kernel, Poly, Stepped
from vramplan.replay.record import Record
from vramplan.replay.standing import StandingState
from vramplan.results import Host
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import DDP, Split

MANY = 1 << 12  # sequences of a micro-batch with which whatever a micro-batch costs at least counts for nothing
ON_HOST = "optimizer"
FUSED = "fused"
STEPPED = ("weights", "master", "optimizer")  # states that the optimizer's step reads and writes
SORTING = ("cat", "split")  # operators that put the tokens of several experts in order


class Work(NamedTuple):
    """What stands for a record where only a bound of the time is asked: what the device has to compute at least."""

    kernels: tuple[Kernel, ...]
    parameters: int
    reached_parameters: int
    packed: tuple[int, int]
    states: tuple[StandingState, ...]
    micros: dict[tuple[object, ...], Micro]  # of the kernels, priced before

    stepped: tuple[Stepped, ...] = ()  # none: what launches of the step and products of Muon take is left out
    managed_bytes: int = 0  # the same of states in managed memory

    @property
    def kernel_classes(self) -> tuple[Kernel, ...]:
        """As a record has them."""
        return self.kernels


def _weights(plain: Plain, parts: int) -> tuple[int, int, tuple[int, int], tuple[StandingState, ...]]:
    """Parameters of a device, those that a gradient reaches, those that are quantized with their bytes, its states."""
    quantized, packed = plain.packed
    sizes: dict[str, int] = {}
    for one in plain.states:
        if one.category in STEPPED:
            sizes[one.category] = sizes.get(one.category, 0) + one.fixed_bytes * one.copies
    states = tuple(StandingState(category, size // parts, 0) for category, size in sizes.items())
    return plain.parameters // parts, plain.reached_parameters // parts, (quantized // parts, packed // parts), states


def arithmetic_of(plain: Plain, parts: int, experts: int = 1) -> Work:
    """The products and the attention of a plain record, and no byte that is moved, divided by `parts` devices.

    `experts`: of the data-parallel devices those that share the experts.
    """
    found: dict[tuple[str, str, str, int], list[Poly]] = {}
    for one in plain.kernel_classes:
        if one.kind in (PRODUCT, CONVOLUTION, ATTENTION) and one.flops != NOTHING:
            key = (one.kind, one.direction, one.dtype, one.head_size)
            sums = found.setdefault(key, [NOTHING, NOTHING])
            for place, poly in enumerate((one.flops, one.again)):
                sums[place] = cast(Poly, tuple(x + y * one.times for x, y in zip(sums[place], poly, strict=True)))
    kernels = tuple(
        Kernel(
            "", direction, kind, 0, dtype, head, 0, _part(flops, parts), _part(again, parts), NOTHING, NOTHING, (), 1
        )
        for (kind, direction, dtype, head), (flops, again) in found.items()
    )
    return Work(kernels, *_weights(plain, parts * experts), {})


def work_of(plain: Plain, parts: int, experts: int = 1, *, is_filled: bool = False) -> Work:
    """Every kernel of a plain record, divided by `parts` devices, which may share its bytes as well.

    `experts` is that of `arithmetic_of`: for the tokens of all of them a device has fewer and larger products, and
    where it has a single expert there is nothing to sort by expert. `is_filled`: products leave none of the device
    idle, as where buffers of ZeRO that are made behind a product count as written by it.
    """
    kernels = plain.kernel_classes
    if parts * experts > 1:
        left = (one for one in kernels if experts == 1 or one.operator not in SORTING)
        kernels = tuple(_shared(one, parts, experts) for one in left)
    if is_filled:
        kernels = tuple(filled(one) if one.kind == PRODUCT else one for one in kernels)
    return Work(kernels, *_weights(plain, parts * experts), {})


def _shared(kernel: Kernel, parts: int, experts: int) -> Kernel:
    """What one of `parts` devices has of a kernel at least: a stage runs fewer of them, others run smaller ones.

    A larger result leaves less of the device idle, so that of a product counts as whole, as a stage has it. The bytes
    that it moves are a part all the same. Where experts are shared a product may be so large that none of the device
    is idle, and it reads no more weights than its part.
    """
    if kernel.kind == PRODUCT:
        moved = _part(_plus(kernel.read, kernel.written), parts * experts)
        written = kernel.written if experts == 1 else NOTHING
    else:
        moved = _part(_plus(kernel.read, kernel.written), parts)
        written = _part(kernel.written, parts)
    return kernel._replace(
        launches=0,
        flops=_part(kernel.flops, parts),
        again=_part(kernel.again, parts),
        read=_plus(moved, written, -1),
        written=written,
    )


def filled(kernel: Kernel) -> Kernel:
    """A product that leaves none of the device idle."""
    return kernel._replace(read=_plus(kernel.read, kernel.written), written=NOTHING)


def _part(poly: Poly, parts: int) -> Poly:
    return poly[0] // parts, poly[1] // parts, poly[2] // parts


def _plus(one: Poly, other: Poly, times: int = 1) -> Poly:
    return one[0] + other[0] * times, one[1] + other[1] * times, one[2] + other[2] * times


def least_seconds(
    job: ResolvedJob,
    work: Work,
    plain: Plain,
    rates: Rates,
    *,
    shared: bool = True,
    most: int = MANY,
    blocks: int | None = None,
    others: Sequence[Kernel] | None = None,
) -> float:
    """The seconds that a sample of all devices takes at least, whatever the steps, and the micro-batch up to `most`.

    Not `shared`: without what the data-parallel devices tell each other, so that it holds for each way to share.
    `blocks`: those of the device, where it is not any one, and `others` the kernels of each other stage of its pipeline
    at least, on average.
    """
    split = job.split or Split()
    stages = split.pipeline
    if job.model.blocks % stages:  # a stage may have one unit more, or less
        work = work._replace(parameters=0, reached_parameters=0, packed=(0, 0), states=())
    elif not shared or job.offload:
        work = work._replace(states=())
    elif job.sharding is not None and job.sharding.kind != DDP:
        each = job.data_parallel_size // split.expert  # which have at least a part each, and no step has fewer passes
        if job.planned is not None:
            each *= split.context  # whose devices share states too
        work = work._replace(
            states=tuple(StandingState(one.category, one.fixed_bytes // each, 0) for one in work.states)
        )
        job = job._replace(optimizer_implementation=FUSED)
    if not shared:
        job = job._replace(sharding=None, offload=())
    blocks = job.model.blocks // stages if blocks is None else blocks
    host = _host_of(job, plain) if ON_HOST in job.offload else None
    device = TimedStage(cast(Record, work), blocks, 1)
    least = float("inf")
    for schedule in _best_schedules(accumulation_of(job), stages, most):
        micro, steps = schedule.micro_batch_size, schedule.gradient_accumulation_steps
        one = _micro_of(job, work, device, micro, rates)
        _, seconds = parts_of_step(job, device, one, micro, steps, rates, host)
        if others is not None:
            another = _micro_of(job, work, device, micro, rates, others)
            seconds["bubble"] = sum(another.seconds.values()) * (stages - 1) / split.virtual
        least = min(least, sum(seconds.values()) / (micro * steps * job.data_parallel_size))
    return least


def _micro_of(
    job: ResolvedJob,
    work: Work,
    device: TimedStage,
    micro: int,
    rates: Rates,
    others: Sequence[Kernel] | None = None,
) -> Micro:
    """The kernels of a micro-batch, priced once for all that share them in whatever way; `others` are other stages'.

    `rates` are kept as long.
    """
    key = (others is None, micro, device.blocks, id(rates), job.compile, job.planned and job.planned.context)
    found = work.micros.get(key)
    if found is None:
        kernels = kernels_of(job, device) if others is None else others
        found = work.micros[key] = micro_of(kernels, micro, rates, causal=is_causal(job), compiled=job.compile)
    return found


def _best_schedules(accumulation: OpenSchedules, stages: int, most: int) -> Iterator[Schedule]:
    """Those among which the fastest is: a larger micro-batch costs no sample more, but for the bubble of a pipeline."""
    if accumulation.free:
        yield accumulation.for_micro(most)
        return
    schedules = list(accumulation.schedules())
    within = [one for one in schedules if one.micro_batch_size <= most] or schedules[-1:]
    yield from within if stages > 1 else within[:1]


def most_samples(job: ResolvedJob, plain: Plain, limit_bytes: int, *, cut: bool = True) -> int:
    """The largest micro-batch up to `MANY` that may have room within the limit; 0 where not even one may."""
    return min(MANY, samples_within(job, plain, limit_bytes, cut=cut))


def _host_of(job: ResolvedJob, plain: Plain) -> Host:
    """What the optimizer has on the host at least, which steps there."""
    held = sum(state.at(1) for state in plain.states if state.category == ON_HOST)
    zeros = dict.fromkeys(Host._fields, 0)
    return Host(**{**zeros, "states_bytes": held // (job.data_parallel_size * parts_of(job))})
