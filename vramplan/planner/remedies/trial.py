"""Trying a change: the job is typed again with it and judged as that job would be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from vramplan.errors import InputError
from vramplan.planner import on_demand
from vramplan.planner.accumulation import Schedule
from vramplan.planner.budget import Footprint
from vramplan.planner.candidate import Candidate
from vramplan.planner.checkpoints import OPTIMAL
from vramplan.planner.choose import accumulation_of, strategies_of
from vramplan.planner.decision import IN_DOUBT, Decision, looked_at, most_events
from vramplan.planner.judge import Judge
from vramplan.planner.ladder import Rung
from vramplan.planner.placement.strategies import fits
from vramplan.planner.replays import Replays
from vramplan.planner.timed import host_held, step_time
from vramplan.planner.verdict import chosen_for
from vramplan.planner.whole_run import fed
from vramplan.results import DOES_NOT_FIT, FITS, TIGHT, Host
from vramplan.results.time import Time
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob
from vramplan.values.length import NO_LENGTH

T = TypeVar("T")
V = TypeVar("V")
AtOnce = Callable[[Sequence[Callable[[], Any]]], Sequence[Any]]
"""Does several things at a time, and gives what each gives. What they change is lost."""

# Changes whose runs go through the simulated allocator: each takes as long as an answer. Those that are of use where
# they surely fit alone are not among them: they are few, as one look tells.
MOST_SIMULATED = 6
ENOUGH_SIMULATED = 3  # of these that surely fit; what costs more is not tried then
MOST_VARIED = 3  # the same of runs whose batches have many lengths
MOST_PLACED = 4  # changes for which checkpoints are placed by size: each is a search
MOST_AT_ONCE = 2  # simulated runs that one change may count for


class TypedJob(Protocol):
    """What was typed: the job that it describes with a change, None where that is refused; and the keys in it."""

    given: frozenset[str]

    def __call__(self, change: Mapping[str, Any]) -> ResolvedJob | None: ...  # noqa: D102
    def refusal(self, change: Mapping[str, Any]) -> str: ...  # noqa: D102


class AskedChange(NamedTuple):
    """A change, as it has to be typed, and the job that it makes."""

    change: Mapping[str, Any]
    job: ResolvedJob


class Counted(NamedTuple):
    """By how much a change moves what is counted of all."""

    simulated: int
    placed: int
    found: int


class TriedChange(NamedTuple):
    """What comes of a change."""

    change: Mapping[str, Any]
    device_bytes: int
    usable_bytes: int
    verdict: str
    is_settled: bool  # False: its smallest iteration does not fit, and nothing else was looked at
    time: Time | None = None  # of a step, of what may fit; None where a rate of the GPU is not known
    host_bytes: int | None = None  # that a node needs of its host; None: nothing is kept there, or it does not fit

    @property
    def seconds(self) -> float | None:
        """The seconds of a token, of a sample where there are no tokens, of all devices."""
        if self.time is None:
            return None
        return 1 / (self.time.tokens_per_second or self.time.samples_per_second)


class Least(NamedTuple):
    """The iteration of a job that holds least, and who judged it. `strategy`: of its checkpoints."""

    peak: Footprint
    schedule: Schedule
    judge: Judge
    strategy: str

    def size_bytes(self, figure: str) -> int:
        """`low`, `device` or `high` of its estimated peak."""
        size: int = getattr(self.peak, figure)
        return size

    def is_within(self, figure: str) -> bool:
        """Whether a figure of its peak is within the usable memory, and the host holds what is offloaded."""
        micro, accumulates = self.schedule.micro_batch_size, self.schedule.accumulates
        return self.size_bytes(figure) <= self.judge.usable_bytes and self.judge.is_on_host(
            self.strategy, micro, accumulates
        )


class Trials:
    """The changes that were tried of one job. `rung`: the answer without a change; `closer_from` as in `decide`."""

    def __init__(self, typed: TypedJob, judge: Judge, rung: Rung, *, closer_from: int | None = None) -> None:
        self.typed, self.replays, self.closer_from = typed, judge.replays, closer_from
        self.device_bytes, self.usable_bytes, self.verdict = rung.peak.device, judge.usable_bytes, rung.verdict
        plain = typed({})
        self._plain = None if plain is None else _identity(plain)
        self._simulated = self._placed = self._found = 0
        self._judged: list[tuple[tuple[ResolvedJob, bool], TriedChange | None]] = []
        self._ahead: list[tuple[ResolvedJob, TriedChange | None, Counted]] = []  # judged by other processes
        # what has to be within the usable memory for an answer to be better than this one
        self._figure = "low" if self.verdict == DOES_NOT_FIT else "device"
        if self.verdict != DOES_NOT_FIT and self.device_bytes <= self.usable_bytes:
            self._figure = "high"

    def of(self, candidate: Candidate, *, surely: bool = False) -> TriedChange | None:
        """What a candidate comes to; None where it is refused, or makes the same job.

        `surely`: only one that fits for certain is of use.
        """
        asked = self.asked(candidate)
        return None if asked is None else self.judged(asked, surely=surely)

    def asked(self, candidate: Candidate) -> AskedChange | None:
        """The job that a candidate makes; None where it is refused, or the same."""
        for change in self._spellings(candidate):
            job = self.typed(change)
            if job is not None:
                return None if _identity(job) == self._plain else AskedChange(change, job)
        return None

    def may_hold_states(self, job: ResolvedJob) -> bool:
        """Whether there may be room for what is alive all the time: where devices share states in a way whose replay is
        ten times as long as the plain one that several of them have in common, a look at that one.
        """
        if job.sharding is None or not job.sharding.zero:
            return True
        judge = Judge(job._replace(allocator=None), self.replays)
        room_bytes = judge.usable_bytes - judge.outside_bytes
        try:
            return on_demand.has_room_for_states(job, _least_kept(job), room_bytes, self.replays)
        except InputError:
            return True  # whoever judges it says so

    def may_fit(self, job: ResolvedJob) -> bool:
        """Whether a job may come to fit for certain: a look at its smallest iteration alone."""
        try:
            least = self.smallest(job)
            is_within = least.is_within("high")
            if is_within and least.size_bytes("high") * 100 <= least.judge.usable_bytes * IN_DOUBT:
                return True
            settings = job.allocator or (None if self.closer_from is None else job.allocator_offered)
            if settings is None or not job.runtime.caches or not self._is_short(job, least, is_open=not is_within):
                return is_within  # an estimate is all that there will be
            own = Judge(job._replace(allocator=settings), self.replays)
            if least.peak.allocated > own.most_certain_bytes:
                return False
            if own.waits_for_steps:
                own = own.at_steps(least.schedule.gradient_accumulation_steps)
            return own.footprint(least.strategy, least.schedule, simulated=True).high <= own.usable_bytes
        except InputError:
            return True  # whoever judges it says so

    def _is_short(self, job: ResolvedJob, least: Least, *, is_open: bool) -> bool:
        """Whether an iteration is simulated though nobody asked for it. `is_open`: its estimate leaves it open."""
        accumulates = least.schedule.accumulates
        record = least.judge.record_at(least.strategy, least.schedule.micro_batch_size, accumulates)
        events = record.events_of_every_copy * (2 if accumulates else 1)
        return job.allocator is not None or events <= most_events(job, is_open=is_open)

    def _spellings(self, candidate: Candidate) -> Iterator[Mapping[str, Any]]:
        """The change itself, and with what was typed for what it replaces taken away."""
        yield candidate.change
        typed = [key for key in candidate.resets if key in self.typed.given and not _has(candidate.change, key)]
        if typed:
            yield _without(candidate.change, typed)

    @property
    def has_enough(self) -> bool:
        """Whether more need not be tried, as each takes long and those that come now cost more."""
        return self._found >= ENOUGH_SIMULATED

    def smallest(self, job: ResolvedJob) -> Least:
        """`least_of` a job."""
        return least_of(job, self.replays)

    def glimpse(self, asked: AskedChange) -> TriedChange | None:
        """What the smallest iteration of a job needs, which nothing settles; None where it is refused."""
        try:
            least = self.smallest(asked.job)
        except InputError:
            return None
        return _unsettled(asked.change, least)

    def judged(self, asked: AskedChange, *, surely: bool = False) -> TriedChange | None:
        """What a job comes to that was asked for; None where it is refused. `surely` as in `of`."""
        own = _identity(asked.job), surely
        for known, found in self._judged:  # what is spelled in several ways
            if known == own:
                return None if found is None else found._replace(change=asked.change)
        ahead = None if surely else next((one for one in self._ahead if one[0] == own[0]), None)
        if ahead is None:
            found = self._judged_of(asked, surely=surely)
        else:
            _, found, counted = ahead
            self._count(counted)
        self._judged.append((own, found))
        return found

    def look_ahead(self, asked: Sequence[AskedChange], at_once: AtOnce) -> None:
        """Judge several changes at a time, for which `judged` is asked next: what it says is the same."""
        if len(asked) < 2 or any(one.job.activation_checkpointing == OPTIMAL for one in asked):
            return
        most = MOST_VARIED if any(one.job.varied_lengths for one in asked) else MOST_SIMULATED
        if self._simulated + MOST_AT_ONCE * len(asked) > most:
            return  # which one is too many hangs on those before it

        def judged(one: AskedChange) -> tuple[TriedChange | None, Counted]:
            return self._counting(lambda: self._judged_of(one, surely=False))

        for one, (found, counted) in zip(asked, at_once([partial(judged, one) for one in asked]), strict=True):
            self._ahead.append((_identity(one.job), found, counted))

    def searches(self, searches: Sequence[Callable[[], list[T]]], at_once: AtOnce) -> list[Callable[[], list[T]]]:
        """The same, made at a time: each then only counts what it has tried."""

        def made(search: Callable[[], list[T]]) -> tuple[list[T], Counted]:
            return self._counting(search)

        def again(found: list[T], counted: Counted) -> list[T]:
            self._count(counted)
            return found

        return [partial(again, *one) for one in at_once([partial(made, search) for search in searches])]

    def _counting(self, work: Callable[[], V]) -> tuple[V, Counted]:
        """What work gives, and what it counts, which is not yet counted."""
        before = self._simulated, self._placed, self._found
        found = work()
        now = self._simulated, self._placed, self._found
        self._simulated, self._placed, self._found = before
        return found, Counted(*(one - other for one, other in zip(now, before, strict=True)))

    def _count(self, counted: Counted) -> None:
        self._simulated += counted.simulated
        self._placed += counted.placed
        self._found += counted.found

    @property
    def left(self) -> int:
        """Of how many more that surely fit it has enough."""
        return ENOUGH_SIMULATED - self._found

    def _judged_of(self, asked: AskedChange, *, surely: bool) -> TriedChange | None:
        change, job = asked
        try:
            least = self.smallest(job)
            judge = least.judge
            placed = job.activation_checkpointing == OPTIMAL
            figure = "high" if surely else self._figure
            hopeless = least.size_bytes(figure) > judge.usable_bytes
            if hopeless and placed:
                hopeless = not fits(judge, least.schedule, getattr(judge.limits, figure))
            elif hopeless and surely:
                hopeless = not self.may_fit(job)
            simulated = job.allocator is not None and job.runtime.caches
            most = MOST_VARIED if job.varied_lengths else MOST_SIMULATED
            hopeless = hopeless or (job.varied_lengths and self._simulated >= most)
            if not hopeless and surely and simulated and not placed:  # one run says what a search for a batch would
                own = Judge(job, self.replays)
                if own.waits_for_steps:
                    own = own.at_steps(least.schedule.gradient_accumulation_steps)
                peak = own.footprint(least.strategy, least.schedule, simulated=True)
                hopeless = peak.high > own.usable_bytes
                self._simulated += hopeless and job.varied_lengths
            if not hopeless:
                self._simulated += simulated
                self._placed += placed
                hopeless = (self._simulated > most and not surely) or self._placed > MOST_PLACED
            if hopeless:
                return _unsettled(change, least)
            decision = chosen_for(job, self.replays)
            # one that fits for certain is the same whether others are asked for too, and those take a run each
            closer = looked_at(decision, self.closer_from, whole_ladder=False, surely=True)
            if closer.choice.rung.verdict != FITS and not (surely or self._figure == "high"):
                closer = looked_at(decision, self.closer_from, whole_ladder=False)
            simulated = simulated or closer is not decision
            self._simulated += closer is not decision
            decision = closer
        except InputError:
            return None
        rung = decision.choice.rung
        self._found += simulated and rung.verdict == FITS
        size, usable = rung.peak.device, decision.judge.usable_bytes
        if rung.verdict == DOES_NOT_FIT:
            return TriedChange(change, size, usable, rung.verdict, True)
        host = host_held(decision.record, decision.job, rung.schedule)
        held = None if host is None else host.node_bytes
        return TriedChange(change, size, usable, rung.verdict, True, _time_of(decision, host), held)

    def helps(self, tried: TriedChange | None) -> bool:
        """Whether it is better than the answer without a change."""
        if tried is None or not tried.is_settled:
            return False
        if tried.verdict == FITS:
            return self.verdict != FITS
        if tried.verdict == TIGHT and self.verdict == DOES_NOT_FIT:
            return True
        return (
            tried.verdict == TIGHT
            and self.device_bytes > self.usable_bytes >= 0
            and (tried.device_bytes <= tried.usable_bytes)
        )


def _unsettled(change: Mapping[str, Any], least: Least) -> TriedChange:
    return TriedChange(change, least.peak.device, least.judge.usable_bytes, DOES_NOT_FIT, False)


def least_of(job: ResolvedJob, replays: Replays) -> Least:
    """The iteration of a job that holds least, with its estimated peak.

    Where checkpoints are open, they are those of the last strategy of the ladder, which keeps least.
    """
    judge = Judge(job._replace(allocator=None), replays)
    strategy = _least_kept(job)
    schedule = accumulation_of(job).smallest()
    if judge.waits_for_steps:
        judge = judge.at_steps(schedule.gradient_accumulation_steps)
    return Least(judge.footprint(strategy, schedule), schedule, judge, strategy)


def _least_kept(job: ResolvedJob) -> str:
    """Its checkpoints, or those that keep least where they are open or placed by size."""
    strategy = job.activation_checkpointing or strategies_of(job)[-1]
    return "full" if strategy == OPTIMAL else strategy  # only to see how far from fitting it is


def _time_of(decision: Decision, host: Host | None) -> Time | None:
    """What `vramplan fit` says of a step of a decision; None where a rate of the GPU is not known."""
    rung, judged = decision.choice.rung, decision.judged
    time = step_time(judged, decision.judge, rung.placement, rung.schedule, host)
    return time if time is None or judged.length == NO_LENGTH else fed(judged, time, rung.schedule)[1]


def _identity(job: ResolvedJob) -> ResolvedJob:
    """A job without what records how it came about."""
    return job._replace(name="", assumptions=(), warnings=(), case={}, global_batch_given=True)


def _has(change: Mapping[str, Any], key: str) -> bool:
    group, _, name = key.rpartition(".")
    inside = change.get(group) if group else change
    return isinstance(inside, Mapping) and name in inside


def _without(change: Mapping[str, Any], keys: list[str]) -> dict[str, Any]:
    """A change that takes keys away too."""
    result = {key: dict(value) if isinstance(value, Mapping) else value for key, value in change.items()}
    for key in keys:
        group, _, name = key.rpartition(".")
        inside = result.setdefault(group, {}) if group else result
        inside[name] = None
    return result


def together(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any] | None:
    """Two changes as one; None where they say different things of a key."""
    result = {key: dict(value) if isinstance(value, Mapping) else value for key, value in one.items()}
    for key, value in other.items():
        if key not in result:
            result[key] = dict(value) if isinstance(value, Mapping) else value
        elif isinstance(value, Mapping) and isinstance(result[key], dict):
            inside = together(result[key], value)
            if inside is None:
                return None
            result[key] = inside
        elif result[key] != value:
            return None
    return result
