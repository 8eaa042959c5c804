"""An MLP in tiles: what a job may ask for, and what is saved."""

from __future__ import annotations

from typing import Any

import pytest

from tests.answers import answer
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.job.echo import job_to_dict
from vramplan.replay.models.tiled_mlp import STOPS, TILED

LLAMA: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "h100", "precision": "pure-bf16", "sequence_length": 512}
STORED: dict[str, Any] = {"micro_batch_size": 2, "activation_checkpointing": "none", "gradient_accumulation_steps": 1}
LORA: dict[str, Any] = {"kind": "lora", "targets": ["all-linear"], "rank": 8}
OF_ATTENTION: dict[str, Any] = {"kind": "lora", "targets": ["q_proj", "v_proj"], "rank": 8}


@pytest.mark.contract
@pytest.mark.parametrize(
    ("keys", "tiles", "said"),
    [
        ({}, 4, None),
        ({"sequence_length": 10, "tiled_mlp": 6}, 5, None),  # as torch.chunk cuts
        ({"adapter": LORA}, 4, None),
        ({"adapter": {**LORA, "kernels": ["mlp"]}}, None, "changes nothing: Axolotl's fused LoRA"),
        ({"model": "qwen3-30b-a3b"}, None, "is not modelled for qwen3_moe: the whole MLP is counted"),
        ({"compile": True, **STORED}, None, "is not modelled in a compiled model"),
        ({"loss": "dpo"}, None, "is not modelled beside a reference model"),
        ({"parallel": {"data": 2, "sharding": "ddp"}, "adapter": OF_ATTENTION}, 4, None),
        ({"parallel": {"data": 2, "sharding": "fsdp", "fsdp_version": 1}}, None, "with parallel.fsdp_version 1"),
        ({"parallel": {"data": 2, "sharding": "zero3"}, "precision": "mixed-bf16"}, 4, None),
        ({"precision": "mixed-bf16", "gradient_dtype": "fp32", "adapter": OF_ATTENTION}, 4, None),
        ({"precision": "amp-bf16", "gradient_dtype": "fp32"}, 4, None),
    ],
)
def test_what_does_not_run_in_tiles_is_told(keys: dict[str, Any], tiles: int | None, said: str | None) -> None:
    one = build_job({**LLAMA, "tiled_mlp": 4, **keys})
    assert one.tiled_mlp == tiles
    assert [said in text for text in one.warnings if "tiled_mlp" in text] == ([True] if said else [])


@pytest.mark.contract
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model": "opt-1.3b"}, "Axolotl stops at a opt: it has no class of that name"),
        ({"runtime": "torchtune"}, "Axolotl replaces no MLP of llama under torchtune"),
        ({"optimizer_in_backward": True, **STORED}, "a weight would be stepped after each of them"),
        ({"precision": "mixed-bf16", "gradient_dtype": "fp32"}, "buffers of fp32 gradients never get the sum"),
        ({"parallel": {"data": 2, "sharding": "ddp"}}, "DistributedDataParallel stops"),
        ({"parallel": {"data": 2, "sharding": "fsdp"}}, "under fully_shard Axolotl lets go of the weights"),
        (
            {"parallel": {"data": 2, "sharding": "zero2"}, "precision": "mixed-bf16", "sequence_length": 10},
            "DeepSpeed waits for tile 6 before it reduces gradients, and there are 5",
        ),
        ({"tiled_mlp": 0}, "tiled_mlp"),
    ],
)
def test_where_it_does_not_run_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        build_job({**LLAMA, "tiled_mlp": 6, **keys})
    assert said in str(caught.value)


@pytest.mark.contract
def test_it_is_echoed() -> None:
    assert not set(TILED) & set(STOPS)
    assert job_to_dict(build_job({**LLAMA, "tiled_mlp": 4}))["tiled_mlp"] == 4


@pytest.mark.closed_form
def test_an_mlp_in_tiles_saves_its_input_alone() -> None:
    """Of a gated MLP F wide, over N rows in 16 bits: gate, activation, up and their product go."""
    rows, inner, blocks = 2 * 512, 8192, 16

    def saved(tiles: int | None) -> int:
        found = answer(build_job({**LLAMA, **STORED, "tiled_mlp": tiles})).peak.saved_bytes
        assert found is not None
        return found

    assert saved(None) - saved(4) == blocks * 4 * rows * inner * 2
    assert saved(4) == saved(1)
