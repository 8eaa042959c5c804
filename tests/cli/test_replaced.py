"""Options that replace a key of a file: what belonged to its value goes with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import run
from vramplan.cli.replaced import meaningless, precision_for

pytestmark = pytest.mark.plain

FSDP = """
base_model: NousResearch/Llama-3.2-1B
sequence_len: 512
micro_batch_size: 1
gradient_accumulation_steps: 1
optimizer: adamw_torch_fused
bf16: true
adapter: lora
lora_r: 8
lora_target_linear: true
fsdp_version: 2
fsdp_config: {reshard_after_forward: true}
"""


@pytest.mark.parametrize(
    ("files", "typed", "gone"),
    [
        ({"parallel.fsdp_version": 2, "parallel.sharding": "fsdp"}, {"parallel.sharding": "zero3"}, ["fsdp_version"]),
        ({"parallel.fsdp_version": 2}, {"parallel.sharding": "hsdp:4"}, []),
        ({"parallel.fsdp_version": 2}, {"parallel.sharding": "zero3", "parallel.fsdp_version": "1"}, []),
        ({"parallel.sub_group_size": 1}, {"parallel.sharding": "zero2"}, ["sub_group_size"]),
        ({"adapter.kind": "lora", "adapter.rank": 8}, {"adapter.kind": None}, ["rank"]),
        ({"adapter.kind": "lora", "adapter.rank": 8}, {"adapter.kind": "dora"}, []),
        ({"loss": "dpo", "dpo_reference": "model"}, {"loss": "standard"}, ["dpo_reference"]),
        ({"weight_dtype": "fp32"}, {"precision": "pure-bf16"}, ["weight_dtype"]),
        ({"weight_dtype": "bf16"}, {"precision": "amp-bf16"}, []),
        ({"grad_scaler": True, "precision": "amp-fp16"}, {"precision": "amp-bf16"}, ["grad_scaler"]),
        ({"grad_scaler": True, "precision": "fsdp-fp16"}, {"parallel.sharding": "zero2"}, ["grad_scaler"]),
        ({"grad_scaler": True, "precision": "fsdp-fp16"}, {"parallel.sharding": "ddp"}, []),
        ({"loss": "dpo", "dpo_reference": "model"}, {"loss": "kto"}, []),
        ({"every_second_matmul": True}, {"activation_checkpointing": "full"}, ["every_second_matmul"]),
        ({"every_second_matmul": True}, {"activation_checkpointing": "selective-op"}, []),
        ({"every_second_matmul": True}, {"micro_batch_size": 2}, []),
        ({"adapter.kind": "lora", "dpo_reference": "adapter-off"}, {"adapter.kind": None}, ["dpo_reference"]),
        ({"adapter.kind": "lora", "dpo_reference": "precomputed"}, {"adapter.kind": None}, []),
    ],
)
def test_what_means_nothing(files: dict[str, object], typed: dict[str, object], gone: list[str]) -> None:
    assert sorted(key.rpartition(".")[2] for key in meaningless(files, typed)) == gone


@pytest.mark.parametrize(
    ("sharding", "precision"), [("zero2", "mixed-bf16"), ("ddp", "amp-bf16"), ("fsdp-grad-op", "fsdp-bf16")]
)
def test_states_are_shared_in_another_way(sharding: str, precision: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(FSDP, "utf-8")
    ran = run("fit", tmp_path / "a.yaml", "--gpu", "8xh100", "--sharding", sharding, "--format", "json")
    assert ran.code == 0, ran.err
    job = ran.document["job"]
    assert (job["parallel"]["sharding"], job["precision"]) == (sharding, precision)
    assert (job["parallel"].get("fsdp_version") is not None) == sharding.startswith("fsdp")


def test_an_adapter_is_taken_away(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(FSDP, "utf-8")
    ran = run("fit", tmp_path / "a.yaml", "--gpu", "8xh100", "--adapter", "null", "--format", "json")
    assert ran.code == 0, ran.err
    assert ran.document["job"]["adapter"] is None


@pytest.mark.parametrize(
    ("own", "before", "sharding", "meant"),
    [
        ("fsdp-bf16", "fsdp", "ddp", "amp-bf16"),
        ("amp-fp16", None, "hsdp:2", "fsdp-fp16"),
        ("mixed-bf16", "zero3", "fsdp", "fsdp-bf16"),
        ("mixed-bf16", "distributed-optimizer", "ddp", None),  # Megatron's own copy
        ("pure-bf16", "fsdp", "ddp", None),
        ("fp32", None, "fsdp", None),
    ],
)
def test_what_a_precision_means_under_another_sharding(
    own: str, before: str | None, sharding: str, meant: str | None
) -> None:
    files = {"precision": own, **({"parallel.sharding": before} if before else {})}
    assert precision_for(files, {"parallel.sharding": sharding}) == meant
    assert precision_for(files, {"parallel.sharding": sharding, "precision": "fp32"}) is None
    assert precision_for(files, {}) is None


@pytest.mark.parametrize(("sharding", "gone"), [("zero2", {"weight_dtype"}), ("ddp", set()), ("fsdp", set())])
def test_a_master_copy_is_of_whatever_was_loaded(sharding: str, gone: set[str]) -> None:
    files = {"precision": "amp-bf16", "weight_dtype": "fp32"}
    assert meaningless(files, {"parallel.sharding": sharding}) == gone
