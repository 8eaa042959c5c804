"""Two changes at once, where none alone is sure to do: the cheapest pairs of changes that each save something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from vramplan.planner.candidate import Candidate, rank_of
from vramplan.planner.remedies.trial import AskedChange, Trials, TriedChange, together
from vramplan.results import FITS, MONEY

MOST_ALIKE, MOST_TRIED = 4, 32  # pairs that cost as much and may fit, as then dearer ones may; and of all
TOGETHER = 2
"""How far above the usable memory two changes may come by the sum of what each saves alone, and still be tried.

Together they save more, as what one leaves has its peak where the other saves: an adapter and a smaller micro-batch of
Qwen2.5 14B with 8192 tokens on 8 cards of 40 GB come to 1.8 times the usable memory by that sum, and fit. Chosen.
"""
MOST_PAIRS = 2
MOST_UNSURE = 3  # that are judged

Offer = tuple[Candidate, TriedChange]


def pairs(
    seen: Sequence[Offer],
    trials: Trials,
    *,
    most: int,
    below: int | None = None,
    unsure: list[tuple[Candidate, AskedChange]],
) -> Iterator[Offer]:
    """Pairs of tried changes that fit together, by what they cost; only those whose savings may suffice are tried.

    No more than `most` are given; `below`: of changes that cost less than this rank. Those that may fit, and not for
    certain, are put into `unsure`.
    """
    now, limit = trials.device_bytes, rank_of(MONEY) if below is None else below
    # what saves nothing alone may do beside what takes the peak elsewhere
    saving = [(one, tried) for one, tried in seen if rank_of(one.costs) < limit and tried.device_bytes <= now]
    ordered = []
    for place, (one, first) in enumerate(saving):
        for other, second in saving[place + 1 :]:
            if (one.group and one.group == other.group) or min(first.device_bytes, second.device_bytes) == now:
                continue
            change = together(first.change, second.change)
            guess = first.device_bytes + second.device_bytes - now
            if change is None or guess > trials.usable_bytes * TOGETHER:
                continue
            ranks = tuple(sorted((rank_of(one.costs), rank_of(other.costs)), reverse=True))
            dearer = max(one, other, key=lambda candidate: rank_of(candidate.costs)).costs
            row = Candidate(change, dearer, _words(one, other)), ((one, first), (other, second))
            ordered.append((ranks, guess, *row))
    ordered.sort(key=lambda row: row[:2])
    hopeless: dict[tuple[str, int], int] = {}  # by a group and the other change: what the one of the group needs alone
    found: list[tuple[int, int]] = []  # what the smallest iteration of each needs, and one of its changes
    times: Counter[tuple[int, ...]] = Counter()
    looked = 0
    for ranks, _, candidate, offers in ordered:
        if times[ranks] == MOST_ALIKE or looked == MOST_TRIED:
            continue
        both = id(offers[0][0]), id(offers[1][0])
        swapped = zip(offers, reversed(both), strict=True)
        kinds = [(change.group, beside, tried.device_bytes) for (change, tried), beside in swapped if change.group]
        if any(hopeless.get((group, beside), size + 1) <= size for group, beside, size in kinds):
            continue  # one of its kind that saves as much is too large beside the same change
        asked = trials.asked(candidate)
        least = None if asked is None else trials.glimpse(asked)
        if asked is None or least is None:
            continue
        looked += 1
        if least.device_bytes > trials.usable_bytes:
            hopeless |= {(group, beside): size for group, beside, size in kinds}
            continue
        times[ranks] += 1
        own = [(least.device_bytes, change) for change in both]
        if any(one in found for one in own):  # the other change does no more than that of another pair
            continue
        tried = trials.judged(asked, surely=True)
        if tried is None or tried.verdict != FITS:
            unsure.append((candidate, asked))
            continue
        yield candidate, tried
        found += own
        if len(found) == most * len(both):
            return


def one_that_may_fit(unsure: Sequence[tuple[Candidate, AskedChange]], trials: Trials) -> Iterator[Offer]:
    """The first of the pairs that is likely to fit, for who would be told of nothing but other machines."""
    for candidate, asked in unsure[:MOST_UNSURE]:
        tried = trials.judged(asked)
        if tried is not None and trials.helps(tried) and tried.device_bytes <= tried.usable_bytes:
            yield candidate, tried
            return


def _words(one: Candidate, other: Candidate) -> Callable[[], str]:
    def both() -> str:
        texts = [each.words if isinstance(each.words, str) else each.words() for each in (one, other)]
        return "; ".join(texts)

    return both
