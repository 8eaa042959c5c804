"""Axolotl's fused LoRA over 4-bit weights under ZeRO-3: what the module around them gathers is as it is packed."""

from __future__ import annotations

import pytest

from tests.job.test_families import small
from vramplan.job import build_job
from vramplan.planner.setups import setup_of
from vramplan.replay.step import replay

pytestmark = pytest.mark.closed_form


@pytest.mark.parametrize("quantization", [None, "nf4"])
def test_what_the_functions_ask_for_is_gathered_as_it_lies_on_its_devices(quantization: str | None) -> None:
    keys = {"model": small("llama", layers=2), "gpu": "h100", "sequence_length": 32, "precision": "mixed-bf16"}
    parallel = {"data": 2, "sharding": "zero3", "stage3_param_persistence_threshold": 0}
    adapter = {"kind": "lora", "targets": ["o_proj"], "kernels": ["o"]}
    job = build_job(
        {
            **keys,
            "parallel": parallel,
            "adapter": adapter,
            "quantization": quantization,
            "activation_checkpointing": "none",
        }
    )
    record = replay(setup_of(job, "none", accumulates=False))
    gathered = {size for category, size in zip(record.categories, record.fixed, strict=True) if category == "gathered"}
    elements = job.model.hidden_size * job.model.attention_heads * job.model.head_size
    codes, halves = elements // 2, 2 * elements
    assert (codes in gathered, halves in gathered) == (quantization is not None, quantization is None)
