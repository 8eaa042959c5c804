"""CLOSED FORM: the kernels of the quick replay, from which times come, are those of the replay of every block."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.engine.draws import setups
from tests.engine.examples import IN_ONE_ROW, ONE_BY_ONE, model, setup
from vramplan.replay.kernels import at
from vramplan.replay.models.parts import takes_samples_apart
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay

pytestmark = pytest.mark.closed_form

Sums = dict[tuple[str, str], tuple[int, int, int, int]]


def sums(record: Record, batch: int) -> Sums:
    """Of each direction and kind of kernels: runs, operations, operations made again, bytes read."""
    found: Sums = defaultdict(lambda: (0, 0, 0, 0))
    for kernel in record.kernels:
        figures = (1, at(kernel.flops, batch), at(kernel.again, batch), at(kernel.read, batch))
        key = (kernel.direction, kernel.kind)
        found[key] = tuple(a + kernel.at(b, batch) for a, b in zip(found[key], figures, strict=True))  # type: ignore[assignment]
    return found


WINDOWS = setup(
    model("qwen2_5_vl", image_size=64, patch_size=8, vision_hidden_size=8, vision_intermediate_size=24),
    sequence_length=80,
    image_size=64,
)
PADDED_BIAS = setup(model("t5", decoder_layers=1, head_size=8), sequence_length=5, attention="efficient")
"""Its bias is read once for all samples."""
SMALL = setup(
    ONE_BY_ONE,
    precision="amp-bf16",
    sequence_length=5,
    attention="flash",
    optimizer_implementation="foreach",
    image_size=16,
)
"""So few operations that what a division cuts off each kernel is seen in their sum."""


ROW = setup(IN_ONE_ROW, sequence_length=5, attention="efficient", optimizer_implementation="foreach", image_size=16)
"""Its operations grow with the square of the micro-batch."""

FIVE = IN_ONE_ROW._replace(
    vision_layers=5, vision_hidden_size=24, vision_attention_heads=3, vision_intermediate_size=72
)
TILES = setup(FIVE, sequence_length=5, attention="efficient", optimizer_implementation="foreach", image_size=16)

ONE_PATCH = setup(
    model(
        "qwen2_vl",
        layers=1,
        image_size=16,
        patch_size=14,
        channels=1,
        vision_layers=2,
        vision_hidden_size=8,
        vision_attention_heads=1,
        vision_intermediate_size=24,
        vision_merge=1,
        vision_frames=1,
    ),
    sequence_length=2,
    image_size=16,
    attention="efficient",
)
"""What a division cuts off its attention is a tenth of it."""


@pytest.mark.sweep(12)
@settings(max_examples=24, deadline=None)
@given(setups(), st.sampled_from([1, 2, 3, 7]))
@example(WINDOWS, 5)
@example(PADDED_BIAS, 3)
@example(SMALL, 3)
@example(ROW, 3)
@example(TILES, 3)
@example(ONE_PATCH, 3)
def test_the_quick_replay_runs_the_kernels_of_every_block(setup: Setup, batch: int) -> None:
    """To the operation, but for what a division of the representative micro-batch's figures cuts off each kernel."""
    short = sums(replay(setup, batch=min(batch, 2)), batch)
    literal = sums(replay(setup, batch=batch, direct=True), batch)
    assert {key for key, figures in short.items() if figures[0]} == {*literal}
    for key, (runs, flops, again, read) in literal.items():
        assert short[key][0] == runs
        # of an image that stands for others both its own figures and theirs are cut, and in the replay of every image
        # what grows with the square of the micro-batch
        cuts = batch * runs * (max(2, batch) if takes_samples_apart(setup.model.family) else 1)
        assert short[key][1:3] == pytest.approx((flops, again), rel=1e-5, abs=cuts)
        if not takes_samples_apart(setup.model.family):  # where pieces meet, a few bytes of them count as fixed
            # what attention sums in one row of all images is whole tiles of 32 positions
            cut = 512 * runs if setup.model.family == IN_ONE_ROW.family else 512
            assert short[key][3] == pytest.approx(read, rel=1e-4, abs=cut)
