"""What is particular to a model family in a job: kernels that its code lacks, placements, lengths, and the echo."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vramplan.answers.fit import answer
from vramplan.answers.placement import placements_of
from vramplan.catalog.config_classes import MODEL_TYPES, NEUTRAL
from vramplan.errors import InputError, UsageError
from vramplan.job import build_job, job_to_dict
from vramplan.planner.checkpoints import spelled
from vramplan.replay.models.capable import no_checkpointing, no_fused_attention, of_package
from vramplan.replay.models.parts import has_equal_blocks
from vramplan.values.job import ResolvedJob

UNFUSED = [name for name, kind in MODEL_TYPES.items() if no_fused_attention(kind.family)]
STORED = [name for name, kind in MODEL_TYPES.items() if no_checkpointing(kind.family)]
SHARING = ("gemma2", "gemma3_text", "bloom", "mpt", "falcon")  # their blocks share something with some of the others


def job(model: Any, **keys: Any) -> ResolvedJob:
    alone = isinstance(model, dict) and MODEL_TYPES[model["family"]].tasks == ("image",)
    length = {} if alone else {"sequence_length": 64}
    built = build_job({"gpu": "a100-80gb", "model": model, **length, **keys})
    assert isinstance(built, ResolvedJob)
    return built


def refused(model: Any, **keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        job(model, **keys)
    return str(caught.value)


def small(model_type: str, **fields: Any) -> dict[str, Any]:
    """An inline model of a type that takes no time."""
    sizes: dict[str, Any] = {"layers": 3, "hidden_size": 64, "attention_heads": 4, "vocabulary_size": 100}
    if MODEL_TYPES[model_type].defaults.get("vision_layers"):
        sizes |= {"image_size": 28, "patch_size": 14}
    if MODEL_TYPES[model_type].defaults.get("vision_merge"):
        sizes["vision_merge"] = 2
    sizes = {key: value for key, value in sizes.items() if key not in MODEL_TYPES[model_type].fixed}
    if MODEL_TYPES[model_type].grouped and model_type not in ("falcon", "gpt_bigcode"):
        sizes["key_value_heads"] = 2
    if MODEL_TYPES[model_type].defaults.get("key_value_sharing_layers"):
        sizes["key_value_sharing_layers"] = 0  # of more blocks than these
    if "waveform.widths" in MODEL_TYPES[model_type].defaults:  # of which a few samples make several frames
        sizes["waveform"] = {"widths": [8, 8], "kernels": [4, 2], "strides": [2, 2], "masked_length": 2}
    if model_type == "deepseek_v2":  # whose configuration class has no working defaults of these
        sizes["experts"] = {"active": 2, "intermediate_size": 64}
    if model_type == "dots1":
        sizes["experts"] = {"count": 4, "active": 2, "shared": 1, "intermediate_size": 64}
    return {"family": model_type, "transformers_model_type": model_type, **sizes, **fields}


def test_these_families_are_particular() -> None:
    assert UNFUSED == ["gemma2", "bloom", "mpt", "gpt_oss", "gpt_neo", "deberta-v2", "gptj", "mpnet", "wavlm"]
    assert STORED == ["resnet", "convnext", "swin", "convnextv2", "mpnet", "albert"]
    assert all(has_equal_blocks(MODEL_TYPES[name].family) for name in SHARING)
    unequal = [name for name, kind in MODEL_TYPES.items() if not has_equal_blocks(kind.family)]
    among_text = ["clip", "llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"]
    among_text += [
        "gemma3",
        "qwen3_5",
        "qwen3_5_moe",
        "mistral3",
        "mllama",
        "siglip",
        "paligemma",
        "internvl",
        "llava_next",
        "llava_onevision",
        "idefics3",
        "smolvlm",
    ]
    two_stacks = ["t5", "mt5", "bart", "mbart", "m2m_100", "pegasus", "marian", "whisper"]
    staged = ["resnet", "convnext", "convnextv2", "swin", "beit"]
    assert sorted(unequal) == sorted([*staged, *two_stacks, "gemma3n_text", "gemma4_text", "wavlm", *among_text])


@pytest.mark.parametrize("model_type", UNFUSED)
def test_without_fused_attention_the_default_is_eager_and_kernels_are_refused(model_type: str) -> None:
    built = job(small(model_type))
    assert built.attention == "eager"
    (told,) = (one for one in built.assumptions if one.key == "attention")
    assert "no fused attention" in told.why
    assert job(small(model_type), attention="sdpa").attention == "eager"
    by_package = (
        of_package(built.model) is not None
    )  # whose kernels bound scores, take sinks, or have a class of their own
    for kernel in ("efficient",) if by_package else ("flash", "efficient"):
        message = refused(small(model_type), attention=kernel)
        assert message.startswith(f"attention: {kernel} cannot run")
        assert message.endswith("(use eager)")


@pytest.mark.contract
def test_these_reach_the_flash_attn_package() -> None:
    assert [name for name in UNFUSED if of_package(job(small(name)).model)] == ["gemma2", "gpt_oss", "gpt_neo", "gptj"]


@pytest.mark.contract
@pytest.mark.parametrize("model", ["gpt-j-6b", "gpt-neo-1.3b"])
def test_with_the_package_what_is_kept_grows_as_the_tokens_and_not_as_their_square(model: str) -> None:
    kept: dict[str, list[int]] = {}
    for attention in ("flash", "eager"):
        run = {"attention": attention, "precision": "pure-bf16", "micro_batch_size": 1, "adapter": "lora"}
        run["activation_checkpointing"] = "none"
        sizes = [job(model, sequence_length=length, **run) for length in (1024, 1536, 2048)]
        found = [answer(one) for one in sizes]
        kept[attention] = [one.peak.allocated_bytes for one in found]
        said = any("attention flash was never traced" in one for one in found[0].warnings)
        assert said is (attention == "flash")
    first, second, third = kept["flash"]
    assert third - second == pytest.approx(second - first, rel=0.01)  # a head's rows are rounded up in the workspace
    first, second, third = kept["eager"]
    assert third - second > 1.2 * (second - first)


@pytest.mark.sweep
def test_a_remedy_is_something_that_the_family_can_do() -> None:
    tiny = {"name": "tiny", "memory": "1 GiB"}
    found = answer(job("gemma-2-2b", gpu=tiny, micro_batch_size=64))
    assert found.verdict == "does-not-fit"
    for remedy in found.remedies:
        assert "attention" not in remedy.change


@pytest.mark.sweep(5)
@pytest.mark.parametrize("model_type", SHARING)
def test_an_optimal_placement_where_blocks_share_something(model_type: str) -> None:
    placed = answer(job(small(model_type, layers=6), activation_checkpointing="optimal"))
    assert placed.verdict == "fits"
    found = placements_of(job(small(model_type, layers=6), micro_batch_size=8), 50 * 2**20)
    optimal = next(row for row in found.strategies if row.name == "optimal")
    assert optimal.allocated_bytes == min(row.allocated_bytes for row in found.strategies) or optimal.fits


def test_no_optimal_placement_where_nothing_can_be_a_checkpoint() -> None:
    model_type = STORED[0]
    message = refused(small(model_type), activation_checkpointing="optimal")
    assert "activation_checkpointing: optimal is not possible" in message
    with pytest.raises(UsageError, match="has nothing to place"):
        placements_of(job(small(model_type)))


@pytest.mark.parametrize("model_type", STORED)
def test_what_the_class_cannot_checkpoint_is_stored(model_type: str) -> None:
    built = job(small(model_type))
    assert built.activation_checkpointing == "none"
    why = next(one.why for one in built.assumptions if one.key == "activation_checkpointing")
    assert why.startswith(str(no_checkpointing(MODEL_TYPES[model_type].family)))
    for strategy in ("full", "sqrt", "optimal", "layers:[[0,1]]"):
        assert f"{strategy} is not possible" in refused(small(model_type), activation_checkpointing=strategy)
    with pytest.raises(UsageError, match="nothing to place"):
        placements_of(built)
    too_much = answer(job(small(model_type), micro_batch_size=100_000, global_batch_size=100_000))
    assert [row.activation_checkpointing for row in too_much.alternatives] == ["none"]
    assert too_much.verdict == "does-not-fit"
    assert not any("activation_checkpointing" in remedy.change for remedy in too_much.remedies)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("dense", [[], [0, 1, 2], [0], [1]])
def test_an_optimal_placement_where_all_blocks_have_experts_or_some(dense: list[int]) -> None:
    fields = {"count": 8, "active": 2, "intermediate_size": 64}
    model = small("qwen3_moe", experts={**fields, "dense_layers": dense})
    found = placements_of(job(model, micro_batch_size=1))
    full = next(row for row in found.strategies if row.name == "full")
    assert answer(job(model, micro_batch_size=1, activation_checkpointing="full")).peak.allocated_bytes == (
        full.allocated_bytes
    )


def attention_of(model: Any, **keys: Any) -> tuple[str, str]:
    """The attention of a job, and what is said about it."""
    built = job(model, **keys)
    (why,) = (one.why for one in built.assumptions if one.key == "attention")
    return built.attention, why


def test_a_window_in_every_block_leaves_the_flash_of_pytorch_nothing_to_run() -> None:
    model = small("mistral", sliding_window=64)
    attention, why = attention_of(model)
    assert attention == "efficient"
    assert why == "sdpa: 64 tokens reach the sliding window of 64, whose mask flash does not take"
    asked, why = attention_of(model, attention="flash")
    assert asked == "flash"
    assert why.startswith("64 tokens of the sliding window are an argument of the flash-attn package's kernels")
    assert job(small("mistral", sliding_window=65), attention="flash").attention == "flash"
    for given in ("eager", "efficient"):
        assert job(model, attention=given).attention == given


@pytest.mark.parametrize(
    ("model", "windows"),
    [
        (small("gemma3_text", layers=7, sliding_window=64, sliding_window_pattern=3), 5),
        (small("qwen2", layers=7, sliding_window=64, sliding_window_start=5), 2),
        (small("qwen3", layers=7, sliding_window=64, sliding_window_start=1), 6),
    ],
)
@pytest.mark.parametrize("given", ["sdpa", "flash"])
def test_flash_runs_in_the_blocks_without_a_window(model: Any, windows: int, given: str) -> None:
    attention, why = attention_of(model, attention=given)
    assert attention == "flash"
    assert why.startswith(f"but efficient in {windows} of 7 blocks: 64 tokens reach the sliding window of 64")


def test_a_window_that_no_block_has_changes_nothing() -> None:
    attention, why = attention_of(small("qwen2", sliding_window=8, sliding_window_start=3))
    assert attention == "flash"
    assert "window" not in why


@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_checkpoints_are_placed_where_some_blocks_have_a_window(start: int) -> None:
    model = small("qwen2", sliding_window=8, sliding_window_start=start)
    found = placements_of(job(model, micro_batch_size=4))
    for row in found.strategies:
        pinned = row.name if row.name in ("none", "sqrt", "full") else spelled(row.checkpoints)
        again = answer(job(model, micro_batch_size=4, activation_checkpointing=pinned))
        assert again.peak.allocated_bytes == row.allocated_bytes


@pytest.mark.parametrize(
    ("fields", "kernel", "why"),
    [
        ({}, "math", "one key-value head"),
        ({"new_decoder_architecture": True, "key_value_heads": 1}, "efficient", "always makes a mask"),
        ({"key_value_heads": 4, "positions": "alibi"}, "efficient", "always makes a mask"),
    ],
)
def test_the_code_of_falcon_leaves_one_kernel_to_choose(fields: dict[str, Any], kernel: str, why: str) -> None:
    model = small("falcon", **fields)
    attention, said = attention_of(model)
    assert attention == kernel
    assert said.startswith("sdpa: falcon's code")
    assert why in said
    assert job(model, attention=kernel).attention == kernel
    assert job(model, attention="eager").attention == "eager"
    for other in {"flash", "efficient", "math"} - {kernel}:
        message = refused(model, attention=other)
        assert f"attention: {other} cannot run for inline falcon" in message
        assert message.endswith(f"(use {kernel})")


def test_no_remedy_names_a_kernel_that_falcon_cannot_run() -> None:
    tiny = {"name": "tiny", "memory": "1 GiB"}
    for fields, expected in (({}, set()), ({"key_value_heads": 4}, {"efficient"})):
        model = small("falcon", **fields)
        found = answer(job(model, gpu=tiny, attention="eager", micro_batch_size=512, sequence_length=512))
        assert found.verdict == "does-not-fit"
        assert {one.change.get("attention") for one in found.remedies} - {None} <= expected


def test_the_code_of_chatglm_calls_fused_attention_alone() -> None:
    message = refused(small("chatglm"), attention="eager")
    assert "attention: eager cannot run for chatglm: its code calls fused attention alone" in message
    assert job(small("chatglm")).attention == "flash"
    assert job(small("chatglm"), attention="efficient").attention == "efficient"
    message = refused(small("chatglm", max_positions=32))
    assert "64 is more than the 32 positions that inline chatglm has a bias for" not in message
    assert "64 is more than the 32 positions that inline chatglm has" in message


def test_math_is_answered_with_the_code_of_transformers() -> None:
    assert job(small("llama"), attention="math").attention == "math"
    message = refused(small("llama"), attention="math", runtime="litgpt")
    assert "attention: math is not modelled for llama under litgpt but where nothing else can run" in message
    assert job("t5-small", attention="math").attention == "math"


GROUPED = {"attention_heads": 4, "key_value_heads": 2}
FEW = {**GROUPED, "sliding_window": 32}


@pytest.mark.parametrize(
    ("of", "fields", "kernel", "said"),
    [
        ("cohere2", {"sliding_window_pattern": 2, "layers": 4}, "sdpa", "efficient in 2 of 4 blocks, math elsewhere"),
        ("mistral", {}, "efficient", "the sliding window of 32 tokens is a mask"),
        ("mixtral", {"sliding_window": None}, "math", "hands on as they are"),
    ],
)
def test_sdpa_is_chosen_call_by_call(of: str, fields: dict[str, Any], kernel: str, said: str) -> None:
    """Source: transformers 5.23, integrations/sdpa_attention.py, use_gqa_in_sdpa; traced in grouped_math.json."""
    asked = job(small(of, **{**FEW, **fields}), gpu="t4", sequence_length=64)
    assert asked.attention == kernel
    (assumed,) = [one for one in asked.assumptions if one.key == "attention"]
    assert said in (assumed.why or "")
    again = job(small(of, **{**FEW, **fields}), gpu="t4", sequence_length=64, attention=kernel)
    assert again.attention == kernel


@pytest.mark.parametrize(
    ("fields", "keys", "kernel"),
    [
        (GROUPED, {"gpu": "t4"}, "math"),
        (GROUPED, {"gpu": "v100", "precision": "amp-fp16"}, "math"),
        (GROUPED, {"gpu": "h100", "precision": "fp32"}, "math"),
        (GROUPED, {"gpu": "h100", "precision": "amp-bf16"}, "flash"),
        (GROUPED, {"gpu": "t4", "padding": "right"}, "efficient"),  # a mask, with which keys are repeated
        (GROUPED, {"gpu": "t4", "runtime": "unsloth"}, "efficient"),
        ({"attention_heads": 4, "key_value_heads": 4}, {"gpu": "t4"}, "efficient"),
    ],
)
def test_fewer_key_value_heads_without_a_mask_have_no_fused_kernel_but_flash(
    fields: dict[str, Any], keys: dict[str, Any], kernel: str
) -> None:
    """Seen on an H100, which finds no other kernel in fp32 (tests/measured/h100.yaml)."""
    asked = job(small("llama", **fields), **keys)
    assert asked.attention == kernel
    (said,) = [one for one in asked.assumptions if one.key == "attention"]
    assert ("hands on as they are" in (said.why or "")) == (kernel == "math")
    if kernel == "math":
        assert job(small("llama", **fields), **keys, attention="math").attention == "math"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"key_value_heads": 2, "new_decoder_architecture": False},
            "key_value_heads: 2 needs new_decoder_architecture",
        ),
        ({"parallel_norms": 2}, "parallel_norms: 2 is not modelled (it is 1 without new_decoder_architecture)"),
        ({"new_decoder_architecture": True, "parallel_norms": 3}, "parallel_norms: 3 is not modelled (it is 1 or 2)"),
        ({"new_decoder_architecture": True, "parallel_residual": False}, "parallel_residual: false contradicts"),
        ({"positions": "learned"}, "positions: learned is not modelled (modelled: rope, alibi)"),
        ({"rope_scaling": "yarn"}, "rope_scaling: yarn is not modelled (modelled: dynamic, longrope; every other kind"),
    ],
)
def test_what_makes_no_falcon(fields: dict[str, Any], message: str) -> None:
    assert message in refused(small("falcon", **fields))


def test_the_bias_of_mpt_ends_at_its_positions_and_that_of_bloom_nowhere() -> None:
    message = refused(small("mpt", max_positions=32))
    assert "64 is more than the 32 positions that inline mpt has a bias for (use at most 32)" in message
    assert "is more than the max_positions 32" in job(small("bloom", max_positions=32)).warnings[0]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_echo_of_every_type_gives_the_job_again(model_type: str) -> None:
    built = job(small(model_type))
    echoed = json.loads(json.dumps(job_to_dict(built), allow_nan=False))
    again = build_job(echoed)
    assert again.model == built.model
    assert job_to_dict(again) == job_to_dict(built)
    assert {key.partition(".")[0] for key in NEUTRAL} <= set(echoed["model"])


@pytest.mark.parametrize("model_type", ["gpt2", "llama", "mistral", "qwen2", "bert"])
def test_an_echo_from_before_these_keys_is_still_valid(model_type: str) -> None:
    built = job(small(model_type))
    old = job_to_dict(built)
    for key in {key.partition(".")[0] for key in NEUTRAL} - {"qk_norm", "experts"}:  # which were always there
        del old["model"][key]
    assert build_job(old).model == built.model


@pytest.mark.sweep
@pytest.mark.parametrize("model", ["gpt-oss-20b", "gemma-3-4b"])
def test_the_flash_package_takes_what_the_kernel_of_pytorch_does_not(model: str) -> None:
    """Sinks and windows are its arguments, and a mask of images it has not: no mask is made and no scores are."""
    shared = {"sequence_length": 4096, "micro_batch_size": 1, "precision": "pure-bf16"}
    flash, eager = (
        job(model, attention=kernel, activation_checkpointing="none", **shared) for kernel in ("flash", "eager")
    )
    assert any("never traced" in one.why for one in flash.assumptions if one.key == "attention")
    saved = answer(eager).peak.device_bytes - answer(flash).peak.device_bytes
    probabilities = 2 * 4096**2 * flash.model.attention_heads * flash.model.layers
    assert saved > 0.9 * probabilities  # of every block; the peak of the other may lie elsewhere
