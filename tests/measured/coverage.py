"""What ranges hold of published peaks from which no figure was chosen: as `fit` answers by default, and estimated.

Two files have such peaks: unseen.yaml, whose rows were written down before any was predicted, and those of rates.yaml
that stand beside rates. Leaving one source out of margins that were chosen from the others is optimistic, as mechanisms
were learned on all of them; these sources taught none. The margin of the estimate under FSDP and ZeRO is wider since
FlagPerf's were seen, and so is its lower end where a model is split (`FITTED_FROM` of vramplan/planner/bands.py), so
estimates of its runs are no evidence of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from typing import NamedTuple

from tests.measured.compare import HERE, beside_rates
from tests.measured.margins import median
from tests.measured.misses import UNHELD
from tests.measured.own import ran
from vramplan.answers.fit import describe
from vramplan.answers.validation import compare
from vramplan.job import read_job_file
from vramplan.planner.decision import ALWAYS, decide
from vramplan.results.listings import ValidateRow
from vramplan.values.allocator import DEFAULT
from vramplan.values.job import ResolvedJob

COUNTS = {"unseen": 58, "rates": 27}
FLAGPERF = "FlagPerf"


class Judged(NamedTuple):
    """One peak, and whether its range holds it."""

    name: str
    source: str
    kind: str  # the class of evidence
    is_simulated: bool
    is_held: bool
    is_above: bool  # measured, of its prediction
    width: float


@cache
def unseen_jobs() -> tuple[ResolvedJob, ...]:
    """Those of unseen.yaml."""
    found = []
    for entry in read_job_file(HERE / "unseen.yaml"):
        assert isinstance(entry.job, ResolvedJob), entry.problems
        case = {key: value for key, value in entry.job.case.items() if key != "use"}
        found.append(entry.job._replace(case=case))
    return tuple(found)


@cache
def judged(file: str, *, estimated: bool = False) -> tuple[Judged, ...]:
    """The peaks of a file, as `fit` answers where the job says nothing of the allocator, or all estimated."""
    jobs = unseen_jobs() if file == "unseen" else beside_rates()
    return tuple(judge(job, estimated=estimated) for job in jobs)


def judge(job: ResolvedJob, *, estimated: bool = False) -> Judged:
    """One of them."""
    offered = None if estimated else job.allocator_offered or job.allocator or DEFAULT
    asked = job._replace(allocator=None, allocator_offered=offered)
    decision = decide(asked, whole_ladder=False, closer_from=None if estimated else ALWAYS)
    result = describe(decision, with_remedies=False)
    row = compare(result, job)
    assert row.relative_error is not None
    assert row.band_width is not None
    return Judged(
        name=row.name,
        source=_source(row),
        kind=kind_of(row),
        is_simulated=result.allocator is not None,
        is_held=bool(row.in_band),
        is_above=row.relative_error < 0,
        width=row.band_width,
    )


def _source(row: ValidateRow) -> str:
    """Its title; FlagPerf's pages are one source, as one program read their peaks."""
    title = str(row.source)
    return FLAGPERF if title.startswith(FLAGPERF) else title


def kind_of(row: ValidateRow) -> str:
    """The class of evidence of a run."""
    assert row.result is not None
    job = row.result.job
    parallel = job["parallel"]
    if max(parallel["tensor"], parallel["pipeline"], parallel["context"]) > 1:
        where = "the model split over devices"
    elif parallel["data"] > 1 and parallel["sharding"] not in ("none", "ddp"):
        where = "states shared over devices"
    else:
        where = "one device, and DDP"
    return f"{where}, compiled" if job["compile"] else where


def cause(name: str) -> str | None:
    """Why the range of a run does not hold its peak."""
    return next((why for pattern, why in UNHELD.items() if fnmatchcase(name, pattern)), None)


def all_judged(*, estimated: bool = False) -> tuple[Judged, ...]:
    """Both files."""
    return tuple(one for file in COUNTS for one in judged(file, estimated=estimated))


@cache
def estimated_on_h100() -> tuple[int, int]:
    """Of the jobs of h100.yaml: how many ranges of the estimate hold what was reserved, and how many jobs there are."""
    held = count = 0
    for job, *_, trace in ran():
        peak = describe(decide(job._replace(allocator=None), whole_ladder=False), with_remedies=False).peak
        off = trace["reserved_bytes"] - peak.reserved_bytes
        held += peak.low_bytes <= peak.device_bytes + off <= peak.high_bytes
        count += 1
    return held, count


def section() -> Iterator[str]:
    """What docs/accuracy-published.md says of it."""
    ours, beside = judged("unseen"), judged("rates")
    sources = len({one.source for one in ours})
    yield "### Ranges of runs that nobody had seen\n"
    yield (
        f"{len(ours)} peaks of {sources} publications were written down before any of them was predicted "
        "(`tests/measured/unseen.yaml`, with what each source prints); three of the sources had been misread, which "
        "the file says. `fit` as it answers by default, with the allocator simulated where that is quick, has "
        f"**{_held(ours)} of them in its ranges**, and {_held(beside)} of FlagPerf's {len(beside)}; estimated it is "
        f"{_held(judged('unseen', estimated=True))} and {_held(judged('rates', estimated=True))}. "
        "Three of those that are held, of Qwen3 under tensor parallelism, are so since torchtitan's own code of it was "
        "written down, which they had asked for. "
        "The lower end of the estimate of split models was chosen in sight of FlagPerf's, so those prove nothing, and "
        "the margins of the simulation follow from these peaks by now, with those of "
        "[sources that were new](accuracy-new.md). What is outside is mostly code and settings that are not those that "
        "were computed, and a margin that held them would be of no use to the others.\n"
    )
    yield from _table("Class", lambda one: f"{one.kind} | {'simulated' if one.is_simulated else 'estimated'}")
    yield from _table("Source", lambda one: f"{one.source} |")
    held, count = estimated_on_h100()
    yield (
        f"Of {count} jobs that this project measured on an H100, the range of the estimate has what was reserved of "
        f"{held}; the room for the largest tensor and the margin of convolutions were chosen in their sight.\n"
    )
    yield "Those of `unseen.yaml` that lie outside:\n"
    yield "| Case | Measured is | Why |"
    yield "|---|---|---|"
    for one in ours:
        if not one.is_held:
            yield f"| {one.name} | {'above' if one.is_above else 'below'} | {cause(one.name) or 'not known'} |"
    yield ""


def _held(found: Iterable[Judged]) -> int:
    return sum(one.is_held for one in found)


def _table(title: str, key: Callable[[Judged], str]) -> Iterator[str]:
    """Counts of groups, by default and estimated; the group's name has two cells."""
    groups: dict[str, list[tuple[Judged, Judged]]] = {}
    for one, other in zip(all_judged(), all_judged(estimated=True), strict=True):
        groups.setdefault(key(one), []).append((one, other))
    yield f"| {title} | | Count | In the range | Above it | Below it | Median width | In that of the estimate |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, pairs in sorted(groups.items()):
        outside = [one.is_above for one, _ in pairs if not one.is_held]
        cells = (
            name,
            str(len(pairs)),
            str(len(pairs) - len(outside)),
            str(sum(outside)),
            str(len(outside) - sum(outside)),
            f"{100 * median(one.width for one, _ in pairs):.0f} %",
            str(_held(other for _, other in pairs)),
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
