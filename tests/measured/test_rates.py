"""Published rates beside predicted ones.

The limits are those that the project sets itself. A constant utilisation of each generation of GPUs stands beside them:
a prediction that is not better than that is worth nothing.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from tests.measured.own import ran
from tests.measured.rates import (
    FIFTH,
    FIRST_FIFTH,
    FIRST_FOURTH,
    FIRST_THIRD,
    FOURTH,
    LATER,
    NEW,
    PAGE,
    THIRD,
    accuracy,
    all_rates,
    by_source,
    counted,
    in_range,
    rates,
    written,
)
from vramplan.planner.time import fitted
from vramplan.results.listings.rates import RateSummary
from vramplan.results.time import CALIBRATED, EXTRAPOLATED

CALIBRATED_LIMITS = (0.05, 0.15, 0.90)  # median, 90th percentile, order
# Those that no constant was fitted to are of one source, whose hardware and network are not printed.
UNSEEN_LIMITS = (0.07, 0.15, 0.90)
EXTRAPOLATED_MEDIAN = 0.15
# Wrong are pairs of BigScience's micro-batches, whose kernels the host launched one at a time.
EXTRAPOLATED_ORDER = 0.85


@pytest.mark.sweep
@pytest.mark.truth
def test_calibrated_rates_are_near_and_in_order() -> None:
    for rows, limits in ((all_rates(), CALIBRATED_LIMITS), (counted(all_rates()), UNSEEN_LIMITS)):
        stats = RateSummary.of(rows).calibrated
        assert stats.errors.median is not None
        assert stats.errors.p90 is not None
        assert stats.order is not None
        assert stats.errors.median <= limits[0]
        assert stats.errors.p90 <= limits[1]
        assert stats.order >= limits[2]


@pytest.mark.sweep
@pytest.mark.truth
def test_extrapolated_rates_are_near() -> None:
    stats = RateSummary.of(all_rates()).extrapolated
    assert stats.errors.median is not None
    assert stats.order is not None
    assert stats.errors.median <= EXTRAPOLATED_MEDIAN
    assert stats.order >= EXTRAPOLATED_ORDER


@pytest.mark.sweep
@pytest.mark.truth
@pytest.mark.parametrize("file", [NEW, LATER])
def test_rates_of_new_sources_are_near_and_in_order(file: str) -> None:
    """Without those that have since decided a constant."""
    stats = RateSummary.of(counted(rates(file))).extrapolated
    assert stats.errors.median is not None
    assert stats.order is not None
    assert stats.errors.median <= EXTRAPOLATED_MEDIAN
    assert stats.order >= EXTRAPOLATED_ORDER


@pytest.mark.sweep
@pytest.mark.truth
def test_rates_of_the_third_set_are_in_order_and_no_worse_than_at_first() -> None:
    """They are further off than those of the other sets; a constant utilisation is much worse."""
    found = RateSummary.of(rates(THIRD))
    stats = found.extrapolated
    assert stats.errors.median is not None
    assert found.constant.errors.median is not None
    assert 100 * stats.errors.median <= FIRST_THIRD["median"] + 0.05
    assert stats.errors.median < found.constant.errors.median / 2
    assert (stats.order or 0) >= EXTRAPOLATED_ORDER
    assert 100 * in_range(rates(THIRD), EXTRAPOLATED) >= FIRST_THIRD["in_range"] - 0.05


@pytest.mark.sweep
@pytest.mark.truth
def test_rates_of_the_fourth_set_are_nearer_than_at_first_and_in_order() -> None:
    """Products that were measured of each card, and the host's time of checkpoints, moved them."""
    found = RateSummary.of(rates(FOURTH))
    stats = found.extrapolated
    assert not found.calibrated.errors.count
    assert stats.errors.median is not None
    assert stats.errors.p90 is not None
    assert found.constant.errors.median is not None
    assert stats.errors.median <= EXTRAPOLATED_MEDIAN
    assert 100 * stats.errors.p90 < FIRST_FOURTH["p90"]
    assert stats.errors.median < found.constant.errors.median / 2
    assert 100 * (stats.order or 0) >= FIRST_FOURTH["order"] - 0.05
    assert 100 * in_range(rates(FOURTH), EXTRAPOLATED) > FIRST_FOURTH["in_range"]


@pytest.mark.sweep
@pytest.mark.truth
def test_rates_of_the_fifth_set_are_nearer_than_at_first_and_in_order() -> None:
    """The clock of Blackwell, which was fitted to others, and of the H20 moved them."""
    found = RateSummary.of(rates(FIFTH))
    stats = found.extrapolated
    assert stats.errors.median is not None
    assert found.constant.errors.median is not None
    assert 100 * stats.errors.median < FIRST_FIFTH["median"] - 1  # above the limit of the others by a hair
    assert stats.errors.median < found.constant.errors.median / 2
    assert 100 * (stats.order or 0) >= FIRST_FIFTH["order"] - 0.05
    assert 100 * in_range(rates(FIFTH), EXTRAPOLATED) > FIRST_FIFTH["in_range"] - 0.05
    assert all(row.rate_error is not None for row in rates(FIFTH))  # also in fp8 on an H20


@pytest.mark.sweep
@pytest.mark.truth
def test_the_range_holds_nine_of_ten_rates_of_sources_that_were_new() -> None:
    """The sets in whose sight it was chosen, together."""
    rows = [row for file in (NEW, LATER, THIRD, FOURTH, FIFTH) for row in rates(file)]
    assert in_range(rows, EXTRAPOLATED) >= 0.9


@pytest.mark.sweep
@pytest.mark.contract
@pytest.mark.parametrize("file", [THIRD, FOURTH, FIFTH])
def test_no_constant_follows_from_the_later_sets(file: str) -> None:
    assert counted(rates(file)) == rates(file)


@pytest.mark.sweep
@pytest.mark.truth
def test_a_constant_utilisation_is_worse() -> None:
    found = RateSummary.of(all_rates())
    for ours, constant in ((found.calibrated, found.constant_calibrated), (found.together, found.constant)):
        assert ours.errors.median is not None
        assert constant.errors.median is not None
        assert ours.errors.median < constant.errors.median
        assert (ours.order or 0) > (constant.order or 0)


@pytest.mark.sweep
@pytest.mark.truth
@pytest.mark.parametrize("basis", [CALIBRATED, EXTRAPOLATED])
def test_ranges_hold_nine_of_ten_also_of_rates_that_no_constant_saw(basis: str) -> None:
    assert in_range(all_rates(), basis) >= 0.9
    assert in_range(counted(all_rates()), basis) >= 0.9


@pytest.mark.sweep
@pytest.mark.truth
def test_ranges_hold_whatever_source_is_left_out() -> None:
    """One of many rows must not carry the share: each source counts alike, and so do the others without it."""
    shares = {}
    for source, rows in by_source(counted(all_rates())).items():
        shares[source] = [in_range(rows, basis) for basis in {str(row.rate_basis) for row in rows}]
    means = [sum(found) / len(found) for found in shares.values()]
    assert len(means) >= 20
    assert min(sum(means) - mean for mean in means) / (len(means) - 1) >= 0.85


@pytest.mark.sweep
@pytest.mark.truth
def test_what_is_called_calibrated_is_near_also_where_another_program_ran() -> None:
    """Rows of a program that has no runtime stand under the nearest one: called calibrated where they lie within it."""
    stats = RateSummary.of(rates(NEW)).calibrated
    assert stats.errors.count >= 10
    assert stats.errors.median is not None
    assert stats.errors.median <= CALIBRATED_LIMITS[0]
    assert in_range(rates(NEW), CALIBRATED) >= 0.9


@pytest.mark.sweep
@pytest.mark.contract
def test_classes_reach_as_far_as_published_rates() -> None:
    reached: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row in all_rates():
        if row.rate_basis == CALIBRATED and row.result is not None:
            job, time = row.result.job, row.result.time
            assert time is not None
            assert job["parallel"].get("context", 1) == 1
            assert time.shares["host"] <= fitted.HOST_SHARE
            own = reached.setdefault((str(row.runtime), job["gpu"]["architecture"]), [])
            own.append((job["model"]["hidden_size"], time.devices))
    assert {key: (min(a for a, _ in own), max(b for _, b in own)) for key, own in reached.items()} == fitted.CLASSES


@pytest.mark.sweep
@pytest.mark.contract
def test_every_row_that_a_constant_was_fitted_to_is_there() -> None:
    published = (*all_rates(), *rates(NEW), *rates(LATER))
    names = [*(row.name for row in published), *(own.job.name for own in ran())]
    for one in fitted.FITTED_FROM:
        for pattern in one.fitted_from:
            assert any(fnmatchcase(name, pattern) for name in names), pattern


@pytest.mark.sweep
@pytest.mark.contract
def test_the_page_says_what_is_measured() -> None:
    assert PAGE.read_text("utf-8") == written(PAGE.read_text("utf-8")), "stale: python -m tests.measured.rates"
    assert accuracy() in PAGE.read_text("utf-8")
