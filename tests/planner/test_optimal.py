"""Checkpoints placed by size, against replays and against trying every placement."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.answers import answer
from tests.cli.draws import jobs
from tests.drawing import Drawn
from tests.engine.draws import setups
from tests.engine.examples import model, setup
from vramplan.job import build_job
from vramplan.planner.checkpoints import checkpoint_ranges, segments_of, spelled
from vramplan.planner.decision import decide
from vramplan.planner.placement.optimal import (
    Piece,
    Placement,
    PlacementSizes,
    Shared,
    Surroundings,
    is_possible,
    least_recomputation,
    peak_bytes,
    recomputed_flops,
    smallest_peak,
)
from vramplan.planner.placement.probes import ProbedSizes
from vramplan.replay.models.modules import Segment
from vramplan.replay.models.parts import block_kinds, holds_outputs
from vramplan.replay.optimizers import gradients_wait
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.values.model import LinearAttention, ModelShape


def probed(setup: Setup, batch: int) -> ProbedSizes:
    def record(segments: tuple[Segment, ...]) -> Record:
        model = setup.model.with_layers(sum(segment.times * segment.blocks for segment in segments))
        return replay(setup._replace(model=model, segments=segments), batch=min(batch, 2))

    blocks = setup.model.layers
    whole = record((Segment(1, blocks, False),))
    holds, waits = holds_outputs(setup.model.family), gradients_wait(setup.optimizer)
    return ProbedSizes(record, whole, block_kinds(setup.model), batch, holds_outputs=holds, waits=waits)


@cache
def placements(blocks: int) -> tuple[Placement, ...]:
    """All of them: each block is stored, or in a segment of consecutive blocks."""
    return tuple(_placements(0, blocks))


def _placements(at: int, blocks: int) -> Iterator[Placement]:
    if at == blocks:
        yield ()
        return
    yield from _placements(at + 1, blocks)
    for last in range(at, blocks):
        for rest in _placements(last + 1, blocks):
            yield ((at, last), *rest)


def test_every_placement_is_tried() -> None:
    assert [len(placements(n)) for n in range(1, 6)] == [2, 5, 13, 34, 89]  # every second Fibonacci number


ONE_BLOCK = setup(
    model("olmo2", layers=1), optimizer="lomo", optimizer_implementation="for-loop", optimizer_in_backward=True
)
"""The last norm's gradient waits while the block runs, not a gradient of another block, which is larger here."""


def linear(layers: int, model_type: str = "qwen3_5_text", **more: Any) -> ModelShape:
    """A model with linear attention in all blocks: a probe of another number of blocks has it in all of them too."""
    attention = LinearAttention(
        key_heads=1, value_heads=1, key_size=8, value_size=8, kernel=1, layers=tuple(range(layers))
    )
    return model(model_type, layers=layers, attention_heads=1, key_value_heads=1, linear_attention=attention, **more)


SMALL = {"hidden_size": 8, "head_size": 8, "intermediate_size": 24, "partial_rotary_factor": 0.5}
ONE_LINEAR = setup(linear(1, **SMALL), sequence_length=1, optimizer_implementation="foreach")
TWO_LINEAR = setup(linear(2, **SMALL), sequence_length=1, attention="efficient", optimizer_implementation="foreach")


ONE_RELATIVE = setup(
    model("deberta-v2", layers=1, position_span=8), sequence_length=32, attention="eager", precision="pure-bf16"
)
"""The gradient of the relative positions is there from the last block on, which is the first one too."""


@pytest.mark.sweep(4)
@settings(deadline=None, max_examples=18)
@given(st.data())
@example(Drawn(ONE_RELATIVE, 7, ()))
@example(Drawn(ONE_LINEAR, 1, ((0, 0),)))
@example(Drawn(TWO_LINEAR, 1, ()))
@example(Drawn(ONE_BLOCK, 1, ()))
@example(Drawn(ONE_BLOCK._replace(model=model("olmo2", layers=3), precision="amp-bf16"), 2, ((0, 0), (2, 2))))
def test_the_pieces_of_a_placement_add_up_to_its_replay(data: st.DataObject) -> None:
    setup = data.draw(setups(equal=True))
    batch = data.draw(st.sampled_from([1, 2, 3, 7]))
    sizes = probed(setup, batch)
    placement = data.draw(st.sampled_from(placements(min(setup.model.layers, 8))))
    segments = segments_of(spelled(placement), setup.model.layers)
    record = replay(setup._replace(segments=segments), batch=min(batch, 2))
    assert peak_bytes(sizes, placement) == record.peak_bytes(batch)
    assert recomputed_flops(sizes, placement) == record.flops["recompute"]


@pytest.mark.sweep(12)
@settings(deadline=None, max_examples=8)
@given(st.data())
@example(Drawn(ONE_BLOCK, 1, 2, 55296, 0, 55296, 511, 54272, 1))
def test_the_search_equals_trying_everything_by_replay(data: st.DataObject) -> None:
    setup = data.draw(setups(equal=True))
    blocks = data.draw(st.integers(1, 5))
    setup = setup._replace(model=setup.model.with_layers(blocks))
    batch = data.draw(st.sampled_from([1, 2, 5]))
    tried = []
    for placement in placements(blocks):
        segments = segments_of(spelled(placement), blocks)
        record = replay(setup._replace(segments=segments), batch=min(batch, 2))
        tried.append((record.flops["recompute"], record.peak_bytes(batch)))
    holds(probed(setup, batch), tried, data)


@pytest.mark.sweep(4)
@settings(deadline=None, max_examples=4)
@given(st.data())
def test_the_search_equals_trying_everything_up_to_ten_blocks(data: st.DataObject) -> None:
    setup = data.draw(setups(equal=True))
    blocks = data.draw(st.integers(6, 10))
    setup = setup._replace(model=setup.model.with_layers(blocks))
    sizes = probed(setup, data.draw(st.sampled_from([1, 2, 5])))
    holds(sizes, [(recomputed_flops(sizes, p), peak_bytes(sizes, p)) for p in placements(blocks)], data)


def holds(sizes: PlacementSizes, tried: list[tuple[int, int]], data: st.DataObject) -> None:
    """The search finds the best of what was tried, as (operations, peak), for limits that matter."""
    peaks = sorted({peak for _, peak in tried})
    least = smallest_peak(sizes)
    found = (peak_bytes(sizes, least), recomputed_flops(sizes, least))
    assert found == min((peak, flops) for flops, peak in tried)
    assert least_recomputation(sizes, peaks[0] - 1) is None
    assert not is_possible(sizes, peaks[0] - 1)
    for _ in range(3):
        limit = data.draw(st.sampled_from(peaks)) + data.draw(st.sampled_from([0, 1, 511]))
        best = least_recomputation(sizes, limit)
        assert best is not None
        assert is_possible(sizes, limit)
        if peak_bytes(sizes, ()) <= limit:  # a checkpoint that recomputes nothing may have a smaller peak
            assert best == ()
            assert recomputed_flops(sizes, best) == 0
            continue
        assert (recomputed_flops(sizes, best), peak_bytes(sizes, best)) == min(t for t in tried if t[1] <= limit)


@pytest.mark.sweep(6)
@pytest.mark.parametrize("model_type", ["bloom", "mpt", "gemma2", "gemma3_text"])
@settings(deadline=None, max_examples=5)
@given(st.data())
def test_what_neighbours_share_is_counted_with_the_first_of_them(model_type: str, data: st.DataObject) -> None:
    setup = data.draw(setups(equal=True, model_type=model_type))
    blocks = data.draw(st.integers(2, 9))
    setup = setup._replace(model=setup.model.with_layers(blocks))
    batch = data.draw(st.sampled_from([1, 2, 5]))
    sizes = probed(setup, batch)
    for placement in data.draw(st.lists(st.sampled_from(placements(min(blocks, 8))), min_size=1, max_size=12)):
        segments = segments_of(spelled(placement), blocks)
        record = replay(setup._replace(segments=segments), batch=batch, direct=True)
        assert peak_bytes(sizes, placement) == record.peak_bytes(batch)
        assert replay(setup._replace(segments=segments), batch=min(batch, 2)).peaks(batch) == record.peaks(batch)


@pytest.mark.sweep(8)
@settings(deadline=None, max_examples=8)
@given(st.data())
def test_it_is_never_worse_than_equal_segments(data: st.DataObject) -> None:
    setup = data.draw(setups(equal=True))
    blocks = setup.model.layers
    sizes = probed(setup, data.draw(st.sampled_from([1, 2, 9])))
    others = ["none", "sqrt", *(f"every:{k}" for k in range(1, blocks + 1))]
    rivals = [checkpoint_ranges(name, blocks) for name in others]
    for rival in rivals:
        limit = peak_bytes(sizes, rival) + data.draw(st.sampled_from([0, 1000, 10**6]))
        best = least_recomputation(sizes, limit)
        assert best is not None
        assert peak_bytes(sizes, best) <= limit
        fitting = [recomputed_flops(sizes, other) for other in rivals if peak_bytes(sizes, other) <= limit]
        assert recomputed_flops(sizes, best) <= min(fitting)


# Blocks that differ in more than what they share: no family has them yet, so the sizes are made up.


class Block(NamedTuple):
    """What one block saves, its input, its scratch, its gradients, its forward's operations and those of its end.

    And its kind: stored blocks of a kind share something, checkpoints of it more.
    """

    saved: int
    input: int
    scratch: int
    gradient: int
    flops: int
    tail: int
    kind: int


class Unequal:
    """`optimal.PlacementSizes` of such blocks: a set of kinds is shared, each with whether a checkpoint holds it."""

    def __init__(self, made: list[Block], shared: int, returned: int) -> None:
        self.made, self.shared, self.most_returned_bytes = made, shared, returned
        self.longer_needs_more = True
        self.blocks = len(made)
        self.start_bytes, self.held_bytes, self.floor_bytes = 1000, 1000, 1100
        self.nothing: Shared = (frozenset(), False)
        self.stored_bytes: int | None = None
        self.grain_bytes = 1

    def reach(self, first: int) -> int:
        return self.blocks - 1

    def after(self, shared: Shared, first: int, last: int, *, checkpoint: bool) -> Shared:
        assert isinstance(shared, tuple)
        return shared[0] | self.holds(first, last, checkpoint), checkpoint and first == last

    def holds(self, first: int, last: int, checkpoint: bool) -> frozenset[tuple[int, bool]]:
        kinds = {block.kind for block in self.made[first : last + 1]}
        return frozenset((kind, how) for kind in kinds for how in {False, checkpoint})

    def least_frame(self) -> Surroundings:
        return Surroundings(head_top_bytes=300, loss_net_bytes=-100, loss_top_bytes=200)

    def frame(self, shared: Shared) -> Surroundings:
        assert isinstance(shared, tuple)
        return self.least_frame()._replace(head_top_bytes=300 + len(shared[0]))

    def gradient_bytes(self, first: int, last: int) -> int:
        return sum(block.gradient for block in self.made[first : last + 1])

    def own(self, piece: Piece, first: int, last: int, checkpoint: bool, shared: Shared | None) -> Piece:
        if shared is None:
            return piece
        assert isinstance(shared, tuple)
        new = self.holds(first, last, checkpoint) - shared[0]
        returned = self.most_returned_bytes * ((checkpoint and first == last) - shared[1])
        kept = piece.kept_bytes + len(new) * self.shared
        return piece._replace(kept_bytes=kept, forward_bytes=piece.forward_bytes + returned)

    def stored(self, block: int, shared: Shared | None) -> Piece:
        this = self.made[block]
        kept = this.saved + this.input
        piece = Piece(kept, kept + this.scratch + self.most_returned_bytes, kept, this.scratch + this.gradient, 0)
        return self.own(piece, block, block, False, shared)

    def segment(self, first: int, last: int, shared: Shared | None) -> Piece:
        blocks = self.made[first : last + 1]
        saved = list(accumulate(block.saved for block in blocks))
        later = [sum(block.gradient for block in blocks[k:]) for k in range(len(blocks))]
        top = max(kept + block.scratch + made for kept, block, made in zip(saved, blocks, later, strict=True))
        forward = max(block.saved + block.scratch for block in blocks) + self.most_returned_bytes
        flops = sum(block.flops for block in blocks) - blocks[-1].tail
        piece = Piece(blocks[0].input, blocks[0].input + forward, blocks[0].input, top, flops)
        return self.own(piece, first, last, True, shared)


numbers = st.integers(0, 400)
flops = st.integers(20, 90)
blocks_of_any_size = st.builds(
    Block, st.integers(1, 400), st.integers(1, 60), numbers, numbers, flops, st.integers(0, 19), st.integers(0, 1)
)


@pytest.mark.sweep(4)
@settings(deadline=None, max_examples=45)
@given(st.lists(blocks_of_any_size, min_size=1, max_size=7), st.integers(0, 50), st.integers(0, 50), st.data())
def test_unequal_blocks_are_placed_as_trying_everything_would(
    made: list[Block], shared: int, returned: int, data: st.DataObject
) -> None:
    sizes = Unequal(made, shared, returned)
    holds(sizes, [(recomputed_flops(sizes, p), peak_bytes(sizes, p)) for p in placements(len(made))], data)


def test_a_large_block_is_checkpointed_before_small_ones() -> None:
    small, large = Block(10, 5, 20, 0, 30, 0, 0), Block(300, 5, 20, 0, 30, 0, 0)
    sizes = Unequal([small, small, large, small], 0, 0)
    best = least_recomputation(sizes, peak_bytes(sizes, ()) - 1)
    assert best == ((2, 2),)


# The whole answer


@pytest.mark.sweep(8)
@settings(deadline=None, max_examples=7)
@given(jobs())
@example(
    described={
        "model": {
            "name": "drawn",
            "family": "gpt2",
            "layers": 2,
            "hidden_size": 16,
            "attention_heads": 1,
            "vocabulary_size": 1000,
            "max_positions": 512,
            "embedding_dropout": 0.0,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
        },
        "gpu": {"name": "drawn", "memory": "610 MiB"},
        "sequence_length": 2,
        "precision": "fp32",
        "optimizer": "adamw",
        "attention": "eager",
        "hold_outputs": False,
        "runtime": "transformers",
        "parallel": {"data": 2},
        "reserve": "0 GiB",
        "micro_batch_size": 8,
    }
)
@example(
    described={
        "model": {
            "name": "drawn",
            "family": "gpt2",
            "layers": 1,
            "hidden_size": 16,
            "attention_heads": 1,
            "vocabulary_size": 1000,
            "max_positions": 512,
        },
        "gpu": {"name": "drawn", "memory": "615 MiB"},
        "sequence_length": 1,
        "precision": "fp32",
        "optimizer": "adamw",
        "attention": "eager",
        "hold_outputs": False,
        "runtime": "transformers",
        "parallel": {"data": 1},
        "reserve": "0 GiB",
    }
)
def test_a_job_pinned_to_optimal_gets_the_best_that_every_placement_offers(described: dict[str, object]) -> None:
    job = build_job({**described, "activation_checkpointing": "optimal"})
    decision = decide(job)
    result = answer(job)
    micro, steps = result.job["micro_batch_size"], result.job["gradient_accumulation_steps"]
    judge = decision.judge
    named = [f"every:{k}" for k in range(1, job.model.layers + 1)] + ["none"]
    rivals = {name: judge.allocated_bytes(name, micro, steps > 1) for name in named}
    limits = {name: judge.certain_bytes("none", micro, steps > 1, again=name != "none") for name in named}
    mine = result.peak.allocated_bytes
    assert mine <= limits["every:1" if result.checkpoints else "none"] or mine <= min(rivals.values())
    within = [judge.recomputed_fraction(name) for name, peak in rivals.items() if peak <= limits[name]]
    if within:
        assert result.verdict == "fits"
        own = next(row for row in result.alternatives if row.activation_checkpointing == "optimal")
        assert own.recomputed_fraction <= round(min(within), 4)
    if result.recommended.largest_micro_batch_size < 2**24:
        more = result.recommended.largest_micro_batch_size + 1
        assert all(judge.allocated_bytes(name, more, steps > 1) > judge.limits.device for name in named)
    placed = spelled(result.checkpoints)
    again = answer(build_job({**result.job, "activation_checkpointing": placed}))
    assert again.peak == result.peak
    assert again.components == result.components
    assert answer(build_job(result.job)).checkpoints == result.checkpoints
