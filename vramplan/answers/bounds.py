"""Bounds of the time that a combination takes, and of what it has room for, from plain replays that many share.

What they bound and why is the matter of `vramplan/planner/bounds/`; here stand the replays, each made once, and the
order from what costs next to nothing to what is closest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from vramplan.planner.accumulation import Schedule
from vramplan.planner.bounds.floor import certain_bytes, seconds_by_floor
from vramplan.planner.bounds.in_stages import KernelsOfStage, kernels_of_stages, stage_setup
from vramplan.planner.bounds.least import MANY, Work, arithmetic_of, least_seconds, most_samples, work_of
from vramplan.planner.bounds.plain import (
    Plain,
    cuts_of,
    gathered_bytes,
    least_bytes,
    parts_of,
    plain_of,
    plain_setup,
    room_setup,
    simpler,
)
from vramplan.planner.choose import accumulation_of
from vramplan.planner.replays import Replays
from vramplan.planner.time.behaviour import FusedKernel, timing_of
from vramplan.planner.time.rates import Rates, rates_of
from vramplan.replay.setup import Setup
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import Split

T = TypeVar("T")

MOST_PLAIN = 4096  # plain replays of which figures are kept, of some kilobytes


def at(job: ResolvedJob, schedule: Schedule) -> ResolvedJob:
    """A job that pins a schedule."""
    micro, steps = schedule.micro_batch_size, schedule.gradient_accumulation_steps
    return job._replace(micro_batch_size=micro, gradient_accumulation_steps=steps)


class Bounds:
    """Seconds that a sample takes at least, which are 0 where the peak rate of the GPU is not known; and room."""

    def __init__(self) -> None:
        self.plain: dict[
            tuple[Setup, int, bool], Plain
        ] = {}  # by micro-batch, which is 1, or 2 for all above, and whether its kernels are told apart by unit
        self.works: dict[
            tuple[Setup, int, int], Work
        ] = {}  # by the plain iteration, the devices that share it or experts
        self.replays = Replays()  # the last ones: with and without their units the kernels are of one
        self.rates: dict[tuple[object, ...], Rates | None] = {}
        # the same of every kernel, by micro-batch, whether no product leaves any of the device idle, and what the
        # program has in place of the point-wise kernels
        self.whole: dict[tuple[Setup, int, int, int, bool, tuple[FusedKernel, ...]], Work] = {}
        self.of_jobs: dict[tuple[int, object], tuple[ResolvedJob, object]] = {}  # by the identity of a job, and what
        self.stages: dict[
            tuple[Setup, int, bool, int, int, str | None], list[KernelsOfStage]
        ] = {}  # by the iteration of a device with all blocks, the micro-batch, `is_filled` and the pipeline

    # ---------------------------------------------------------------------------------- those that cost next to nothing
    def least_in_all(self, job: ResolvedJob) -> float:
        """Those of products and attention, spread over all devices."""
        devices = job.data_parallel_size * parts_of(job)
        alone = job._replace(sharding=None, split=None, planned=None, data_parallel_size=1, offload=())
        alone = alone._replace(micro_batch_size=None, global_batch_size=0, gradient_accumulation_steps=1)
        return self.least_without_sharing(alone) / devices

    def least_without_sharing(self, job: ResolvedJob) -> float:
        """The same with what the devices of a replica tell each other, whatever shares the states."""
        return self.least(job, shared=False)

    def least(self, job: ResolvedJob, *, shared: bool = True) -> float:
        """The same with what all devices tell each other."""
        rates = self._rates(job)
        if rates is None:
            return 0.0
        setup, parts, experts = self._simple_setup(job), parts_of(job), (job.split or Split()).expert
        plain = self.plain_at(setup)
        work = self.works.get((setup, parts, experts))
        if work is None:
            work = self.works[setup, parts, experts] = arithmetic_of(plain, parts, experts)
        return least_seconds(job._replace(planned=None), work, plain, rates, shared=shared)

    def is_too_large(self, job: ResolvedJob) -> bool:
        """Whether states that are there together certainly are more than the device has, whatever is checkpointed."""
        plain = self.plain_at(self._simple_setup(job))
        return least_bytes(job, plain) + gathered_bytes(job, plain) > job.usable_bytes

    # ------------------------------------------------------------------------------------------------------ closer ones
    def closer(self, job: ResolvedJob, number: int) -> float | None:
        """One of `CLOSER` bounds, each closer than the one before it; None: a single sample has no room."""
        if number == 0:
            return self.least_of_simpler(job)
        if number == 1:
            return self.least_of_several(job) if self.has_room(job) else None
        if number == 2:
            return self.least_of_all_kernels(job)
        return self.least_of_stages(job)

    def least_of_simpler(self, job: ResolvedJob) -> float | None:
        """The seconds of every kernel of a job that others share: the model that no plan cuts, and simpler checkpoints.

        What is compiled may have fewer kernels where checkpoints are larger, so there they are its own. None as
        `closer` has it.
        """
        rates = self._rates(job)
        simple = job if job.compile else simpler(job)
        is_own = simple.activation_checkpointing == job.activation_checkpointing
        if rates is None or (is_own and job.planned is None):
            return 0.0
        if is_own and not self.has_room(job, cut=False):
            return None
        return self._of_several(simple, rates, cut=False, has_own=is_own)

    def least_of_several(self, job: ResolvedJob) -> float:
        """The same of the part of the model that a device has, and of products alone at a micro-batch of 1."""
        rates = self._rates(job)
        return 0.0 if rates is None else self._of_several(job, rates)

    def least_of_all_kernels(self, job: ResolvedJob) -> float:
        """The seconds of every kernel that a device runs at least."""
        rates = self._rates(job)
        return 0.0 if rates is None else self._of_either(job, lambda one, batch: self._least_at(one, rates, batch))

    def least_of_stages(self, job: ResolvedJob) -> float:
        """The same of the stage that takes longest, and of what devices run that split a model; 0.0 where none do."""
        rates, setup = self._rates(job), stage_setup(job)
        if rates is None or setup is None:
            return 0.0
        return self._of_either(job, lambda one, batch: self._longest_stage_at(one, setup, rates, batch))

    def least_by_floor(self, job: ResolvedJob, replays: Replays, *, accumulates: bool = False) -> float:
        """The same by the job's own replay that its floor was made of, `accumulates` as that has it."""
        rates, smallest = self._rates(job), accumulation_of(job).smallest()
        if rates is None or job.micro_batch_size is not None:
            return 0.0
        several = seconds_by_floor(job, replays, rates, self.most_samples(job), accumulates=accumulates)
        return several if smallest.micro_batch_size != 1 else min(several, self.least_of_all_kernels(at(job, smallest)))

    def closest(self, job: ResolvedJob) -> float:
        """The closest of those that need no replay of the job's own."""
        return max(self.least_of_all_kernels(job), self.least_of_stages(job))

    def _of_either(self, job: ResolvedJob, least_at: Callable[[ResolvedJob, int], float]) -> float:
        """The least of a micro-batch of 1 and of larger ones: views of the first copy less, so it has replays of its
        own, which are made where they may matter.
        """
        smallest = accumulation_of(job).smallest()
        alone = at(job, smallest)
        if smallest.micro_batch_size != 1:
            return least_at(job, 2)
        if job.micro_batch_size == 1:
            return least_at(alone, 1)
        several = least_at(job, 2)
        return several if self.least(alone) >= several else min(several, least_at(alone, 1))

    def has_room(self, job: ResolvedJob, *, cut: bool = True) -> bool:
        """Whether the micro-batch, or a single sample, may have room beside the states: the job may fit for certain."""
        return self.most_samples(job, cut=cut) >= min(job.micro_batch_size or 1, MANY)

    def most_samples(self, job: ResolvedJob, *, cut: bool = True) -> int:
        """The largest micro-batch with which a job may fit for certain."""

        def most() -> int:
            plain = self.plain_at(room_setup(job, cut=cut))
            return most_samples(job, plain, certain_bytes(job), cut=cut)

        return self._of_job(job, cut, most)

    def _simple_setup(self, job: ResolvedJob) -> Setup:
        return self._of_job(job, "simple", lambda: plain_setup(simpler(job)))

    def _of_job(self, job: ResolvedJob, what: object, make: Callable[[], T]) -> T:
        """A figure of a job, which is asked for by each of its bounds."""
        key = (id(job), what)
        found = self.of_jobs.get(key)
        if found is None or found[0] is not job:
            if len(self.of_jobs) >= MOST_PLAIN:
                self.of_jobs.clear()
            found = self.of_jobs[key] = job, make()
        return cast(T, found[1])

    def _of_several(self, job: ResolvedJob, rates: Rates, *, cut: bool = True, has_own: bool = True) -> float:
        smallest = accumulation_of(job).smallest()
        if smallest.micro_batch_size != 1:
            return self._least_at(job, rates, 2, cut=cut, has_own=has_own)
        alone = self.least(at(job, smallest))
        if job.micro_batch_size == 1:
            return alone
        return min(alone, self._least_at(job, rates, 2, cut=cut, has_own=has_own))

    def _least_at(self, job: ResolvedJob, rates: Rates, batch: int, *, cut: bool = True, has_own: bool = True) -> float:
        plain, work = self._plain_work(job, batch, cut=cut)
        most = max(1, self.most_samples(job, cut=cut)) if has_own else MANY  # other checkpoints leave other room
        return least_seconds(job if cut else job._replace(planned=None), work, plain, rates, most=most)

    def _longest_stage_at(self, job: ResolvedJob, setup: Setup, rates: Rates, batch: int) -> float:
        plain, work = self._plain_work(job, batch)
        split = job.split or Split()
        is_filled = _is_filled(job)
        key = (setup, batch, is_filled, split.pipeline, split.virtual, split.pipeline_split)
        stages = self.stages.get(key)
        if stages is None:
            own = self.plain_at(setup, batch, by_unit=True)
            stages = self.stages[key] = kernels_of_stages(job, own, is_filled=is_filled)
        most = max(1, self.most_samples(job))
        found = 0.0
        for one in stages:
            of_stage = one.beside(work)
            least = least_seconds(job, of_stage, plain, rates, most=most, blocks=one.blocks, others=one.others)
            found = max(found, least)
        return found

    def _plain_work(self, job: ResolvedJob, batch: int, *, cut: bool = True) -> tuple[Plain, Work]:
        """A plain replay of the job, and what of it a device has to compute at least."""
        setup, experts = plain_setup(job, whole=True, cut=cut), (job.split or Split()).expert
        fused = timing_of(job).fused_kernels(job)  # which are put in the place of those of a unit
        parts, plain = cuts_of(job, cut=cut), self.plain_at(setup, batch, by_unit=bool(fused))
        is_filled = _is_filled(job)
        key = (setup, parts, experts, batch, is_filled, fused)
        work = self.whole.get(key)
        if work is None:
            work = self.whole[key] = work_of(plain, parts, experts, is_filled=is_filled)
        return plain, work

    def _rates(self, job: ResolvedJob) -> Rates | None:
        """The rates of a job's GPU, the same object for all that they are the same for."""
        products = job.gpu, job.precision, job.tf32, job.channels_last, job.runtime.engine, job.bitsandbytes
        key = (*products, job.attention, job.first_flash, job.checkpoint_reentrant)
        if key not in self.rates:
            self.rates[key] = rates_of(job)
        return self.rates[key]

    def plain_at(self, setup: Setup, batch: int = 2, *, by_unit: bool = False) -> Plain:
        """What bounds ask of a plain replay."""
        found = self.plain.get((setup, batch, by_unit))
        if found is None:
            if len(self.plain) >= MOST_PLAIN:
                self.plain.clear()
            record = self.replays.record(setup, batch)
            kernels = record.kernels if by_unit else record.kernel_classes
            found = self.plain[setup, batch, by_unit] = plain_of(record, kernels)
        return found


def _is_filled(job: ResolvedJob) -> bool:
    """Whether buffers that are made behind a product count as written by it."""
    shared = job.sharding
    return shared is not None and (shared.zero is not None or shared.way is not None)


CLOSER = 4  # bounds that `Bounds.closer` knows
