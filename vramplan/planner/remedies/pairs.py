"""Two changes at once, where none alone is sure to do: the cheapest pairs of changes that each save something."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from vramplan.planner.candidate import Candidate, rank_of
from vramplan.planner.remedies.trial import Trials, TriedChange, together
from vramplan.results import FITS, MONEY

MOST_TRIED = 8
MOST_FOUND = 2

Offer = tuple[Candidate, TriedChange]


def pairs(seen: Sequence[Offer], trials: Trials) -> Iterator[Offer]:
    """Pairs of tried changes that fit together, by what they cost; only those whose savings may suffice are tried."""
    now = trials.device_bytes
    saving = [(one, tried) for one, tried in seen if one.costs != MONEY and tried.device_bytes < now]
    ordered = []
    for place, (one, first) in enumerate(saving):
        for other, second in saving[place + 1 :]:
            if one.group and one.group == other.group:
                continue
            change = together(first.change, second.change)
            guess = first.device_bytes + second.device_bytes - now
            if change is None or guess > trials.usable_bytes:
                continue
            ranks = sorted((rank_of(one.costs), rank_of(other.costs)), reverse=True)
            dearer = max(one, other, key=lambda candidate: rank_of(candidate.costs)).costs
            ordered.append((ranks, guess, Candidate(change, dearer, _words(one, other)), (id(one), id(other))))
    ordered.sort(key=lambda row: row[:2])
    found: list[tuple[int, int]] = []  # what the smallest iteration of each needs, and one of its changes
    for _, _, candidate, both in ordered[:MOST_TRIED]:
        asked = trials.asked(candidate)
        least = None if asked is None else trials.glimpse(asked)
        if asked is None or least is None:
            continue
        own = [(least.device_bytes, change) for change in both]
        if any(one in found for one in own):  # the other change does no more than that of another pair
            continue
        tried = trials.judged(asked, surely=True)
        if tried is None or tried.verdict != FITS:
            continue
        yield candidate, tried
        found += own
        if len(found) == MOST_FOUND * len(both):
            return


def _words(one: Candidate, other: Candidate) -> Callable[[], str]:
    def both() -> str:
        texts = [each.words if isinstance(each.words, str) else each.words() for each in (one, other)]
        return "; ".join(texts)

    return both
