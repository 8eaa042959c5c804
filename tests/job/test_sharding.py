"""What goes with shards, what does not and says so, and that remedies of a sharded job can be asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces.models import CONFIGS
from vramplan.answers.fit import answer
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.job.echo import job_to_dict
from vramplan.planner.setups import iteration_of
from vramplan.values.job import ResolvedJob

BASE: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "h100",
    "parallel": {"data": 8, "sharding": "fsdp"},
    "precision": "fsdp-bf16",
    "micro_batch_size": 1,
}
LORA = {"kind": "lora", "rank": 8}
FSDP1 = {"data": 8, "sharding": "fsdp", "fsdp_version": 1}
HOST = ["parameters", "gradients", "optimizer"]


def job(**keys: Any) -> ResolvedJob:
    found = build_job({**BASE, **keys})
    assert isinstance(found, ResolvedJob)
    return found


@pytest.mark.sweep(16)
@pytest.mark.parametrize(
    "keys",
    [
        {"max_gradient_norm": 1},
        {"frozen": ["embeddings", "layers.0-3"]},
        {"adapter": LORA},
        {"adapter": LORA, "weight_dtype": "bf16"},
        {"adapter": {**LORA, "modules_to_save": ["lm_head"]}, "weight_dtype": "bf16", "max_gradient_norm": 0.5},
        {"adapter": {**LORA, "dtype": "fp32"}, "precision": "pure-bf16"},
        {"adapter": {"kind": "ia3"}, "precision": "amp-bf16", "weight_dtype": "bf16"},
        {"adapter": LORA, "quantization": "nf4-double", "weight_dtype": "bf16"},
        {"parallel": FSDP1, "max_gradient_norm": 1},
        {"parallel": FSDP1, "frozen": ["layers.0-3"]},
        {"parallel": FSDP1, "frozen": ["encoder.layers.0-3"], "model": "t5-base", "precision": "amp-bf16"},
        {"parallel": FSDP1, "optimizer": "lars", "precision": "fsdp-fp16"},
        {"parallel": FSDP1, "optimizer": "adafactor"},
        {"parallel": {"data": 16, "sharding": "hsdp:8", "reduce_dtype": "bf16", "fsdp_units": "embedding-and-head"}},
        {"parallel": {"data": 16, "sharding": "fsdp-grad-op", "shards": 4}},
        {"offload": HOST, "max_gradient_norm": 1},
        {"offload": HOST, "max_gradient_norm": 1, "parallel": FSDP1},
        {
            "offload": [*HOST, "activations"],
            "activation_checkpointing": "full",
            "parallel": FSDP1,
        },
        {"offload": ["parameters", "gradients", "optimizer"], "adapter": LORA, "quantization": "nf4"},
        {"adapter": LORA, "parallel": FSDP1, "max_gradient_norm": 1},
        {"adapter": LORA, "weight_dtype": "bf16", "quantization": "nf4-double", "offload": HOST, "parallel": FSDP1},
        {"activation_checkpointing": "selective-op", "every_second_matmul": True},
        {"loss": "chunked:8"},
        {"adapter": {**LORA, "modules_to_save": ["lm_head", "embed_tokens"]}, "parallel": FSDP1},
        {"adapter": {**LORA, "dtype": "fp32", "modules_to_save": ["lm_head"]}, "precision": "pure-bf16"},
        {"adapter": {**LORA, "modules_to_save": ["embed_tokens"]}, "model": "llama-3.2-1b"},
        {"optimizer": "adamw-8bit"},
        {"precision": "fsdp-fp16", "gpu": "v100"},
        {"compute_dtype": "fp16", "gradient_accumulation_steps": 2},
    ],
)
def test_what_goes_with_shards_is_answered_and_can_be_fed_back(keys: dict[str, Any]) -> None:
    found = answer(job(**keys))
    again = build_job(job_to_dict(job(**keys)))
    assert isinstance(again, ResolvedJob)
    assert answer(again).verdict == found.verdict


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"adapter": {**LORA, "dtype": "bf16"}}, "adapter.dtype: bf16 is not modelled with fsdp-bf16"),
        (
            {"adapter": LORA, "quantization": "int8", "precision": "pure-bf16"},
            "quantization: int8 cannot run with parallel.sharding fsdp: a DTensor in the place of the weight has none",
        ),
        (
            {"adapter": LORA, "quantization": "int8", "precision": "pure-bf16", "parallel": FSDP1},
            "quantization: int8 cannot run with parallel.sharding fsdp and fsdp_version 1: PyTorch makes one tensor",
        ),
        (
            {"adapter": {**LORA, "modules_to_save": ["lm_head"]}, "parallel": FSDP1, "loss": "fused"},
            "loss: fused with a trained copy of the head cannot run with parallel.sharding fsdp and fsdp_version 1",
        ),
        (
            {"adapter": {"kind": "ia3"}, "parallel": FSDP1},
            "adapter: ia3 cannot run with parallel.sharding fsdp and fsdp_version 1: PyTorch makes one tensor",
        ),
        (
            {"optimizer": "muon", "parallel": FSDP1},
            "optimizer: muon cannot run with parallel.sharding fsdp and fsdp_version 1: it steps matrices",
        ),
        (
            {"optimizer": "came", "parallel": {"data": 2, "sharding": "fsdp"}},
            "optimizer: came cannot run with parallel.sharding fsdp: it adds a DTensor to a plain tensor",
        ),
        (
            {
                "optimizer": "adagrad",
                "optimizer_implementation": "fused",
                "parallel": {"data": 2, "sharding": "fsdp"},
            },
            "optimizer_implementation: fused adagrad cannot run with parallel.sharding fsdp: PyTorch has no",
        ),
        (
            {"optimizer": "stable-adamw", "parallel": {"data": 2, "sharding": "fsdp"}},
            "optimizer_implementation: fused stable-adamw cannot run with parallel.sharding fsdp: the kernels of",
        ),
        (
            {"optimizer": "prodigy", "parallel": FSDP1},
            "optimizer: prodigy is not modelled with parallel.sharding fsdp and fsdp_version 1",
        ),
        (
            {"adapter": LORA, "parallel": FSDP1, "runtime": "litgpt", "precision": "amp-bf16"},
            "adapter: lora of litgpt's own code is not modelled with parallel.sharding fsdp and fsdp_version 1",
        ),
        (
            {"adapter": LORA, "quantization": "nf4", "parallel": FSDP1, "weight_dtype": "fp32"},
            "quantization: nf4 beside fp32 weights cannot run with parallel.sharding fsdp and fsdp_version 1",
        ),
        (
            {"frozen": ["embeddings", "layers.0"], "parallel": FSDP1},
            "frozen: embeddings, layers.0 cannot run with parallel.sharding fsdp and fsdp_version 1",
        ),
        (
            {"parallel": {"data": 8, "sharding": "hsdp:3"}},
            "parallel.sharding: hsdp:3: 3 do not divide the 8 data-parallel devices",
        ),
        (
            {"parallel": {"data": 8, "sharding": "hsdp:4", "shards": 2}},
            "parallel.shards: 2 contradicts hsdp:4",
        ),
        ({"parallel": {"data": 8, "sharding": "hsdp:1"}}, "parallel.sharding: 1 device shares nothing"),
        ({"parallel": {**FSDP1, "fsdp_units": "head"}}, "parallel.fsdp_units: head: units beside the blocks are"),
        (
            {"parallel": {"data": 8, "sharding": "fsdp", "fsdp_units": "embedding-and-norm-head"}},
            "parallel.fsdp_units: embedding-and-norm-head: the replay does not follow units",
        ),
        (
            {"model": "llama-3.2-1b", "parallel": {"data": 8, "sharding": "fsdp", "fsdp_units": "embedding"}},
            "parallel.fsdp_units: embedding: a tied head uses the embedding outside of its unit",
        ),
        (
            {"loss": "fused", "parallel": {"data": 8, "sharding": "fsdp", "fsdp_units": "head"}},
            "parallel.fsdp_units: head: loss fused reads the head's weight outside of its unit",
        ),
        (
            {"parallel": {"data": 8, "sharding": "ddp", "fsdp_units": "head"}, "precision": "amp-bf16"},
            "parallel.fsdp_units: belongs to FSDP",
        ),
        (
            {"parallel": {"data": 8, "sharding": "fsdp", "fsdp_version": 3}},
            "parallel.fsdp_version: '3' is not a known value (1: FullyShardedDataParallel, 2: fully_shard)",
        ),
        (
            {"parallel": {"data": 8, "sharding": "ddp", "reduce_dtype": "bf16"}, "precision": "amp-bf16"},
            "parallel.reduce_dtype: belongs to FSDP",
        ),
        (
            {"offload": ["parameters", "gradients"]},
            "offload: parameters, gradients without optimizer: FSDP keeps all three on the host, or none",
        ),
        (
            {"offload": HOST, "parallel": {"data": 8, "sharding": "fsdp", "fsdp_version": 1, "no_sync": False}},
            "parallel.no_sync: false contradicts states on the host under fsdp_version 1",
        ),
        (
            {
                "offload": [*HOST, "activations"],
                "parallel": FSDP1,
                "gradient_accumulation_steps": 2,
            },
            "activation_checkpointing: a choice of them beside activations on the host and accumulation",
        ),
        (
            {"offload": ["optimizer"], "parallel": FSDP1},
            "offload: optimizer without parameters, gradients: FSDP keeps all three on the host, or none",
        ),
        (
            {"optimizer": "lion", "parallel": {"data": 8, "sharding": "fsdp", "fsdp_version": 2}},
            "optimizer: lion is not modelled with parallel.sharding fsdp",
        ),
        ({"optimizer": "adafactor"}, "optimizer: adafactor cannot run with parallel.sharding fsdp: PyTorch's"),
        (
            {"model": "mixtral-8x7b", "adapter": {**LORA, "targets": ["all-linear"]}, "parallel": FSDP1},
            "adapter: lora over experts cannot run with parallel.sharding fsdp",
        ),
        (
            {"adapter": {**LORA, "dtype": "fp32", "modules_to_save": ["norm"]}, "precision": "pure-bf16"},
            "adapter: an fp32 adapter beside modules_to_save in 16 bits cannot run with parallel.sharding fsdp",
        ),
        (
            {"model": "clip-vit-base-patch32"},
            "parallel.sharding: fsdp takes no scalar weight, and clip has one (logit_scale)",
        ),
        (
            {"optimizer": "adamw", "activation_checkpointing": "optimal"},
            "activation_checkpointing: optimal is not modelled with parallel.sharding fsdp",
        ),
    ],
)
def test_what_does_not_go_with_shards_is_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as raised:
        job(**keys)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"model": "vit-b-16"}, "precision fsdp-bf16 over images was never traced together with"),
        ({"adapter": {"kind": "dora"}, "quantization": "nf4"}, "quantization nf4 beneath dora was never traced"),
        (
            {"adapter": {"kind": "ia3"}, "quantization": "nf4", "precision": "amp-bf16", "weight_dtype": "bf16"},
            "quantization nf4 beneath ia3 was never traced",
        ),
        ({"activation_checkpointing": "selective-layer:2"}, "activation_checkpointing selective-layer:2 was never"),
        ({"activation_checkpointing": "selective-op", "parallel": FSDP1}, "activation_checkpointing selective-op was"),
        ({"model": "olmoe-1b-7b", "parallel": FSDP1}, "model olmoe was never traced together with"),
        (
            {"optimizer": "sgd", "precision": "mixed-bf16", "parallel": {"data": 8, "sharding": "zero2"}},
            "optimizer sgd was never traced together with parallel.sharding zero2",
        ),
    ],
)
def test_what_was_never_traced_with_shards_is_answered_and_said(keys: dict[str, Any], says: str) -> None:
    assert any(one.startswith(says) for one in job(**keys).composed)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("keys", [{}, {"adapter": LORA}, {"precision": "amp-bf16"}, {"precision": "fp32"}])
def test_every_remedy_of_a_sharded_job_is_a_job(keys: dict[str, Any]) -> None:
    keys = {"gpu": {"name": "x", "memory": "6 GiB", "bf16": True}, "sequence_length": 2048, **keys}
    found = answer(job(**keys))
    assert found.verdict != "fits"
    for remedy in found.remedies:
        if "gpu" not in remedy.change:
            job(**{**keys, **remedy.change})


def test_groups_that_share_are_the_same_in_both_words() -> None:
    by_word = job(parallel={"data": 16, "sharding": "hsdp:4"})
    by_key = job(parallel={"data": 16, "sharding": "fsdp", "shards": 4})
    assert by_word.sharding == by_key.sharding
    assert job_to_dict(by_key)["parallel"]["sharding"] == "hsdp:4"


def test_states_on_the_host_are_told_with_what_crosses_the_link() -> None:
    """AdamW over fp32 shards: 4 bytes of a weight and 4 of its gradient are pinned, 8 of its moments are not."""
    found = answer(job(offload=["parameters", "gradients", "optimizer"], gradient_accumulation_steps=1))
    assert found.host is not None
    part = found.host.to_host_bytes
    assert found.host.states_bytes == 4 * part
    assert found.host.to_device_bytes == 2 * part
    assert 2 * part <= found.host.pinned_bytes < 4 * part
    assert found.host.node_bytes == 8 * (found.host.pinned_bytes + 2 * part)
    assert part >= 4 * found.total_parameters // 8


@pytest.mark.parametrize(
    ("optimizer", "moments"),
    [("nadam", 2.0), ("asgd", 1.0), ("schedule-free-sgd", 1.0), ("adopt", 2.0), ("lion", 1.0), ("lamb", 2.0)],
)
def test_every_optimizer_of_fsdp1_has_its_states_on_the_host(optimizer: str, moments: float) -> None:
    """Each moment is as wide as the fp32 shards."""
    keys = {"offload": HOST, "gradient_accumulation_steps": 1, "optimizer": optimizer}
    found = answer(job(**keys, parallel={"data": 8, "sharding": "fsdp", "fsdp_version": 1}))
    assert found.host is not None
    part = found.host.to_host_bytes
    assert (2 + moments) * part <= found.host.states_bytes < (2 + moments) * part * 1.001


@pytest.mark.parametrize("parallel", [{}, {"fsdp_version": 1}, {"reduce_dtype": "fp32"}])
def test_a_policy_in_fp16_has_the_bytes_of_one_in_bf16(parallel: dict[str, Any]) -> None:
    """Of two element types of one size nothing is different but the name."""
    shared = {"parallel": {"data": 8, "sharding": "fsdp", **parallel}, "gradient_accumulation_steps": 4}
    two = [answer(job(**shared, precision=precision)).peak for precision in ("fsdp-bf16", "fsdp-fp16")]
    assert two[0] == two[1]


def test_a_gpu_without_bf16_is_told_of_fp16() -> None:
    with pytest.raises(InputError, match="v100 has no bf16, which fsdp-bf16 needs"):
        job(gpu="v100")
    assert job(gpu="v100", compute_dtype="fp16").precision == "fsdp-fp16"


@pytest.mark.parametrize(("runtime", "summed"), [("transformers", "bf16"), ("pytorch", None), ("torchtitan", "fp32")])
def test_gradients_are_summed_as_the_policy_of_the_runtime_says(runtime: str, summed: str | None) -> None:
    sharding = job(runtime=runtime).sharding
    assert sharding is not None
    assert sharding.reduce_dtype == summed


@pytest.mark.parametrize("given", ["fp32", "bf16"])
def test_whole_gradients_wait_in_the_type_that_they_are_summed_in(given: str) -> None:
    """Closed form: 2 or 4 bytes for every parameter, on every device."""
    shared = {"parallel": {"data": 8, "sharding": "fsdp", "reduce_dtype": given}, "gradient_accumulation_steps": 4}
    found = answer(job(**shared, model="llama-2-7b", sequence_length=512))
    width = {"fp32": 4, "bf16": 2}[given]
    (gradients,) = [one for one in found.components if one.name == "gradients"]
    assert 0.99 * width * 6738415616 < gradients.bytes <= width * 6738415616  # less what is a shard already
    assert f"x {width} B" in gradients.basis


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("keys", "verdict"),
    [
        ({"gpu": {"name": "V100", "memory": "31.75 GiB"}, "parallel": {"data": 5, "sharding": "fsdp"}}, "does-not-fit"),
        # it ran, and its likely figure fits; the range that estimates under FSDP have earned goes above the card
        ({"gpu": {"name": "A100", "memory": "40 GiB"}, "parallel": {"data": 8, "sharding": "fsdp"}}, "tight"),
    ],
)
def test_published_runs_of_alpaca_under_the_trainer(keys: dict[str, Any], verdict: str) -> None:
    """Measured truth: tatsu-lab/stanford_alpaca issues 223 (out of memory) and 190 (812 steps of training)."""
    precision = "fsdp-fp16" if verdict == "does-not-fit" else "fsdp-bf16"
    shared = {"model": "llama-7b", "precision": precision, "sequence_length": 512, "gradient_accumulation_steps": 8}
    kernels = {"activation_checkpointing": "none", "attention": "eager", "allocator": "simulate"}
    assert answer(job(**shared, **keys, **kernels)).verdict == verdict


def test_a_flat_parameter_holds_nothing_that_is_never_trained(tmp_path: Path) -> None:
    """The bias of Afmoe's router has no gradient, and PyTorch wants a unit to be trained as a whole or not at all."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "afmoe", **CONFIGS["afmoe"]}), "utf-8")
    keys = {"model": str(config), "sequence_length": 64, "precision": "amp-bf16", "parallel": FSDP1}
    with pytest.raises(InputError, match=r"1 is not modelled for afmoe: .* its router's expert_bias"):
        job(**keys)
    assert job(**keys, adapter={**LORA, "targets": ["q_proj"]}).adapter is not None


def test_accelerate_has_autocast_inside_of_fsdp1_and_a_plain_loop_has_none() -> None:
    found = {
        (runtime, version): iteration_of(job(runtime=runtime, parallel={**FSDP1, "fsdp_version": version})).precision
        for runtime in ("transformers", "pytorch")
        for version in (1, 2)
    }
    assert found.pop(("transformers", 1)) == "fsdp-autocast-bf16"
    assert set(found.values()) == {"fsdp-bf16"}


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_lora_wants_autocast_beside_the_policy_of_fsdp1(kind: str) -> None:
    keys: dict[str, Any] = {"parallel": FSDP1, "adapter": {**LORA, "kind": kind}}
    with pytest.raises(InputError, match=r"cannot run with .* fsdp_version 1: PEFT casts an input to the fp32"):
        job(runtime="pytorch", **keys)
    assert job(runtime="transformers", **keys).adapter is not None
    assert job(runtime="pytorch", precision="amp-bf16", **keys).adapter is not None
