"""From what is allocated to the device, and back: the limit is where the upper end meets what is usable."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramplan.planner.bands import Margin
from vramplan.planner.budget import certain_limit, footprint

pytestmark = pytest.mark.closed_form
SIZES = st.integers(0, 2**38)


@given(held=SIZES, largest=SIZES, above=st.integers(0, 40))
def test_the_upper_end_has_room_for_half_as_much_again_as_the_largest_tensor_up_to_three_tenths(
    held: int, largest: int, above: int
) -> None:
    upper = footprint(held, 0, Margin(0, above), largest_bytes=largest).high
    plain, most = (held * Fraction(100 + percent, 100) for percent in (above, 30))
    assert 0 <= upper - max(plain, min(most, held + Fraction(3, 2) * largest)) < 1


@given(room=SIZES, largest=SIZES, above=st.integers(0, 40))
def test_the_limit_is_the_most_that_fits_for_certain(room: int, largest: int, above: int) -> None:
    limit = certain_limit(room, above, largest)
    within, over = (footprint(limit + more, 0, Margin(0, above), largest_bytes=largest).high for more in (0, 1))
    assert within <= room < over


@given(held=SIZES, largest=SIZES, reserved=SIZES)
def test_a_simulation_has_room_for_nothing_more(held: int, largest: int, reserved: int) -> None:
    with_it, without = (footprint(held, 0, simulated_bytes=reserved, largest_bytes=one) for one in (largest, 0))
    assert with_it == without
