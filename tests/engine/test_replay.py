"""CLOSED FORM and invariants: the quick replay equals the literal one, nothing leaks, components sum."""

from __future__ import annotations

import gc

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.engine.draws import UNREAD_LAST, setups, without_checkpoints
from tests.engine.examples import PACKED_TURNS, model, setup
from tests.engine.unrolled import same_requests
from vramplan.replay.checkpoints import MATMULS
from vramplan.replay.envelope import Envelope
from vramplan.replay.models.modules import CORE, Segment
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.values.model import Experts, LinearAttention, ModelShape, StateSpace

pytestmark = pytest.mark.closed_form

BATCHES = st.sampled_from([1, 2, 3, 4, 7, 9, 16])
DRAWS = settings(max_examples=36, deadline=None)


def quick(setup: Setup, batch: int) -> Record:
    return replay(setup, batch=1 if batch == 1 else 2)


SHORT_T5 = model("t5", layers=5, decoder_layers=1, attention_heads=1, key_value_heads=1, head_size=8)
# the last of them makes the gradient of what they look at, and the others add to it
THREE_BLOCKS_LOOK_AT_IMAGES = setup(
    model(
        "mllama",
        layers=4,
        hidden_size=8,
        attention_heads=1,
        key_value_heads=1,
        intermediate_size=24,
        image_size=16,
        patch_size=8,
        channels=1,
        vision_layers=1,
        vision_hidden_size=8,
        vision_attention_heads=1,
        vision_intermediate_size=24,
        vision_global_layers=1,
        vision_tapped_layers=(0,),
        vision_tiles=1,
        cross_attention_layers=(0, 1, 2),
    ),
    sequence_length=1,
    optimizer="sgd",
    optimizer_implementation="for-loop",
    optimizer_in_backward=True,
    image_size=16,
)
PADDED_ROWS = setup(SHORT_T5, precision="pure-fp16", sequence_length=56, attention="efficient")
"""A fused kernel pads the rows of the bias's gradient, which one block has and the next have not."""


@pytest.mark.sweep(4)
@DRAWS
@given(setups(), BATCHES)
@example(THREE_BLOCKS_LOOK_AT_IMAGES, 1)
@example(PADDED_ROWS, 1)
def test_the_quick_replay_equals_the_replay_of_every_block(setup: Setup, batch: int) -> None:
    """Phase peaks, what forward saves, and every component at the peak, to the byte."""
    short, literal = quick(setup, batch), replay(setup, batch=batch, direct=True)
    assert short.peaks(batch) == literal.peaks(batch)
    assert short.saved_bytes(batch) == literal.saved_bytes(batch)
    assert short.parameters == literal.parameters
    phase, moment = short.worst(batch)
    literal_phase, literal_moment = literal.worst(batch)
    assert phase == literal_phase
    assert short.components(batch, phase, moment) == literal.components(batch, literal_phase, literal_moment)


@pytest.mark.sweep(4)
@DRAWS
@given(setups(), BATCHES)
@example(PACKED_TURNS, 3)
def test_an_unrolled_replay_asks_for_what_the_replay_at_the_batch_does(setup: Setup, batch: int) -> None:
    same_requests(setup, batch)


@pytest.mark.sweep(4)
@DRAWS
@given(setups(multiple=128), st.sampled_from([2, 3, 5, 8, 33, 512]))
def test_the_affine_peak_is_within_a_hundredth_of_a_percent(setup: Setup, batch: int) -> None:
    """Where hidden size and sequence are multiples of 128 only statistics and masks are rounded.

    The tensors of a classification head, of chunks of a loss and of experts are smaller than a block, which a toy
    network of some MB notices. Linear attention and state spaces have heads of other widths, so that each of their
    tensors is rounded.
    """
    exact = replay(setup, batch=batch, direct=True).peak_bytes(batch)
    has_widths = setup.model.linear_attention is not None or setup.model.state_space is not None
    rounded = (64 if has_widths else 16) * 512
    assert Envelope(replay(setup)).peak_bytes(batch) == pytest.approx(exact, rel=1e-4, abs=rounded)


@pytest.mark.sweep(4)
@DRAWS
@given(setups(), st.sampled_from([2, 3, 5, 8, 33]))
def test_the_affine_peak_is_within_512_bytes_per_living_tensor(setup: Setup, batch: int) -> None:
    """Rounding adds less than one allocator block to each tensor that is alive, and never takes anything away."""
    literal = replay(setup, batch=batch, direct=True)
    affine = Envelope(replay(setup)).peak_bytes(batch)
    assert affine <= literal.peak_bytes(batch) <= affine + 511 * most_living_tensors(literal)


def most_living_tensors(record: Record) -> int:
    """How many tensors are alive at once, at most, states included."""
    alive = most = 0
    for index in record.events:
        alive += 1 if index >= 0 else -1
        most = max(most, alive)
    return most + len(record.states)  # of the states, only the inputs are of a size per sample


@pytest.mark.sweep(8)
@DRAWS
@given(setups(), BATCHES)
def test_nothing_leaks(setup: Setup, batch: int) -> None:
    """When the iteration is over, what is alive is what was alive before it."""
    for record in (quick(setup, batch), replay(setup, batch=batch, direct=True)):
        assert record.end_bytes(batch) == record.static_bytes(batch)


@pytest.mark.sweep(2)
@DRAWS
@given(setups(), BATCHES)
def test_components_sum_to_the_peak(setup: Setup, batch: int) -> None:
    record = quick(setup, batch)
    phase, moment = record.worst(batch)
    sizes = record.components(batch, phase, moment)
    assert sum(sizes.values()) == record.peak_bytes(batch) == moment.bytes
    assert all(size > 0 for size in sizes.values())


@pytest.mark.sweep(4)
@DRAWS
@given(setups(), st.integers(1, 40))
def test_a_larger_micro_batch_never_needs_less(setup: Setup, batch: int) -> None:
    """But for a class token: the gradient of one sample is a view of what all tokens have, and keeps it whole.

    The gradient of two samples is a sum, which is a tensor of its own (`vramplan/replay/gradients.py`).
    """
    assume(batch > 1 or setup.model.family != "vit")
    smaller, larger = quick(setup, batch).peak_bytes(batch), quick(setup, batch + 1).peak_bytes(batch + 1)
    assert smaller <= larger


@pytest.mark.sweep(8)
@DRAWS
@given(setups(), BATCHES)
def test_outputs_held_or_gradients_resident_never_need_less(setup: Setup, batch: int) -> None:
    if setup.optimizer_in_backward:
        return  # no gradient is resident
    plain = quick(setup._replace(hold_outputs=False, accumulating=False), batch).peak_bytes(batch)
    assert plain <= quick(setup._replace(hold_outputs=True, accumulating=False), batch).peak_bytes(batch)
    assert plain <= quick(setup._replace(hold_outputs=False, accumulating=True), batch).peak_bytes(batch)


@pytest.mark.sweep(2)
@DRAWS
@given(setups(), BATCHES, st.integers(1, 60))
def test_a_smaller_vocabulary_never_needs_more(setup: Setup, batch: int, smaller: int) -> None:
    """But for states in 8 bits: bitsandbytes keeps those of fewer than 4,096 elements in 32 (min_8bit_size)."""
    if not setup.model.vocabulary_size:
        return  # no tokens
    if "8bit" in setup.optimizer and smaller * setup.model.hidden_size < 4096:
        return
    fewer = setup._replace(model=setup.model._replace(vocabulary_size=smaller))
    assert quick(fewer, batch).peak_bytes(batch) <= quick(setup, batch).peak_bytes(batch)


def convolves(of: ModelShape) -> bool:
    """Whether blocks have convolutions over tokens."""
    return (of.linear_attention, of.state_space, of.short_convolution) != (None, None, None)


LINEAR = model(
    "qwen3_5_text",
    layers=1,
    hidden_size=8,
    attention_heads=1,
    head_size=8,
    partial_rotary_factor=0.5,
    linear_attention=LinearAttention(key_heads=1, value_heads=1, key_size=8, value_size=8, kernel=1, layers=(0,)),
)


SPACES = model(
    "nemotron_h",
    layers=1,
    hidden_size=96,
    attention_heads=1,
    key_value_heads=1,
    head_size=8,
    experts=Experts(
        routed=4,
        active=1,
        shared=1,
        intermediate_size=24,
        shared_intermediate_size=56,
        normalized=False,
        dense_layers=(0,),
        groups=1,
        active_groups=1,
    ),
    state_space=StateSpace(
        heads=1, head_size=4, state_size=3, groups=1, kernel=1, chunk=1, layers=(0,), conv_bias=False
    ),
)


def has_blocks_without_core(shape: ModelShape) -> bool:
    """Whether something else may stand in the place of attention, so that no checkpoint is around its core."""
    return any(one is not None for one in (shape.linear_attention, shape.state_space, shape.short_convolution))


@pytest.mark.sweep(2)
@DRAWS
@example(setup(LINEAR, sequence_length=1, segments=(Segment(1, 1, True, MATMULS),)), 1)
@example(setup(LINEAR, sequence_length=1, segments=(Segment(1, 1, False, CORE),)), 1)
@example(setup(SPACES, sequence_length=1, segments=(Segment(1, 1, False, CORE),)), 1)
@given(setups(), BATCHES)
def test_checkpointing_recomputes_and_saves_less_for_backward(setup: Setup, batch: int) -> None:
    stored = quick(without_checkpoints(setup), batch)
    record = quick(setup, batch)
    assert stored.flops["recompute"] == 0
    assert record.flops["forward"] == stored.flops["forward"]
    assert record.flops["recompute"] <= stored.flops["forward"]
    if all(segment.selects is None for segment in setup.segments):
        checkpointed = any(segment.checkpointed for segment in setup.segments)
        # LLaVA reads what the last vision block but one returns: a checkpoint of the last is never recomputed
        assert (record.flops["recompute"] > 0) == checkpointed or setup.model.family in UNREAD_LAST
        assert checkpointed or record.flops["recompute"] == 0
    elif setup.segments[0].selects == CORE:
        assert record.flops["recompute"] > 0 or has_blocks_without_core(setup.model)
    elif setup.segments[0].selects == MATMULS and setup.model.experts is None and setup.model.family != "bloom":
        # PyTorch's list has no grouped products, and not Bloom's, which adds its positions (baddbmm), nor convolutions
        assert record.flops["recompute"] == 0 or convolves(setup.model)


@pytest.mark.sweep(2)
@settings(max_examples=9, deadline=None)
@given(setups(), BATCHES)
def test_lifetimes_are_reference_counts_alone(setup: Setup, batch: int) -> None:
    """No cycle keeps a storage alive: with the collector off it finds nothing of ours afterwards."""
    replay(setup, batch=batch, direct=True)  # imports and caches of the first time
    gc.freeze()  # what is there already is not looked through again
    gc.disable()
    try:
        replay(setup, batch=batch, direct=True)
        assert gc.collect() == 0
    finally:
        gc.enable()
