"""Peaks of one job under any strategy and micro-batch, each replayed at most once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vramplan.planner import on_demand
from vramplan.planner.accumulation import LARGEST_MICRO_BATCH, Schedule
from vramplan.planner.bands import (
    OUTSIDE_CALIBRATED,
    UNKNOWN_TYPE,
    admitted,
    beside,
    estimated,
    is_calibrated,
    room_for,
    simulated,
    unpublished,
)
from vramplan.planner.behaviour import planning_of
from vramplan.planner.budget import (
    MULTIPLYING_THREADS,
    STATIC_HIGH_BYTES,
    Footprint,
    allocated_limit,
    certain_limit,
    footprint,
    low_of,
    static_footprint,
)
from vramplan.planner.replays import Replays, kept
from vramplan.planner.setups import setup_of, setup_of_stage, turns_images
from vramplan.replay.envelope import Envelope, envelope_of
from vramplan.replay.models.modules import Segment
from vramplan.replay.models.parts import is_batch_normalised, takes_one
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.results import DOES_NOT_FIT, FITS, TIGHT
from vramplan.tuples import NamedTuple
from vramplan.values.job import MAX_UTILIZATION, ResolvedJob, shares_weights
from vramplan.values.parallel import MOST_GRADIENTS

if TYPE_CHECKING:
    from vramplan.planner.reserving import Simulation
    from vramplan.replay.caching.reservation import Reservation
    from vramplan.replay.pipeline.stages import Stage


class Limits(NamedTuple):
    """Largest allocated bytes for which a figure is within the usable capacity."""

    high: int
    low: int
    device: int


class Judge:
    """Answers for one job; what is pinned in it is not looked at here. `replays`: those of jobs before it."""

    def __init__(self, job: ResolvedJob, replays: Replays | None = None) -> None:
        self.job = job
        self.replays = kept() if replays is None else replays
        self.context_bytes = job.runtime.context_on(job.gpu.architecture)
        self.groups_bytes = 0  # of the communicators
        if job.data_parallel_size > 1 or job.split is not None:
            self.groups_bytes = len(on_demand.process_groups(job)) * job.runtime.process_group_bytes
        self.outside_bytes = self.context_bytes + self.groups_bytes  # on the device, and not in the allocator
        self.usable_bytes = job.usable_bytes
        workspace = job.runtime.blas_workspace_on(job.gpu.architecture)
        self.workspace_bytes = (workspace or 0) * MULTIPLYING_THREADS  # of libraries, in the allocator
        split = job.split is not None and job.split.devices > 1
        shared = job.sharding is not None and not split
        adapted = job.adapter is not None and job.data_parallel_size > 1
        parts = shared and (shares_weights(job) or adapted)
        self.doubts, composed = admitted(job), bool(job.composed)
        convolved = is_batch_normalised(job.model.family)
        doubted = bool(self.doubts)
        other = planning_of(job).runs_other_modules(job)
        margin = estimated(
            compiled=job.compile,
            shared=parts,
            split=split,
            convolved=convolved,
            quantized=job.quantization is not None,
            other_modules=other,
            doubted=doubted,
        )
        self.minds_largest = not (job.compile or parts or split)  # those have margins of their own
        self.margin = beside(margin, composed=composed)
        self.simulated_margin = self.margin
        if job.allocator is not None:
            sharing = job.sharding.kind if shared and job.sharding and job.data_parallel_size > 1 else None
            self.doubts = (*unpublished(job, sharing), *self.doubts)
            several = split or (sharing is not None and shares_weights(job))
            margin = simulated(several=several, compiled=job.compile, doubted=bool(self.doubts))
            self.simulated_margin = beside(margin, composed=composed)
        self.is_calibrated = is_calibrated(job, groups=self.groups_bytes > 0)
        if self.is_calibrated:
            self.margin = self.margin._replace(outside=OUTSIDE_CALIBRATED)
            self.simulated_margin = self.simulated_margin._replace(outside=OUTSIDE_CALIBRATED)
        if job.model.unknown_type is not None:
            self.margin = self.margin.plus(UNKNOWN_TYPE)
            self.simulated_margin = self.simulated_margin.plus(UNKNOWN_TYPE)
        usable, outside, margin = self.usable_bytes, self.outside_bytes, self.margin
        self.limits = Limits(
            high=max(0, (usable - outside) * 100 // (100 + margin.above)),
            low=max(0, (usable - -(-outside * margin.outside // 100)) * 100 // (100 - margin.below)),
            device=allocated_limit(usable, outside),
        )
        if not job.runtime.caches:
            room = max(0, usable - outside)
            high, low = max(0, room - STATIC_HIGH_BYTES), max(0, usable - -(-outside // 2))
            self.limits = Limits(high=high, low=low, device=room)
        self._records: dict[tuple[str, bool, bool, int], Record] = {}
        self.probes: dict[tuple[int, tuple[Segment, ...], bool, bool], Record] = {}  # of placement/strategies.py
        self.seen: dict[object, tuple[tuple[int, int], ...]] = {}  # of placement/strategies.py
        self._simulations: dict[tuple[str, int, bool, int], Simulation] = {}
        self._at_steps: dict[int, Judge] = {}

    def record(self, strategy: str, accumulates: bool, one: bool, stage: int = 0) -> Record:
        """The record of an iteration: for micro-batch 1 (`one`) or for all above; of a pipeline that of one stage."""
        key = (strategy, accumulates, one, stage)
        found = self._records.get(key)
        if found is None:
            found = self._records[key] = self.replays.record(self.setup(strategy, accumulates, stage), 1 if one else 2)
        return found

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the job's pipeline; none where there is none."""
        split = self.job.split
        if split is None or split.pipeline == 1:
            return ()
        job = self.job
        steps = job.gradient_accumulation_steps
        if steps is None and job.micro_batch_size is not None and job.global_batch_size:
            steps = max(1, job.global_batch_size // (job.micro_batch_size * job.data_parallel_size))
        return on_demand.stages_of(split, job.model.blocks, steps)

    @property
    def stacks(self) -> tuple[int, ...]:
        """Blocks of each stack, or of each part of a pipeline: where checkpoints begin anew."""
        stages = self.stages
        if not stages:
            return self.job.model.stacks
        return tuple(stage.parts[i] for i in range(len(stages[0].parts)) for stage in stages)

    def stage_at(self, strategy: str, micro: int, accumulates: bool) -> int:
        """The number of the most loaded stage at a micro-batch; 0 without a pipeline."""
        stages = self.stages
        if not stages:
            return 0

        def held(stage: int) -> int:
            record = self.record(strategy, accumulates, micro == 1, stage)
            return record.peak_bytes(micro) + record.stranded_bytes(micro)

        return max(on_demand.contenders(stages, on_demand.make_ups(self.job.model)), key=held)

    def envelope(self, strategy: str, accumulates: bool) -> Envelope:
        """Peak over all micro-batches above 1."""
        return envelope_of(self.record(strategy, accumulates, False, self.stage_at(strategy, 2, accumulates)))

    def allocated_bytes(self, strategy: str, micro: int, accumulates: bool) -> int:
        """Exact peak of allocated bytes."""
        return self.record_at(strategy, micro, accumulates).peak_bytes(micro)

    def held_bytes(self, strategy: str, micro: int, accumulates: bool, *, short: bool = False) -> int:
        """The same with blocks that cannot be used: what the allocator holds.

        `short`: where memory is short, and it has given back what it can.
        """
        record = self.record_at(strategy, micro, accumulates)
        returned = record.returnable_bytes(micro) if short else 0
        return record.peak_bytes(micro) + record.stranded_bytes(micro) - returned

    def record_at(self, strategy: str, micro: int, accumulates: bool) -> Record:
        """The record that is valid at a micro-batch, of the most loaded stage."""
        return self.record(strategy, accumulates, micro == 1, self.stage_at(strategy, micro, accumulates))

    def footprint(self, strategy: str, schedule: Schedule, *, simulated: bool = False) -> Footprint:
        """The peak of a schedule on its way to the device; `simulated`: with what the simulated allocator reserves."""
        micro, accumulates = schedule.micro_batch_size, schedule.accumulates
        record = self.record_at(strategy, micro, accumulates)
        allocated, stranded = record.peak_bytes(micro), record.stranded_bytes(micro)
        if not self.job.runtime.caches:
            return static_footprint(allocated, self.outside_bytes)
        reservation = self.reservation(strategy, schedule) if simulated else None
        reserved = None if reservation is None else reservation.reserved_bytes
        margin = self.margin if reserved is None else self.simulated_margin
        returnable = record.returnable_bytes(micro)
        survived = reservation is not None and reservation.failure is None and reservation.retries > 0
        room = self._room_for_largest(record, micro, strategy != "none")
        found = footprint(allocated, self.outside_bytes, margin, stranded, reserved, returnable, survived, room)
        survives = reservation is not None and reservation.failure is None
        is_open = found.high > self.usable_bytes and found.device <= self.usable_bytes * MAX_UTILIZATION
        if survives and is_open and self.lasts(strategy, schedule):
            found = found._replace(high=self.usable_bytes)  # it gives back what is above that
        if reservation is None or not self.job.varied_lengths:
            return found
        # in which order lengths come decides how much of the cache serves none of them, and what is allocated has the
        # margin that the simulation has below
        return found._replace(low=low_of(allocated, self.outside_bytes, self.simulated_margin))

    def lasts(self, strategy: str, schedule: Schedule) -> bool:
        """Whether a simulated run comes through on a device that is smaller by the margin above it.

        What is reserved there is less than on a large one: where memory is short, the allocator gives back what it
        keeps for later, such as what an engine has left at its start. A run that does so again and again does not last.
        """
        allocated = self.allocated_bytes(strategy, schedule.micro_batch_size, schedule.accumulates)
        if not self.simulates or allocated > self.most_certain_bytes:
            return False
        simulation = self.simulation(strategy, schedule, room_bytes=self.most_certain_bytes)
        return simulation is not None and simulation.lasts

    def _room_for_largest(self, record: Record, micro: int, again: bool) -> int:
        return room_for(record.largest_bytes(micro), again=again) if self.minds_largest else 0

    def certain_bytes(self, strategy: str, micro: int, accumulates: bool, *, again: bool | None = None) -> int:
        """The most that the allocator may have to hold at a micro-batch, so that the job fits for certain.

        `limits.high`, or less where the largest tensor is much of it. `again`: a placement of checkpoints is asked
        for, whose largest tensor is that of the strategy.
        """
        if not (self.job.runtime.caches and self.minds_largest):
            return self.limits.high
        again = strategy != "none" if again is None else again
        room = self._room_for_largest(self.record_at(strategy, micro, accumulates), micro, again)
        return certain_limit(max(0, self.usable_bytes - self.outside_bytes), self.margin.above, room)

    @property
    def most_certain_bytes(self) -> int:
        """The most that a run may allocate which a simulated allocator calls certain: it reserves no less."""
        return max(0, self.usable_bytes - self.outside_bytes) * 100 // (100 + self.simulated_margin.above)

    def accumulation_bytes(self, placement: str, schedule: Schedule) -> int | None:
        """What accumulation would add to the allocated peak of a schedule: gradients that stay between micro-steps.

        None where the schedule accumulates, or nothing can: a pipeline, whose micro-batches are in flight anyway, and
        steps in backward.
        """
        job = self.job
        if schedule.accumulates or job.optimizer_in_backward or (job.split is not None and job.split.pipeline > 1):
            return None
        micro = schedule.micro_batch_size
        once, again = (self.allocated_bytes(placement, micro, accumulates) for accumulates in (False, True))
        return max(0, again - once)

    @property
    def waits_for_steps(self) -> bool:
        """Whether a device holds more or less with the steps that the job leaves open: micro-batches of a pipeline."""
        split = self.job.split
        return split is not None and split.pipeline > 1 and self.job.gradient_accumulation_steps is None

    @property
    def steps_that_fill(self) -> int:
        """Steps from which on a device holds less the smaller the micro-batch is, so that halving finds the largest.

        1F1B: a full pipeline has as many micro-batches in flight with more steps. GPipe has all of them in flight, so
        what is in flight stays the same, and what a micro-batch needs while it runs grows with it. A single step has no
        gradients of others.
        """
        split = self.job.split
        assert split is not None
        return 2 if split.schedule == "gpipe" else (split.virtual + 1) * split.pipeline

    def at_steps(self, steps: int) -> Judge:
        """The judge of the same job with so many micro-batches in a step."""
        found = self._at_steps.get(steps)
        if found is None:
            found = self._at_steps[steps] = Judge(self.job._replace(gradient_accumulation_steps=steps), self.replays)
        return found

    @property
    def simulates(self) -> bool:
        """Whether the caching allocator is simulated."""
        return self.job.allocator is not None and self.job.runtime.caches

    def reservation(self, strategy: str, schedule: Schedule, *, reported: bool = False) -> Reservation | None:
        """What the allocator reserves for a run of a schedule; None where that is estimated.

        `reported`: with whether expandable segments would help a run that fails.
        """
        simulation = self.simulation(strategy, schedule)
        if simulation is None:
            return None
        return simulation.reported if reported else simulation.reservation

    def simulation(self, strategy: str, schedule: Schedule, room_bytes: int | None = None) -> Simulation | None:
        """A run of a schedule through the allocator; None where that is estimated.

        `room_bytes`: what there is for the allocator, without it what the device has.
        """
        settings = self.job.allocator
        if settings is None or not self.simulates:
            return None
        micro, accumulates = schedule.micro_batch_size, schedule.accumulates
        room = self.usable_bytes - self.outside_bytes if room_bytes is None else room_bytes
        key = (strategy, micro, accumulates, room)
        found = self._simulations.get(key)
        if found is None:
            setup = self.setup_at(strategy, micro, accumulates)
            each = self.workspace_bytes // MULTIPLYING_THREADS
            workspaces = (each,) * MULTIPLYING_THREADS if each else ()
            turned = turns_images(self.job)
            given = (setup, micro, settings, room, workspaces, turned)
            found = self._simulations[key] = self.replays.simulation(*given, varied=self.job.varied_lengths)
        return found

    def verdict(self, peak: Footprint) -> str:
        """fits: high <= usable; tight: low <= usable < high; else does-not-fit."""
        if peak.high <= self.usable_bytes:
            return FITS
        return TIGHT if peak.low <= self.usable_bytes else DOES_NOT_FIT

    def verdict_at(self, strategy: str, schedule: Schedule, peak: Footprint) -> str:
        """The same of a schedule, which the host has to hold too."""
        held = self.is_on_host(strategy, schedule.micro_batch_size, schedule.accumulates)
        return self.verdict(peak) if held else DOES_NOT_FIT

    def is_on_host(self, strategy: str, micro: int, accumulates: bool) -> bool:
        """Whether what is offloaded fits there; true where nothing is."""
        job = self.job
        if not (job.offload or job.offload_activations):
            return True
        return on_demand.is_within(self.record_at(strategy, micro, accumulates), job, micro)

    def largest_micro_batch(
        self, strategy: str, accumulates: bool, limit_bytes: int, *, short: bool = False, certain: bool = False
    ) -> int:
        """The largest micro-batch with which the allocator holds no more than the limit, and the host all; 0 if none.

        `short` is that of `held_bytes`; with `certain` it is within `certain_bytes` too.
        """

        def within(micro: int) -> bool:
            limit = min(limit_bytes, self.certain_bytes(strategy, micro, accumulates)) if certain else limit_bytes
            return self.held_bytes(strategy, micro, accumulates, short=short) <= limit

        if takes_one(self.job.model.family):
            return int(within(1))
        known = {} if self.stages else self.envelope(strategy, accumulates).largest  # of each job with this iteration
        rule = (self.margin, self.usable_bytes, self.outside_bytes) if certain else None
        key = (limit_bytes, short, rule)
        found = known.get(key)
        if found is None:
            found = known[key] = self._largest(strategy, accumulates, limit_bytes, within)
        if found and not self.is_on_host(strategy, found, accumulates):
            found = on_demand.largest_within(lambda micro: self.is_on_host(strategy, micro, accumulates), found - 1)
        return found

    def _largest(self, strategy: str, accumulates: bool, limit_bytes: int, within: Callable[[int], bool]) -> int:
        """The same of the device alone, where it is `within`.

        The envelope leaves out the rounding of sizes per sample, so exact replays settle its answer.
        """
        envelope = self.envelope(strategy, accumulates)
        found = most = envelope.largest_batch(limit_bytes, LARGEST_MICRO_BATCH)
        if most > 1:
            if within(most):
                return most  # rounding takes nothing away: above, the envelope is over the limit
            stranded = self.record(strategy, accumulates, False).stranded_bytes(2)
            # the streams keep more, at most as much as at the smallest
            found = min(most, max(1, envelope.largest_batch(max(0, limit_bytes - stranded), LARGEST_MICRO_BATCH)))
            if found > 1 and not within(found):
                found = -last_that_holds(lambda micro: not within(-micro), -found, -1) - 1
            elif found > 1 or within(2):
                found = last_that_holds(within, max(found, 2), most - 1)
        if found <= 1:
            found = 1 if within(1) else 0
        return found

    def gradient_bytes(self, strategy: str) -> int:
        """Bytes of all gradients at once."""
        return sum(s.at(1) for s in self.record(strategy, True, False).states if s.category == "gradients")

    def recomputed_fraction(self, strategy: str) -> float:
        """Extra forward FLOPs over the FLOPs of a step without checkpointing."""
        known = (record for (name, *_), record in self._records.items() if name == strategy)
        flops = (next(known, None) or self.record(strategy, True, False)).flops
        computed = flops["forward"] + flops["backward"]
        return flops["recompute"] / computed if computed else 0.0  # a stage may have the embedding alone

    def setup(self, strategy: str, accumulates: bool, stage: int = 0) -> Setup:
        """The iteration that a strategy means, of one stage where there are several."""
        stages = self.stages
        if not stages:
            return setup_of(self.job, strategy, accumulates)
        return setup_of_stage(self.job, strategy, accumulates, stages[stage])

    def setup_at(self, strategy: str, micro: int, accumulates: bool) -> Setup:
        """That of the one device which holds most at a micro-batch: a stage, or a part of what ZeRO shares."""
        setup = self.setup(strategy, accumulates, self.stage_at(strategy, micro, accumulates))
        record = self.record_at(strategy, micro, accumulates)
        if not record.looked_at:
            return setup
        device = record.device_at(micro)
        return setup._replace(rank=MOST_GRADIENTS if device is None else device)


def last_that_holds(holds: Callable[[int], bool], at: int, most: int, *, step: int = 1) -> int:
    """The last number from `at` to `most` for which something holds: it does at `at`, and from some number on no more.

    The steps double from the first, as the answer is most often next to where the search begins.
    """
    while at < most and holds(min(at + step, most)):
        at, step = min(at + step, most), 2 * step
    return last_between(holds, at, min(at + step, most + 1))


def last_between(holds: Callable[[int], bool], at: int, over: int) -> int:
    """The last number for which something holds, as it does at one, and at a larger one no more."""
    while over - at > 1:
        middle = (at + over) // 2
        if holds(middle):
            at = middle
        else:
            over = middle
    return at
