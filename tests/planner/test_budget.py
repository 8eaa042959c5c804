"""From what is allocated to the device, and back: the limit is where the upper end meets what is usable."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramplan.planner.bands import Margin, room_for
from vramplan.planner.budget import certain_limit, footprint

pytestmark = pytest.mark.closed_form
SIZES = st.integers(0, 2**38)


@given(held=SIZES, largest=SIZES, above=st.integers(0, 40), again=st.booleans())
def test_the_upper_end_has_room_for_large_tensors_up_to_three_tenths_and_for_more_behind_checkpoints(
    held: int, largest: int, above: int, again: bool
) -> None:
    upper = footprint(held, 0, Margin(0, above), room_bytes=room_for(largest, again=again)).high
    plain, most = (held * Fraction(100 + percent, 100) for percent in (above, 30))
    assert 0 <= upper - max(plain, min(most, held + Fraction(6 if again else 3, 2) * largest)) < 1


@given(usable=SIZES, room=SIZES, above=st.integers(0, 40))
def test_the_limit_is_the_most_that_fits_for_certain(usable: int, room: int, above: int) -> None:
    limit = certain_limit(usable, above, room)
    within, over = (footprint(limit + more, 0, Margin(0, above), room_bytes=room).high for more in (0, 1))
    assert within <= usable < over


@given(held=SIZES, room=SIZES, reserved=SIZES)
def test_a_simulation_has_room_for_nothing_more(held: int, room: int, reserved: int) -> None:
    with_it, without = (footprint(held, 0, simulated_bytes=reserved, room_bytes=one) for one in (room, 0))
    assert with_it == without
