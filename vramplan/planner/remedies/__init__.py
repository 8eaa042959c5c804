"""Remedies: what would make a run fit, each a change of what was typed, typed again and judged as that job is.

They are found by trying what people do: `same` changes nothing of the run, `slower` takes longer, `training` trains
otherwise, `money` needs other machines. `searched` finds numbers, `pairs` puts two changes together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf

from vramplan.planner.candidate import Candidate, rank_of
from vramplan.planner.judge import Judge
from vramplan.planner.ladder import Rung
from vramplan.planner.remedies.money import larger_cards, more_devices
from vramplan.planner.remedies.pairs import MOST_PAIRS, one_that_may_fit, pairs
from vramplan.planner.remedies.same import same_run
from vramplan.planner.remedies.searched import shorter_sequence, smaller_micro_batch
from vramplan.planner.remedies.slower import slower_run
from vramplan.planner.remedies.training import lighter, other_numbers, other_optimizer
from vramplan.planner.remedies.trial import AskedChange, AtOnce, Trials, TriedChange, TypedJob
from vramplan.results import FITS, MONEY, NOTHING, OPTIMIZER, TIME, TRAINING, Remedy
from vramplan.values.job import ResolvedJob
from vramplan.values.machine import Gpu

Offer = tuple[Candidate, TriedChange]

A_NODE = 8  # GPUs, as most have them

SURE = 3
"""Changes that surely fit, beside which those that only may are not tried: each takes a search for what is tight."""


def remedies_for(
    judged: ResolvedJob,
    rung: Rung,
    judge: Judge,
    typed: TypedJob,
    known_gpus: Callable[[], Iterable[Gpu]],
    *,
    closer_from: int | None = None,
    enough: int | None = None,
    at_once: AtOnce | None = None,
) -> tuple[Remedy, ...]:
    """What makes a run fit, or surely fit: those that are certain first, then by cost, of equal cost the fastest first.

    `judged` is the job with every choice made, `rung` what was chosen, `typed` what was typed, `closer_from` how the
    answer was decided. With `enough` no more is tried than that many of the first ones take: they are the same, and of
    those behind them some are missing. `at_once` tries several at a time, and finds the same.
    """
    trials = Trials(typed, judge, rung, closer_from=closer_from)
    tries = _Tries(trials, enough, at_once)
    tries.singles(judged, judge)
    beside: list[Offer] = []
    unsure: list[tuple[Candidate, AskedChange]] = []
    sure = [rank_of(candidate.costs) for candidate, tried in tries.offers() if tried.verdict == FITS]
    if not sure or min(sure) > rank_of(OPTIMIZER):  # two that train the same are better than one that does not
        most = MOST_PAIRS if not sure else 1
        beside += pairs(tries.seen(), trials, most=most, below=min(sure, default=None), unsure=unsure)

    def are_enough() -> bool:
        return trials.has_enough or _are_enough([*tries.offers(), *beside], MONEY, enough)

    for offers in _bought(judged, trials, known_gpus, None if are_enough() else at_once):
        if not are_enough():
            beside += offers()
    tries.unsure(beside)
    if all(candidate.costs == MONEY for candidate, _ in (*tries.offers(), *beside)):
        beside += one_that_may_fit(unsure, trials)
    found = [*tries.offers(), *beside]
    now = judged.data_parallel_size
    found.sort(key=lambda offer: _order(offer, now))  # it keeps the order of the rest
    return tuple(_remedy(candidate, tried, rung) for candidate, tried in found)


def _bought(
    judged: ResolvedJob, trials: Trials, known_gpus: Callable[[], Iterable[Gpu]], at_once: AtOnce | None
) -> Sequence[Callable[[], Iterable[Offer]]]:
    """What finds larger cards and more devices; who has several gets more of them first."""

    there = None if at_once is None else known_gpus()  # a process of its own would tell nobody what it read

    def cards() -> list[Offer]:
        return list(larger_cards(judged, trials, known_gpus if there is None else lambda: there))

    def devices() -> list[Offer]:
        return list(more_devices(judged, trials))

    searches = [devices, cards] if judged.data_parallel_size > 1 else [cards, devices]
    return searches if at_once is None else trials.searches(searches, at_once)


class _Tries:
    """The single changes that were tried, and those that wait, as they cannot come to a fit for certain."""

    def __init__(self, trials: Trials, enough: int | None, at_once: AtOnce | None) -> None:
        self.trials, self.enough, self.at_once = trials, enough, at_once
        self._next: list[tuple[int, Candidate, AskedChange]] = []  # that are tried together
        self._seen: dict[int, Offer] = {}  # by the place of the candidate
        self._waiting: list[tuple[int, Candidate, AskedChange]] = []

    def seen(self) -> list[Offer]:
        """What came of each, in the order of the candidates; of those that wait what their smallest iteration needs."""
        for place, candidate, asked in self._waiting:
            if place not in self._seen:
                self._glimpse(place, candidate, asked)
        return self._tried()

    def _glimpse(self, place: int, candidate: Candidate, asked: AskedChange) -> None:
        glimpse = self.trials.glimpse(asked)
        if glimpse is not None:
            self._seen[place] = candidate, glimpse

    def _tried(self) -> list[Offer]:
        return [offer for _, offer in sorted(self._seen.items(), key=lambda one: one[0])]

    def offers(self) -> list[Offer]:
        """Those that are better than the answer without a change, one of each group."""
        return list(_one_of_each_group(offer for offer in self._tried() if self.trials.helps(offer[1])))

    def singles(self, judged: ResolvedJob, judge: Judge) -> None:
        """Try every change that may fit for certain and is worth it; the others wait."""
        for place, candidate in enumerate(self._candidates(judged, judge)):
            if self._is_over(candidate.costs):
                break
            if candidate.group and any(one.group == candidate.group for _, one, _ in self._next):
                self._try_next()
            asked = None if self._is_met(candidate) else self.trials.asked(candidate)
            if asked is None:
                continue
            holds_states = self.trials.may_hold_states(asked.job)
            if holds_states and self.trials.may_fit(asked.job):
                self._next.append((place, candidate, asked))
                if len(self._next) >= self._most_at_once():
                    self._try_next()
                continue
            self._waiting.append((place, candidate, asked))
            if holds_states:  # its smallest iteration is known
                self._glimpse(place, candidate, asked)
        self._try_next()

    def _most_at_once(self) -> int:
        """How many may be tried together, so that no more are than one after another."""
        if self.at_once is None:
            return 1
        sure = sum(tried.verdict == FITS for _, tried in self.offers())
        return min(self.trials.left, self.trials.left if self.enough is None else self.enough - sure)

    def _try_next(self) -> None:
        together, self._next = self._next, []
        if self.at_once is not None:
            self.trials.look_ahead([asked for _, _, asked in together], self.at_once)
        for place, candidate, asked in together:
            self._try(place, candidate, asked)

    def unsure(self, beside: Sequence[Offer]) -> None:
        """Try those that wait, unless so many changes surely fit, those `beside` among them, that nobody needs them.

        Where all are asked for, who cannot buy anything needs them too; where a few are, one that may fit the machine
        is worth more than the third that needs another.
        """
        if self.enough is None:
            beside = [offer for offer in beside if offer[0].costs != MONEY]
        for place, candidate, asked in self._waiting:
            if self._is_sure(beside) and (self.enough is None or self.offers()):
                break
            if not self._is_met(candidate):
                self._try(place, candidate, asked)

    def _try(self, place: int, candidate: Candidate, asked: AskedChange) -> None:
        tried = self.trials.judged(asked)
        if tried is not None:
            self._seen[place] = candidate, tried

    def _candidates(self, judged: ResolvedJob, judge: Judge) -> Iterator[Candidate]:
        """Every change that is worth a try, those that cost least first. Some take a search to find."""
        trials = self.trials
        sources: tuple[tuple[str, Callable[[], Iterable[Candidate]]], ...] = (
            (NOTHING, lambda: same_run(judged)),
            (TIME, lambda: slower_run(judged, judge, trials.typed)),
            (TIME, lambda: smaller_micro_batch(judged, trials)),
            (TIME, lambda: other_optimizer(judged)),
            (TRAINING, lambda: other_numbers(judged)),
            (TRAINING, lambda: shorter_sequence(judged, trials)),
            (TRAINING, lambda: lighter(judged)),
        )
        for costs, source in sources:
            if self._is_over(costs):
                return
            yield from source()

    def _is_over(self, costs: str) -> bool:
        return self.trials.has_enough or _are_enough(self.offers(), costs, self.enough)

    def _is_sure(self, beside: Sequence[Offer]) -> bool:
        """Whether so many surely fit that nobody needs one that may."""
        sure = sum(tried.verdict == FITS for _, tried in (*self.offers(), *beside))
        return sure >= min(SURE, self.enough or SURE)

    def _is_met(self, candidate: Candidate) -> bool:
        """Whether another change of its group is certain to fit."""
        group = candidate.group
        return bool(group) and any(one.group == group and tried.verdict == FITS for one, tried in self._seen.values())


def _are_enough(offers: Iterable[Offer], costs: str, enough: int | None) -> bool:
    """Whether so many surely fit that what costs so much, or more, cannot come before them."""
    if enough is None:
        return False
    ranks = sorted(rank_of(candidate.costs) for candidate, tried in offers if tried.verdict == FITS)
    return len(ranks) >= enough and (enough == 0 or rank_of(costs) > ranks[enough - 1])


def _one_of_each_group(offers: Iterable[Offer]) -> Iterator[Offer]:
    """Those that are certain instead of those before them that are not."""
    best: dict[str, Offer] = {}
    for place, (candidate, tried) in enumerate(offers):
        key = candidate.group or f"{place}"
        if key not in best or (tried.verdict == FITS and best[key][1].verdict != FITS):
            best[key] = candidate, tried
    yield from best.values()


def _order(offer: Offer, now: int) -> tuple[bool, int, bool, float]:
    """Certain ones first, then by cost. Whole nodes more, however fast they are, stand behind larger cards."""
    candidate, tried = offer
    devices = tried.change.get("parallel", {}).get("data", now)
    is_vast = candidate.costs == MONEY and devices > max(A_NODE, 2 * now)
    return tried.verdict != FITS, rank_of(candidate.costs), is_vast, inf if tried.seconds is None else tried.seconds


def _remedy(candidate: Candidate, tried: TriedChange, rung: Rung) -> Remedy:
    words = candidate.words
    return Remedy(
        change=tried.change,
        saves_bytes=rung.peak.device - tried.device_bytes,
        cost=words if isinstance(words, str) else words(),
        verdict=tried.verdict,
        costs=candidate.costs,
        device_bytes=tried.device_bytes,
        usable_bytes=tried.usable_bytes,
        samples_per_second=None if tried.time is None else tried.time.samples_per_second,
        tokens_per_second=None if tried.time is None else tried.time.tokens_per_second,
        host_bytes=tried.host_bytes,
    )
