"""The choice where the caching allocator is simulated.

What it reserves is no function of the allocated bytes, so the ladder is climbed with estimates first, and only what may
be chosen is simulated: each strategy in turn, the cheapest first, below what it reserves too much for, until one fits.
The other rows of the ladder stay estimates.
"""

from __future__ import annotations

from vramplan.planner.accumulation import LARGEST_MICRO_BATCH, OpenSchedules, Schedule
from vramplan.planner.checkpoints import OPTIMAL
from vramplan.planner.judge import Judge, last_between, last_that_holds
from vramplan.planner.ladder import (
    Choice,
    Rung,
    by_cost,
    climb,
    has_room,
    largest_schedule_within,
    likeliest_schedule,
)
from vramplan.planner.timed import seconds_of_samples
from vramplan.replay.models.parts import takes_one
from vramplan.replay.step import stands_for
from vramplan.results import DOES_NOT_FIT, FITS, TIGHT

ASTRAY = 6  # runs that fail below an estimate, before it is asked whether any comes through: a replay of its own
FIRST, LATER = range(2)
WHICHEVER = 3  # a micro-batch that another one stands for, where any does
STRIDE = 8  # a first step from a micro-batch that fits to larger ones is this part of it
FAR = 256  # a first step is this part of where a search begins: estimates of thousands are off by tens


def settled(
    judge: Judge,
    accumulation: OpenSchedules,
    ladder: tuple[Rung, ...],
    pinned: str | None,
    *,
    looks_for_largest: bool,
    surely: bool = False,
) -> Choice:
    """The choice among rungs that were simulated: in the order of their cost, until one fits.

    `surely`: only one that fits for certain is of use, and of others nothing more is asked.
    """
    rows, usable, seconds = list(ladder), judge.usable_bytes, seconds_of_samples(judge)
    expected = climb(accumulation, ladder, pinned, usable, seconds).rung
    tried: list[int] = []
    for place in sorted(range(len(rows)), key=lambda one: _turn(rows[one], expected)):
        rung = rows[place]
        if pinned not in (None, rung.strategy):
            continue
        if rung.verdict == DOES_NOT_FIT and pinned is None:  # not even without a free block
            continue
        is_first = _turn(rung, expected)[0] == FIRST
        if not is_first and any(rows[one].verdict == FITS for one in tried):
            break
        rows[place] = _simulated(judge, accumulation, rung, surely=surely)
        tried.append(place)
    among = tuple(rows[place] for place in tried)
    chosen = climb(accumulation, among or ladder, pinned, usable, seconds).rung
    place = next(place for place, rung in enumerate(rows) if rung.strategy == chosen.strategy)
    if not tried:
        chosen = _at(judge, chosen, chosen.schedule)
    if looks_for_largest:  # a gate asks for no more than its verdict
        chosen = with_largest(judge, chosen)
    rows[place] = chosen
    return Choice(chosen, tuple(rows), accumulation)


def _turn(rung: Rung, expected: Rung) -> tuple[int, tuple[float, int, bool, bool]]:
    """Which rung is simulated first: the one that the estimates chose, and cheaper ones that they leave open."""
    is_open = rung.verdict == TIGHT and by_cost(rung) < by_cost(expected)
    return FIRST if rung is expected or is_open else LATER, by_cost(rung)


def _simulated(judge: Judge, accumulation: OpenSchedules, rung: Rung, *, surely: bool) -> Rung:
    if judge.waits_for_steps:
        return _piped(judge, accumulation, rung, surely=surely)
    if rung.strategy == OPTIMAL or accumulation.micro is not None:
        return _at(judge, rung, rung.schedule)
    if _replays_each(judge, rung):  # and one that the estimate calls certain most often is
        found = _at(judge, rung, rung.schedule)
        if found.verdict == FITS:
            return found
    schedule = _largest_certain(judge, accumulation, rung.strategy)
    if schedule is not None:
        return _at(judge, rung, schedule)
    if surely:
        return rung._replace(verdict=DOES_NOT_FIT)
    smallest = _at(judge, rung, accumulation.smallest())
    likeliest = _at(judge, rung, likeliest_schedule(judge, accumulation, rung.strategy))
    return likeliest if likeliest.peak.device <= smallest.peak.device else smallest


def _piped(judge: Judge, accumulation: OpenSchedules, rung: Rung, *, surely: bool) -> Rung:
    """The same where each number of steps is another pipeline: what the estimate chose, else a smaller micro-batch.

    An estimate that is too low leaves few of them out, so the largest comes first, once the smallest is known to fit.
    """

    def at(schedule: Schedule) -> Rung:
        return _at(judge.at_steps(schedule.gradient_accumulation_steps), rung, schedule)

    found = at(rung.schedule)
    smaller = [one for one in accumulation.schedules() if one.micro_batch_size < rung.schedule.micro_batch_size]
    if found.verdict == FITS or accumulation.micro is not None or not smaller:
        return found
    smallest = at(smaller[-1])
    if smallest.verdict == FITS:
        return next((one for one in map(at, smaller[:-1]) if one.verdict == FITS), smallest)
    if surely:
        return rung._replace(verdict=DOES_NOT_FIT)
    return found if found.peak.device <= smallest.peak.device else smallest


def _at(judge: Judge, rung: Rung, schedule: Schedule) -> Rung:
    peak = judge.footprint(rung.placement, schedule, simulated=True)
    return rung._replace(schedule=schedule, peak=peak, verdict=judge.verdict_at(rung.placement, schedule, peak))


def _replays_each(judge: Judge, rung: Rung) -> bool:
    """Whether each micro-batch takes a replay of its own, as of compiled steps: a search of them takes seconds."""
    return stands_for(judge.setup(rung.placement, rung.schedule.accumulates), WHICHEVER) == WHICHEVER


def with_largest(judge: Judge, rung: Rung) -> Rung:
    """The same with its largest micro-batch looked for in simulated runs."""
    if rung.strategy == OPTIMAL or _replays_each(judge, rung):
        return rung
    own = judge.at_steps(rung.schedule.gradient_accumulation_steps) if judge.waits_for_steps else judge
    known = rung.schedule.micro_batch_size if has_room(rung, judge.usable_bytes) else 0
    largest = _largest_within(own, rung.strategy, rung.schedule, "device", rung.largest_micro_batch_size, known)
    return rung._replace(largest_micro_batch_size=largest)


def _largest_certain(judge: Judge, accumulation: OpenSchedules, strategy: str) -> Schedule | None:
    """The largest exact schedule that fits for certain; None if there is none."""
    figure = "high"
    if accumulation.free:
        one = accumulation.for_micro(1)
        micro = _largest_that_lasts(judge, strategy, one, _largest_within(judge, strategy, one, figure))
        return accumulation.for_micro(micro) if micro else None
    below: int | None = judge.limits.device
    too_large: list[Schedule] = []
    found = None
    while found is None and below:
        schedule = largest_schedule_within(judge, accumulation, strategy, below)
        if schedule is None:
            break
        below = _below(judge, strategy, schedule, figure)
        if below is None:
            found = schedule
        else:
            too_large.append(schedule)
    # what is left below one that is too much was guessed from it, so the guess may have left out some that fit
    if found is None and too_large and (smallest := accumulation.smallest()) not in too_large:
        found = smallest if _below(judge, strategy, smallest, figure) is None else None
    found = _larger_that_lasts(judge, strategy, accumulation, found)
    if found is None:
        return None
    least = too_large[-1].micro_batch_size if too_large else found.micro_batch_size
    between = [one for one in accumulation.schedules() if found.micro_batch_size < one.micro_batch_size < least]
    for schedule in reversed(between):
        if _below(judge, strategy, schedule, figure) is not None:
            break
        found = schedule
    return found


def _largest_within(
    judge: Judge, strategy: str, schedule: Schedule, figure: str, near: int | None = None, known: int = 0
) -> int:
    """A micro-batch of which a figure is within the usable memory in a run that survives, and of one more it is not.

    What a simulated allocator reserves may fall where the micro-batch grows, so there may be several. The search begins
    `near` one that an estimate gave, goes up while runs come through, and down until one does, at the latest where one
    is `known` to; 0 if not even one sequence or image comes through.
    """
    accumulates = schedule.accumulates

    def is_within(micro: int) -> bool:
        at = schedule._replace(micro_batch_size=micro)
        return judge.is_on_host(strategy, micro, accumulates) and _below(judge, strategy, at, figure) is None

    if takes_one(judge.job.model.family):
        return 1 if is_within(1) else 0
    if near is None:
        limit = judge.limits.high if figure == "high" else judge.limits.device
        near = judge.largest_micro_batch(strategy, accumulates, limit)
    at, step, misses = max(near, known, 1), max(1, near // FAR), 0
    over = None
    while at > known and not is_within(at):
        misses, over = misses + 1, at
        if at == 1 or (misses == ASTRAY and not known and not is_within(1)):
            return 0
        at = max(at - step, known, 1)
        step = step if misses == 1 else 2 * step  # a run that fails ends early, and one that comes through is whole
    if over is not None:
        return last_between(is_within, at, over)
    likely, step = _likely(judge, strategy, schedule._replace(micro_batch_size=at), figure), 1
    while likely > at and not is_within(likely):
        over, likely, step = likely, max(likely - step, at), 2 * step
    if over is not None:
        return last_between(is_within, likely, over)
    at = max(at, likely)
    return last_that_holds(is_within, at, LARGEST_MICRO_BATCH, step=max(1, at // FAR))


def _largest_that_lasts(judge: Judge, strategy: str, schedule: Schedule, known: int) -> int:
    """A micro-batch that is `known` to surely fit, or a larger one that does as the allocator gives back what it keeps.

    Of one more the run does not last on a device that is smaller by the margin.
    """

    def is_lasting(micro: int) -> bool:
        return _lasts(judge, strategy, schedule._replace(micro_batch_size=micro))

    if takes_one(judge.job.model.family) or not is_lasting(known + 1):
        return known
    return last_that_holds(is_lasting, known + 1, LARGEST_MICRO_BATCH, step=max(1, known // STRIDE))


def _larger_that_lasts(
    judge: Judge, strategy: str, accumulation: OpenSchedules, known: Schedule | None
) -> Schedule | None:
    """The same of the schedules that make the batch of a step."""
    least = 0 if known is None else known.micro_batch_size
    for schedule in reversed(list(accumulation.schedules())):
        if schedule.micro_batch_size <= least:
            continue
        if not _lasts(judge, strategy, schedule):
            break
        known = schedule
    return known


def _lasts(judge: Judge, strategy: str, schedule: Schedule) -> bool:
    held = judge.is_on_host(strategy, schedule.micro_batch_size, schedule.accumulates)
    if not held or not judge.lasts(strategy, schedule):
        return False
    return judge.footprint(strategy, schedule, simulated=True).high <= judge.usable_bytes


def _likely(judge: Judge, strategy: str, schedule: Schedule, figure: str) -> int:
    """The largest micro-batch that likely is within, where a smaller one was simulated and is.

    What is reserved beside what is allocated is about the same, and of that each further sample takes as much.
    """
    micro, accumulates = schedule.micro_batch_size, schedule.accumulates
    found = judge.reservation(strategy, schedule)
    if found is None or micro == 1:  # of which views take less
        return micro
    now, twice = (judge.allocated_bytes(strategy, each, accumulates) for each in (micro, 2 * micro))
    room = max(0, _most_reserved(judge, figure) - found.reserved_bytes)
    return min(LARGEST_MICRO_BATCH, micro + room * micro // max(1, twice - now))


def _most_reserved(judge: Judge, figure: str) -> int:
    """What may be reserved, so that a figure is within the usable memory."""
    return judge.most_certain_bytes if figure == "high" else max(0, judge.usable_bytes - judge.outside_bytes)


def _below(judge: Judge, strategy: str, schedule: Schedule, figure: str) -> int | None:
    """A limit of held bytes below those of a schedule whose figure is more than usable; None: it is within."""
    simulation = judge.simulation(strategy, schedule)
    if simulation is not None:
        most = _most_reserved(judge, figure)
        micro, accumulates = schedule.micro_batch_size, schedule.accumulates
        # what is allocated is reserved: where that is too much nothing is run
        is_above = judge.allocated_bytes(strategy, micro, accumulates) > most
        if is_above or simulation.exceeds(most) or simulation.asks_for_more:  # how much more is not worth another run
            estimated = judge.footprint(strategy, schedule)
            return max(0, estimated.allocated + estimated.stranded - 1)
    peak = judge.footprint(strategy, schedule, simulated=True)
    given: int = getattr(peak, figure)
    if given <= judge.usable_bytes:
        return None
    room, needs = judge.usable_bytes - judge.outside_bytes, given - judge.outside_bytes
    held = peak.allocated + peak.stranded
    return max(0, min(held - 1, held * room // needs))
