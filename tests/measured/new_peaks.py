"""Published peaks of sources that were new on 29 November 2026, and margins by what nothing was learned from.

`python -m tests.measured.new_peaks` answers each as `fit` does by default, which takes a minute, and writes
docs/accuracy-new.md. The rule is that of tests/measured/margins.py; its runs are those of `JUDGES` whose allocator is
simulated by default, without those that taught a mechanism: none was known from them when they were written down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.measured.compare import HERE
from tests.measured.coverage import kind_of
from tests.measured.later_sets import LATER, Later
from tests.measured.margins import (
    ALONE,
    COMPILED_TOO,
    SEVERAL,
    LeftOut,
    Margins,
    Run,
    by_evidence,
    each_left_out,
    median,
    run_of,
    sets_left_out,
)
from vramplan.answers.fit import describe
from vramplan.answers.validation import compare
from vramplan.job import read_job_file
from vramplan.planner import bands
from vramplan.planner.decision import ALWAYS, decide
from vramplan.results.listings import ValidateRow
from vramplan.values.allocator import DEFAULT
from vramplan.values.job import ResolvedJob

NEW, UNSEEN, FAMILY = "new_peaks", "unseen", "family_peaks"
MARGINS = {
    ALONE: bands.ALONE,
    SEVERAL: bands.SEVERAL,
    f"{ALONE}{COMPILED_TOO}": bands.ALONE_COMPILED,
    f"{SEVERAL}{COMPILED_TOO}": bands.SEVERAL_COMPILED,
}
JUDGES = (UNSEEN, NEW, FAMILY, *(later.file for later in LATER))
COUNT = 132
PAGE = Path(__file__).parents[2] / "docs" / "accuracy-new.md"
FIRST = {"held": 93, "above": 30, "error": 6.9, "width": 25.9}
"""As they were first answered: how many ranges held, how many peaks lay above, the median error and width, percent."""
TAUGHT = (
    *("swift3-qwen2.5-7b-full-*", "swift-14b-zero3", "swift-cached-*-zero3-*", "thomas-*", "bekman-*-zero*"),
    *("peft-70b-*-zero3", "dse-*-zero3", "dschat-*", "fp-chatglm3-6b-zero3"),
)
"""Runs in whose sight a mechanism was mended, so that no margin follows from them.

Of the first it was Adam over the flat parts of ZeRO, of all of them ZeRO's start, its streams and what is free late.
"""
REFUSED = ("axolotl-dscoder-*", "sixth-llama-recipes-7b-int8", "sixth-axolotl-codellama-7b-*")
"""Runs of a release that the product refuses where it is named, so that no margin follows from them.

bitsandbytes before 0.49.2 keeps more in int8 than what is modelled; CodeLlama's are of Transformers 4.33.
"""
OWN_PROGRAMS = (
    *("colossal", "automodel-", "nanotron-", "dse-", "lowmem-", "bekman-8b-zero3-h200-8k"),
    *("litgpt-thunder-", "litgpt-275-", "titan-165-2d-", "axolotl-apertus-"),
)
"""Runs of a program, a release or a kernel of its own, for which the nearest runtime stands."""


class Answered(NamedTuple):
    """One peak beside its answer."""

    row: ValidateRow
    run: Run
    is_simulated: bool
    is_varied: bool
    has_other_doubt: bool  # than that of its family
    is_guessed: bool  # weights of few bits, and settings that its source leaves to whoever reads it

    @property
    def is_held(self) -> bool:
        """Whether its range has it."""
        return bool(self.row.in_band)


def jobs(file: str = NEW) -> tuple[ResolvedJob, ...]:
    """Those of the file."""
    found = []
    for entry in read_job_file(HERE / f"{file}.yaml"):
        assert isinstance(entry.job, ResolvedJob), entry.problems
        found.append(entry.job._replace(case={key: value for key, value in entry.job.case.items() if key != "use"}))
    return tuple(found)


@cache
def answered(file: str = NEW) -> tuple[Answered, ...]:
    """Each as `fit` answers where the job says nothing of the allocator."""
    return tuple(map(_answered, jobs(file)))


def _answered(job: ResolvedJob) -> Answered:
    offered = job.allocator_offered or job.allocator or DEFAULT
    asked = job if job.varied_lengths else job._replace(allocator=None, allocator_offered=offered)
    decision = decide(asked, whole_ladder=False, closer_from=ALWAYS)
    result = describe(decision, with_remedies=False)
    row = compare(result, job)
    is_simulated, doubts = result.allocator is not None, set(decision.judge.doubts)
    run = run_of(row, simulated=is_simulated, doubted=bool(doubts))
    has_other_doubt = bool(doubts - set(bands.unpublished(job, None)))
    is_guessed = job.quantization is not None and not run.several and job.case.get("confidence") == "low"
    return Answered(row, run, is_simulated, job.varied_lengths, has_other_doubt, is_guessed)


def judging() -> tuple[Run, ...]:
    """The runs that the margins of the simulation follow from: simulated, and not of lengths that were fitted.

    On one device runs of weights of few bits are not among them whose settings had to be guessed (`confidence: low`).
    Nine of these 17 are off by 11 to 203 %, to both sides; of the 25 others 23 are off by 8 % at most, so that it is
    what was guessed.
    """
    return tuple(run for runs in judging_sets().values() for run in runs)


def judging_sets() -> dict[str, tuple[Run, ...]]:
    """The same by the set that they are of."""
    return {file: tuple(one.run for one in answered(file) if _judges(one)) for file in JUDGES}


def _judges(one: Answered) -> bool:
    taught = any(fnmatchcase(one.run.name, name) for name in (*TAUGHT, *REFUSED))
    return one.is_simulated and not one.is_varied and not taught and not one.is_guessed


def ruled() -> Margins:
    """The margins of the rule; the newest set narrows no end, as its misses were mended in its sight.

    Then it looks nearer than runs do that nobody has seen: what is narrower with it alone was learned on it.
    """
    older = by_evidence(run for file, runs in judging_sets().items() if file != JUDGES[-1] for run in runs)
    return {name: margin.widest(older.get(name, margin)) for name, margin in by_evidence(judging()).items()}


@cache
def unseen_sets() -> tuple[LeftOut, ...]:
    """Each set of them, judged by the margins that the rule makes of all other sets."""
    return sets_left_out(judging_sets())


@cache
def unseen_by_their_margins() -> tuple[LeftOut, ...]:
    """Each source of those runs, judged by the margins that the rule makes of all others."""
    return each_left_out(judging())


def page() -> str:
    """docs/accuracy-new.md."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    found = answered()
    sources = {str(one.row.source) for one in found}
    yield "# Sources that were new\n"
    yield "For people who want to know what a range is worth on a run that nobody here has seen.\n"
    yield (
        f"{len(found)} peaks of {len(sources)} pages (papers, pull requests, issues, benchmarks, model cards) were "
        "written down and committed before any of them was predicted (`tests/measured/new_peaks.yaml`, with what each "
        "source prints and what was inferred). They are of some two dozen programs, from 2021 to 2026.\n"
    )
    yield (
        f"As they were first predicted **{FIRST['held']} of {COUNT} lay in their ranges**, {FIRST['above']} of the "
        f"others above; the median error was {FIRST['error']} %, the median width {FIRST['width']} % of the figure.\n"
    )
    yield (
        "Then eleven rows were corrected in what their sources say themselves, and these were mended in their sight, "
        "so that they judge no more:\n"
    )
    yield (
        "- [batches of different lengths](allocator.md#batches-of-different-lengths), of which nine are: SWIFT's "
        "benchmark had been up to 61 % above its figures;"
    )
    yield "- the allocator is simulated where devices share the states, whose estimates were up to 24 % below it;"
    yield "- [PyTorch's own Adam over the flat parts of ZeRO](zero.md#switches), of three rows of SWIFT;"
    yield "- [what the allocator sees of ZeRO](zero.md#what-the-allocator-sees), of twelve rows;"
    yield (
        "- the margins, which follow from these runs, those of `unseen.yaml`, the other sets and "
        "[families that had few](accuracy-families.md) by the rule of published runs "
        "([what it holds](#sources-that-were-left-out)).\n"
    )
    yield from _today(found, "", _of_its_own)
    for later in LATER:
        yield from _later(later)
    yield from _left_out()
    yield "Peaks of families that had few are on [a page of their own](accuracy-families.md).\n"
    yield "This page is generated by `python -m tests.measured.new_peaks`."


def _class(one: Answered) -> str:
    how = "lengths that vary" if one.is_varied else "simulated" if one.is_simulated else "estimated"
    return f"{kind_of(one.row)}: {how}"


def _later(later: Later) -> Iterator[str]:
    found, first = answered(later.file), later.first
    sources = {str(one.row.source) for one in found}
    yield f"## A {later.ordinal} set\n"
    yield (f"{len(found)} peaks of {len(sources)} {later.how} (`tests/measured/{later.file}.yaml`).\n")
    yield (
        f"As they were first predicted **{first.held} of {later.count} lay in their ranges**, {first.above} of the "
        f"others above; the median error was {first.error} %, the median width {first.width} % of the figure.\n"
    )
    yield f"{later.mended}\n"
    yield from _today(found, "Why", lambda name: _why(name, later.causes))


def _left_out() -> Iterator[str]:
    runs, margins = judging(), ruled()
    yield "## Sources that were left out\n"
    yield (
        f"The margins follow from {len(runs)} of these runs, of {len({run.source for run in runs})} sources, by "
        "[the rule](accuracy-published.md#ranges); the newest set, on whose misses the code was mended, narrows none "
        "of them. Each source was also left out once, and its runs were judged by the "
        "margins that the rule makes of all others, which have not seen it.\n"
    )
    yield "| Class | Below | Above | Runs | Sources | Held by margins of the others | Median width |"
    yield "|---|---|---|---|---|---|---|"
    found = unseen_by_their_margins()
    for name, margin in margins.items():
        mine = [run for run in runs if run.evidence == name]
        of = [(held, width) for one in found for run, held, width in one.each if run.evidence == name]
        cells = (
            f"{margin.below} %",
            f"{margin.above} %",
            str(len(mine)),
            str(len({run.source for run in mine})),
            f"{sum(held for held, _ in of)}, {100 * sum(held for held, _ in of) / len(of):.0f} %",
            f"{100 * median(width for _, width in of):.0f} %",
        )
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""
    held = sum(one.held for one in found)
    alike = sum(one.held / len(one.each) for one in found) / len(found)
    yield (
        f"Of all {len(runs)} these are **{held}, or {100 * held / len(runs):.0f} %**; where each source counts alike, "
        f"however many runs it has, {100 * alike:.0f} %. What is added to a "
        "margin for what was never traced together is not counted.\n"
    )
    varied = [one for file in JUDGES if file != NEW for one in answered(file) if one.is_varied]
    yield (
        "Runs whose lengths vary have ranges of their own and are not among them, as no margin makes up for lengths "
        f"that a source does not say: of {len(varied)} of the sets after the first {sum(map(_is_held, varied))} lie in "
        "theirs.\n"
    )
    yield from _sets_left_out()


def in_one_line() -> str:
    """How the sets were met when they were new, for the README."""
    held, count = FIRST["held"] + sum(one.first.held for one in LATER), COUNT + sum(one.count for one in LATER)
    errors = [FIRST["error"], *(one.first.error for one in LATER)]
    return (
        f"Runs that nobody here had seen are harder: of {count} published peaks that were written down before any of "
        f"them was predicted, {100 * held / count:.0f} % lay in their ranges at first, with median errors of "
        f"{min(errors):.0f} to {max(errors):.0f} % by set"
    )


def _is_held(one: Answered) -> bool:
    return one.is_held


def _sets_left_out() -> Iterator[str]:
    sets = unseen_sets()
    held, count = sum(one.held for one in sets), sum(len(one.each) for one in sets)
    yield "Each set was left out whole, too, and judged by the margins that the rule makes of all other sets:\n"
    yield "| Set | Runs | Held by margins of the others | Median width |"
    yield "|---|---|---|---|"
    for one in sets:
        share = f"{one.held}, {100 * one.held / len(one.each):.0f} %"
        yield f"| `{one.source}.yaml` | {len(one.each)} | {share} | {100 * median(one.widths):.0f} % |"
    yield ""
    yield (
        f"Of all {count} these are **{held}, or {100 * held / count:.0f} %**. The first looks above held fewer, as "
        "rows said less than their sources do, or lengths were not known, which no margin is for.\n"
    )


def _today(found: Sequence[Answered], column: str, why: Callable[[str], str]) -> Iterator[str]:
    """What the ranges of a set hold now, and what lies outside of them."""
    held = sum(one.is_held for one in found)
    errors = [abs(one.row.relative_error) for one in found if one.row.relative_error is not None]
    width = median(one.row.band_width or 0.0 for one in found)
    yield (
        f"Today {held} of {len(found)} lie in their ranges, with a median error of {100 * median(errors):.1f} % and a "
        f"median width of {100 * width:.0f} %.\n"
    )
    yield from table(found, "Class", _class)
    yield from table(found, "Page", lambda one: str(one.row.source))
    yield "Outside of their ranges:\n"
    yield f"| Case | Measured is | Error | {column + ' ' if column else ''}|"
    yield "|---|---|---|---|"
    for one in found:
        if not one.is_held and one.row.relative_error is not None:
            where = "above" if one.row.relative_error < 0 else "below"
            yield f"| {one.row.name} | {where} | {100 * one.row.relative_error:+.1f} % | {why(one.row.name)} |"
    yield ""


def _of_its_own(name: str) -> str:
    return "a program, release or kernel of its own" if name.startswith(OWN_PROGRAMS) else "not known"


def _why(name: str, causes: Mapping[str, str]) -> str:
    return next((text for pattern, text in causes.items() if fnmatchcase(name, pattern)), "not known")


def table(found: Iterable[Answered], title: str, key: Callable[[Answered], str]) -> Iterator[str]:
    """What ranges hold, in groups."""
    groups: dict[str, list[Answered]] = {}
    for one in found:
        groups.setdefault(key(one), []).append(one)
    yield f"| {title} | Count | In the range | Above it | Below it | Median error | Median width |"
    yield "|---|---|---|---|---|---|---|"
    for name, group in sorted(groups.items()):
        errors = [one.row.relative_error or 0.0 for one in group]
        outside = [error < 0 for one, error in zip(group, errors, strict=True) if not one.is_held]
        cells = (
            str(len(group)),
            str(len(group) - len(outside)),
            str(sum(outside)),
            str(len(outside) - sum(outside)),
            f"{100 * median(map(abs, errors)):.1f} %",
            f"{100 * median(one.row.band_width or 0.0 for one in group):.0f} %",
        )
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""


def main() -> None:
    """Write the page, and say what the rule gives."""
    PAGE.write_text(page(), "utf-8")
    for name, margin in ruled().items():
        print(f"{name}: -{margin.below} %, +{margin.above} % of {sum(run.evidence == name for run in judging())} runs")
        print(f"  in vramplan/planner/bands.py: {MARGINS[name]}")


def names(found: Iterable[Answered]) -> list[str]:
    """Of cases."""
    return [one.row.name for one in found]


if __name__ == "__main__":
    main()
