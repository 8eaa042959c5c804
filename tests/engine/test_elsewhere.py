"""Closed forms and invariants of reentrant checkpoints and of activations on the host."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings

from tests.engine.draws import setups, without_checkpoints
from tests.engine.examples import IN_ONE_ROW, model
from tests.engine.examples import setup as plain
from tests.engine.test_optimizers import BATCHES, WIDE, quick
from vramplan.job import build_job
from vramplan.planner.setups import setup_of
from vramplan.replay.models.modules import Segment
from vramplan.replay.models.parts import holds_outputs
from vramplan.replay.offload import HostTensor, pinned_bytes
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay

pytestmark = pytest.mark.closed_form

SEPARATE = ("llama", "bert", "opt", "gemma")  # families with a projection for each of queries, keys and values
DRAWS = settings(max_examples=9, deadline=None)
# weights are made in the units of forward, and stepped in those of the recomputation
ONE_CHECKPOINT_STEPPED_IN_BACKWARD = plain(
    model("phi3", layers=4, hidden_size=96, attention_heads=1, key_value_heads=1, intermediate_size=24),
    sequence_length=1,
    segments=(Segment(1, 4, True),),
    optimizer="rmsprop",
    optimizer_implementation="for-loop",
    optimizer_in_backward=True,
)


def same(short: Record, literal: Record, batch: int) -> None:
    """Phase peaks, what forward saves, and every component at the peak."""
    assert short.peaks(batch) == literal.peaks(batch)
    assert short.saved_bytes(batch) == literal.saved_bytes(batch)
    assert short.components(batch, *short.worst(batch)) == literal.components(batch, *literal.worst(batch))
    assert short.end_bytes(batch) == short.static_bytes(batch)


def whole(setup: Setup) -> Setup | None:
    """The same with checkpoints of whole blocks, each of which keeps nothing; None where it has none of them."""
    if any(segment.selects for segment in setup.segments) or holds_outputs(setup.model.family):
        return None
    return setup


@pytest.mark.sweep(2)
@DRAWS
@given(setups(beyond=True), BATCHES)
@example(ONE_CHECKPOINT_STEPPED_IN_BACKWARD, 1)
def test_a_reentrant_checkpoint_computes_everything_again(drawn: Setup, batch: int) -> None:
    setup = whole(drawn)
    if setup is None:
        return
    plain, again = quick(setup, batch), setup._replace(checkpoint_reentrant=True)
    record = quick(again, batch)
    same(record, replay(again, batch=batch, direct=True), batch)
    assert record.flops["backward"] == plain.flops["backward"]
    assert record.flops["forward"] == plain.flops["forward"]
    assert record.flops["recompute"] >= plain.flops["recompute"]
    if not any(segment.checkpointed for segment in setup.segments):
        assert record.events == plain.events


@pytest.mark.sweep(2)
@DRAWS
@given(setups(beyond=True), BATCHES)
@example(plain(IN_ONE_ROW, precision="mixed-fp16", sequence_length=5, image_size=16), 3)
def test_what_is_on_the_host_is_not_on_the_device(drawn: Setup, batch: int) -> None:
    setup = without_checkpoints(drawn)
    away = setup._replace(offload_activations=True)
    plain, record = quick(setup, batch), quick(away, batch)
    literal = replay(away, batch=batch, direct=True)
    same(record, literal, batch)
    assert record.saved_bytes(batch) <= plain.saved_bytes(batch)
    assert record.peaks(batch)["forward"] <= plain.peaks(batch)["forward"]
    assert not plain.host
    assert pinned_bytes(record.host, batch) == pinned_bytes(literal.host, batch)
    held = sum(one.at(batch) * one.copies for one in record.host)
    assert held <= pinned_bytes(record.host, batch) < 2 * held
    if setup.model.family not in SEPARATE or setup.model.task == "cls" or setup.loss == "fused":
        return  # of what is alive only a view is saved, of a fused projection for example: it alone goes to the host
    assert held >= plain.saved_bytes(batch) - record.saved_bytes(batch) - 512 * sum(one.copies for one in record.host)


@pytest.mark.sweep(2)
@DRAWS
@given(setups(beyond=True), BATCHES)
def test_inputs_of_checkpoints_go_to_the_host(drawn: Setup, batch: int) -> None:
    setup = whole(drawn)
    if setup is None:
        return
    for reentrant in (False, True):
        away = setup._replace(offload_activations=True, checkpoint_reentrant=reentrant)
        same(quick(away, batch), replay(away, batch=batch, direct=True), batch)


def test_full_checkpoints_leave_one_hidden_state_of_each_block_on_the_host() -> None:
    """4 B for each of 64 x 128 numbers; what the embeddings, the last norm and the loss save comes on top."""
    full = WIDE._replace(segments=(Segment(4, 1, True),), offload_activations=True)
    short = full._replace(model=full.model._replace(layers=2), segments=(Segment(2, 1, True),))
    more, less = (sum(one.at(3) * one.copies for one in replay(setup).host) for setup in (full, short))
    assert more - less == 2 * 3 * 64 * 128 * 4


def test_pinned_blocks_are_powers_of_two() -> None:
    """aten/src/ATen/core/CachingHostAllocator.h."""
    tensors = [HostTensor(0, 100, 3), HostTensor(4096, 0, 1), HostTensor(0, 0, 7), HostTensor(4097, 0, 1)]
    assert pinned_bytes(tensors, 2) == 3 * 256 + 4096 + 8192


def test_a_mask_that_one_row_stands_for_has_a_row_for_each_sample_on_the_host() -> None:
    """A copy of an expanded tensor is as large as its shape says."""
    model = {"family": "qwen2", "layers": 2, "hidden_size": 64, "attention_heads": 4, "key_value_heads": 4}
    keys = {"sequence_length": 129, "attention": "efficient", "offload": ["activations"], "micro_batch_size": 1}
    sizes = {
        "vocabulary_size": 64,
        "intermediate_size": 128,
        "sliding_window": 16,
        "sliding_window_start": 0,
        "max_positions": 4096,
    }
    job = build_job({"model": model | sizes, "gpu": "h100", "precision": "pure-bf16", **keys})
    setup = setup_of(job, "selective", accumulates=False)
    for batch in (2, 3, 7):
        short, literal = replay(setup), replay(setup, batch=batch, direct=True)
        assert [one.at(batch) for one in short.host] == [one.at(batch) for one in literal.host]
        assert batch * 129 * 129 in [one.at(batch) for one in short.host]
