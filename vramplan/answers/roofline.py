"""Where the time of a job's step goes: its kernels by operator and by block, and its collectives."""

from __future__ import annotations

from collections.abc import Iterable

from vramplan.answers.fit import describe
from vramplan.errors import UsageError
from vramplan.planner.decision import decide
from vramplan.planner.time.kernels import Priced, price
from vramplan.planner.time.rates import Rates, rate_key, rates_of
from vramplan.planner.time.step import is_causal, kernels_of, step_of
from vramplan.planner.timed import devices_of
from vramplan.replay.kernels import BYTES
from vramplan.replay.record import Record
from vramplan.results.roofline import LAUNCH, BlockRow, CollectiveRow, KernelRow, Roofline
from vramplan.results.time import COMPUTE, MEMORY
from vramplan.values.job import ResolvedJob


def roofline(job: ResolvedJob) -> Roofline:
    """The step of `fit`'s answer, taken apart. Raises UsageError where no peak rate of the GPU is known."""
    decision = decide(job)
    fit, judged, rung = describe(decision, with_remedies=False), decision.judged, decision.choice.rung
    rates = rates_of(judged)
    if rates is None or fit.time is None:
        message = (
            f"no peak rate of {job.gpu.name} at precision {judged.precision} is known, so its kernels have no time"
        )
        raise UsageError(
            message, key="gpu", hint=f"give it: gpu: {{{rate_key(judged)}: 100 TFLOP/s, ...}} in a job file"
        )
    micro, steps = rung.schedule.micro_batch_size, rung.schedule.gradient_accumulation_steps
    devices = devices_of(decision.judge, rung.placement, rung.schedule)
    found = [step_of(judged, device, micro, steps, rates, fit.host) for device in devices]
    step, device = max(zip(found, devices, strict=True), key=lambda pair: sum(pair[0].seconds.values()))
    kernels = kernels_of(judged, device, by_unit=True)
    priced = price(kernels, micro, rates, causal=is_causal(judged), compiled=judged.compile)
    whole = fit.time.step_seconds
    return Roofline(
        fit=fit,
        time=fit.time,
        steps=steps,
        product_flop_per_s=rates.product_flop_per_s,
        bytes_per_s=rates.bytes_per_s,
        kernels=_kernels(priced, rates, steps, whole),
        blocks=_blocks(priced, device.record, steps, whole),
        collectives=tuple(
            CollectiveRow(
                one.kind,
                one.group,
                one.when,
                one.size_bytes,
                one.devices,
                one.times * (1 if one.once else steps),
                one.seconds,
                one.hidden,
            )
            for one in step.collectives
        ),
    )


def _kernels(priced: Iterable[Priced], rates: Rates, steps: int, whole: float) -> tuple[KernelRow, ...]:
    groups: dict[tuple[str, str, str], list[Priced]] = {}
    for one in priced:
        groups.setdefault((one.kernel.operator, one.kernel.direction, one.kernel.kind), []).append(one)
    rows = []
    for (operator, direction, kind), members in groups.items():
        seconds = sum(one.seconds for one in members)
        longest = max(members, key=lambda one: one.seconds)
        rows.append(
            KernelRow(
                operator=operator,
                direction=direction,
                kind=kind,
                shapes=longest.kernel.shapes,
                runs=sum(one.kernel.times for one in members),
                flops=sum(one.flops for one in members),
                bytes=sum(one.moved_bytes for one in members),
                seconds=seconds,
                share=seconds * steps / whole,
                bound=_bound(longest, rates),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.seconds, row.operator, row.direction)))


def _bound(one: Priced, rates: Rates) -> str:
    each = one.seconds / one.kernel.times
    moving = one.moved_bytes / one.kernel.times / rates.moving(one.kernel)
    if one.kernel.kind != BYTES and each > moving * 1.001:
        return COMPUTE
    return MEMORY if each <= moving * 1.001 else LAUNCH


def _blocks(priced: Iterable[Priced], record: Record, steps: int, whole: float) -> tuple[BlockRow, ...]:
    """By the outermost repeated unit: a block, or several in a checkpoint or in turns."""
    copies = {path[0][0]: path[0][1] for _, path in record.marks if path}
    sums: dict[int, list[Priced]] = {}
    for one in priced:
        sums.setdefault(one.kernel.unit, []).append(one)
    rows = []
    for unit, members in sums.items():
        count = copies.get(unit, 1)
        seconds = {
            direction: sum(one.seconds for one in members if one.kernel.direction == direction) / count
            for direction in ("forward", "recompute", "backward")
        }
        first, blocks = record.numbers[unit] if unit in copies and unit < len(record.numbers) else (None, 0)
        rows.append(
            BlockRow(
                first=first,
                blocks_each=blocks,
                copies=count,
                forward_seconds=seconds["forward"],
                recompute_seconds=seconds["recompute"],
                backward_seconds=seconds["backward"],
                flops=sum(one.flops for one in members) // count,
                bytes=sum(one.moved_bytes for one in members) // count,
                share=sum(one.seconds for one in members) * steps / whole,
            )
        )
    return tuple(sorted(rows, key=lambda row: (row.first is None, row.first or 0)))
