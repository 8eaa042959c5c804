"""Published rates beside predictions, and their part of docs/time.md: `python -m tests.measured.rates` writes it."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from vramplan.answers.fit import describe
from vramplan.answers.validation import compare
from vramplan.job import read_job_file
from vramplan.planner.decision import decide
from vramplan.planner.time import fitted
from vramplan.planner.time.step import CALIBRATED_BAND, EXTRAPOLATED_BAND
from vramplan.results.listings import ErrorStats, ValidateRow
from vramplan.results.listings.rates import RateStats, RateSummary
from vramplan.results.time import CALIBRATED, EXTRAPOLATED
from vramplan.values.job import ResolvedJob

HERE = Path(__file__).parent
FILES = ("utilisation", "rates")
NEW = "unseen_rates"  # of sources that the project had never used
LATER = "later_rates"  # of further ones
THIRD = "third_rates"  # of further ones still, which no constant follows from
FOURTH = "fourth_rates"  # and of further ones, in whose sight mechanisms were mended, but no constant was fitted
FIFTH = "fifth_rates"  # and of more, which no constant follows from
COUNTS = {"utilisation": 73, "rates": 184, NEW: 126, LATER: 158, THIRD: 67, FOURTH: 112, FIFTH: 76}
FIRST_THIRD = {"median": 22.4, "p90": 70.9, "order": 95.1, "in_range": 75.4}
"""How those of the third set were first answered that are not called calibrated, in percent."""
FIRST_FOURTH = {"median": 17.6, "p90": 75.0, "order": 93.5, "in_range": 75.0}
"""The same of the fourth set, all of which are extrapolated."""
FIRST_FIFTH = {"median": 16.2, "p90": 62.4, "order": 97.5, "in_range": 87.3}
"""The same of the fifth set, without four that are called calibrated."""
PAGE = HERE.parents[1] / "docs" / "time.md"
BEGIN, END = "<!-- made by python -m tests.measured.rates -->", "<!-- end -->"


@cache
def rates(file: str) -> tuple[ValidateRow, ...]:
    """Every case of a file; its memory is estimated, which changes no rate."""
    found = []
    for entry in read_job_file(HERE / f"{file}.yaml"):
        job = entry.job
        assert isinstance(job, ResolvedJob), entry.problems
        found.append(compare(describe(decide(job, whole_ladder=False), with_remedies=False), job))
    assert len(found) == COUNTS[file]
    return tuple(found)


def all_rates() -> tuple[ValidateRow, ...]:
    """Those of both files."""
    return tuple(row for file in FILES for row in rates(file))


def counted(rows: Iterable[ValidateRow]) -> tuple[ValidateRow, ...]:
    """Those that no constant was fitted to."""
    patterns = [pattern for one in fitted.FITTED_FROM for pattern in one.fitted_from]
    return tuple(row for row in rows if not any(fnmatchcase(row.name, pattern) for pattern in patterns))


def in_range(rows: Iterable[ValidateRow], basis: str) -> float:
    """The share of the rates of a basis that lie in the range of their answer."""
    low, high = CALIBRATED_BAND if basis == CALIBRATED else EXTRAPOLATED_BAND
    errors = [row.rate_error for row in rows if row.rate_basis == basis and row.rate_error is not None]
    # the measured time over the likely one is 1 + error, and the range is a share of the likely one
    return sum(low <= 1 + error <= high for error in errors) / len(errors)


def by_source(rows: Iterable[ValidateRow]) -> dict[str, list[ValidateRow]]:
    """Those with an error, by where they were printed."""
    found: dict[str, list[ValidateRow]] = {}
    for row in rows:
        if row.rate_error is not None:
            found.setdefault(str(row.source), []).append(row)
    return found


def accuracy() -> str:
    """The tables of the page."""
    rows = all_rates()
    unseen_rows = counted(rows)
    found, unseen = RateSummary.of(rows), RateSummary.of(unseen_rows)
    seen = [(CALIBRATED, rows), (CALIBRATED, unseen_rows), (EXTRAPOLATED, rows), (EXTRAPOLATED, unseen_rows)]
    calibrated, own, extrapolated, other = (_share(in_range(some, basis)) for basis, some in seen)
    lines = [
        "| Published rates | Count | Median | 90th percentile | Worst | Bias | Order | Pairs | In range |",
        "|---|---|---|---|---|---|---|---|---|",
        _row("calibrated", found.calibrated, calibrated),
        _row("of them, that no constant was fitted to", unseen.calibrated, own),
        _row("extrapolated", found.extrapolated, extrapolated),
        _row("of them, that no constant was fitted to", unseen.extrapolated, other),
        _row("constant MFU, of the calibrated", found.constant_calibrated, "-"),
        _row("constant MFU, of all", found.constant, "-"),
        "",
        "| Program, generation of the GPU | Count | Median | Worst | Bias |",
        "|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        if row.rate_error is not None and row.result is not None:
            gpu = row.result.job["gpu"]["architecture"]
            groups.setdefault((str(row.rate_basis), str(row.runtime), gpu), []).append(row.rate_error)
    for (basis, runtime, gpu), errors in sorted(groups.items()):
        stats = ErrorStats.of(errors)
        cells = (_share(stats.median), _share(stats.worst), _share(stats.bias, signed=True))
        lines.append(f"| {runtime}, {gpu}: {basis} | {stats.count} | {' | '.join(cells)} |")
    lines += ["", "| Source, none of whose rates a constant was fitted to | Count | Median | Worst | Bias |"]
    lines.append("|---|---|---|---|---|")
    left = by_source(unseen_rows)
    for source, members in sorted(by_source(rows).items()):
        if len(left.get(source, ())) == len(members):
            stats = ErrorStats.of([row.rate_error for row in members if row.rate_error is not None])
            cells = (_share(stats.median), _share(stats.worst), _share(stats.bias, signed=True))
            lines.append(f"| {source} | {stats.count} | {' | '.join(cells)} |")
    return "\n".join(lines)


def of_new_sources(file: str) -> str:
    """The tables of sources that were new to the project."""
    rows = rates(file)
    found = RateSummary.of(rows)
    kinds = [("called calibrated", CALIBRATED, found.calibrated), ("extrapolated", EXTRAPOLATED, found.extrapolated)]
    lines = [
        "| Rates of new sources | Count | Median | 90th percentile | Worst | Bias | Order | Pairs | In range |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_row(name, stats, _share(in_range(rows, basis))) for name, basis, stats in kinds if stats.errors.count),
        _row("constant MFU, of all", found.constant, "-"),
        "",
        "| Source | Count | Median | Worst | Bias |",
        "|---|---|---|---|---|",
    ]
    for source, members in sorted(by_source(rows).items()):
        stats = ErrorStats.of([row.rate_error for row in members if row.rate_error is not None])
        cells = (_share(stats.median), _share(stats.worst), _share(stats.bias, signed=True))
        lines.append(f"| {source} | {stats.count} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _row(name: str, stats: RateStats, inside: str) -> str:
    errors = stats.errors
    cells = (_share(errors.median), _share(errors.p90), _share(errors.worst), _share(errors.bias, signed=True))
    return f"| {name} | {errors.count} | {' | '.join(cells)} | {_share(stats.order)} | {stats.order_total} | {inside} |"


def _share(share: float | None, *, signed: bool = False) -> str:
    if share is None:
        return "-"
    return f"{100 * share:+.1f} %" if signed else f"{100 * share:.1f} %"


def written(text: str) -> str:
    """The page with the tables of now."""
    before, *others = text.split(BEGIN)
    tables = (accuracy(), *map(of_new_sources, (NEW, LATER, THIRD, FOURTH, FIFTH)))
    assert len(others) == len(tables)
    parts = [before]
    for table, other in zip(tables, others, strict=True):
        _, _, after = other.partition(END)
        parts.append(f"{BEGIN}\n\n{table}\n\n{END}{after}")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
