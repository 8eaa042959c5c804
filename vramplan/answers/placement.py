"""The placement problem on its own: every way to place checkpoints, side by side under one budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil, sqrt

from vramplan.errors import UsageError
from vramplan.job.echo import job_to_dict
from vramplan.options import words
from vramplan.options.flags import flags_of
from vramplan.planner.behaviour import planning_of
from vramplan.planner.checkpoints import (
    OPTIMAL,
    SELECTIVE,
    SELECTIVE_OP,
    blocks_per_segment,
    spelled,
)
from vramplan.planner.decision import Decision, decide
from vramplan.planner.placement.optimal import (
    Placement,
    last_kept_bytes,
)
from vramplan.planner.placement.strategies import PlacementSearch
from vramplan.planner.setups import loss_of
from vramplan.replay.models.capable import no_checkpointing, reads_first_stack
from vramplan.replay.models.modules import OUTSIDE_LOSSES
from vramplan.replay.models.parts import block_lists, block_returns, carried_between_blocks, tells_parts
from vramplan.replay.placed import checkpoint_ranges_in
from vramplan.results import DOES_NOT_FIT, FITS
from vramplan.results.placement import CurvePoint, PlacementCode, PlacementResult, Strategy
from vramplan.values.job import Assumption, ResolvedJob, trains_all


def placements_of(job: ResolvedJob, budget_bytes: int | None = None) -> PlacementResult:
    """Compare the placements of a job's checkpoints.

    `budget_bytes` bounds the peak of allocated memory; None is what fits the job's GPU for certain. The micro-batch is
    the job's, else the one that `fit` chooses. Raises UsageError if the batch keys contradict each other, and for a
    model without checkpoints.
    """
    obstacle = no_checkpointing(job.model.family)
    if obstacle is not None:
        raise UsageError(f"{job.model.name} has nothing to place: {obstacle}", key="model")
    if job.model.stored_blocks:
        message = f"placements are not modelled for {job.model.code}: only blocks of the text can be checkpoints"
        raise UsageError(message, key="model", hint="vramplan fit answers with none, sqrt, full and every:K")
    if job.checkpoint_reentrant and reads_first_stack(job.model.family):
        message = f"placements are not modelled with reentrant checkpoints of {job.model.code}"
        hint = "leave checkpoint_reentrant out, or pin full"
        raise UsageError(message, key="checkpoint_reentrant", hint=hint)
    if not trains_all(job):
        key = "adapter" if job.adapter is not None else "frozen"
        hint = "vramplan compare --checkpointing none,full,sqrt,every:2 with the same options has them side by side"
        raise UsageError("placements are modelled only where every weight is trained", key=key, hint=hint)
    if loss_of(job) in OUTSIDE_LOSSES:
        what = job.loss if job.loss in words.PREFERENCE_LOSSES else "smoothed labels of the Trainer"
        message = f"placements are not modelled with {what}, whose loss is made outside of the model"
        raise UsageError(message, key="loss", hint="vramplan fit answers with none, sqrt, full and every:K")
    unplaced = planning_of(job).unplaced
    if unplaced is not None:
        raise UsageError(unplaced[0], key="runtime", hint=unplaced[1])
    if job.compile:
        message = "true is not modelled with placements: the pieces of a compiled step do not add up"
        raise UsageError(message, key="compile", hint="fit --compile takes a placement as it is given")
    decision = decide(job)
    judge, schedule = decision.judge, decision.choice.rung.schedule
    basis = f"what fits {job.gpu.name} for certain" if budget_bytes is None else "given"
    search = PlacementSearch(judge, schedule.micro_batch_size, schedule.accumulates)
    sizes = search.sizes
    budget, plain = (
        search.certain_bytes(again=again) if budget_bytes is None else budget_bytes for again in (True, False)
    )
    flops = judge.record("none", schedule.accumulates, schedule.micro_batch_size == 1).flops
    step_flops = flops["forward"] + flops["backward"]
    blocks, stacks = sizes.blocks, job.model.stacks

    def strategy(name: str, note: str, ranges: Placement) -> Strategy:
        peak, again = search.peak_bytes(ranges), search.recomputed_flops(ranges)
        is_within = peak <= (budget if ranges else plain)
        return Strategy(name, note, ranges, peak, is_within, again, round(again / step_flops, 4))

    def replayed(name: str, note: str) -> Strategy:
        """A strategy that is more than a placement: what it keeps is not the sum of pieces."""
        micro, accumulates = schedule.micro_batch_size, schedule.accumulates
        peak = judge.allocated_bytes(name, micro, accumulates)
        again = judge.record(name, accumulates, micro == 1).flops["recompute"]
        ranges = checkpoint_ranges_in(name, stacks)
        return Strategy(name, note, ranges, peak, peak <= budget, again, round(again / step_flops, 4))

    def named(name: str, note: str) -> Strategy:
        return strategy(name, note, checkpoint_ranges_in(name, stacks))

    lengths = range(1, max(stacks) + 1) if search.adds_up else _some_lengths(max(stacks))
    equal = {k: named(f"every:{k}", "") for k in lengths}
    best = search.least_certain() if budget_bytes is None else search.least_recomputation(budget)
    least = search.smallest_peak()
    rows = [
        named("none", "all stored"),
        strategy(OPTIMAL, "smallest of all, but too large", least)
        if best is None
        else strategy(OPTIMAL, "least recompute", best),
        *_equal(equal, named("sqrt", "textbook k")),
    ]
    pinned = job.activation_checkpointing
    if pinned is not None and pinned not in {row.name for row in rows}:
        row = replayed if pinned in (SELECTIVE, SELECTIVE_OP) else named
        rows.append(row(pinned, "the job's own"))
    if best is not None and least not in {row.checkpoints for row in rows}:
        rows.append(strategy("smallest", "smallest of all", least))
    stored = last_kept_bytes(sizes, checkpoint=False)
    return PlacementResult(
        name=job.name,
        job=job_to_dict(decision.judged),
        budget_bytes=plain if best == () else budget,  # where nothing is made again less has to stay free
        budget_basis=basis,
        blocks=blocks,
        stacks=tuple(layers for layers in stacks if layers),
        stored_block_bytes=stored,
        checkpoint_bytes=last_kept_bytes(sizes, checkpoint=True),
        smallest_peak_bytes=search.peak_bytes(least),
        verdict=DOES_NOT_FIT if best is None else FITS,
        strategies=tuple(rows),
        curve=tuple(_curve(equal, blocks, rows[0].allocated_bytes, stored)),
        textbook_segments=max(1, round(sqrt(blocks))),
        best_blocks_per_segment=min(equal, key=lambda k: (equal[k].allocated_bytes, k)),
        flags=None if best is None else _flags(decision, best, equal.values()),
        assumptions=(*job.assumptions, *_assumed(decision)),
        warnings=job.warnings,
    )


def placement_code(job: ResolvedJob, budget_bytes: int | None = None) -> PlacementCode:
    """What the code of the job's checkpoints is made from: those that it pins, else the optimal placement.

    Raises UsageError where there is no placement of whole blocks, or no code that could make it.
    """
    family, strategy = job.model.family, job.activation_checkpointing
    obstacle, unplaced = no_checkpointing(family), planning_of(job).unplaced
    if obstacle is not None:
        raise UsageError(f"{job.model.name} has nothing to place: {obstacle}", key="model")
    if unplaced is not None:
        raise UsageError(unplaced[0], key="runtime", hint=unplaced[1])
    returned = block_returns(family)
    if returned is None:
        message = f"what a block of {job.model.code} returns is not known, so no code can join several"
        raise UsageError(message, key="model", hint="--checkpointing full is a setting of the program")
    if strategy is None:
        result = placements_of(job, budget_bytes)
        if result.verdict == DOES_NOT_FIT:
            message = f"no placement is within {result.budget_bytes} bytes: the smallest peak is"
            hint = "a smaller micro-batch or a larger budget; full and every:K are written wherever they are asked for"
            raise UsageError(f"{message} {result.smallest_peak_bytes}", key="--budget", hint=hint)
        ranges = next(row.checkpoints for row in result.strategies if row.name == OPTIMAL)
        strategy = OPTIMAL
    else:
        ranges = checkpoint_ranges_in(decide(job).choice.rung.placement, job.model.stacks)
    partly = strategy in (SELECTIVE, SELECTIVE_OP)
    if partly or not ranges:
        kind = "is not made of whole blocks" if partly else "stores every block"
        message = f"{strategy} {kind}, so there is no placement to write"
        raise UsageError(message, key="activation_checkpointing", hint="sqrt, full, every:K, layers:[...] or optimal")
    return PlacementCode(
        model=job.model.name,
        strategy=strategy,
        stacks=tuple(layers for layers in job.model.stacks if layers),
        lists=block_lists(job.model),
        segments=tuple(ranges),
        returned=returned,
        carried=carried_between_blocks(family),
        reentrant=job.checkpoint_reentrant,
        tells_parts=tells_parts(family),
    )


def _some_lengths(blocks: int) -> list[int]:
    """The K of `every:K` that are replayed where each takes a replay: powers of two up to the root, it, all blocks."""
    root = blocks_per_segment("sqrt", blocks) or 1
    powers = [1 << power for power in range(root.bit_length())]
    return sorted({*powers, root, blocks})


def _equal(equal: Mapping[int, Strategy], sqrt_rule: Strategy) -> list[Strategy]:
    """Of `every:1`, `every:2`, ... those with a name, the cheapest within the budget, and the smallest.

    The rule of the square root is one of them, unless stacks of different lengths have roots of their own.
    """
    root = next((k for k, one in equal.items() if one.checkpoints == sqrt_rule.checkpoints), 0)
    wanted: dict[int, list[str]] = {1: ["each block"]}
    wanted.setdefault(root, []).append(sqrt_rule.note)
    within = [k for k, one in equal.items() if one.fits]
    if within:
        cheapest = min(within, key=lambda k: (equal[k].recomputed_flops, equal[k].allocated_bytes))
        wanted.setdefault(cheapest, []).append("cheapest equal")
    smallest = min(equal, key=lambda k: (equal[k].allocated_bytes, k))
    wanted.setdefault(smallest, []).append("smallest equal")
    names = {root: "sqrt"} | {1: "full"}
    return [
        (equal[k] if k else sqrt_rule)._replace(name=names.get(k, f"every:{k}"), note="; ".join(notes))
        for k, notes in wanted.items()
    ]


def _curve(equal: Mapping[int, Strategy], blocks: int, none_bytes: int, stored_bytes: int) -> list[CurvePoint]:
    """The true peak of `every:K` beside the textbook's, which agree where nothing is checkpointed."""
    points = []
    for size, strategy in equal.items():
        segments = len(strategy.checkpoints)
        units = segments + blocks / segments
        textbook = none_bytes + ceil((units - blocks) * stored_bytes)
        points.append(
            CurvePoint(
                size, segments, strategy.allocated_bytes, strategy.recomputed_fraction, round(units, 4), textbook
            )
        )
    return points


def _flags(decision: Decision, best: Placement, equal: Iterable[Strategy]) -> str:
    """Options that pin the placement, by the name of equal segments where it is one of those."""
    schedule = decision.choice.rung.schedule
    named = next((strategy.name for strategy in equal if strategy.checkpoints == best), spelled(best))
    return flags_of(
        {
            "micro_batch_size": schedule.micro_batch_size,
            "gradient_accumulation_steps": schedule.gradient_accumulation_steps,
            "activation_checkpointing": named,
        }
    )


def _assumed(decision: Decision) -> list[Assumption]:
    if decision.job.micro_batch_size is not None:
        return []
    rung = decision.choice.rung
    why = f"what `fit` chooses, with checkpointing {rung.strategy}" if rung.verdict != DOES_NOT_FIT else "the smallest"
    return [Assumption("micro_batch_size", rung.schedule.micro_batch_size, why)]
