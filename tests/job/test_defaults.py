"""What a job has that names only what people type first: weights, FSDP's policy, clipping, and the batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vramplan
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.job.echo import job_to_dict
from vramplan.planner.choose import choose
from vramplan.planner.decision import ALWAYS, decide
from vramplan.planner.judge import Judge
from vramplan.results import DOES_NOT_FIT, FITS, TIGHT
from vramplan.values.job import ResolvedJob

pytestmark = pytest.mark.contract

LORA = {"adapter": {"kind": "lora"}}
QLORA = {**LORA, "quantization": "nf4"}
FSDP = {"parallel": {"data": 8, "sharding": "fsdp"}}
UNKNOWN = "bloom-1b7"  # whose profile names no element type


def job(model: str, gpu: str = "h100", **keys: Any) -> ResolvedJob:
    """The job of a few keys."""
    return build_job({"model": model, "gpu": gpu, **keys})


def why(made: ResolvedJob, key: str) -> str:
    """What the job says of an assumption."""
    return next(one.why for one in made.assumptions if one.key == key)


def weights_of(made: ResolvedJob) -> str:
    """The element type that the job has told of."""
    return str(next(one.value for one in made.assumptions if one.key == "weight_dtype"))


@pytest.mark.parametrize(
    ("model", "gpu", "keys"),
    [
        ("llama-3.1-8b", "a100-80gb", {}),
        ("llama-3.1-8b", "rtx-4090", LORA),
        ("mistral-7b", "rtx-3060", QLORA),  # 8B is tight there, by the range that users' QLoRA has earned
        (
            "mistral-7b",
            "t4",
            {**QLORA, "adapter": {"kind": "lora", "rank": 16, "targets": ["all-linear"]}, "micro_batch_size": 1},
        ),
        ("llama-3.2-1b", "rtx-3090", {}),
        ("qwen2.5-1.5b", "rtx-4090", {}),
        ("qwen3-8b", "h100", {**LORA, "micro_batch_size": 1, "activation_checkpointing": "none"}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_people_type_first_fits(model: str, gpu: str, keys: dict[str, Any]) -> None:
    made = job(model, gpu, **keys)
    assert made.half_weights
    assert weights_of(made) == made.precision.rpartition("-")[2]
    assert decide(made, closer_from=ALWAYS).choice.rung.verdict == FITS
    full = job(model, gpu, **keys, weight_dtype="fp32")
    larger, peak = (choose(one, Judge(one)).rung.peak.device for one in (full, made))
    assert larger > peak or choose(full, Judge(full)).rung.schedule != choose(made, Judge(made)).rung.schedule


@pytest.mark.parametrize("gpu", ["t4", "rtx-4060-ti-16gb"])
def test_8b_of_few_bits_fits_on_a_small_card(gpu: str) -> None:
    """As a notebook that ran on a T4 shows (tests/measured/fifth_peaks.yaml, unsloth-nb-llama-3-8b-alpaca)."""
    rank = {**QLORA, "adapter": {"kind": "lora", "rank": 16, "targets": ["all-linear"]}, "micro_batch_size": 1}
    made = job("llama-3.1-8b", gpu, **rank)
    assert decide(made, closer_from=ALWAYS).choice.rung.verdict == FITS


@pytest.mark.parametrize("given", ["auto", "bf16", "fsdp-bf16"])
def test_fsdp_of_the_trainer_has_accelerates_policy(given: str) -> None:
    made = job("llama-3.1-8b", "a100-80gb", sequence_length=8192, precision=given, **FSDP)
    assert made.precision == "fsdp-bf16"
    assert made.sharding is not None
    assert made.sharding.reduce_dtype == "bf16"
    assert not made.half_weights
    assert "accelerate" in why(made, "weight_dtype")
    assert choose(made, Judge(made)).rung.verdict == FITS


def test_autocast_that_is_written_out_stays() -> None:
    assert job("llama-3.1-8b", precision="amp-bf16", **FSDP).precision == "amp-bf16"


def test_a_gpu_without_bf16_has_the_policy_in_fp16() -> None:
    assert job("llama-3.1-8b", "v100", **FSDP).precision == "fsdp-fp16"


def test_8_bit_optimizers_and_adapters_go_with_the_policy() -> None:
    eight = job("llama-3.1-8b", optimizer="adamw-8bit", **FSDP)
    assert eight.precision == "fsdp-bf16"
    assert eight.sharding is not None
    assert eight.sharding.version == 1
    adapted = job("llama-3.1-8b", **LORA, **FSDP)
    assert adapted.precision == "fsdp-bf16"
    assert adapted.half_weights
    assert adapted.adapter is not None
    assert adapted.adapter.dtype == "fp32"


@pytest.mark.parametrize(
    ("keys", "dtype", "reason"),
    [
        ({"from_scratch": True}, "fp32", "from scratch"),
        ({"precision": "fp32"}, "fp32", "precision fp32"),
        ({"gpu": "v100"}, "fp32", "GradScaler"),
        ({"gpu": "v100", **LORA}, "fp16", "has bf16"),
        ({"model": "llama-2-7b"}, "fp32", "has fp16"),
        ({"model": "llama-2-7b", **LORA}, "bf16", "has fp16"),
        ({"model": "gpt2"}, "fp32", "checkpoint of gpt2 has it"),
        ({"model": UNKNOWN}, "fp32", "unknown"),
        ({"compile": True}, "bf16", "has it"),
        ({"loss": "dpo", **LORA}, "fp32", "TRL"),
        ({"parallel": {"data": 8}}, "bf16", "has it"),
    ],
    ids=str,
)
def test_each_way_to_load_is_told(keys: dict[str, Any], dtype: str, reason: str) -> None:
    made = build_job({"model": "llama-3.2-1b", "gpu": "h100", **keys})
    assert weights_of(made) == dtype
    assert reason in why(made, "weight_dtype")
    assert made.half_weights == (dtype != "fp32")


def test_an_unknown_element_type_is_told_where_the_weights_are_most() -> None:
    """Beside an adapter, where whole weights in fp32 may be what does not fit."""
    said = "--weight-dtype bf16 where it has 16 bits"
    assert any(said in one for one in job(UNKNOWN, **LORA).warnings)
    for keys in ({}, QLORA, {**LORA, "weight_dtype": "fp32"}, {**LORA, "weight_dtype": "bf16"}):
        assert not any(said in one for one in job(UNKNOWN, **keys).warnings)
    assert not any(said in one for one in job("qwen2.5-0.5b", **LORA).warnings)


@pytest.mark.parametrize("precision", ["pure-bf16", "mixed-bf16", "fp8"])
def test_a_precision_that_says_it_is_left_alone(precision: str) -> None:
    made = job("llama-3.2-1b", precision=precision)
    assert made.precision == precision
    assert not made.half_weights
    assert all(one.key != "weight_dtype" for one in made.assumptions)


@pytest.mark.parametrize("runtime", ["pytorch", "torchtitan", "litgpt", "torchtune", "llm-foundry", "fms-fsdp"])
def test_other_programs_take_nothing_from_a_checkpoint(runtime: str) -> None:
    made = job("llama-3.2-1b", runtime=runtime)
    assert not made.half_weights
    scratch = job("llama-3.2-1b", runtime=runtime, from_scratch=True)
    assert any("from_scratch changes nothing" in one for one in scratch.warnings)


def test_unsloth_loads_in_16_bits_and_says_that_it_is_an_upper_estimate() -> None:
    made = job("llama-3.1-8b", runtime="unsloth", **QLORA)
    assert made.half_weights
    assert any("upper estimate" in text for text in made.warnings)
    whole = job("llama-3.1-8b", runtime="unsloth")  # while its own default is an adapter
    assert ["full_finetuning=True" in " ".join(one.warnings) for one in (made, whole)] == [False, True]
    assert job("llama-3.1-8b", "v100", runtime="unsloth", **LORA).precision == "amp-fp16"


def test_fp8_under_fsdp_is_of_fp32_shards() -> None:
    made = job("llama-3.1-8b", "h100", precision="fp8", parallel={"data": 8, "sharding": "fsdp"})
    assert made.precision == "fsdp-fp8"
    assert job("llama-3.1-8b", "h100", precision="fp8", parallel={"data": 8, "sharding": "zero2"}).precision == "fp8"


def test_weights_in_four_bits_are_quantized_twice_under_unsloth() -> None:
    """unslothai/unsloth, unsloth/models/llama.py and vision.py: `bnb_4bit_use_double_quant = True`."""
    for written in ("nf4", "4bit"):
        made = job("llama-3.1-8b", runtime="unsloth", adapter={"kind": "lora"}, quantization=written)
        assert made.quantization == "nf4-double"
        told = [one for one in made.assumptions if one.key == "quantization"]
        assert [one.value for one in told] == ["nf4-double"]
    assert job("llama-3.1-8b", adapter={"kind": "lora"}, quantization="4bit").quantization == "nf4"
    assert job("llama-3.1-8b", runtime="unsloth", adapter={"kind": "lora"}).quantization is None


def test_unsloth_has_adapters_on_every_layer_and_functions_for_them() -> None:
    """unslothai/unsloth, unsloth/models/llama.py, FastLlamaModel.get_peft_model and patch_peft_model."""
    adapter = job("llama-3.1-8b", runtime="unsloth", **QLORA).adapter
    assert adapter is not None
    assert (adapter.rank, adapter.kernels) == (16, ("mlp", "qkv", "o"))
    assert set(adapter.targets) == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    given = {**QLORA, "adapter": {"kind": "lora", "targets": ["q_proj", "v_proj"], "rank": 8, "dropout": 0.1}}
    adapter = job("llama-3.1-8b", runtime="unsloth", **given).adapter
    assert adapter is not None
    assert (adapter.rank, adapter.targets, adapter.kernels) == (8, ("q_proj", "v_proj"), ())


def test_an_adapter_is_not_trained_from_scratch() -> None:
    with pytest.raises(InputError, match="trained before"):
        job("llama-3.2-1b", from_scratch=True, **LORA)


@pytest.mark.parametrize(
    ("runtime", "norm"),
    [
        *(("transformers", 1.0), ("pytorch", None), ("torchtitan", 1.0), ("torchtune", None), ("litgpt", None)),
        *(("llm-foundry", 1.0), ("fms-fsdp", 1.0), ("megatron", 1.0), ("unsloth", 1.0)),
    ],
)
def test_each_program_clips_as_it_does(runtime: str, norm: float | None) -> None:
    assert job("llama-3.2-1b", runtime=runtime).max_gradient_norm == norm
    for off in (0, None):
        made = job("llama-3.2-1b", runtime=runtime, max_gradient_norm=off)
        assert made.max_gradient_norm is None
        echoed = job_to_dict(made)["max_gradient_norm"]
        assert echoed == (None if norm is None else 0)  # null would be the default again


def test_a_step_in_backward_gives_clipping_up() -> None:
    made = job("llama-3.2-1b", optimizer="lomo")
    assert made.max_gradient_norm is None
    assert "drops each gradient" in why(made, "max_gradient_norm")
    with pytest.raises(InputError, match="drops each gradient"):
        job("llama-3.2-1b", optimizer="lomo", max_gradient_norm=1)


def test_what_is_wrong_is_said_without_what_a_default_adds() -> None:
    with pytest.raises(InputError) as raised:
        job("llama-3.2-1b", optimizer_in_backward=True, gradient_accumulation_steps=2)
    assert [problem.key for problem in raised.value.problems] == ["optimizer_in_backward"]


def test_without_a_batch_nothing_is_accumulated() -> None:
    made = job("llama-3.2-1b", "rtx-3090", parallel={"data": 3})
    assert made.gradient_accumulation_steps == 1
    assert not made.global_batch_size
    choice = choose(made, Judge(made)).rung
    assert choice.schedule.gradient_accumulation_steps == 1
    assert choice.schedule.global_batch_size == 3 * choice.schedule.micro_batch_size
    assert "one micro-batch" in why(made, "gradient_accumulation_steps")


def test_any_micro_batch_may_be_the_largest() -> None:
    answer = vramplan.fit(model="bert-large-uncased", gpu="24 GiB", sequence_length=512)
    assert answer.recommended.micro_batch_size is not None
    more = {"micro_batch_size": answer.recommended.micro_batch_size + 1}
    keys = {"activation_checkpointing": answer.recommended.activation_checkpointing}
    larger = vramplan.fit(model="bert-large-uncased", gpu="24 GiB", sequence_length=512, **more, **keys)
    assert answer.verdict == FITS
    assert larger.verdict in (TIGHT, DOES_NOT_FIT)


def test_a_published_batch_is_planned_for() -> None:
    answer = vramplan.fit(model="gpt2-xl", gpu="v100")
    recommended = answer.recommended
    assert recommended.global_batch_size == 512
    assert recommended.gradient_accumulation_steps is not None
    assert recommended.gradient_accumulation_steps > 1
    assert recommended.accumulation_adds_bytes is None
    moved = vramplan.fit(model="gpt2", gpu="h100", micro_batch_size=5)
    assert moved.recommended.global_batch_size == 510
    told = next(one for one in moved.assumptions if one.key == "global_batch_size")
    assert told.value == 510
    assert "512" in told.why


def test_the_answer_says_what_accumulation_would_add() -> None:
    keys: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "h100", "activation_checkpointing": "full"}
    once = vramplan.fit(**keys, micro_batch_size=1)
    again = vramplan.fit(**keys, micro_batch_size=1, gradient_accumulation_steps=2)
    added = once.recommended.accumulation_adds_bytes
    assert added == again.peak.allocated_bytes - once.peak.allocated_bytes
    assert once.to_dict()["recommended"]["accumulation_adds_bytes"] == added
    assert again.recommended.accumulation_adds_bytes is None


def test_a_pipeline_has_micro_batches_that_leave_a_small_bubble() -> None:
    made = job("llama-3.1-8b", runtime="megatron", parallel={"pipeline": 4})
    assert made.gradient_accumulation_steps == 16
    all_at_once = job("llama-3.1-8b", runtime="megatron", parallel={"pipeline": 4, "schedule": "gpipe"})
    assert all_at_once.gradient_accumulation_steps == 4
    assert (
        vramplan.fit(
            model="llama-3.1-8b", gpu="h100", runtime="megatron", parallel={"pipeline": 4}
        ).recommended.accumulation_adds_bytes
        is None
    )


def test_a_config_names_the_element_type(tmp_path: Path) -> None:
    for key, name, dtype in (
        ("torch_dtype", "bfloat16", "bf16"),
        ("dtype", "float16", "fp16"),
        ("dtype", "e4m3", None),
    ):
        folder = tmp_path / name
        folder.mkdir()
        values = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], key: name}
        (folder / "config.json").write_text(json.dumps(values), "utf-8")
        assert job(str(folder)).model.dtype == dtype


def test_a_described_model_names_the_element_type() -> None:
    made = build_job({"model": {"family": "llama", "dtype": "bf16"}, "gpu": "h100"})
    assert made.half_weights
    with pytest.raises(InputError, match="dtype"):
        build_job({"model": {"family": "llama", "dtype": "bfloat"}, "gpu": "h100"})


@pytest.mark.sweep(4)
@given(
    model=st.sampled_from(("llama-3.2-1b", "llama-2-7b", "gpt2", UNKNOWN)),
    gpu=st.sampled_from(("h100", "v100", "rtx-3060")),
    keys=st.fixed_dictionaries(
        {},
        optional={
            "precision": st.sampled_from(("auto", "bf16", "fp16", "fp32", "pure-fp16", "mixed-fp16", "amp-fp16")),
            "optimizer": st.sampled_from(("adamw", "adamw-8bit", "sgd", "muon", "lomo", "adafactor")),
            "adapter": st.sampled_from(({"kind": "lora"}, {"kind": "dora"})),
            "parallel": st.sampled_from(
                ({"data": 4}, {"data": 4, "sharding": "fsdp"}, {"data": 4, "sharding": "zero2"})
            ),
            "compile": st.booleans(),
            "from_scratch": st.booleans(),
            "gradient_accumulation_steps": st.integers(1, 3),
            "max_gradient_norm": st.sampled_from((0, 1.0, None)),
        },
    ),
)
def test_an_echo_is_the_same_job_and_names_what_was_taken(model: str, gpu: str, keys: dict[str, Any]) -> None:
    try:
        made = job(model, gpu, **keys)
    except InputError:
        plain = {"max_gradient_norm": None, "precision": "amp-fp16", **keys}
        if plain["precision"].startswith("amp"):  # which says nothing of the weights
            plain["weight_dtype"] = "fp32"
        with pytest.raises(InputError):  # no default is the reason
            job(model, gpu, **plain)
        return
    again = build_job(job_to_dict(made))
    history = {"assumptions": (), "warnings": (), "global_batch_given": False, "allocator_offered": None}
    assert again._replace(**history) == made._replace(**history)


def test_a_split_beside_zero_2_or_3_is_not_megatrons() -> None:
    """Megatron has neither; AutoTP and Ulysses go with both."""
    for split, kind in (("tensor", "zero2"), ("context", "zero3")):
        assert job("llama-3.1-8b", parallel={"data": 4, split: 2, "sharding": kind}).runtime.name == "transformers"
    assert job("llama-3.1-8b", parallel={"data": 4, "tensor": 2}).runtime.name == "megatron"


@pytest.mark.contract
@pytest.mark.parametrize("runtime", ["transformers", "deepspeed"])
@pytest.mark.parametrize(
    ("offload", "stage"),
    [(["optimizer"], "zero2"), (["optimizer", "activations"], "zero2"), (["parameters", "optimizer"], "zero3")],
)
def test_states_on_the_host_are_kept_there_by_zero(runtime: str, offload: list[str], stage: str) -> None:
    for devices in (1, 4):
        made = job("llama-3.1-8b", runtime=runtime, offload=offload, parallel={"data": devices})
        assert made.sharding is not None
        assert (made.sharding.kind, made.precision) == (stage, "mixed-bf16")
        assert "on the host" in why(made, "parallel.sharding")


@pytest.mark.contract
def test_who_shares_states_otherwise_is_taken_at_their_word() -> None:
    asked = ["parameters", "gradients", "optimizer"]
    made = job("llama-3.1-8b", offload=asked, parallel={"data": 4, "sharding": "fsdp"})
    assert made.sharding is not None
    assert made.sharding.kind == "fsdp"
    made = job("llama-3.1-8b", offload=["activations"])
    assert made.sharding is None
