"""Remedies: what would make a run fit, each a change of what was typed, typed again and judged as that job is.

They are found by trying what people do: `same` changes nothing of the run, `slower` takes longer, `training` trains
otherwise, `money` needs other machines. `searched` finds numbers, `pairs` puts two changes together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf

from vramplan.planner.candidate import Candidate, rank_of
from vramplan.planner.judge import Judge
from vramplan.planner.ladder import Rung
from vramplan.planner.remedies.money import larger_cards, more_devices
from vramplan.planner.remedies.pairs import pairs
from vramplan.planner.remedies.same import same_run
from vramplan.planner.remedies.searched import shorter_sequence, smaller_micro_batch
from vramplan.planner.remedies.slower import slower_run
from vramplan.planner.remedies.training import lighter, other_numbers, other_optimizer
from vramplan.planner.remedies.trial import Trials, TriedChange, TypedJob
from vramplan.results import FITS, Remedy
from vramplan.values.job import ResolvedJob
from vramplan.values.machine import Gpu

Offer = tuple[Candidate, TriedChange]


def remedies_for(
    judged: ResolvedJob,
    rung: Rung,
    judge: Judge,
    typed: TypedJob,
    known_gpus: Callable[[], Iterable[Gpu]],
    *,
    closer_from: int | None = None,
) -> tuple[Remedy, ...]:
    """What makes a run fit, or surely fit: those that are certain first, then by cost, of equal cost the fastest first.

    `judged` is the job with every choice made, `rung` what was chosen, `typed` what was typed, `closer_from` how the
    answer was decided.
    """
    trials = Trials(typed, judge, rung, closer_from=closer_from)
    seen: list[Offer] = []
    for candidate in _singles(judged, trials, judge):
        if trials.has_enough:
            break
        if any(candidate.group == one.group and tried.verdict == FITS for one, tried in seen if candidate.group):
            continue
        tried = trials.of(candidate)
        if tried is not None:
            seen.append((candidate, tried))
    found = list(_one_of_each_group(offer for offer in seen if trials.helps(offer[1])))
    if all(tried.verdict != FITS for _, tried in found):
        found += pairs(seen, trials)
    if not trials.has_enough:
        found += larger_cards(judged, trials, known_gpus)
    if not trials.has_enough:
        found += more_devices(judged, trials)
    found.sort(key=_order)  # it keeps the order of the rest
    return tuple(_remedy(candidate, tried, rung) for candidate, tried in found)


def _singles(judged: ResolvedJob, trials: Trials, judge: Judge) -> Iterator[Candidate]:
    """Every change that is worth a try."""
    yield from same_run(judged)
    yield from slower_run(judged, judge, trials.typed)
    yield from smaller_micro_batch(judged, trials)
    yield from other_optimizer(judged)
    yield from other_numbers(judged)
    yield from shorter_sequence(judged, trials)
    yield from lighter(judged)


def _one_of_each_group(offers: Iterable[Offer]) -> Iterator[Offer]:
    """Those that are certain instead of those before them that are not."""
    best: dict[str, Offer] = {}
    for place, (candidate, tried) in enumerate(offers):
        key = candidate.group or f"{place}"
        if key not in best or (tried.verdict == FITS and best[key][1].verdict != FITS):
            best[key] = candidate, tried
    yield from best.values()


def _order(offer: Offer) -> tuple[bool, int, float]:
    candidate, tried = offer
    seconds = tried.seconds
    return tried.verdict != FITS, rank_of(candidate.costs), inf if seconds is None else seconds


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
    )
