"""What a search asks about combinations of choices: whether a program runs them, what they need at least, answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from operator import itemgetter
from pathlib import Path

from vramplan.answers.bounds import Bounds, at
from vramplan.answers.candidates import Family, is_layout, replica_of
from vramplan.answers.compared import Keys, Prices, cell_of
from vramplan.answers.processes import BLOCKS_OF_SEVERAL, done
from vramplan.answers.session import at_hand
from vramplan.errors import InputError, UsageError
from vramplan.job import build_any_job
from vramplan.job.lookup import Catalog
from vramplan.planner.bounds.floor import Floor, floor_of
from vramplan.planner.bounds.plain import parts_of
from vramplan.planner.choose import accumulation_of
from vramplan.planner.decision import ALWAYS
from vramplan.results.compared import Cell
from vramplan.values.job import ResolvedJob
from vramplan.values.textbook import TextbookJob

NO_STATES = ("checkpointing", "loss")  # choices that change nothing of what is alive during the whole iteration
EIGHTHS = 8
MOST_ANSWERED = 96  # replays that are kept: those of the plans that are shown are asked for again at the end
Problems = tuple[str, ...]  # for which there is no job
NO_TIME: Problems = ("equations have no time to compare",)


class Slower(Enum):
    """That a combination has no answer, as it is too slow for one."""

    SLOWER = "slower"


SLOWER = Slower.SLOWER


def is_plan(cell: Cell) -> bool:
    """Whether a run fits for certain, keeps its limits, and has a rate."""
    return cell.is_possible and cell.samples_per_second is not None


class AskedCombinations:
    """Answers about combinations, and what was learned of refusals.

    Most combinations of a large search are refused, each for a few of its choices: whatever else is chosen beside
    these, the program cannot run it. Which they are is found once, by trying every other value of each.
    """

    def __init__(
        self,
        axes: Mapping[str, tuple[str, ...]],
        devices: int,
        keys_of: Callable[[Mapping[str, str]], Keys],
        profiles: Sequence[Path],
    ) -> None:
        self.axes, self.devices, self.keys_of = axes, devices, keys_of
        self.session = at_hand(MOST_ANSWERED)
        self.prices, self.catalog = Prices(profiles), Catalog(profiles)
        self.too_large: set[tuple[str, ...]] = set()  # the choices that decide the states, where these do not fit
        # by the choices that they hang on: what takes their values of a combination, and those that are refused
        self.refusals: dict[tuple[str, ...], tuple[Callable[[Mapping[str, str]], object], set[object]]] = {}
        self.hung: dict[str, tuple[str, ...]] = {}  # the choices on which a reason hangs at least
        self.simulated: dict[
            tuple[str, ...], ResolvedJob
        ] = {}  # by all choices: whose allocator was estimated up to now
        self.looked_at: set[tuple[object, ...]] = set()  # the runs that are answered as `fit` does
        self.ahead: dict[tuple[object, ...], Cell | None] = {}  # by run: how `fit` answers those not yet asked for
        self.known: dict[tuple[str, ...], ResolvedJob | Problems] = {}  # by all choices: the job, or why there is none
        self.bounds = Bounds()

    # ------------------------------------------------------------------------------------------------- what can be run
    def job(self, one: Mapping[str, str]) -> ResolvedJob | None:
        """The job of a combination; None: it is refused."""
        for values_of, values in self.refusals.values():
            if values_of(one) in values:
                return None
        job = self._job(one)
        if not isinstance(job, ResolvedJob):
            self._learn(one, job)
            return None
        return job

    def found_job(self, cell: Cell) -> ResolvedJob:
        """The job of a run that was answered."""
        job = self._job(cell.options)
        assert isinstance(job, ResolvedJob)
        return job

    def batches(self, family: Family) -> int:
        """In how many ways a device's part of the batch of a step is divided into micro-batches; 1 if it is not given.

        It is that of the job's first combination, on the devices of the family.
        """
        jobs = ((values, job) for values, job in self.known.items() if isinstance(job, ResolvedJob))
        values, job = next(jobs, ((), None))
        if job is None:
            return 1
        pinned = parts_of(job) // replica_of(dict(zip(self.axes, values, strict=True)))
        data = max(1, self.devices // (pinned * replica_of(family.values)))
        try:
            accumulation = accumulation_of(job._replace(data_parallel_size=data, split=None))
        except UsageError:
            return 1
        return 1 if accumulation.free else len(list(accumulation.schedules()))

    def _job(self, one: Mapping[str, str]) -> ResolvedJob | Problems:
        """The job, or why there is none."""
        values = tuple(one.values())
        found = self.known.get(values)
        if found is None:
            found = self.known[values] = self._resolved(one)
        return found

    def _resolved(self, one: Mapping[str, str]) -> ResolvedJob | Problems:
        try:
            job = build_any_job(self.keys_of(one), catalog=self.catalog)
        except InputError as error:
            return tuple(map(str, error.problems))
        return NO_TIME if isinstance(job, TextbookJob) else job

    def _learn(self, one: Mapping[str, str], problems: Problems) -> None:
        """Remember on which choices a refusal hangs: those of which another value is not refused for the same reason.

        Of several reasons it is the one that hangs on the fewest choices. A reason that is met again hangs at least on
        those that it did before, and of each of the others one value is tried, not every one.
        """
        hangs_on = min((self._hung_on(one, why) for why in problems), key=len)
        if hangs_on not in self.refusals:
            self.refusals[hangs_on] = itemgetter(*hangs_on) if hangs_on else (lambda _: ()), set()
        values_of, values = self.refusals[hangs_on]
        values.add(values_of(one))

    def _hung_on(self, one: Mapping[str, str], why: str) -> tuple[str, ...]:
        before = self.hung.get(why)
        if before is not None:
            return tuple(
                option for option in self.axes if option in before or not self._is_idle(option, one, why, most=1)
            )
        found = tuple(option for option in self.axes if not self._is_idle(option, one, why))
        self.hung[why] = found
        return found

    def _is_idle(self, option: str, one: Mapping[str, str], why: str, most: int | None = None) -> bool:
        others = [{**one, option: value} for value in self.axes[option] if value != one[option]]
        possible = [other for other in others if is_layout(other, self.devices)]
        return bool(possible) and all(self._is_refused_for(why, other) for other in possible[:most])

    def _is_refused_for(self, why: str, one: Mapping[str, str]) -> bool:
        found = self._job(one)
        return not isinstance(found, ResolvedJob) and why in found

    def first_job(self, family: Family) -> ResolvedJob | None:
        """The job of the first combination of a family that the program can run; None: it can run none."""
        return next((job for one in family if (job := self.job(one)) is not None), None)

    def is_too_large(self, one: Mapping[str, str], job: ResolvedJob) -> bool:
        """Whether states that are there together certainly are more than the device has, whatever is checkpointed."""
        states = self._states(one)
        if states not in self.too_large:
            if not self.bounds.is_too_large(job):
                return False
            self.too_large.add(states)
        return True

    def _states(self, one: Mapping[str, str]) -> tuple[str, ...]:
        return tuple([value for option, value in one.items() if option not in NO_STATES])

    # --------------------------------------------------------------------------------------------------------- answers
    def cell(
        self, one: Mapping[str, str], job: ResolvedJob, limit_seconds: float, *, small_first: bool = False
    ) -> Cell | Slower | None:
        """The run of a combination; None: it does not fit for certain. Raises InputError where it cannot be answered.

        `SLOWER` where a sample takes longer than the limit for certain. `small_first` is that of `floor_of`.
        """
        states = self._states(one)
        if states in self.too_large:
            return None
        replays = self.session.replays
        replays.begin()
        accumulates = self._always_accumulates(job)
        floor, is_slower = self._bounded(job, limit_seconds, small_first=small_first, accumulates=accumulates)
        may_fit = floor is None
        if accumulates and (floor is not None or is_slower):  # which of both it is called hangs on the other iteration
            floor, is_slower = self._bounded(job, limit_seconds, small_first=small_first)
        if floor is not None:
            if floor.states_bytes > floor.usable_bytes:
                self.too_large.add(states)
            replays.let_go_first()
            return None
        if is_slower:
            replays.let_go_first()
            return SLOWER
        if not may_fit:
            replays.let_go_first()
            return None
        if job.allocator is not None:  # a simulation takes as long as a hundred estimates
            self.simulated[tuple(one.values())] = job
        return self._kept(self._answered(one, job._replace(allocator=None)))

    def _always_accumulates(self, job: ResolvedJob) -> bool:
        """Whether no single micro-step that makes the batch has room, so that an answer never asks for its replay."""
        is_pinned = job.micro_batch_size is not None or job.gradient_accumulation_steps is not None
        if is_pinned or (job.split is not None and job.split.pipeline > 1):
            return False
        largest = next(accumulation_of(job).schedules())
        return largest.accumulates or not self.bounds.has_room(at(job, largest))

    def _bounded(
        self, job: ResolvedJob, limit_seconds: float, *, small_first: bool, accumulates: bool = False
    ) -> tuple[Floor | None, bool]:
        """What a job needs at least, where it does not fit for certain, and whether a sample takes longer for certain.

        The second is not asked where the first is known of any schedule.
        """
        floor = self._floor_above(job, small_first=small_first, accumulates=accumulates)
        if small_first or (floor is not None and not accumulates):
            return floor, False
        seconds = self.bounds.least_by_floor(job, self.session.replays, accumulates=accumulates)
        return floor, seconds > limit_seconds

    def _kept(self, cell: Cell) -> Cell:
        """A run, whose replays are asked for again if it is a plan."""
        if not is_plan(cell):
            self.session.replays.let_go_first()
        return cell

    def schedules_of_pipeline(self, job: ResolvedJob) -> list[ResolvedJob]:
        """A job at every micro-batch that makes its batch of a step; none if it has no pipeline, or no choice.

        Where the allocator is simulated the one that `fit` chooses is looked at alone.
        """
        is_piped = job.split is not None and job.split.pipeline > 1
        if not is_piped or job.micro_batch_size is not None or job.allocator is not None:
            return []
        accumulation = accumulation_of(job)
        return [] if accumulation.free else [at(job, schedule) for schedule in accumulation.schedules()]

    def smaller(self, job: ResolvedJob, usual: Cell) -> Iterator[ResolvedJob]:
        """A job at smaller micro-batches than the usual one, the largest first; none where they are pinned.

        Where the steps are given and any micro-batch is exact, they are eighths of the usual one.
        """
        largest = usual.micro_batch_size
        if job.micro_batch_size is not None or largest is None or job.allocator is not None:
            return
        accumulation = accumulation_of(job)
        if accumulation.free:
            sizes = dict.fromkeys(largest * part // EIGHTHS for part in range(EIGHTHS - 1, 0, -1))
            schedules = [accumulation.for_micro(micro) for micro in sizes if micro]
        else:
            schedules = [schedule for schedule in accumulation.schedules() if schedule.micro_batch_size < largest]
        yield from (at(job, schedule) for schedule in schedules)

    def run(self, one: Mapping[str, str], job: ResolvedJob) -> Cell | None:
        """The run of a job at the one micro-batch that it has; None: it does not fit for certain."""
        self.session.replays.begin()
        if self._floor_above(job):
            self.session.replays.let_go_first()
            return None
        return self._kept(self._answered(one, job))

    def _floor_above(self, job: ResolvedJob, *, small_first: bool = False, accumulates: bool = False) -> Floor | None:
        """What a job needs at least, where it does not fit for certain; `accumulates` as in `floor_of`."""
        floor = floor_of(job, self.session.replays, small_first=small_first, accumulates=accumulates)
        return None if floor is None or floor.is_met else floor

    def is_estimated(self, cell: Cell) -> bool:
        """Whether the allocator of a run was estimated, although the program's is simulated."""
        return tuple(cell.options.values()) in self.simulated

    def is_settled(self, cell: Cell) -> bool:
        """Whether a run came from `settled`."""
        return _run_of(cell) in self.looked_at

    def settled(self, cell: Cell, *, pinned: bool) -> Cell | None:
        """The same as `fit` answers it, which simulates the allocator of programs that say so and short iterations.

        That is at the micro-batch that is `pinned` in its options, else at the one that `fit` chooses.
        """
        run = _run_of(cell)
        found = self.ahead.pop(run) if run in self.ahead else self._as_fit(cell, pinned=pinned)
        self.simulated.pop(tuple(cell.options.values()), None)
        if found is not None:
            self.looked_at.add(_run_of(found))
        return found

    def look_ahead(self, runs: Sequence[tuple[Cell, bool]], processes: int) -> None:
        """Answer several runs at a time, for which `settled` is asked next: each with whether its batch is pinned."""
        runs = [(cell, pinned) for cell, pinned in runs if _run_of(cell) not in self.ahead]
        if processes < 2 or len(runs) < 2 or self.found_job(runs[0][0]).model.layers < BLOCKS_OF_SEVERAL:
            return
        found = done(runs, lambda one: self._as_fit(one[0], pinned=one[1]), processes)
        self.ahead.update({_run_of(cell): answer for (cell, _), answer in zip(runs, found, strict=True)})

    def _as_fit(self, cell: Cell, *, pinned: bool) -> Cell | None:
        options = tuple(cell.options.values())
        job = self.simulated[options] if options in self.simulated else self.found_job(cell)
        steps = cell.gradient_accumulation_steps
        own = job._replace(micro_batch_size=cell.micro_batch_size, gradient_accumulation_steps=steps)
        for tried in (own, job) if pinned else (job,):
            try:
                found = self._answered(cell.options, tried, closer_from=ALWAYS)
            except InputError:
                continue
            if found.is_possible or tried is job:
                return found
        return None

    def rung(self, one: Mapping[str, str]) -> Cell | None:
        """The same of some of the choices, with the others as they are without an option."""
        job = self._resolved(one)
        if not isinstance(job, ResolvedJob):
            return None
        try:
            return self._answered(one, job)
        except InputError:
            return None

    def _answered(self, one: Mapping[str, str], job: ResolvedJob, *, closer_from: int | None = None) -> Cell:
        return cell_of(one, self.session.brief(job, closer_from=closer_from, of_misfits=False), self.prices)


def _run_of(cell: Cell) -> tuple[object, ...]:
    return (*cell.options.values(), cell.micro_batch_size, cell.gradient_accumulation_steps, cell.device_bytes)
