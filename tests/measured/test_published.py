"""Published runs, predicted without knowing their peaks.

The limits are those that the project sets itself for such runs: settings that a source does not print, library versions
of the day and fragmentation are in every error (docs/measured.md has each).
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.measured import margins, own
from tests.measured.compare import COUNTS, DIED, HERE, all_rows, beside_rates, rows, summary, unseen_rows
from tests.measured.fitted import counted, counted_bands, every_pattern, is_band_fitted, is_fitted, matches
from tests.measured.misses import MISSES, UNSEEN
from tests.measured.new_peaks import MARGINS
from tests.measured.page import PAGE, accuracy, bounded, far_off, of_published, page, parts_of_accuracy, reason
from vramplan.job import read_job_file
from vramplan.planner import bands
from vramplan.results import DOES_NOT_FIT, FITS
from vramplan.results.listings import ErrorStats, ValidateRow, ValidateSummary

LIMITS = {"one_device": (0.03, 0.08), "several_devices": (0.05, 0.12)}  # median and 90th percentile
ALL = (0.04, 0.12)
# An estimated band has both ends of what Megatron-DeepSpeed's large blocks leave unused: all of it, and none of it
# where the allocator was short of memory and gave it back.
WIDTHS = {True: 0.28, False: 0.27}  # with the margins of runs that taught nothing, wider than these runs need
STEP_MEDIAN = 0.25  # a step is a difference of two figures, and has the errors of both


def errors_of(found: Iterable[ValidateRow]) -> ErrorStats:
    """Of the peaks whose source says what they are of; the others are near whatever is predicted."""
    return ErrorStats.of([row.relative_error for row in found if row.names_metric and row.relative_error is not None])


@pytest.mark.truth
@pytest.mark.parametrize("file", LIMITS)
def test_every_run_is_computed_and_near(file: str) -> None:
    found = rows(file)
    assert len([row for row in found if row.relative_error is not None]) == len(found) == COUNTS[file]
    for group in (found, counted(found)):
        stats = errors_of(group)
        assert 0 < stats.count < COUNTS[file]
        assert stats.median is not None
        assert stats.p90 is not None
        assert stats.median <= LIMITS[file][0]
        assert stats.p90 <= LIMITS[file][1]


@pytest.mark.truth
def test_all_runs_together_are_near() -> None:
    for group in (all_rows(), counted(all_rows())):
        stats = errors_of(group)
        assert stats.median is not None
        assert stats.p90 is not None
        assert stats.median <= ALL[0]
        assert stats.p90 <= ALL[1]


@pytest.mark.truth
def test_a_run_is_not_counted_where_a_figure_was_chosen_in_its_sight() -> None:
    """By the names that stand beside the figures: the contexts of two pages, the margins, the estimate."""
    left_out = {row.name for row in all_rows() if is_fitted(row)}
    named = {name for name in left_out if name.startswith(("bigscience-", "hf-bertlarge-"))}
    assert left_out == named
    for row in all_rows():
        of_a_context = row.metric == "device" and row.name.startswith(("bigscience-", "hf-bertlarge-"))
        assert (row.name in left_out) == (of_a_context and not row.name.startswith("bigscience-v100-")), row.name
    assert counted_bands(all_rows()) == []
    ladders = [row for row in all_rows(simulated=False) if row.ladder in margins.LADDERS.values()]
    assert ladders
    assert all(is_band_fitted(row, simulated=False) for row in ladders)


@pytest.mark.contract
def test_every_run_that_a_figure_was_chosen_from_is_a_case_or_is_published_elsewhere() -> None:
    """A name that nothing has would leave out no run: it is a case, an address of a repository, or a file of traces."""
    known = [job.name for job in beside_rates()]  # names alone: to answer all of them takes seconds
    known += [entry.name for file in COUNTS for entry in read_job_file(HERE / f"{file}.yaml")]
    known += own.names()
    known += [entry.name for entry in read_job_file(HERE / "new_peaks.yaml")]
    for constant, patterns in every_pattern().items():
        for pattern in patterns:
            elsewhere = "/" in pattern
            assert elsewhere or any(matches(name, [pattern]) for name in known), (constant, pattern)
            assert not pattern.startswith("tests/") or (PAGE.parents[1] / pattern).is_file(), pattern


@pytest.mark.truth
@pytest.mark.parametrize("simulated", [True, False])
def test_bands_hold_nine_of_ten_peaks_and_are_no_wider_than_they_must_be(simulated: bool) -> None:
    bands = ValidateSummary.of(all_rows(simulated=simulated)).bands
    assert bands is not None
    assert bands.median_width is not None
    assert bands.covered >= 0.9 * bands.count
    assert bands.median_width <= WIDTHS[simulated]


@pytest.mark.truth
def test_the_margins_of_the_simulation_hold_the_share_that_they_state() -> None:
    """The share alone: a case that is added may lie outside, and no constant has to follow it."""
    found = margins.runs()
    assert margins.held(found, MARGINS) >= 0.9 * len(found)
    outside = [run.name for run in found if not run.is_held(MARGINS[run.evidence])]
    assert outside == [row.name for row in all_rows() if not row.in_band]


@pytest.mark.truth
def test_no_margin_is_narrower_than_the_rule() -> None:
    for kind, ruled in margins.by_class(margins.runs()).items():
        assert MARGINS[kind].widest(ruled) == MARGINS[kind], kind


@pytest.mark.truth
def test_a_doubt_is_as_wide_as_unseen_runs_ask() -> None:
    """And the figures of the page about runs that nothing was chosen from are those of the bands themselves."""
    found = margins.unseen()
    assert [run.is_held(MARGINS[run.evidence]) for run in found] == [row.in_band for row in unseen_rows()]
    doubted = [run for run in found if run.several and run.is_doubted]
    assert doubted
    assert margins.held(doubted, MARGINS) >= 0.8 * len(doubted)


@pytest.mark.truth
@pytest.mark.parametrize("situation", margins.LADDERS)
def test_a_margin_of_the_estimate_holds_its_ladder(situation: str) -> None:
    assert margins.most_of_ladder(margins.LADDERS[situation]) <= bands.PLAIN.above + bands.BEYOND_PLAIN[situation]


@pytest.mark.truth
def test_the_margin_of_shared_states_holds_nine_of_ten_of_their_runs() -> None:
    found = margins.shared()
    assert len(found) == 20
    assert sum(bool(row.in_band) for row in found) >= 0.9 * len(found)


@pytest.mark.truth
def test_bands_of_the_estimate_hold_nine_of_ten_of_the_other_runs() -> None:
    held, count = margins.rest()
    assert held >= 0.9 * count


@pytest.mark.truth
def test_bands_hold_nine_of_ten_peaks_of_sources_that_they_have_not_seen() -> None:
    assert sum(one.held for one in margins.left_out()) >= 0.9 * len(margins.runs())


@pytest.mark.truth
def test_the_band_of_the_estimate_has_what_is_simulated() -> None:
    below, within, above = bounded()
    assert below == 0
    assert within >= 0.9 * (within + above)  # as many as measured peaks


@pytest.mark.truth
@pytest.mark.parametrize(("file", "least"), [("one_device", 20), ("several_devices", 17)])
def test_a_switch_moves_the_peak_as_it_did_in_the_run(file: str, least: int) -> None:
    steps = summary(file).judged_steps
    assert len(steps) >= least
    assert [step for step in steps if not step.has_sign] == []
    errors = sorted(abs(step.relative_error) for step in steps)
    assert errors[len(errors) // 2] <= STEP_MEDIAN


@pytest.mark.truth
def test_peaks_that_a_source_read_of_the_allocator_itself_are_met() -> None:
    found = [row for row in rows("one_device") if row.runtime == "litgpt"]
    until: dict[str, list[float]] = {"backward": [], "next-forward": []}
    for row in found:
        assert row.result is not None
        assert row.measured_bytes is not None
        tensors = (
            row.result.peak.allocated_bytes
        )  # without what is not split off blocks, of which the figures have little
        until[row.result.job["hold_outputs_until"]].append(abs(tensors / row.measured_bytes - 1))
    errors, later = (sorted(one) for one in until.values())
    assert len(errors) == 17
    assert errors[-1] < 0.005  # the printed figures are rounded to 10 MB, 0.3 % of the smallest
    assert len(later) == 23
    assert later[-2] < 0.011  # and what is a megabyte too little
    assert later[-1] < 0.025


@pytest.mark.truth
def test_runs_that_died_are_not_called_fitting() -> None:
    labels = summary(DIED).labels
    assert labels is not None
    assert labels.total == COUNTS[DIED]
    called = [row.name for row in rows(DIED) if row.result is not None and row.result.verdict == FITS]
    assert called == list(UNSEEN)
    assert labels.recall["oom"] is not None
    assert labels.recall["oom"] >= 0.88


@pytest.mark.truth
def test_runs_that_ran_are_not_called_hopeless() -> None:
    ran = [row for row in all_rows() if row.result is not None and row.measured_outcome != "oom"]
    assert [row.name for row in ran if row.result is not None and row.result.verdict == DOES_NOT_FIT] == []


@pytest.mark.truth
def test_every_run_that_is_far_off_is_explained() -> None:
    assert [row.name for row in far_off(all_rows()) if reason(row) is None] == []
    used = {reason(row) for row in far_off(all_rows())}
    assert [why for why in MISSES.values() if why not in used] == []


@pytest.mark.snapshot
def test_what_the_page_says_of_published_runs_is_current() -> None:
    assert PAGE.read_text("utf-8").startswith(of_published() + "\n"), "stale: run python -m tests.measured.page"


@pytest.mark.snapshot
def test_what_the_page_says_of_some_own_runs_is_current() -> None:
    """Of one in twelve of those that came through; all of them are in the test below."""
    lines = PAGE.read_text("utf-8").splitlines()
    for job in [job for job in own.jobs() if job.case["measured"]["outcome"] == "fits"][::12]:
        assert own.line(own.answered(job)) in lines, "stale: run python -m tests.measured.page"


@pytest.mark.sweep
@pytest.mark.snapshot
def test_the_page_is_current() -> None:
    """With the project's own runs."""
    assert PAGE.read_text("utf-8") == page(), "stale: run python -m tests.measured.page"


@pytest.mark.snapshot
def test_what_the_page_about_accuracy_says_of_published_runs_is_current() -> None:
    text = PAGE.with_name("accuracy-published.md").read_text("utf-8")
    for part in parts_of_accuracy():
        assert part in text, "stale: run python -m tests.oracle.accuracy --published"


@pytest.mark.sweep
@pytest.mark.snapshot
def test_the_page_about_accuracy_is_current() -> None:
    text = PAGE.with_name("accuracy-published.md").read_text("utf-8")
    assert accuracy() in text, "stale: run python -m tests.oracle.accuracy --published"
