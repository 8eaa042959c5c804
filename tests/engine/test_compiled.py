"""Compiled steps and fp8: the quick replay is the replay of every block, and what a compiled step leaves out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.draws import shape
from tests.job.test_families import small
from vramplan.catalog.config_classes import FAMILY_OF
from vramplan.job import build_job
from vramplan.planner.checkpoints import segments_of
from vramplan.planner.setups import setup_of
from vramplan.replay.compiled import CompiledTape
from vramplan.replay.models.modules import Segment
from vramplan.replay.models.parts import compiled_graphs
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.replay.techniques.compiling import compiled_segments
from vramplan.replay.techniques.evidence import FP8, rows_of
from vramplan.replay.tensors import BF16

FAMILIES = ("gpt2", "llama", "bert")
CHECKPOINTINGS = ("none", "full", "sqrt", "every:2", "layers:[[0,1]]")


def setup_with(
    family: str = "llama",
    precision: str = "pure-bf16",
    checkpointing: str = "none",
    *,
    layers: int = 4,
    key_value_heads: int = 4,
    vocabulary: int = 1000,
    length: int = 128,
    tied: bool = True,
    p: float = 0.0,
    accumulating: bool = False,
    hold_outputs: bool = False,
    compiled: bool = True,
) -> Setup:
    task = "mlm" if family == "bert" else "lm"
    heads = key_value_heads if family == "llama" else 4
    return Setup(
        model=shape(family, layers, 4, heads, 32, vocabulary, tied or family == "bert", task, p),
        precision=precision,
        sequence_length=length,
        attention="efficient" if precision == "fp32" else "flash",
        segments=segments_of(checkpointing, layers),
        optimizer="adamw",
        optimizer_implementation="fused",
        accumulating=accumulating,
        hold_outputs=hold_outputs,
        compile=compiled,
    )


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    compiled = draw(st.booleans())
    precisions = ("fp32", "amp-fp16", "amp-bf16", "mixed-bf16", "pure-bf16", "pure-fp16")
    return setup_with(
        draw(st.sampled_from(FAMILIES if compiled else FAMILIES[1:])),
        draw(st.sampled_from(precisions)) if compiled else "fp8",
        draw(st.sampled_from(CHECKPOINTINGS)),
        layers=draw(st.integers(2, 9)),
        key_value_heads=draw(st.sampled_from([1, 2, 4])),
        length=16 * draw(st.integers(1, 20)),
        tied=draw(st.booleans()),
        p=draw(st.sampled_from([0.0, 0.1])),
        accumulating=draw(st.booleans()),
        hold_outputs=draw(st.booleans()),
        compiled=compiled,
    )


@pytest.mark.sweep(4)
@settings(deadline=None, max_examples=22)
@given(setups(), st.integers(1, 6))
def test_the_quick_replay_is_that_of_every_block(setup: Setup, batch: int) -> None:
    quick = replay(setup, batch=min(batch, 2))
    every = replay(setup, batch=batch, direct=True)
    assert quick.peaks(batch) == every.peaks(batch)
    assert quick.saved_bytes(batch) == every.saved_bytes(batch)
    assert sum(quick.components(batch, *quick.worst(batch)).values()) == max(quick.peaks(batch).values())


@settings(deadline=None, max_examples=11)
@given(setups())
def test_a_larger_micro_batch_needs_no_less(setup: Setup) -> None:
    record = replay(setup)
    peaks = [record.peak_bytes(batch) for batch in range(2, 9)]
    assert peaks == sorted(peaks)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("precision", ["fp32", "amp-bf16", "pure-bf16"])
def test_a_compiled_step_saves_less(family: str, precision: str) -> None:
    setup = setup_with(family, precision, p=0.1, layers=6)
    assert replay(setup).saved_bytes(4) < replay(setup._replace(compile=False)).saved_bytes(4)


def test_accumulating_holds_all_gradients_twice() -> None:
    """A compiled backward hands out all gradients at its end; only then they are added to those that are there."""
    eager = setup_with(layers=6, vocabulary=64, length=16, accumulating=True, compiled=False)
    compiled = eager._replace(compile=True)
    record = replay(compiled)
    gradients = sum(state.at(1) for state in record.states if state.category == "gradients")
    static = sum(state.at(2) for state in record.states)
    assert record.peaks(2)["backward"] - static >= gradients
    assert replay(eager).peaks(2)["backward"] - static < gradients


def test_the_loss_of_gpt2_is_a_graph_of_its_own() -> None:
    """Where model and loss are one graph, the logits that it returns get a gradient of zeros."""
    zeros = {family: "zeros" in replay(setup_with(family)).operators for family in FAMILIES}
    assert zeros == {"gpt2": False, "llama": True, "bert": True}


@pytest.mark.closed_form
@pytest.mark.parametrize(("precision", "width"), [("pure-bf16", 2), ("fp32", 4)])
def test_a_block_of_llama_keeps_what_products_read_and_give(precision: str, width: int) -> None:
    """Per block of a compiled Llama: the residual sums (2), inputs of products (2), q, k, v and the context; gate, up
    and their product; the statistics of two norms; the logsumexp, seed and offset of attention."""
    few, many = (replay(setup_with(precision=precision, layers=n)).saved_bytes(4) for n in (3, 4))
    tokens, hidden, wide = 4 * 128, 128, 384
    attention = tokens * 4 * 4 + 2 * 512
    assert many - few == width * tokens * (8 * hidden + 3 * wide) + 2 * 4 * tokens + attention


@pytest.mark.closed_form
def test_fp8_keeps_no_fp8_tensor() -> None:
    """Float8Linear saves its input and its weight in high precision and casts them again."""
    eight = setup_with(precision="fp8", compiled=False)
    assert replay(eight).saved_bytes(4) == replay(eight._replace(precision="mixed-bf16")).saved_bytes(4)
    assert replay(eight).peaks(4)["step"] == replay(eight._replace(precision="mixed-bf16")).peaks(4)["step"]


@pytest.mark.closed_form
def test_the_scratch_of_a_product_in_fp8() -> None:
    """The widest layer in forward: 9 bytes an element while the weight is cast, beside x in fp8."""
    eight = setup_with(precision="fp8", vocabulary=64, compiled=False)
    half = eight._replace(precision="mixed-bf16")
    tokens, wide = 4 * 128, 384
    extra = replay(eight).peaks(4)["forward"] - replay(half).peaks(4)["forward"]
    assert extra <= 9 * tokens * wide + 9 * wide * 128
    assert extra > 0


def test_checkpoints_of_views_become_one() -> None:
    """Nothing is kept between two checkpoints of OPT, whose blocks give views; llama's stay as they are."""
    segments = (Segment(2, 3, True), Segment(1, 2, True), Segment(4, 1, False), Segment(1, 1, True))
    assert compiled_segments("opt", segments) == (Segment(1, 8, True), Segment(4, 1, False), Segment(1, 1, True))
    assert compiled_segments("llama", segments) == segments


@pytest.mark.sweep(48)
@pytest.mark.parametrize("technique", [{"compile": True}, {"precision": "fp8"}], ids=["compile", "fp8"])
@pytest.mark.parametrize("model_type", FAMILY_OF)
def test_the_quick_replay_of_every_model_type(model_type: str, technique: dict[str, object]) -> None:
    """Six blocks, so that inner ones stand for others, stored and checkpointed."""
    family = FAMILY_OF[model_type]
    if not (compiled_graphs(family) if "compile" in technique else family in rows_of(FP8).families):
        pytest.skip("refused")
    card = {"name": "x", "memory": "80 GiB", "bf16": True}
    keys = {"model": small(model_type, layers=6), "gpu": card, "sequence_length": 48, **technique}
    for checkpointing, accumulates, batch in (("none", False, 1), ("full", True, 3), ("every:3", False, 3)):
        job = build_job({**keys, "activation_checkpointing": checkpointing})
        setup = setup_of(job, checkpointing, accumulates)
        quick, every = replay(setup, batch=min(batch, 2)), replay(setup, batch=batch, direct=True)
        assert quick.peaks(batch) == every.peaks(batch), checkpointing
        assert quick.saved_bytes(batch) == every.saved_bytes(batch), checkpointing


@pytest.mark.closed_form
@pytest.mark.parametrize(("quantization", "off"), [("nf4", 0), ("int8", 0.01)])  # int8 casts what it gives
def test_quantized_products_are_kernels_of_their_own(quantization: str, off: float) -> None:
    """Compiling spares as much beside quantized weights as beside those in 16 bits: what lies between products.

    torch.compile of bitsandbytes 0.50.2 calls gemm_4bit and dequantize_4bit as they are, and the partitioner keeps what
    they give where backward reads it.
    """
    keys = {"model": small("llama", layers=4), "gpu": "h100", "sequence_length": 64, "precision": "pure-bf16"}
    spared = {}
    for words in ({}, {"quantization": quantization}):
        job = build_job({**keys, "adapter": {"kind": "lora"}, "activation_checkpointing": "none", **words})
        setup = setup_of(job, "none", accumulates=False)
        eager, compiled = (replay(setup._replace(compile=one)).saved_bytes(4) for one in (False, True))
        spared[bool(words)] = eager - compiled
    assert spared[False] > 0
    assert spared[True] == pytest.approx(spared[False], rel=off, abs=0)


@pytest.mark.parametrize(("model_type", "least"), [("resnet", 0.9), ("vit", 0.6), ("gpt_oss", 0.4), ("mixtral", 0.5)])
def test_what_the_compiler_does_not_fuse_is_stored(model_type: str, least: float) -> None:
    """Convolutions and products of experts are kernels of libraries: what they read and give is there in backward."""
    length = {} if model_type in ("resnet", "vit") else {"sequence_length": 64}
    keys = {"model": small(model_type), "gpu": "h100", **length}
    setup = setup_of(build_job({**keys, "activation_checkpointing": "none"}), "none", accumulates=False)
    eager, compiled = (replay(setup._replace(compile=one)).saved_bytes(4) for one in (False, True))
    assert least * eager <= compiled <= eager


def test_an_operator_that_nobody_knows_is_stored() -> None:
    tape = CompiledTape(2)
    tape.fusing = True
    assert tape.new("mul", (8, 8), BF16, True).storage.index < 0
    assert tape.new("kernel_of_somebody", (8, 8), BF16, True).storage.index >= 0


def test_buffers_that_are_held_for_the_next_checkpoint_go_with_the_iteration() -> None:
    """Gemma 4 E2B shares keys: what its last checkpoint made again is held until the step is over."""
    keys = {"model": "gemma-4-e2b", "gpu": "h100", "sequence_length": 64, "compile": True}
    job = build_job({**keys, "activation_checkpointing": "sqrt"})
    record = replay(setup_of(job, "sqrt", accumulates=False))
    assert sorted(index for index in record.events if index >= 0) == sorted(
        ~index for index in record.events if index < 0
    )
