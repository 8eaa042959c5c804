"""The way through the combinations of a search: from what may be fastest to what is slower for certain.

A combination has a bound of its rate that costs next to nothing (the products and the attention that any way to run the
model has, and what its devices tell each other), then closer ones (every kernel of a device that holds all states),
then its answer. What is left when every bound is below the rates that are looked for is never answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf, nextafter

from vramplan.answers.asked import SLOWER, AskedCombinations, is_plan
from vramplan.answers.bounds import CLOSER
from vramplan.answers.candidates import DEGREES, Family, complexity
from vramplan.errors import InputError
from vramplan.results import FITS
from vramplan.results.compared import Cell
from vramplan.results.plans import Plan
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob

MOST_FOLLOWED = 3  # combinations that are answered before all others, until one fits


class WaitingPlans(NamedTuple):
    """What is to be looked at, the one that may be fastest first."""

    seconds: float  # that a sample takes at least
    number: int  # in which it came
    one: Mapping[str, str] | Family | tuple[Family, ...]
    job: ResolvedJob | None  # None: of a family, or of several
    closer: int  # how many closer bounds it has had


def rate_of(plan: Plan) -> float:
    """Samples per second of all devices."""
    return plan.cell.samples_per_second or 0.0


def pinned(flags: str, job: ResolvedJob, cell: Cell) -> str:
    """The options of a plan with another micro-batch than `fit` chooses."""
    words = [flags]
    if job.micro_batch_size is None:
        words.append(f"--micro-batch {cell.micro_batch_size}")
    if job.gradient_accumulation_steps is None:
        words.append(f"--steps {cell.gradient_accumulation_steps}")
    return " ".join(words).strip()


class Walk:
    """One search: what waits, and what was found."""

    def __init__(
        self,
        asked: AskedCombinations,
        families: Sequence[Family],
        within: float,
        watch: Callable[[int, int, int], None],
    ) -> None:
        self.asked, self.bounds, self.within, self.watch = asked, asked.bounds, within, watch
        self.combinations = sum(map(len, families))
        self.families = families
        self.found: list[Plan] = []  # of each combination the fastest
        self.smaller: list[Plan] = []  # at smaller micro-batches
        self.refused = self.too_large = self.over_limits = 0
        self.nearest: Plan | None = None  # the fastest of those that fit and break a deadline or a budget
        self.waiting: list[WaitingPlans] = []
        self.passed: list[WaitingPlans] = []  # that were too slow beside the fastest so far
        self._came = 0

    def begin(self) -> None:
        """Put the families where their bounds say: those together that differ in degrees of parallelism alone."""
        kin: dict[tuple[str, ...], list[Family]] = {}
        for family in self.families:
            kin.setdefault(tuple(value for key, value in family.values.items() if key not in DEGREES), []).append(
                family
            )
        for families in kin.values():
            self._put(*self._bounded(families, self.bounds.least_in_all))

    def _bounded(
        self, families: Sequence[Family], least: Callable[[ResolvedJob], float]
    ) -> tuple[float, tuple[Family, ...]]:
        """The bound of the first of some families that the program can run, and the families from there on."""
        for number, family in enumerate(families):
            self.told()
            job = self.asked.first_job(family)
            if job is not None:
                return least(job), tuple(families[number:])
            self.refused += len(family)
        return float("inf"), ()

    def go(self, flags_of: Callable[[Mapping[str, str]], str]) -> None:
        """Look at all that may be among the plans that are looked for."""
        passed, self.passed = self.passed, []
        for waiting in passed:  # which the limit was below, and may be no more
            self._put(waiting.seconds, waiting.one, waiting.job, waiting.closer)
        for _ in range(MOST_FOLLOWED):
            if not self.found:
                self._follow(flags_of)
        while self.waiting and self.waiting[0].seconds <= self._limit:
            self._look_at(heappop(self.waiting), flags_of)

    def _follow(self, flags_of: Callable[[Mapping[str, str]], str]) -> None:
        """Go with what may be fastest straight to an answer, so that who interrupts the search early has a plan.

        In the order of their bounds the first answer comes when most of the bounds are there.
        """
        beside: list[WaitingPlans] = []
        while self.waiting:
            first = heappop(self.waiting)
            beside += self.waiting
            self.waiting = []
            self._look_at(first, flags_of)
        heapify(beside)
        self.waiting = beside

    def _look_at(self, waiting: WaitingPlans, flags_of: Callable[[Mapping[str, str]], str]) -> None:
        """Answer one, or put what comes of it where closer bounds say."""
        self.told()
        if isinstance(waiting.one, Family):
            self._open(waiting.one)
        elif isinstance(waiting.one, tuple):
            for family in waiting.one:
                seconds, runnable = self._bounded((family,), self.bounds.least_without_sharing)
                if runnable:
                    self._put(max(seconds, waiting.seconds), family)
        elif waiting.job is not None and waiting.closer == CLOSER:
            self._answer(waiting.one, waiting.job, flags_of(waiting.one))
        elif waiting.job is not None:
            closer = self.bounds.closer(waiting.job, waiting.closer)
            if closer is None:
                self.too_large += 1
            else:
                self._put(max(closer, waiting.seconds), waiting.one, waiting.job, waiting.closer + 1)

    def _answer(self, one: Mapping[str, str], job: ResolvedJob, flags: str) -> None:
        """Ask for the run of a combination, and for those at smaller micro-batches that may be looked for.

        These need less memory, and are no faster; but in a pipeline they leave a smaller bubble, so there each is asked
        that may be fast enough.
        """
        points = complexity(one, self.asked.axes)

        def plan(cell: Cell, *, is_usual: bool = False) -> Plan:
            return Plan(cell, points, flags if is_usual else pinned(flags, job, cell))

        schedules = self.asked.schedules_of_pipeline(job)
        if schedules:
            plans = [plan(cell) for cell in self._of_pipeline(one, schedules, plan)]
            plans.sort(key=lambda plan: -rate_of(plan))
            self.found += plans[:1]
            self.smaller += plans[1:]
            return
        try:
            usual = self.asked.cell(one, job, self._limit, small_first=not self.found)
        except InputError:
            self.refused += 1
            return
        if usual is SLOWER:  # than the fastest so far, which may turn out not to fit after all
            self.passed.append(WaitingPlans(nextafter(self._limit, inf), self._came, one, job, CLOSER))
            return
        if usual is None or not is_plan(usual):
            self._leave_out([usual])
            if usual is not None:
                self._break(plan(usual, is_usual=True))
            return
        self.found.append(plan(usual, is_usual=True))
        for at in self.asked.smaller(job, usual):
            if self.bounds.closest(at) > self._limit:
                break
            cell = self.asked.run(one, at)
            if cell is None or not is_plan(cell) or (cell.samples_per_second or 0.0) * self._limit < 1:
                break
            self.smaller.append(plan(cell))

    def _of_pipeline(
        self, one: Mapping[str, str], schedules: Sequence[ResolvedJob], plan: Callable[[Cell], Plan]
    ) -> list[Cell]:
        """The runs of a pipeline that fit, at each micro-batch that may be fast enough, the fastest bound first."""
        roomy = [at for at in schedules if self.bounds.has_room(at)]
        bounds = sorted((self.bounds.closest(at), number) for number, at in enumerate(roomy))
        limit = self._limit
        cells: list[Cell] = []
        others: list[Cell | None] = []
        for seconds, number in bounds:
            if seconds > limit:
                return cells  # those that are left may fit
            cell = self.asked.run(one, roomy[number])
            if cell is not None and is_plan(cell):
                cells.append(cell)
                limit = min(limit, self._limit_beside(cell.samples_per_second or 0.0))
            else:
                others.append(cell)
                if cell is not None:
                    self._break(plan(cell))
        if not cells:
            self._leave_out(others)
        return cells

    def _leave_out(self, runs: Sequence[Cell | None]) -> None:
        """Count a combination none of whose runs is a plan: one of them fits and breaks a limit, or none fits."""
        if any(run is not None and run.verdict == FITS for run in runs):
            self.over_limits += 1
        else:
            self.too_large += 1

    def _break(self, plan: Plan) -> None:
        """Keep a run that fits and breaks a limit, if none before it is as fast."""
        if plan.cell.verdict == FITS and rate_of(plan) > (rate_of(self.nearest) if self.nearest else 0.0):
            self.nearest = plan

    def told(self) -> None:
        """Say how far the search is."""
        found = len(self.found)
        self.watch(self.refused + self.too_large + self.over_limits + found, self.combinations, found)

    @property
    def _limit(self) -> float:
        """Seconds of a sample of the slowest plans that are looked for."""
        return self._limit_beside(max(map(rate_of, self.found), default=0.0))

    def _limit_beside(self, rate: float) -> float:
        """The same if `rate` is the fastest. Who keeps a limit is faster than those that break it."""
        least = rate * (1 - self.within)
        if not least and self.nearest is not None:
            least = rate_of(self.nearest)
        return 1 / least if least > 0 else float("inf")

    def _open(self, family: Family) -> None:
        for one in family:
            job = self.asked.job(one)
            if job is None:
                self.refused += 1
            elif self.asked.is_too_large(one, job):
                self.too_large += 1
            else:
                self._put(self.bounds.least(job), one, job)

    def _put(
        self,
        seconds: float,
        one: Mapping[str, str] | Family | tuple[Family, ...],
        job: ResolvedJob | None = None,
        closer: int = 0,
    ) -> None:
        if one:
            heappush(self.waiting, WaitingPlans(seconds, self._came, one, job, closer))
            self._came += 1
