"""Where the checkpoints of two stacks are, and how a model splits what it is given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramplan.planner.checkpoints import checkpoint_ranges, segments_in, segments_of
from vramplan.replay.models.modules import Segment
from vramplan.replay.models.stacks import split_at
from vramplan.replay.placed import checkpoint_ranges_in, walks_first_stack_again

STRATEGIES = st.sampled_from(
    ["none", "full", "sqrt", "every:2", "every:3", "every:50", "selective-layer:2", "selective"]
)


def test_a_strategy_begins_anew_with_the_decoder() -> None:
    assert checkpoint_ranges_in("every:3", (4, 5)) == ((0, 2), (3, 3), (4, 6), (7, 8))
    assert checkpoint_ranges_in("sqrt", (4, 9)) == ((0, 1), (2, 3), (4, 6), (7, 9), (10, 12))
    assert checkpoint_ranges_in("selective-layer:2", (3, 3)) == ((1, 1), (4, 4))
    assert checkpoint_ranges_in("layers:[[1,2],[3,4]]", (3, 3)) == ((1, 2), (3, 4))


@given(STRATEGIES, st.integers(1, 30))
def test_of_one_stack_nothing_is_new(strategy: str, layers: int) -> None:
    assert checkpoint_ranges_in(strategy, (layers,)) == checkpoint_ranges(strategy, layers)
    assert segments_in(strategy, (layers,)) == segments_of(strategy, layers)


@given(STRATEGIES, st.integers(1, 30), st.integers(1, 30))
def test_a_model_splits_the_segments_where_the_encoder_ends(strategy: str, layers: int, decoder_layers: int) -> None:
    encoder, decoder = split_at(segments_in(strategy, (layers, decoder_layers)), layers)
    assert encoder == segments_of(strategy, layers)
    assert decoder == segments_of(strategy, decoder_layers)


def test_runs_over_both_stacks_are_cut() -> None:
    assert split_at((Segment(1, 10, False),), 4) == ((Segment(1, 4, False),), (Segment(1, 6, False),))
    assert split_at((Segment(5, 2, True),), 4) == ((Segment(2, 2, True),), (Segment(3, 2, True),))
    with pytest.raises(ValueError, match="from one stack into the other"):
        split_at((Segment(5, 2, True),), 3)


@pytest.mark.parametrize(
    ("strategy", "stacks", "again"),
    [
        ("full", (3, 2), False),  # the switch of Transformers makes what the encoder gave an argument
        ("every:2", (3, 2), False),  # one checkpoint of the decoder
        ("every:2", (3, 3), True),
        ("sqrt", (3, 2), True),  # each block of the decoder, and not each of the encoder
        ("sqrt", (2, 2), False),  # the same as full
        ("layers:[[0,2],[3,3]]", (3, 2), True),  # one checkpoint, and a block that is stored
        ("layers:[[0,2]]", (3, 2), False),  # none of the decoder's
        ("every:2", (6,), False),
    ],
)
def test_backward_comes_to_the_encoder_again_for_each_checkpoint_that_captures_it(
    strategy: str, stacks: tuple[int, ...], again: bool
) -> None:
    assert walks_first_stack_again(strategy, stacks) is again
