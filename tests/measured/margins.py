"""How margins follow from published peaks, and what they hold that they have not seen.

Where the allocator is simulated, each class of evidence has a pair of its own, in whole percent: one device, or several
that share or split the states. The pair is the narrowest that holds nine of ten of the runs of the class; of two that
are as narrow the one that reaches higher, as a run that needs more than its band dies. Two corrections for what is not
seen follow from the finite sample: nine of ten are counted of one run more than there are, as in split conformal
prediction (Lei et al., arXiv:1604.04173), and each end is widened by one part in as many as the class has sources, as
runs of one source err alike. A compiled run has at least the margin that traces of compiled steps ask for, and a run
about which the answer has a doubt one that is half as wide again.

Leaving each source out once, or a whole set of them, and judging it by the margins of the others says how the rule does
on runs that it has not seen. That is still optimistic, as mechanisms were learned on those sources: `unseen` are peaks
of a source from which nothing was chosen but the width of a doubt.

Where it is estimated, split models have the most that the runs of one ladder need, in whole percent, and shared states
what nine of ten of their runs need; the rest judge it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from tests.measured.compare import all_rows, unseen_rows
from vramplan.planner.bands import COMPILED, DOUBTED, MEASURED_SHARING, OUTSIDE, READ_SINCE, Margin
from vramplan.replay.models import peaks_published
from vramplan.results.listings import ErrorStats, ValidateRow

COVERED = 0.9
COMPILED_TOO = ", compiled"
ALONE, SEVERAL = "one device, or replicas of it", "several devices that share or split the states"
LADDERS = {"split": "bigscience-bf16-h13312-l82"}
"""Which runs a margin of the estimate is from."""

WIDEST = 100  # percent; no end is looked for further away


class Run(NamedTuple):
    """One published peak, in bytes."""

    name: str
    source: str
    ladder: str | None
    several: bool
    is_compiled: bool
    is_doubted: bool
    held: int  # by the allocator: what is reserved where it is simulated, what tensors need where it is estimated
    outside: int  # of the allocator: the context and communicators
    predicted: int  # on the device
    needed: int  # on the device, where the metric of the source is further inside: as far off as that is

    @property
    def kind(self) -> str:
        """The class of evidence."""
        return SEVERAL if self.several else ALONE

    @property
    def evidence(self) -> str:
        """The class of the product's margins."""
        return f"{self.kind}{COMPILED_TOO}" if self.is_compiled else self.kind

    def ends(self, margin: Margin) -> tuple[float, float]:
        """The band that the margin of its class gives."""
        if self.is_compiled:
            margin = margin.widest(COMPILED)
        if self.is_doubted:
            times, of = DOUBTED
            margin = Margin(-(-margin.below * times // of), -(-margin.above * times // of))
        low = self.held * (100 - margin.below) / 100 + self.outside * OUTSIDE / 100
        return low, self.held * (100 + margin.above) / 100 + self.outside

    def is_held(self, margin: Margin) -> bool:
        """Whether the peak lies in that band."""
        low, high = self.ends(margin)
        return low <= self.needed <= high

    def width(self, margin: Margin) -> float:
        """Of the band, against the predicted device figure."""
        low, high = self.ends(margin)
        return (high - low) / self.predicted


Margins = dict[str, Margin]  # by class

_PAIRS = sorted(
    (Margin(below, above) for below in range(WIDEST + 1) for above in range(WIDEST + 1)),
    key=lambda pair: (pair.below + pair.above, pair.below),
)
"""The narrowest first; of two that are as narrow the one that reaches higher."""


class LeftOut(NamedTuple):
    """One source, or one set of them, judged by the margins of the others."""

    source: str
    margins: Margins
    each: tuple[tuple[Run, bool, float], ...]  # its runs: whether it lies in its band, and how wide that is

    @property
    def held(self) -> int:
        """How many lie in their bands."""
        return sum(held for _, held, _ in self.each)

    @property
    def widths(self) -> tuple[float, ...]:
        """Of the bands, against the predicted device figures."""
        return tuple(width for _, _, width in self.each)


@cache
def runs(*, simulated: bool = True) -> tuple[Run, ...]:
    """Every published peak, with the allocator simulated or estimated."""
    return tuple(run_of(row, simulated=simulated) for row in all_rows(simulated=simulated))


@cache
def unseen() -> tuple[Run, ...]:
    """Peaks from which no margin was chosen."""
    return tuple(run_of(row, simulated=True) for row in unseen_rows())


def run_of(row: ValidateRow, *, simulated: bool, doubted: bool | None = None) -> Run:
    """One row; `doubted`: whether its answer has a doubt, where the words of the answer do not tell."""
    assert row.result is not None
    assert row.source is not None
    assert row.predicted_bytes is not None
    assert row.measured_bytes is not None
    peak, job = row.result.peak, row.result.job
    streams = sum(part.bytes for part in row.result.overheads if part.name == "streams")
    parallel = job["parallel"]
    split = max(parallel["tensor"], parallel["pipeline"], parallel["context"]) > 1
    sharing = parallel["sharding"] if parallel["data"] > 1 and not split else "none"
    return Run(
        name=row.name,
        source=row.source,
        ladder=row.ladder,
        several=split or sharing not in ("none", "ddp"),
        is_compiled=bool(job["compile"]),
        is_doubted=_is_doubted(job, sharing) if doubted is None else doubted,
        held=peak.reserved_bytes if simulated else peak.allocated_bytes + streams,
        outside=peak.device_bytes - peak.reserved_bytes,
        predicted=peak.device_bytes,
        needed=peak.device_bytes + row.measured_bytes - row.predicted_bytes,
    )


def _is_doubted(job: Mapping[str, object], sharing: str) -> bool:
    """The doubts of vramplan/planner/bands.py, of the words of an answer."""
    model, release = job["model"], job["pytorch_version"]
    assert isinstance(model, dict)
    old = release is not None and tuple(map(int, str(release).split("."))) < READ_SINCE
    known = sharing == "none" or sharing.startswith(MEASURED_SHARING)
    return old or not known or not peaks_published(model["family"]) or job["loss"] == "half-logits"


def most_of_ladder(ladder: str) -> int:
    """How many percent over what is allocated the runs of a ladder need at most, with the allocator estimated."""
    mine = [run for run in runs(simulated=False) if run.ladder == ladder]
    return max(-(-100 * (run.needed - run.outside - run.held) // run.held) for run in mine)


@cache
def shared() -> tuple[ValidateRow, ...]:
    """Runs whose states are shared and that are not compiled, estimated: FlagPerf's among them."""
    return tuple(row for row in (*all_rows(simulated=False), *unseen_rows(simulated=False)) if _shares(row))


def _shares(row: ValidateRow) -> bool:
    assert row.result is not None
    run = run_of(row, simulated=False)
    parallel = row.result.job["parallel"]
    is_split = max(parallel["tensor"], parallel["pipeline"], parallel["context"]) > 1
    return run.several and not is_split and not run.is_compiled


def rest() -> tuple[int, int]:
    """Of the runs that no margin of the estimate is from: how many lie in their bands, and how many there are."""
    every = all_rows(simulated=False)
    others = [row for row in every if row.ladder not in LADDERS.values() and not _shares(row)]
    return sum(bool(row.in_band) for row in others), len(others)


def held(of: Iterable[Run], margins: Margins) -> int:
    """How many lie in their bands; of compiled runs that of their own, if it is there."""
    return sum(run.is_held(_margin(run, margins)) for run in of)


def _margin(run: Run, margins: Margins) -> Margin:
    """Of a run: of its evidence, or of its kind where there is none of that."""
    return margins.get(run.evidence) or margins[run.kind]


@cache
def _least(run: Run) -> Margin:
    """The least percent at each end whose band has the peak, one more than `WIDEST` where none has."""
    every = [(percent, *run.ends(Margin(percent, percent))) for percent in range(WIDEST + 1)]
    below = (percent for percent, low, _ in every if low <= run.needed)
    above = (percent for percent, _, high in every if run.needed <= high)
    return Margin(next(below, WIDEST + 1), next(above, WIDEST + 1))


def narrowest(of: Sequence[Run], covered: float = COVERED) -> Margin:
    """The margin of the rule, of runs of one class."""
    wanted = min(len(of), -int(-(len(of) + 1) * covered // 1))
    needs = [_least(run) for run in of]
    pair = next(
        pair
        for pair in _PAIRS
        if sum(least.below <= pair.below and least.above <= pair.above for least in needs) >= wanted
    )
    sources = len({run.source for run in of})
    return Margin(*(-(-end * (sources + 1) // sources) for end in (pair.below, pair.above)))


def by_evidence(of: Iterable[Run]) -> Margins:
    """The same, with compiled steps for themselves, whose margins are no less than traces of them ask for."""
    found = tuple(of)
    each = {run.evidence: [one for one in found if one.evidence == run.evidence] for run in found}
    margins = {name: narrowest(mine) for name, mine in sorted(each.items())}
    return {
        name: margin.widest(COMPILED) if name.endswith(COMPILED_TOO) else margin for name, margin in margins.items()
    }


def by_class(of: Iterable[Run]) -> Margins:
    """The margins of the rule."""
    found = tuple(of)
    return {kind: narrowest([run for run in found if run.kind == kind]) for kind in (ALONE, SEVERAL)}


@cache
def left_out() -> tuple[LeftOut, ...]:
    """Each source by the margins of all others."""
    return _each_left_out(_by_source(runs()), by_class)


def each_left_out(of: Iterable[Run]) -> tuple[LeftOut, ...]:
    """The same by classes of evidence."""
    return _each_left_out(_by_source(of), by_evidence)


def sets_left_out(sets: Mapping[str, Sequence[Run]]) -> tuple[LeftOut, ...]:
    """The same of whole sets, which is how a set that nobody has seen meets the margins."""
    return _each_left_out(sets, by_evidence)


def _by_source(of: Iterable[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in of:
        groups.setdefault(run.source, []).append(run)
    return groups


def _each_left_out(
    groups: Mapping[str, Sequence[Run]], rule: Callable[[Iterable[Run]], Margins]
) -> tuple[LeftOut, ...]:
    found = []
    for name, mine in groups.items():
        margins = rule(run for other, theirs in groups.items() if other != name for run in theirs)
        given = [(run, _margin(run, margins)) for run in mine]
        each = tuple((run, run.is_held(margin), run.width(margin)) for run, margin in given)
        found.append(LeftOut(name, margins, each))
    return tuple(found)


def median(widths: Iterable[float]) -> float:
    """Of widths."""
    found = ErrorStats.of(list(widths)).median
    assert found is not None
    return found


if __name__ == "__main__":
    for kind, margin in by_class(runs()).items():
        print(f"{kind}: -{margin.below} %, +{margin.above} %")
