"""Blocks of Nemotron-H under Megatron-LM: a state space by mamba-ssm's kernel, attention or a feed-forward layer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.running import run
from vramplan.engines.megatron.hybrid import Hybrid
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.planner import setups
from vramplan.replay.record import Record
from vramplan.replay.step import replay

SPACE = {"heads": 8, "head_size": 16, "state_size": 32, "groups": 4, "chunk": 16}
KINDS = {"layers": [0, 2], "feedforward_layers": [1]}  # and the fourth block has attention
MODEL = {
    "name": "small",
    "family": "nemotron_h",
    "layers": 4,
    "hidden_size": 64,
    "attention_heads": 4,
    "key_value_heads": 2,
    "head_size": 16,
    "intermediate_size": 128,
    "vocabulary_size": 1024,
    "max_positions": 256,
    "tied_embeddings": False,
    "state_space": {**SPACE, **KINDS},
}


def record_of(**keys: Any) -> Record:
    """One iteration of the small model."""
    base = {
        "model": MODEL,
        "gpu": "h100",
        "runtime": "megatron",
        "sequence_length": 64,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "precision": "mixed-bf16",
        "attention": "flash",
        "activation_checkpointing": "none",
    }
    job = build_job({**base, **keys})
    return replay(setups.setup_of(job, job.activation_checkpointing or "none", False), batch=2)


@pytest.mark.closed_form
@pytest.mark.parametrize("devices", [1, 2])
def test_a_device_has_its_heads_and_groups(devices: int) -> None:
    """Projections, convolutions, biases and norms of a state space are divided; norms between blocks stay whole."""
    width, values = 64, 8 * 16
    channels = values + 2 * 4 * 32
    space = (width + 4 + 1) * channels + width * (values + 8) + 3 * 8 + values + values * width
    attention = 2 * width * 16 * (4 + 2)
    shared = 2 * space + attention + 2 * width * 128 + 2 * 1024 * width
    parallel = {"tensor": devices, "sequence_parallel": devices > 1}
    record = record_of(parallel=parallel if devices > 1 else {"data": 1})
    assert record.parameters == (shared - 2 * width * channels) // devices + 2 * width * channels // devices + 5 * width


@pytest.mark.parametrize("strategy", ["none", "full", "every:2", "selective"])
def test_every_strategy_ends_with_as_many_deaths_as_births(strategy: str) -> None:
    record = record_of(activation_checkpointing=strategy)
    assert record.peak_bytes(2) > record.static_bytes(2)
    assert record.end_bytes(2) >= 0


@pytest.mark.closed_form
def test_the_kernel_keeps_what_goes_in_and_what_comes_out() -> None:
    """A further block with a state space keeps its input, the projected states, the result twice and the factors."""
    more = {**MODEL, "layers": 5, "state_space": {**SPACE, "layers": [0, 2, 4], "feedforward_layers": [1]}}
    few, many = (record_of(model=model).saved_bytes(2) for model in (MODEL, more))
    width, values = 64, 8 * 16
    projected = 2 * values + 2 * 4 * 32 + 8
    rows = 2 * 64
    kept = 2 * rows * (width + width + projected + values + values + values) + 2 * 4 * rows
    assert many - few == pytest.approx(kept, rel=0.08)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"parallel": {"tensor": 8}}, "8 does not divide the 4 groups of heads of a state space"),
    ],
)
def test_what_is_not_modelled_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        record_of(**keys)
    assert said in " ".join(f"{one.key}: {one.message}" for one in error.value.problems)


def test_the_kernels_are_neither_asked_for_nor_a_remedy() -> None:
    words = ("-m", "nemotron-h-4b", "-g", "h100", "--runtime", "megatron", "--micro-batch", "1", "--seq", "512")
    ran = run("fit", *words, "--details")
    assert "were composed from their source" in ran.out
    assert "--mamba-kernels" not in ran.out
    assert Hybrid.untraced


@pytest.mark.closed_form
def test_it_has_as_many_weights_as_published() -> None:
    words = ("-m", "nemotron-h-8b", "-g", "h100", "--runtime", "megatron", "--seq", "512", "--micro-batch", "1")
    assert run("fit", *words, "--print", "parameters.total").out.strip().replace(",", "") == "8100852736"
