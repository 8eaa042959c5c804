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
            ordered.append((ranks, guess, Candidate(change, dearer, _words(one, other))))
    ordered.sort(key=lambda row: row[:2])
    found = 0
    for _, _, candidate in ordered[:MOST_TRIED]:
        tried = trials.of(candidate, surely=True)
        if tried is not None and tried.verdict == FITS:
            yield candidate, tried
            found += 1
            if found == MOST_FOUND:
                return


def _words(one: Candidate, other: Candidate) -> Callable[[], str]:
    def both() -> str:
        texts = [each.words if isinstance(each.words, str) else each.words() for each in (one, other)]
        return "; ".join(texts)

    return both
