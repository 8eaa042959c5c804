"""Solving for the unknown: the largest value of a key that fits, or the fewest devices, and the one after it.

A value fits where the job that is typed with it does, with everything that the job leaves open chosen for it. The
search looks at the iteration that holds least, which takes one replay; its answer is then judged as that job is, and
the value after it too, so that what is said is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vramplan.errors import InputError, UsageError
from vramplan.planner.accumulation import LARGEST_MICRO_BATCH, divisors
from vramplan.planner.behaviour import is_replicated, planning_of
from vramplan.planner.decision import ALWAYS, looked_at
from vramplan.planner.judge import last_that_holds
from vramplan.planner.remedies.trial import TypedJob, least_of
from vramplan.planner.replays import Replays
from vramplan.planner.verdict import chosen_for
from vramplan.results import DOES_NOT_FIT, FITS
from vramplan.results.solved import NODE_DEVICES, Solved
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import FSDP

MOST_TOKENS = 1 << 22
MOST_LAYERS = 4096
MOST_DEVICES = 1024
ALIGNED = (2, 8, 16, 64, 128, 256)  # lengths of which kernels need no padding: a longer one may need less

SEQUENCE, MICRO_BATCH, RANK, LAYERS, DEVICES = (
    *("sequence_length", "micro_batch_size", "adapter.rank", "model.layers", "parallel.data"),
)


class Unknown(NamedTuple):
    """What is solved for: values in the order in which they need more."""

    key: str
    values: Sequence[int]
    start: int  # the place among them where the search begins
    change: Callable[[int], dict[str, Any]]
    jumps: tuple[int, ...] = ()  # a value that is a multiple of one of these may need less than the one before it


class Answer(NamedTuple):
    """What was found, and the change that makes the job of it; with no value that of the least."""

    solved: Solved
    change: Mapping[str, Any]


def solve(what: str, typed: TypedJob, model_keys: Callable[[ResolvedJob], dict[str, Any]], replays: Replays) -> Answer:
    """The answer for one of the keys above. Raises UsageError where the job has no such number.

    `typed` is the job without the key; `model_keys` gives a model as the keys of an inline one.
    """
    base = typed({})
    assert base is not None
    if what == DEVICES:
        return _fewest_devices(base, typed, replays)
    makers = {SEQUENCE: _sequence, MICRO_BATCH: _micro_batch, RANK: _rank}
    unknown = _layers(base, model_keys(base)) if what == LAYERS else makers[what](base)
    return _largest(unknown, typed, replays)


def _sequence(base: ResolvedJob) -> Unknown:
    if not base.sequence_length or base.model.takes_images:
        message = f"{base.model.name} takes images: its sequence is not open"
        raise UsageError(message, key="--max", hint="--max micro-batch")
    values = range(1, MOST_TOKENS + 1)
    return Unknown(SEQUENCE, values, base.sequence_length - 1, lambda number: {SEQUENCE: number}, ALIGNED)


def _micro_batch(base: ResolvedJob) -> Unknown:
    values: Sequence[int] = range(1, LARGEST_MICRO_BATCH + 1)
    if base.global_batch_given:
        whole = base.global_batch_size // (base.data_parallel_size * (base.gradient_accumulation_steps or 1))
        values = divisors(whole)[::-1]
    return Unknown(MICRO_BATCH, values, 0, lambda number: {MICRO_BATCH: number})


def _rank(base: ResolvedJob) -> Unknown:
    if base.adapter is None or not base.adapter.rank:
        raise UsageError("rank belongs to an adapter with matrices", key="--max", hint="--adapter lora")
    values = range(1, base.model.hidden_size + 1)
    start = min(base.adapter.rank, base.model.hidden_size) - 1
    return Unknown(RANK, values, start, lambda number: {"adapter": {"rank": number}})


def _layers(base: ResolvedJob, keys: dict[str, Any]) -> Unknown:
    if len(base.model.stacks) != 1 or base.model.layers != base.model.blocks:
        message = f"{base.model.name} has no single row of layers"
        raise UsageError(message, key="--max", hint="--max micro-batch")
    kept = {**keys, "parameters": None}  # a count that somebody declared is of the published model
    values = range(1, MOST_LAYERS + 1)
    return Unknown(LAYERS, values, base.model.layers - 1, lambda number: {"model": {**kept, "layers": number}})


class _Search:
    """Whether values fit: for certain, or by the likely figure."""

    def __init__(self, typed: TypedJob, change: Callable[[int], dict[str, Any]], replays: Replays) -> None:
        self._typed, self.change, self._replays = typed, change, replays
        self._known: dict[int, tuple[str, int, int] | None] = {}
        self.certain = True

    def at(self, value: int) -> tuple[str, int, int] | None:
        """Verdict, device bytes and usable bytes of the job with a value; None where it is refused."""
        if value not in self._known:
            job = self._typed(self.change(value))
            self._known[value] = None if job is None else self._judged(job)
        return self._known[value]

    def _judged(self, job: ResolvedJob) -> tuple[str, int, int] | None:
        try:
            decision = looked_at(chosen_for(job, self._replays), ALWAYS, whole_ladder=False)
        except InputError:
            return None
        rung = decision.choice.rung
        return rung.verdict, rung.peak.device, decision.judge.usable_bytes

    def holds(self, value: int) -> bool:
        """Whether the job with a value fits."""
        found = self.at(value)
        if found is None or found[0] == DOES_NOT_FIT:
            return False
        return found[0] == FITS if self.certain else found[1] <= found[2]

    def seems_to_hold(self, value: int) -> bool:
        """The same by the estimate of the iteration that holds least."""
        job = self._typed(self.change(value))
        if job is None:
            return False
        try:
            return least_of(job, self._replays).is_within("high" if self.certain else "device")
        except InputError:
            return False


def _largest(unknown: Unknown, typed: TypedJob, replays: Replays) -> Answer:
    search = _Search(typed, unknown.change, replays)
    values = unknown.values
    place = _last(values, unknown.start, search, unknown.jumps)
    if place < 0:  # nothing is certain: what is likely
        search.certain = False
        place = _last(values, unknown.start, search, unknown.jumps)
    value = values[place] if place >= 0 else None
    after = values[place + 1] if place + 1 < len(values) else None
    return Answer(_said(unknown.key, value, after, search, typed, unknown.change), unknown.change(value or values[0]))


def _last(values: Sequence[int], start: int, search: _Search, jumps: tuple[int, ...]) -> int:
    """The place of the last value that fits and after which none does; -1 if none fits."""

    def seems(place: int) -> bool:
        return search.seems_to_hold(values[place])

    def holds(place: int) -> bool:
        return search.holds(values[place])

    most = len(values) - 1
    place = _turn(seems, min(start, most), most)
    place = _turn(holds, max(place, 0), most)
    again = True
    while again and place >= 0:
        again = False
        for jump in jumps:
            further = (values[place] // jump + 1) * jump - values[0]
            if further <= most and further > place + 1 and holds(further):
                place, again = last_that_holds(holds, further, most), True
                break
    return place


def _turn(holds: Callable[[int], bool], start: int, most: int) -> int:
    """The last place that holds, looked for from `start` on in both directions; -1 if none does."""
    if holds(start):
        return last_that_holds(holds, start, most)
    step, above = 1, start
    while above > 0:
        below = max(0, above - step)
        if holds(below):
            return last_that_holds(holds, below, above - 1)
        above, step = below, 2 * step
    return -1


def _said(
    key: str,
    value: int | None,
    after: int | None,
    search: _Search,
    typed: TypedJob,
    change: Callable[[int], dict[str, Any]],
    bound: str | None = None,
) -> Solved:
    following = None if after is None else search.at(after)
    if following is None:
        if bound is None:
            bound = "no larger value was tried" if after is None else typed.refusal(change(after))
        return Solved(key, value, search.certain, "", None, None, None, None, bound)
    verdict, device, usable = following
    return Solved(key, value, search.certain, "", after, verdict, device, usable, None)


def _fewest_devices(base: ResolvedJob, typed: TypedJob, replays: Replays) -> Answer:
    """The fewest devices: 1 to 8, then whole nodes of 8."""
    counts = [*range(1, NODE_DEVICES), *range(NODE_DEVICES, MOST_DEVICES + 1, NODE_DEVICES)]
    if base.global_batch_given:
        counts = [count for count in counts if base.global_batch_size % count == 0]
    group = _group(base, typed)
    counts = [count for count in counts if count % group == 0]
    best: Answer | None = None
    least: tuple[int, dict[str, Any], int] | None = None  # bytes, change and devices of the way that needs least
    for sharing in _ways(typed):

        def change(count: int, sharing: dict[str, Any] = sharing) -> dict[str, Any]:
            return {"parallel": {"data": count, **(sharing if count > 1 else {})}}

        search = _Search(typed, change, replays)
        fewer = [count for count in counts if best is None or count < (best.solved.value or 0)]
        if not fewer:
            break
        descending = fewer[::-1]  # the fewer devices, the more each needs
        place = _last(descending, len(descending) - 1, search, ())
        if place < 0:
            least = _less(least, search, descending)
            continue
        after = descending[place + 1] if place + 1 < len(descending) else None
        enough = None
        if after is None:
            enough = "one device is enough" if group == 1 else f"the states are shared by groups of {group}"
        solved = _said(DEVICES, descending[place], after, search, typed, change, enough)
        best = Answer(solved, change(descending[place]))
    if best is not None:
        return best
    if least is None:  # no number of them goes with the other keys
        nothing = f"with {MOST_DEVICES} devices it does not fit for certain"
        return Answer(
            Solved(DEVICES, None, True, "", None, None, None, None, nothing), {"parallel": {"data": counts[0]}}
        )
    _, change_to, most = least
    nothing = f"with {most} devices it does not fit for certain; the figures are those with {most}"
    return Answer(Solved(DEVICES, None, True, "", None, None, None, None, nothing), change_to)


def _less(
    least: tuple[int, dict[str, Any], int] | None, search: _Search, descending: Sequence[int]
) -> tuple[int, dict[str, Any], int] | None:
    """What needs the least where none fits: what is known, or the most devices of a search that can be had."""
    count = next((one for one in descending if search.at(one) is not None), None)
    found = None if count is None else search.at(count)
    if count is None or found is None or (least is not None and least[0] <= found[1]):
        return least
    return found[1], search.change(count), count


def _group(base: ResolvedJob, typed: TypedJob) -> int:
    """Devices that share states where their number was typed, which divides the number of all; 1 where it was not."""
    twice = typed({"parallel": {"data": 2 * base.data_parallel_size}})
    if base.sharding is None or twice is None or twice.sharding is None:
        return 1
    shards = base.sharding.shards
    return shards if shards == twice.sharding.shards and not is_replicated(base) else 1


def _ways(typed: TypedJob) -> list[dict[str, Any]]:
    """How devices may share what they hold: as was typed, or as the program does; under replicas every way it has."""
    two = typed({"parallel": {"data": 2}})
    if two is None or two.sharding is None or "parallel.sharding" in typed.given or not is_replicated(two):
        return [{}]
    own = [dict(one.change["parallel"]) for one in planning_of(two).shared_states(two)]
    ways = [*own, {"sharding": FSDP}, {"sharding": "zero3"}]
    known = [way for way in ways if typed({"parallel": {"data": 2, **way}}) is not None]
    return known or [{}]
