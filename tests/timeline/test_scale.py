"""The axes: every sample is in one column, each column shows its highest, ticks are round values of the axis."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.timeline.examples import GIB, small, timeline
from vramplan.report.timeline_scale import VerticalAxis, axis, columns, ticks
from vramplan.results.timeline import Timeline


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Phases of any length, with levels of any height."""
    rows = [
        (phase, None, "operator", (draw(st.integers(1, 50)), draw(st.integers(0, 50))))
        for phase in ("forward", "backward", "step")
        for _ in range(draw(st.sampled_from([1, 2, 3, 40, 120])))
    ]
    return timeline(rows, ["weights", "activations"])


@pytest.mark.sweep(4)
@given(timelines(), st.integers(20, 300), st.integers(1, 6))
def test_columns_hold_every_sample_in_order_and_show_their_highest(made: Timeline, count: int, least: int) -> None:
    history = made.history
    laid = columns(history, count, least)
    assert len(laid) == count
    for number, phase in enumerate(history.phases):
        mine = [column for column in laid if column.phase == number]
        assert len(mine) >= least
        assert mine[0].first == phase.first_sample
        assert mine[-1].last == phase.first_sample + phase.samples - 1
        assert all(b.first in (a.first, a.last, a.last + 1) for a, b in pairwise(mine))
    for column in laid:
        levels = [sample.allocated_bytes for sample in history.samples[column.first : column.last + 1]]
        assert history.samples[column.highest].allocated_bytes == max(levels)
    assert any(column.highest == history.peak_sample for column in laid)


@pytest.mark.sweep(2)
@given(timelines(), st.integers(60, 300))
def test_widths_are_in_proportion_where_no_phase_is_short(made: Timeline, count: int) -> None:
    phases = made.history.phases
    total = sum(phase.samples for phase in phases)
    laid = columns(made.history, count, 1)
    for number, phase in enumerate(phases):
        width = sum(column.phase == number for column in laid)
        if all(other.samples * count >= total for other in phases):
            assert abs(width - phase.samples * count / total) < 1


@given(st.integers(0, 10**13), st.integers(0, 10**13), st.integers(2, 20))
def test_ticks_are_round_and_inside(low: int, size: int, most: int) -> None:
    found = ticks(VerticalAxis(low, low + size, None), most)
    assert len(found) <= most
    for value, words in found:
        assert low - 1 <= value <= low + size + 1
        if size:
            assert abs(float(words) * GIB - value) <= 1
    steps = {round(b - a, -3) for (a, _), (b, _) in pairwise(found)}
    assert not steps or max(steps) - min(steps) <= 2000


def test_the_axis_begins_at_zero_or_at_what_always_lives() -> None:
    made = small()
    peak = max(sample.allocated_bytes for sample in made.history.samples)
    start = made.history.phases[0].start_bytes
    assert axis(made, zoom=False) == VerticalAxis(0, 18 * GIB, 18 * GIB)
    assert axis(made, zoom=True) == VerticalAxis(start, 18 * GIB, 18 * GIB)
    assert axis(small(limit=GIB), zoom=True) == VerticalAxis(start, peak, None)
    assert axis(small(limit=GIB), zoom=False) == VerticalAxis(0, peak, GIB)
    assert axis(small(limit=3 * peak), zoom=False) == VerticalAxis(0, peak, None)
    assert axis(small(limit=0), zoom=False) == VerticalAxis(0, peak, None)
