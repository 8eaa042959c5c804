"""LoRA beside Megatron's layers, which nobody traced there: sizes by equations, and what devices share of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.running import run
from vramplan.answers.fit import answer
from vramplan.job import build_job

WIDTH, INNER, KEYS, BLOCKS, RANK = 4096, 14336, 1024, 32, 16  # llama-3-8b
TARGETS = {
    "linear_qkv": (WIDTH, WIDTH + 2 * KEYS),
    "linear_proj": (WIDTH, WIDTH),
    "linear_fc1": (WIDTH, 2 * INNER),
    "linear_fc2": (INNER, WIDTH),
}
TOKENS = 2 * 256


def components(targets: tuple[str, ...] | None = None, **keys: Any) -> dict[str, int]:
    job = {"model": "llama-3-8b", "gpu": "b200", "runtime": "megatron", "sequence_length": 256, "micro_batch_size": 2}
    adapter: dict[str, Any] = {"kind": "lora", "rank": RANK, "dropout": 0.0}
    job |= {"precision": "mixed-bf16", "attention": "flash", "activation_checkpointing": "none"}
    job |= {"adapter": adapter | ({"targets": list(targets)} if targets else {}), **keys}
    return {one.name: one.bytes for one in answer(build_job(job)).components}


@pytest.mark.closed_form
def test_what_is_trained_has_states_and_the_rest_only_weights() -> None:
    found = components()
    own = BLOCKS * RANK * sum(map(sum, TARGETS.values()))
    assert found["weights"] == pytest.approx(2 * (8_030_261_248 + own), rel=1e-4)
    states = {"master": 4 * own, "optimizer": 8 * own, "gradients": 4 * own}
    assert {name: found[name] for name in states} == {
        name: pytest.approx(size, rel=1e-3) for name, size in states.items()
    }


@pytest.mark.closed_form
@pytest.mark.parametrize("target", ["linear_proj", "linear_fc1", "linear_fc2"])
def test_an_adapter_keeps_its_input_and_its_thin_result(target: str) -> None:
    """Without that of `linear_qkv` attention of the first block would be in no graph either."""
    others = tuple(name for name in TARGETS if name != target)
    without, found = components(others)["activations"], components(tuple(TARGETS))["activations"]
    shared = target == "linear_proj"  # attention has saved its result itself
    width = RANK + (0 if shared else TARGETS[target][0])
    assert found - without == pytest.approx(2 * TOKENS * BLOCKS * width, rel=0.05)


@pytest.mark.closed_form
def test_two_devices_share_what_is_trained() -> None:
    """Of layers with split outputs the rank is split in the first matrix, outputs in the second."""
    found = components(parallel={"tensor": 2}, adapter={"kind": "lora", "rank": RANK})
    first = WIDTH + WIDTH  # inputs of linear_qkv and linear_fc1 times half of the rank
    split = (first + WIDTH + 2 * KEYS + 2 * INNER + WIDTH + INNER + WIDTH + WIDTH) // 2
    assert found["master"] == pytest.approx(4 * BLOCKS * RANK * split, rel=1e-3)


@pytest.mark.closed_form
def test_experts_of_a_device_share_an_adapter() -> None:
    """As a grouped layer has one for all of its experts."""
    both = ("linear_fc1", "linear_fc2")
    width, inner, blocks = 4096, 14336, 32
    keys: dict[str, Any] = {"model": "mixtral-8x7b", "parallel": {"data": 8, "expert": 8, "sharding": "ddp"}}
    own = blocks * RANK * (width + 2 * inner + inner + width)
    assert components(both, **keys)["master"] == pytest.approx(4 * own, rel=1e-3)
    assert components(both, model="mixtral-8x7b")["master"] == pytest.approx(4 * own, rel=1e-3)


@pytest.mark.closed_form
def test_frozen_blocks_in_checkpoints_are_walked() -> None:
    """Their input is made to need a gradient, and of each block only that is kept."""
    found = components(activation_checkpointing="full")
    assert found["master"] == components()["master"]
    assert found["activations"] < components()["activations"] / 2


def test_names_of_other_programs_stand_for_megatrons_layers() -> None:
    assert components(("q_proj", "k_proj", "v_proj", "down_proj")) == components(("linear_qkv", "linear_fc2"))


def test_what_was_never_traced_is_said_and_what_it_cannot_run_is_refused() -> None:
    words = ("-m", "llama-3-8b", "-g", "h100", "--runtime", "megatron", "--seq", "512", "--adapter", "lora")
    assert "adapter lora was never traced" in " ".join(run("fit", *words, "--details").out.split())
    for more, what in (
        (("--gpus", "8", "--tensor", "8", "--rank", "4"), "adapter.rank"),
        (("--gpus", "2", "--sharding", "zero1", "--micro-batch", "1"), "Megatron-DeepSpeed"),
        (("--targets", "linear_q"), "linear_qkv"),
    ):
        ran = run("fit", *words, *more)
        assert ran.code == 2
        assert what in ran.err
