"""Of which model families published peaks have confirmed the ranges: the rule, and what the files say by it.

A family counts as measured where at least three of its published peaks, from at least two pages, or ten of one page,
are in `FILES`, and nine of ten of them lie in their ranges without the doubt about the family. The ranges of the others
are half as wide again where the allocator is simulated (`unpublished` of vramplan/planner/bands.py). Runs whose lengths
vary are not counted, as their ranges have room for that. `peaks_published` of a family in vramplan/replay/models says
the same, as the core reads no files, and tests/measured/test_families.py fails where the two differ.

`python -m tests.measured.families` writes docs/accuracy-families.md, of the peaks of `family_peaks.yaml`, which takes
some minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.measured.margins import COVERED
from tests.measured.margins import median as middle
from tests.measured.new_peaks import MARGINS, NEW, UNSEEN, Answered, answered, jobs, table
from vramplan.replay.models import peaks_published, published

FAMILIES = "family_peaks"
FILES = ("one_device", "several_devices", UNSEEN, NEW, FAMILIES)
LEAST_PEAKS, LEAST_PAGES = 3, 2
MANY_PEAKS = 10  # which one page alone may have
COUNT = 49
FIRST = {"count": 51, "held": 34, "above": 11, "below": 6, "error": 8.1, "width": 23.2}
"""As they were first answered: how many, where they lay, the median error and width, percent."""
PAGE = Path(__file__).parents[2] / "docs" / "accuracy-families.md"
WHY = {
    "litgpt-hub-phi-3-full": "weights and gradients alone would take 15.3 GB, and two moments as much: the source "
    "contradicts its own settings",
}
"""Why a peak lies outside, where the source tells."""


class Evidence(NamedTuple):
    """What the files have of one family."""

    family: str
    peaks: int
    pages: int
    held: int  # in their ranges without the doubt about the family

    @property
    def is_measured(self) -> bool:
        """By the rule."""
        enough = self.peaks >= (LEAST_PEAKS if self.pages >= LEAST_PAGES else MANY_PEAKS)
        return enough and self.held >= COVERED * self.peaks


def page_of(where: str) -> str:
    """Of an address without the commit, and without what else was read beside it."""
    return where.split("@")[0].split(" and ")[0].split(" (")[0].split(", ")[0]


def is_held_undoubted(one: Answered) -> bool:
    """Whether the range would have the peak if the family were measured."""
    if not one.is_simulated or not one.run.is_doubted:
        return one.is_held
    margin = MARGINS[one.run.evidence]
    return one.run._replace(is_doubted=one.has_other_doubt).is_held(margin)


@cache
def evidence() -> dict[str, Evidence]:
    """Of each family that has a peak."""
    found: dict[str, list[tuple[str, bool]]] = {}
    for file in FILES:
        for job, one in zip(jobs(file), answered(file), strict=True):
            if not one.is_varied:
                page = page_of(str(job.case["source"]["where"]))
                found.setdefault(published(job.model), []).append((page, is_held_undoubted(one)))
    return {
        family: Evidence(family, len(rows), len({page for page, _ in rows}), sum(held for _, held in rows))
        for family, rows in sorted(found.items())
        if "." not in family  # code of a training program that no model of Transformers has
    }


def page() -> str:
    """docs/accuracy-families.md."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    found = answered(FAMILIES)
    errors = [abs(one.row.relative_error or 0.0) for one in found]
    yield "# Families that had few peaks\n"
    yield "For people who want to know what a range is worth for a family of models.\n"
    yield (
        f"{FIRST['count']} peaks of families of which few or none were known were written down and committed before "
        "any of them was predicted (`tests/measured/family_peaks.yaml`, with what each source prints and what was "
        "inferred).\n"
    )
    yield (
        f"As they were first predicted **{FIRST['held']} of {FIRST['count']} lay in their ranges**, {FIRST['above']} "
        f"of the others above and {FIRST['below']} below; the median error was {FIRST['error']} %, the median width "
        f"{FIRST['width']} % of the figure.\n"
    )
    yield (
        "Then thirteen rows were corrected in what their sources say themselves, and two were taken out whose source "
        "calls them estimates; the head of the file says which. Nothing was changed in a prediction.\n"
    )
    held = sum(one.is_held for one in found)
    width = middle(one.row.band_width or 0.0 for one in found)
    yield (
        f"Today {held} of {len(found)} lie in their ranges, with a median error of {100 * middle(errors):.1f} % and a "
        f"median width of {100 * width:.0f} %.\n"
    )
    families = {job.name: published(job.model) for job in jobs(FAMILIES)}
    yield from table(found, "Family", lambda one: families[one.row.name])
    yield "Outside of their ranges:\n"
    yield "| Case | Measured is | Error | Why |"
    yield "|---|---|---|---|"
    for one in found:
        if not one.is_held and one.row.relative_error is not None:
            where = "above" if one.row.relative_error < 0 else "below"
            error = f"{100 * one.row.relative_error:+.1f} %"
            yield f"| {one.row.name} | {where} | {error} | {WHY.get(one.row.name, 'not known')} |"
    yield ""
    yield from _rule()
    yield "This page is generated by `python -m tests.measured.families`."


def _rule() -> Iterator[str]:
    yield "## Which families count as measured\n"
    yield (
        f"Where at least {LEAST_PEAKS} published peaks of a family, from at least {LEAST_PAGES} pages, or {MANY_PEAKS} "
        "of one page, are known, and nine of ten of them lie in their ranges without a doubt about the family, there "
        "is none. The ranges of the others are half as wide again where the allocator is simulated. A test fails where "
        "the code says otherwise.\n"
    )
    yield "| Family | Peaks | Pages | In the range without a doubt | Measured |"
    yield "|---|---|---|---|---|"
    for one in evidence().values():
        measured = "yes" if peaks_published(one.family) else "no"
        yield f"| {one.family} | {one.peaks} | {one.pages} | {one.held} | {measured} |"
    yield ""


def main() -> None:
    """Write the page, and say where the flags differ from the rule."""
    PAGE.write_text(page(), "utf-8")
    for one in evidence().values():
        if one.is_measured != peaks_published(one.family):
            print(f"{one.family}: peaks_published is to be {one.is_measured}")


if __name__ == "__main__":
    main()
