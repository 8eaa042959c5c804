"""Checkpoints placed by size in models of several stacks, or of several kinds of blocks, against replays."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.answers import answer
from tests.engine.draws import setups
from tests.planner.test_optimal import holds, placements
from vramplan.answers.placement import placements_of
from vramplan.job import build_job
from vramplan.planner.checkpoints import segments_in, spelled
from vramplan.planner.judge import Judge
from vramplan.planner.placement.composed import ComposedSizes
from vramplan.planner.placement.optimal import Placement, peak_bytes, recomputed_flops
from vramplan.planner.placement.strategies import PlacementSearch
from vramplan.planner.placement.subjects import shortened, subjects_of
from vramplan.replay.optimizers import gradients_wait
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay

STACKS = ("t5", "bart", "clip", "llava")
KINDS = ("gemma3_text", "qwen2", "qwen2_moe", "deepseek_v3", "llama", "gemma4_text")


def sized(setup: Setup, batch: int) -> ComposedSizes:
    def record(one: Setup) -> Record:
        return replay(one, batch=min(batch, 2), periodic=False)

    model, short = subjects_of(setup, record)
    return ComposedSizes(model, short, model.replay(()), batch, waits=gradients_wait(setup.optimizer))


def pads_a_shared_bias(setup: Setup) -> bool:
    """Whether blocks share a bias of which a fused kernel pads the last dimension to 16.

    For one sample the gradient of the first block that backward meets is a part of the padded one, and the sum with the
    next is not: which of the two is there at the peak is a difference of at most 15 columns of the bias, which the
    blocks of a placement do not add up to. `fit` replays the placement that it settles on, and has it.
    """
    lengths = (setup.sequence_length, setup.target_length or setup.sequence_length)
    return setup.model.family == "t5" and setup.attention != "eager" and any(length % 16 for length in lengths)


def every_placement(stacks: tuple[int, ...]) -> list[Placement]:
    """All of them, stack by stack."""
    found: list[Placement] = []
    for chosen in product(*(placements(layers) for layers in stacks)):
        starts = [sum(stacks[:k]) for k in range(len(stacks))]
        found.append(
            tuple(
                (start + first, start + last) for start, one in zip(starts, chosen, strict=True) for first, last in one
            )
        )
    return found


def replayed(setup: Setup, placement: Placement, batch: int) -> Record:
    segments = segments_in(spelled(placement), setup.model.stacks)
    return replay(setup._replace(segments=segments), batch=min(batch, 2))


@st.composite
def small(draw: st.DrawFn, types: tuple[str, ...], most: int) -> Setup:
    """An iteration of a model of few blocks, whose loss is made in the model."""
    setup = draw(setups(model_type=draw(st.sampled_from(types))).filter(lambda one: one.loss != "label-smoother"))
    model = setup.model.with_layers(draw(st.integers(1, most)))
    if model.decoder_layers is not None:
        model = model._replace(decoder_layers=min(model.decoder_layers, most))
    if model.vision_layers is not None:
        model = model._replace(vision_layers=min(model.vision_layers, most))
    # pieces of blocks that share keys, or have inputs of their own, do not add up
    model = model._replace(key_value_sharing_layers=0, layer_input_size=None, layer_input_vocabulary_size=None)
    if model.experts is not None:
        dense = tuple(block for block in model.experts.dense_layers if block < model.layers)
        model = model._replace(experts=model.experts._replace(dense_layers=dense))
    return setup._replace(model=model)


@pytest.mark.sweep(6)
@pytest.mark.parametrize("types", [STACKS, KINDS], ids=["stacks", "kinds"])
@settings(deadline=None, max_examples=10, phases=(Phase.generate,))
@given(st.data())
def test_what_the_blocks_of_a_placement_add_up_to_is_its_replay(types: tuple[str, ...], data: st.DataObject) -> None:
    setup = data.draw(small(types, 6))
    batch = data.draw(st.sampled_from([1, 2, 3, 7]))
    sizes = sized(setup, batch)
    pads = pads_a_shared_bias(setup) and batch == 1
    for placement in data.draw(st.lists(st.sampled_from(every_placement(setup.model.stacks)), min_size=1, max_size=4)):
        record = replayed(setup, placement, batch)
        if not pads:
            assert peak_bytes(sizes, placement) == record.peak_bytes(batch)
        assert recomputed_flops(sizes, placement) == record.flops["recompute"]


@pytest.mark.sweep(4)
@pytest.mark.parametrize("types", [STACKS, KINDS], ids=["stacks", "kinds"])
@settings(deadline=None, max_examples=4, phases=(Phase.generate,))
@given(st.data())
def test_the_search_equals_trying_everything_by_replay(types: tuple[str, ...], data: st.DataObject) -> None:
    setup = data.draw(small(types, 2 if types is STACKS else 4))
    batch = data.draw(st.sampled_from([1, 2, 5]))
    tried = []
    for placement in every_placement(setup.model.stacks):
        record = replayed(setup, placement, batch)
        tried.append((record.flops["recompute"], record.peak_bytes(batch)))
    holds(sized(setup, batch), tried, data)


@pytest.mark.sweep(6)
@pytest.mark.parametrize("model_type", [*STACKS, *KINDS])
@settings(deadline=None, max_examples=4, phases=(Phase.generate,))
@given(st.data())
def test_the_search_equals_trying_everything_up_to_ten_blocks(model_type: str, data: st.DataObject) -> None:
    setup = data.draw(small((model_type,), 9 if model_type in KINDS else 4))
    sizes = sized(setup, data.draw(st.sampled_from([1, 2, 5])))
    tried = [(recomputed_flops(sizes, p), peak_bytes(sizes, p)) for p in every_placement(setup.model.stacks)]
    holds(sizes, tried, data)


def test_a_pattern_of_blocks_is_shown_by_few_of_them() -> None:
    model = build_job({"model": "gemma-3-4b-text", "gpu": "h200"}).model
    few = shortened(model)
    assert (model.layers, few.layers) == (34, 22)
    assert (few.layers - model.layers) % 6 == 0
    assert shortened(few.with_layers(7)).layers == 7


# The whole answer

SIZES = {"layers": 4, "hidden_size": 64, "attention_heads": 4, "vocabulary_size": 1000}
MODELS: dict[str, dict[str, Any]] = {
    "t5": {"family": "t5", **SIZES, "decoder_layers": 3, "intermediate_size": 256},
    "bart": {"family": "bart", **SIZES, "decoder_layers": 3, "max_positions": 256},
    "deepseek": {"family": "deepseek_v3", **SIZES},
    "windows": {"family": "gemma3_text", **SIZES, "sliding_window": 64, "sliding_window_pattern": 3},
}
TOWER = {"vision_layers": 4, "vision_hidden_size": 32, "vision_attention_heads": 2, "vision_intermediate_size": 64}
MODELS["llava"] = {"family": "llava", **SIZES, **TOWER, "image_size": 28, "patch_size": 14}
KEYS: dict[str, Any] = {"sequence_length": 128, "micro_batch_size": 8, "gradient_accumulation_steps": 1}


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_answer_names_segments_that_can_be_fed_back(name: str) -> None:
    gpu = {"name": "card", "memory": "2 GiB", "bf16": True, "architecture": "ampere", "flash_attention": True}
    job = build_job({**KEYS, "model": MODELS[name], "gpu": gpu, "activation_checkpointing": "none"})
    stored = answer(job).peak.allocated_bytes
    middle = placements_of(job, (stored + placements_of(job).smallest_peak_bytes) // 2)
    assert middle.verdict == "fits"
    best = next(row for row in middle.strategies if row.name == "optimal")
    assert best.checkpoints
    assert middle.stacks == job.model.stacks
    again = answer(
        build_job({**KEYS, "model": MODELS[name], "gpu": gpu, "activation_checkpointing": spelled(best.checkpoints)})
    )
    assert again.peak.allocated_bytes == best.allocated_bytes
    assert again.checkpoints == best.checkpoints
    nothing = placements_of(job, 1)
    assert nothing.verdict == "does-not-fit"
    least = next(row for row in nothing.strategies if row.name == "optimal")
    assert least.allocated_bytes == middle.smallest_peak_bytes
    placed = build_job(
        {**KEYS, "model": MODELS[name], "gpu": gpu, "activation_checkpointing": spelled(least.checkpoints)}
    )
    assert answer(placed).peak.allocated_bytes == least.allocated_bytes


def test_where_blocks_share_keys_each_figure_is_that_of_its_replay() -> None:
    """One that hands them on keeps what its whole checkpoint saves again, so that pieces do not add up."""
    judge = Judge(build_job({"model": "gemma-4-e2b", "gpu": "h200", "sequence_length": 64, "micro_batch_size": 1}))
    search = PlacementSearch(judge, 1, accumulates=False)
    placement = ((8, 15), (20, 30))
    record = judge.record_at(spelled(placement), 1, False)
    assert search.peak_bytes(placement) == record.peak_bytes(1)
    assert search.recomputed_flops(placement) == record.flops["recompute"]
