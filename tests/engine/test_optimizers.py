"""Invariants and closed forms of optimizers and of what is done around a step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.draws import setups, shape
from vramplan.replay.models.modules import Segment
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay

pytestmark = pytest.mark.closed_form

DRAWS = settings(max_examples=22, deadline=None)
BATCHES = st.sampled_from([1, 2, 5])

# 128 x 512: every matrix of the blocks has at least 4096 elements, and none has 100,000
WIDE = Setup(
    model=shape("gpt2", 4, 2, 2, 64, 2048, True, "lm", 0.0),
    precision="fp32",
    sequence_length=64,
    attention="efficient",
    segments=(Segment(1, 4, False),),
    optimizer="adamw",
    optimizer_implementation="fused",
    accumulating=False,
    hold_outputs=False,
)
EMBEDDINGS = (2048 * 128, 1024 * 128)
MATRICES = 4 * (3 * 128 * 128 + 128 * 128 + 2 * 4 * 128 * 128)
BLOCK_VECTORS = 4 * [128, 128, 384, 128, 128, 128, 512, 128]
VECTORS = [*BLOCK_VECTORS, 128, 128]


def quick(setup: Setup, batch: int) -> Record:
    return replay(setup, batch=1 if batch == 1 else 2)


def states_of(setup: Setup, component: str = "optimizer") -> int:
    return sum(state.at(2) for state in replay(setup).states if state.category == component)


def in_blocks(sizes: list[int]) -> int:
    return sum(-(-size // 512) * 512 for size in sizes)


@pytest.mark.sweep(8)
@DRAWS
@given(setups(), BATCHES)
def test_more_states_never_need_less(setup: Setup, batch: int) -> None:
    """SGD, with momentum, and AdamW, all fused: nothing but states differs. 8 bits are no more than 32."""
    plain = setup._replace(optimizer_implementation="fused")
    peaks = [
        quick(plain._replace(optimizer=name), batch).peak_bytes(batch) for name in ("sgd", "sgd-momentum", "adamw")
    ]
    assert peaks == sorted(peaks)
    if not setup.precision.startswith("mixed-"):
        small, wide = (states_of(setup._replace(optimizer=name)) for name in ("adamw-8bit", "lamb"))
        # a parameter of 4096 elements saves three bytes of four twice; code books are all that can be more
        assert small <= wide + 2 * 1024


@DRAWS
@given(setups(), BATCHES)
def test_a_step_in_backward_needs_no_more_than_its_scratch_on_top(setup: Setup, batch: int) -> None:
    """But for the optimizers that would hold code books for each parameter; and LOMO has no other step.

    A gradient that is gone is less than one that waits, but the scratch of a parameter's step, which is otherwise made
    when all activations are gone, now meets them. No parameter has more of it than a step of all has at its highest.
    """
    if setup.precision.startswith("mixed-") or "8bit" in setup.optimizer or setup.optimizer == "lomo":
        return
    plain = setup._replace(accumulating=False, max_gradient_norm=None, optimizer_in_backward=False, ema=False)
    before, after = quick(plain, batch), quick(plain._replace(optimizer_in_backward=True), batch)
    at_the_step = before.static_bytes(batch) + before.net_bytes(batch, ("forward", "backward"))
    scratch = before.peaks(batch)["step"] - at_the_step
    assert after.peak_bytes(batch) <= before.peak_bytes(batch) + scratch
    assert after.peaks(batch)["forward"] == before.peaks(batch)["forward"]
    assert after.peaks(batch)["step"] <= before.peaks(batch)["step"]


def test_a_step_in_backward_may_need_more_where_its_scratch_meets_activations() -> None:
    """Muon's scratch is three copies of a matrix: with few gradients to drop it decides (tests/oracle/steps.json)."""
    model = shape("llama", 1, 1, 1, 64, 64, False, "lm", 0.0)._replace(transformers_model_type="qwen2", qkv_bias=True)
    setup = WIDE._replace(model=model, sequence_length=16, segments=(Segment(1, 1, False),))
    setup = setup._replace(optimizer="muon", optimizer_implementation="foreach")
    assert quick(setup._replace(optimizer_in_backward=True), 2).peak_bytes(2) > quick(setup, 2).peak_bytes(2)


@pytest.mark.sweep(4)
@DRAWS
@given(setups(), BATCHES)
def test_clipping_and_averages_never_need_less(setup: Setup, batch: int) -> None:
    plain = setup._replace(max_gradient_norm=None, ema=False)
    peak = quick(plain, batch).peak_bytes(batch)
    averaged = quick(plain._replace(ema=True), batch)
    assert averaged.peak_bytes(batch) >= peak + states_of(plain, "weights")
    if not setup.optimizer_in_backward:
        assert quick(plain._replace(max_gradient_norm=1.0), batch).peak_bytes(batch) >= peak


def test_eight_bits_are_a_byte_and_a_maximum_for_256_elements() -> None:
    """bitsandbytes/optim/optimizer.py, Optimizer2State.init_state: vectors here are too short for 8 bits."""
    large = [EMBEDDINGS[0], EMBEDDINGS[1], *4 * [3 * 128 * 128, 128 * 128, 4 * 128 * 128, 4 * 128 * 128]]
    books = 2 * 256 * 4
    expected = 2 * in_blocks(large) + 2 * in_blocks([size // 256 * 4 for size in large])
    expected += 2 * in_blocks([4 * size for size in VECTORS]) + books
    assert states_of(WIDE._replace(optimizer="adamw-8bit")) == expected


def test_ademamix_has_two_averages_in_one_tensor() -> None:
    """bitsandbytes/optim/ademamix.py, AdEMAMix.init_state: maxima of both are one tensor too."""
    large = [EMBEDDINGS[0], EMBEDDINGS[1], *4 * [3 * 128 * 128, 128 * 128, 4 * 128 * 128, 4 * 128 * 128]]
    small = in_blocks([2 * 4 * size for size in VECTORS]) + in_blocks([4 * size for size in VECTORS])
    expected = small + 2 * 256 * 4
    for size in large:
        expected += in_blocks([2 * size, size, 2 * size // 256 * 4, size // 256 * 4])
    assert states_of(WIDE._replace(optimizer="ademamix-8bit")) == expected
    wide = small + sum(in_blocks([2 * 4 * size, 4 * size]) for size in large)
    assert states_of(WIDE._replace(optimizer="ademamix")) == wide


def test_lion_in_8_bits_has_a_moment_of_a_byte_and_one_code_book() -> None:
    large = [EMBEDDINGS[0], EMBEDDINGS[1], *4 * [3 * 128 * 128, 128 * 128, 4 * 128 * 128, 4 * 128 * 128]]
    expected = in_blocks(large) + in_blocks([size // 256 * 4 for size in large])
    expected += in_blocks([4 * size for size in VECTORS]) + 256 * 4
    for word in ("lion-8bit", "rmsprop-8bit", "adagrad-8bit", "sgd-momentum-8bit"):
        assert states_of(WIDE._replace(optimizer=word)) == expected
    paged = replay(WIDE._replace(optimizer="lion-8bit-paged"))
    assert paged.managed_bytes == sum(EMBEDDINGS)


def test_adalomo_has_a_row_and_a_column_of_each_weight_trained_or_not() -> None:
    whole = WIDE._replace(optimizer="adalomo", optimizer_implementation="for-loop", optimizer_in_backward=True)
    frozen = whole._replace(frozen=("layers.0-1",))
    assert states_of(frozen) == states_of(whole) < 0.03 * states_of(WIDE._replace(optimizer="lion"))


def test_the_trainer_keeps_32_bits_for_embeddings() -> None:
    narrow = WIDE._replace(optimizer="adamw-8bit")
    more = sum(2 * 3 * size - 2 * size // 256 * 4 for size in EMBEDDINGS)
    assert states_of(narrow._replace(wide_embeddings=True)) - states_of(narrow) == more


def test_paged_states_are_outside_the_allocator() -> None:
    """Only the embeddings have 100,000 elements; their moments are in managed memory, in fp32."""
    paged = replay(WIDE._replace(optimizer="adamw-paged"))
    assert paged.managed_bytes == 2 * 4 * sum(EMBEDDINGS)
    others = 2 * 4 * MATRICES + 2 * in_blocks([4 * size for size in VECTORS])
    assert states_of(WIDE._replace(optimizer="adamw-paged")) == others
    assert replay(WIDE).managed_bytes == 0


def test_muon_has_one_momentum_for_matrices_of_the_blocks() -> None:
    rest = [*EMBEDDINGS, *VECTORS]
    adamw = 2 * in_blocks([4 * size for size in rest]) + 512 * len(rest)
    assert states_of(WIDE._replace(optimizer="muon")) == 4 * MATRICES + adamw


def test_fp32_gradients_beside_half_weights_are_18_bytes_a_parameter() -> None:
    """Megatron's table: 2 + 4 + 4 + 8; in blocks of 512 bytes."""
    elements = [*EMBEDDINGS, *4 * [3 * 128 * 128, 128 * 128, 4 * 128 * 128, 4 * 128 * 128], *VECTORS]
    record = replay(WIDE._replace(precision="mixed-bf16", fp32_gradients=True))
    sizes = {state.category: 0 for state in record.states}
    for state in record.states:
        sizes[state.category] += state.at(2)
    assert sizes["gradients"] == sizes["master"] == in_blocks([4 * size for size in elements])
    assert sizes["optimizer"] == 2 * sizes["master"]
    assert sizes["weights"] == in_blocks([2 * size for size in elements])
    assert "gradients" not in {record.categories[index] for index in range(len(record.categories))}


def test_clipping_fp32_gradients_is_three_numbers_and_partial_sums() -> None:
    """Megatron's: a flag, 320 partial sums and the norm; nothing else is alive then. Half gradients: one norm each."""
    mixed = WIDE._replace(precision="mixed-bf16", optimizer_implementation="fused")
    wide = mixed._replace(fp32_gradients=True)
    assert peaks_of_clipping(wide) == in_blocks([4, 320 * 4, 4])
    weights = len(EMBEDDINGS) + 4 * 4 + len(VECTORS)
    largest = max(EMBEDDINGS) // 65536
    assert peaks_of_clipping(mixed) == 512 * weights + in_blocks([4 * weights * largest])


def peaks_of_clipping(setup: Setup) -> int:
    without, clipped = (replay(setup._replace(max_gradient_norm=norm)).peaks(2)["step"] for norm in (None, 1.0))
    return clipped - without
