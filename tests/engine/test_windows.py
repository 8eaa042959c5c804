"""Blocks with and without a window, whose costs differ: the replay of a few stands for all of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.draws import strategies
from vramplan.catalog.shapes import shape_from_fields
from vramplan.planner.checkpoints import segments_of
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay

SIZES = {"hidden_size": 64, "attention_heads": 4, "key_value_heads": 2, "intermediate_size": 96, "vocabulary_size": 100}


@st.composite
def windows(draw: st.DrawFn) -> Setup:
    """An iteration whose sequence reaches the window that some of the blocks have."""
    layers = draw(st.integers(2, 20))
    model_type = draw(st.sampled_from(["gemma3_text", "qwen2", "qwen3"]))
    fields = {"transformers_model_type": model_type, "layers": layers, "sliding_window": 40, **SIZES}
    if model_type == "gemma3_text":
        fields["sliding_window_pattern"] = draw(st.integers(1, 7))
    else:
        fields["sliding_window_start"] = draw(st.integers(0, layers))
    precision = draw(st.sampled_from(["fp32", "amp-bf16", "pure-fp16"]))
    return Setup(
        model=shape_from_fields(fields),
        precision=precision,
        sequence_length=draw(st.sampled_from([40, 41, 64])),
        attention=draw(st.sampled_from(["efficient", "eager"] if precision == "fp32" else ["flash", "efficient"])),
        segments=segments_of(draw(strategies(layers)), layers, every_second_matmul=False),
        optimizer="adamw",
        optimizer_implementation="fused",
        accumulating=draw(st.booleans()),
        hold_outputs=False,
    )


@pytest.mark.sweep(8)
@settings(deadline=None, max_examples=22)
@given(windows(), st.sampled_from([1, 2, 3]))
def test_the_quick_replay_is_that_of_every_block(setup: Setup, batch: int) -> None:
    quick = replay(setup, batch=1 if batch == 1 else 2)
    every = replay(setup, batch=batch, direct=True)
    assert quick.peaks(batch) == every.peaks(batch)
    assert quick.saved_bytes(batch) == every.saved_bytes(batch)


def test_a_block_with_a_window_keeps_its_mask_for_backward() -> None:
    """Without checkpoints each such block keeps [B, S, S] in the dtype of the queries."""
    fields = {"transformers_model_type": "qwen2", "layers": 6, "sliding_window": 64, **SIZES}
    saved = []
    for start in (5, 4, 3):
        setup = Setup(
            model=shape_from_fields({**fields, "sliding_window_start": start, "key_value_heads": 4}),
            precision="pure-bf16",
            sequence_length=64,
            attention="efficient",
            segments=segments_of("none", 6, every_second_matmul=False),
            optimizer="adamw",
            optimizer_implementation="fused",
            accumulating=False,
            hold_outputs=False,
        )
        saved.append(replay(setup).saved_bytes(3))
    assert saved[1] - saved[0] == saved[2] - saved[1] == 3 * 64 * 64 * 2
