"""What cannot be computed is an error that names it and, where there is one, the way out: never a guess."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.running import TINY, fit, refused, run, valid, write_jobs

GPT2 = ("-m", "gpt2", "-g", "a100")
OLD = ("-m", "gpt2", "-g", "v100")

NOT_MODELLED = {
    "--context 2 --runtime pytorch": ("parallel.context", "2"),
    "--expert 2 --runtime pytorch": ("parallel.expert", "2"),
    "--gpus 8 --sharding zero2 --optimizer muon --precision mixed-fp16": ("optimizer", "muon"),
    "--adapter dora --quantization gptq-int4 --precision pure-bf16": ("adapter.kind", "dora"),
    "--quantization gptq-int4 --adapter lora": ("quantization", "gptq-int4"),
    "--loss vocab-parallel": ("loss", "vocab-parallel"),
    "--runtime pytorch --offload optimizer": ("offload", "optimizer"),
    "--runtime pytorch --offload parameters,gradients": ("offload", "parameters, gradients"),
    "--weight-dtype fp8": ("weight_dtype", "fp8"),
    "--gradient-dtype fp16": ("gradient_dtype", "fp16"),
    "--gradient-dtype none": ("gradient_dtype", "none"),
    "--master-dtype fp32": ("master_dtype", "fp32"),
    "--optimizer-state-dtype bf16": ("optimizer_state_dtype", "bf16"),
    "--compute-dtype fp16 --precision mixed-bf16": ("compute_dtype", "fp16"),
    "--optimizer lion --precision mixed-bf16": ("optimizer", "lion"),
    "--optimizer muon --precision mixed-fp16": ("optimizer", "muon"),
    "--optimizer adafactor --precision mixed-bf16": ("optimizer", "adafactor"),
    "--gradient-dtype fp32 --precision pure-bf16": ("gradient_dtype", "pure-bf16"),
    "--optimizer galore-adamw:64": ("optimizer", "galore-adamw:64"),
    "--activation-model book": ("activation_model", "textbook"),
    "--activation-bytes 65GB": ("activation_bytes", "textbook"),
    "--checkpoint-factor 4": ("checkpoint_factor", "textbook"),
    "--trainable-parameters 1M": ("trainable_parameters", "textbook"),
    "--image-size 224": ("image_size", "takes no images"),
}


CONTRADICTIONS = {
    "--runtime deepspeed --sharding none": ("parallel.sharding", "not DeepSpeed's"),
    "--sharding fsdp": ("parallel.sharding", "fsdp"),
    "--sharding ddp": ("parallel.sharding", "ddp"),
    "--shards 8": ("parallel.shards", "8 do not divide"),
    "--sharding hsdp:2": ("parallel.sharding", "needs several devices"),
    "--gpus 8 --sharding fsdp --shards 3": ("parallel.shards", "3 do not divide"),
    "--gpus 8 --fsdp-version 1": ("parallel.fsdp_version", "belongs to FSDP"),
    "--no-sync": ("parallel.no_sync", "belongs to parallel.sharding fsdp"),
    "--gpus 8 --precision fsdp-bf16": ("precision", "FSDP's"),
    "--precision fsdp-bf16": ("precision", "fsdp-bf16"),
    "--gpus 2 --sharding ddp --optimizer-in-backward": ("optimizer_in_backward", "buckets"),
    "--gpus 2 --gradient-as-bucket-view --sharding fsdp": ("parallel.gradient_as_bucket_view", "ddp"),
}


@pytest.mark.parametrize(("options", "named"), CONTRADICTIONS.items(), ids=CONTRADICTIONS)
def test_what_contradicts_itself_is_named(options: str, named: tuple[str, str]) -> None:
    ran = refused("fit", *GPT2, *options.split(), "--format", "json")
    key, value = named
    (problem,) = [one for one in valid("error", ran.document)["error"]["problems"] if one["key"] == key]
    assert value in problem["message"]
    assert problem["hint"]


@pytest.mark.parametrize(("options", "named"), NOT_MODELLED.items(), ids=NOT_MODELLED)
def test_what_is_not_modelled_is_named(options: str, named: tuple[str, str]) -> None:
    ran = refused("fit", *GPT2, *options.split(), "--format", "json")
    problems = valid("error", ran.document)["error"]["problems"]
    key, value = named
    (problem,) = [problem for problem in problems if problem["key"] == key]
    assert value in problem["message"]
    assert "model" in problem["message"] or "textbook" in problem["message"]


@pytest.mark.sweep(18)
@pytest.mark.parametrize(
    ("options", "same_as"),
    [
        ("--tensor 1 --pipeline 1 --context 1 --expert 1 --no-sequence-parallel --sharding none", ""),
        ("--no-compile --no-optimizer-in-backward --loss standard --quantization null", ""),
        ("--weight-dtype fp32 --gradient-dtype fp32 --master-dtype none --compute-dtype bf16", ""),
        ("--precision tf32", "--precision fp32"),
        ("--precision bf16", "--precision amp-bf16"),
        ("--precision fp16", "--precision amp-fp16"),
        ("--checkpointing every:1", "--checkpointing full"),
        ("--checkpointing every:3", "--checkpointing sqrt"),  # 12 blocks
        ("--checkpointing layers:[[0,11]]", "--checkpointing every:12"),
        (
            "--steps 4 --micro-batch-size 2 --sequence-length 64",
            "--gradient-accumulation-steps 4 --micro-batch 2 --seq 64",
        ),
        ("--data 4", "--gpus 4"),
        ("--attention sdpa", "--attention flash"),
        ("--no-ema", ""),
        ("--micro-batch 2 --optimizer-in-backward", "--micro-batch 2 --optimizer-in-backward --steps 1"),
    ],
)
def test_a_technique_at_its_default_and_other_names_change_nothing(options: str, same_as: str) -> None:
    one, other = fit(*GPT2, *options.split()), fit(*GPT2, *same_as.split())
    assert (one["verdict"], one["peak"], one["components"]) == (other["verdict"], other["peak"], other["components"])


def test_every_problem_comes_at_once() -> None:
    ran = refused("fit", "-m", "gpt9", "-g", "v101", "--optimizer", "adamv", "--tensor", "2", "--seq", "0")
    assert ran.err.count("\n") == 4


@pytest.mark.parametrize("gpu", ["v100", "t4", "p100", "2080ti"])
def test_flash_is_refused_where_the_gpu_has_none(gpu: str) -> None:
    err = refused("fit", "-m", "gpt2", "-g", gpu, "--attention", "flash").err
    assert "attention: flash cannot run" in err
    assert "compute capability" in err
    assert "efficient" in err


def test_flash_is_refused_in_fp32() -> None:
    err = refused("fit", *GPT2, "--attention", "flash", "--precision", "fp32").err
    assert "flash cannot run: it has no fp32 kernels" in err


@pytest.mark.parametrize(
    ("given", "instead"),
    [("amp-bf16", "amp-fp16"), ("bf16", "amp-fp16"), ("pure-bf16", "pure-fp16"), ("mixed-bf16", "mixed-fp16")],
)
def test_bf16_is_refused_on_a_gpu_without_it_and_the_alternative_is_named(given: str, instead: str) -> None:
    err = refused("fit", *OLD, "--precision", given).err
    assert "v100 has no bf16" in err
    assert instead in err
    assert fit(*OLD, "--precision", instead)["job"]["precision"] == instead


def test_auto_takes_what_the_gpu_has() -> None:
    assert fit(*OLD)["job"]["precision"] == fit(*OLD, "--precision", "auto")["job"]["precision"] == "amp-fp16"
    assert fit(*GPT2)["job"]["precision"] == "amp-bf16"


@pytest.mark.parametrize("options", [("--attention", "flash"), ("--precision", "bf16"), ("--precision", "pure-bf16")])
def test_a_gpu_of_which_only_the_size_is_known_refuses_nothing(options: tuple[str, str], tmp_path: Any) -> None:
    answer = fit("-m", "gpt2", "-g", "24 GiB", *options)
    assert any("unknown" in item["why"] for item in answer["assumptions"])
    gpu = {"name": "a label", "memory": "24 GiB"}
    job = {"model": TINY, "gpu": gpu, options[0].strip("-"): options[1]}
    assert run("check", write_jobs(tmp_path / "jobs", job)).code == 0


def test_a_mapping_with_a_known_name_knows_what_the_profile_knows(tmp_path: Any) -> None:
    job = {"model": TINY, "gpu": {"name": "V100-32GB", "memory": "8 GiB"}, "attention": "flash"}
    refusal = refused("check", write_jobs(tmp_path / "jobs", job))
    assert "flash cannot run: v100" in refusal.err


@pytest.mark.parametrize("precision", ["mixed-fp16", "mixed-bf16"])
@pytest.mark.parametrize("implementation", ["foreach", "for-loop"])
def test_a_step_over_a_master_copy_is_fused(precision: str, implementation: str) -> None:
    words = (*GPT2, "--precision", precision)
    err = refused("fit", *words, "--optimizer-implementation", implementation).err
    assert f"{implementation} contradicts {precision}" in err
    assert fit(*words)["job"]["optimizer_implementation"] == "fused"


@pytest.mark.parametrize("optimizer", ["rmsprop", "adafactor"])
def test_there_is_no_fused_step_for_some_optimizers(optimizer: str) -> None:
    err = refused("fit", *GPT2, "--optimizer", optimizer, "--optimizer-implementation", "fused").err
    assert f"no fused {optimizer}" in err


def test_more_tokens_than_learned_positions_is_refused_and_than_rotary_ones_is_warned_of() -> None:
    assert "1024 positions" in refused("fit", *GPT2, "--seq", "2048").err
    answer = fit("-m", "tinyllama-1.1b", "-g", "a100", "--seq", "4096")
    assert any("max_positions" in warning for warning in answer["warnings"])


def test_a_reserve_that_leaves_nothing_is_refused() -> None:
    assert "leaves nothing" in refused("fit", *OLD, "--reserve", "32 GiB").err


@pytest.mark.parametrize(
    "size", ["24", "24 G", "24G", "0 GiB", "-1 GiB", "nan GiB", "inf GiB", "1e999 GiB", "24 apples"]
)
def test_a_size_without_a_meaning_is_refused(size: str) -> None:
    err = refused("fit", "-m", "gpt2", "-g", size).err
    if size in ("24", "24 G", "24G"):
        assert "GB" in err
        assert "GiB" in err


@pytest.mark.parametrize("size", ["24 GiB", "24GiB", "24576 MiB", "0.0234375 TiB", "25769803776 B"])
def test_a_bare_size_is_a_gpu(size: str) -> None:
    answer = fit("-m", "gpt2", "-g", size)
    assert answer["capacity_bytes"] == 24 * 2**30
