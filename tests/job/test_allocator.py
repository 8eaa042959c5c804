"""The job key `allocator`: the words of PYTORCH_ALLOC_CONF, its defaults, and what a simulated answer says."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from vramplan.answers.fit import answer
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.job.machine.allocator import settings_of, text_of
from vramplan.planner.replays import Replays
from vramplan.replay.caching.run import SimulatedRun
from vramplan.results import FitResult
from vramplan.values.allocator import DEFAULT, UNLIMITED, Settings
from vramplan.values.job import ResolvedJob

MIB = 2**20
SMALL = {
    "model": {
        "family": "gpt2",
        "layers": 6,
        "hidden_size": 512,
        "attention_heads": 8,
        "vocabulary_size": 8192,
        "max_positions": 1024,
    },
    "gpu": "v100",
    "sequence_length": 512,
    "global_batch_size": 32,
}


def job_of(**keys: Any) -> ResolvedJob:
    job = build_job(SMALL | keys)
    assert isinstance(job, ResolvedJob)
    return job


def answered(**keys: Any) -> FitResult:
    return answer(job_of(**keys))


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("estimate", None),
        ("simulate", DEFAULT),
        ("backend:native", DEFAULT),
        ("expandable_segments:True", Settings(expandable_segments=True)),
        (" expandable_segments : False , max_split_size_mb : 128 ", Settings(max_split_size_bytes=128 * MIB)),
        (
            "garbage_collection_threshold:0.8,per_process_memory_fraction:0.9",
            Settings(garbage_collection_threshold=0.8, memory_fraction=0.9),
        ),
        ("large_segment_size_mb:64,max_non_split_rounding_mb:40", Settings(False, UNLIMITED, 40 * MIB, 64 * MIB)),
        ("roundup_power2_divisions:4", Settings(divisions=(4,) * 16)),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", Settings(divisions=(*[1] * 9, 2, 4, *[8] * 5))),
        ("pinned_use_background_threads:True,release_lock_on_cudamalloc:True", DEFAULT),
    ],
)
def test_what_pytorch_reads_is_read(text: str, settings: Settings | None) -> None:
    found = settings_of(text)
    assert found == settings
    assert settings_of(text_of(found)) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("simulat", "did you mean simulate"),
        ("auto,simulate", "write auto,name:value, or auto alone"),
        ("auto,expandable_segment:True", "did you mean expandable_segments?"),
        ("expandable_segment:True", "did you mean expandable_segments?"),
        ("expandable_segments:true", "True or False"),
        ("expandable_segments", "no way to look at the allocator"),
        ("expandable_segments:", "is no setting"),
        ("max_split_size_mb:8", "at least 20"),
        ("max_split_size_mb:many", "whole number"),
        ("garbage_collection_threshold:1.5", "between 0 and 1"),
        ("backend:cudaMallocAsync", "not modelled"),
        ("roundup_power2_divisions:3", "powers of two"),
        ("roundup_power2_divisions:[256]", "256"),
    ],
)
def test_what_pytorch_refuses_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        build_job(SMALL | {"allocator": text})
    assert message in str(error.value)


def test_the_allocator_is_estimated_unless_a_job_says_otherwise() -> None:
    result = answered()
    assert result.job["allocator"] == "estimate"
    assert result.allocator is None


@pytest.mark.parametrize(
    ("text", "settings"),
    [(None, DEFAULT), ("auto", DEFAULT), ("auto, expandable_segments:True", Settings(expandable_segments=True))],
)
def test_what_is_left_open_has_settings_should_it_be_simulated(text: str | None, settings: Settings) -> None:
    job = job_of(allocator=text)
    assert (job.allocator, job.allocator_offered) == (None, settings)
    varied = job_of(allocator=text, varied_lengths=True)  # which are simulated without being asked for
    assert (varied.allocator, varied.allocator_offered) == (settings, None)


@pytest.mark.parametrize("text", ["simulate", "expandable_segments:True", "max_split_size_mb:64"])
def test_a_simulated_answer_fed_back_is_the_same(text: str) -> None:
    result = answered(allocator=text)
    again = answer(build_job(dict(result.job)))
    assert result.allocator is not None
    assert result.allocator.settings == text
    assert (again.peak, again.allocator, again.verdict) == (result.peak, result.allocator, result.verdict)


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_what_is_reserved_holds_what_is_allocated(accumulation: int, checkpointing: str) -> None:
    pinned = {"micro_batch_size": 4, "gradient_accumulation_steps": accumulation, "global_batch_size": 4 * accumulation}
    result = answered(**pinned, activation_checkpointing=checkpointing, allocator="simulate")
    found = result.allocator
    assert found is not None
    assert result.peak.allocated_bytes <= found.allocated_bytes <= found.reserved_bytes == result.peak.reserved_bytes
    assert found.first_reserved_bytes <= found.reserved_bytes
    assert found.first_allocated_bytes < found.allocated_bytes  # the first step makes the states
    assert sum(part.bytes for part in result.overheads) == result.peak.device_bytes - result.peak.allocated_bytes


LORA = {"kind": "lora", "rank": 8, "targets": ["c_attn"]}
SEVERAL: dict[str, dict[str, Any]] = {
    "ddp": {"parallel": {"data": 4, "sharding": "ddp"}},
    "fsdp": {"parallel": {"data": 4, "sharding": "fsdp"}, "precision": "fsdp-bf16"},
    "fsdp1": {"parallel": {"data": 4, "sharding": "fsdp", "fsdp_version": 1}, "precision": "fsdp-bf16"},
    "fsdp, offloaded": {
        "parallel": {"data": 4, "sharding": "fsdp"},
        "precision": "fsdp-bf16",
        "offload": ["parameters", "gradients", "optimizer"],
    },
    "zero1": {"parallel": {"data": 4, "sharding": "zero1"}, "precision": "mixed-bf16"},
    "zero2": {"parallel": {"data": 4, "sharding": "zero2"}, "precision": "mixed-bf16"},
    "zero2, offloaded": {
        "parallel": {"data": 4, "sharding": "zero2"},
        "precision": "mixed-bf16",
        "offload": ["gradients", "optimizer"],
    },
    "zero3": {"parallel": {"data": 4, "sharding": "zero3"}, "precision": "mixed-bf16"},
    "lora": {"adapter": LORA},
    "lora, ddp": {"adapter": LORA, "parallel": {"data": 4, "sharding": "ddp"}},
    "megatron": {"parallel": {"tensor": 2}, "precision": "mixed-bf16", "runtime": "megatron"},
    "pipeline": {"parallel": {"tensor": 2, "pipeline": 2}, "precision": "mixed-bf16", "runtime": "megatron"},
}


@pytest.mark.sweep(8)
@pytest.mark.parametrize("micro", [1, 4])
@pytest.mark.parametrize("name", SEVERAL)
def test_the_simulation_has_every_tensor_of_the_replay(name: str, micro: int) -> None:
    keys = {"gpu": "a100-80gb", "micro_batch_size": micro, "gradient_accumulation_steps": 4, "global_batch_size": None}
    result = answered(**keys | SEVERAL[name], allocator="simulate")
    found = result.allocator
    assert found is not None
    assert found.allocated_bytes >= result.peak.allocated_bytes


def test_a_run_that_dies_of_fragmentation_is_told_so() -> None:
    pinned = {"micro_batch_size": 1, "gradient_accumulation_steps": 1, "activation_checkpointing": "none"}
    card = {"name": "a shared card", "memory": "27.6 GiB"}  # its tensors have room to spare
    keys = {"model": "gpt2-xl", "gpu": card, "precision": "fp32", "attention": "efficient", **pinned}
    result = answer(build_job({**keys, "allocator": "simulate"}))
    assert result.peak.allocated_bytes + 2**29 < result.usable_bytes < result.peak.device_bytes
    assert result.allocator is not None
    end = result.allocator.out_of_memory
    assert end is not None
    assert end.by_fragmentation
    assert end.expandable_segments_suffice
    assert end.largest_free_bytes < end.wanted_bytes < end.reserved_bytes
    assert any("expandable_segments:True it comes through" in warning for warning in result.warnings)
    other = answer(build_job({**keys, "allocator": "expandable_segments:True"}))
    assert other.allocator is not None
    assert other.allocator.out_of_memory is None
    assert other.headroom_bytes >= 0


def test_torchtitan_has_what_its_launchers_set() -> None:
    def settings(devices: int) -> object:
        parallel = {"data": devices, "sharding": "fsdp"}
        model = SMALL["model"] | {"family": "llama", "intermediate_size": 1024}  # type: ignore[operator]
        job = job_of(model=model, runtime="torchtitan", gpu="h100", parallel=parallel, global_batch_size=512)
        return job.allocator

    assert settings(8) == Settings(expandable_segments=True)
    assert settings(64) == DEFAULT


@pytest.mark.parametrize(
    ("release", "rounds"), [(None, None), ("2.10", None), ("2.9", 256), ("2.2", 256), ("2.1", "none")]
)
def test_unsloth_has_what_it_sets_with_a_release_of_pytorch(release: str | None, rounds: int | str | None) -> None:
    keys = {"pytorch_version": release} if release is not None else {}
    model = SMALL["model"] | {"family": "llama", "intermediate_size": 1024}  # type: ignore[operator]
    job = job_of(model=model, runtime="unsloth", gpu="t4", precision="amp-fp16", varied_lengths=True, **keys)
    if rounds == "none":
        assert job.allocator == DEFAULT
        return
    assert job.allocator is not None
    assert job.allocator.expandable_segments
    assert job.allocator.divisions[:1] == (() if rounds is None else (rounds,))
    assert job_of(model=model, runtime="unsloth", gpu="t4", precision="amp-fp16", **keys).allocator is None


@pytest.mark.parametrize("free", ["4 GiB", "6 GiB", "9 GiB"])
def test_the_largest_micro_batch_is_within_and_the_next_is_not(free: str) -> None:
    keys = {"allocator": "simulate", "activation_checkpointing": "none", "gpu_free": free}
    proposed = answered(**keys).recommended
    largest, steps = proposed.largest_micro_batch_size, proposed.gradient_accumulation_steps
    assert largest > 1
    assert steps is not None
    for micro, fits in ((largest, True), (largest + 1, False)):
        found = answered(**keys, micro_batch_size=micro, global_batch_size=micro * steps)
        assert (found.headroom_bytes >= 0) is fits


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "job",
    [
        {"model": "gpt2-xl", "gpu": "v100"},
        {"model": "qwen3-8b", "gpu": "h100", "parallel": {"data": 2, "sharding": "fsdp"}},
    ],
)
def test_the_largest_micro_batch_is_no_smaller_than_one_that_is_proposed(job: dict[str, Any]) -> None:
    """The guess below one that is too much was 2, while 4 was proposed and had headroom."""
    found = answer(build_job({**job, "allocator": "simulate"})).recommended
    assert found.micro_batch_size is not None
    assert found.largest_micro_batch_size >= found.micro_batch_size


@pytest.mark.sweep
def test_a_choice_is_not_tight_where_a_smaller_micro_batch_surely_fits() -> None:
    """Four sequences with sqrt(L) checkpoints are tight, and what was guessed from them was below one sequence."""
    result, tight = _of_gpt2_xl(34 << 30), _of_gpt2_xl(34 << 30, micro_batch_size=4)
    assert (result.verdict, tight.verdict) == ("fits", "tight")
    assert result.recommended.micro_batch_size is not None
    assert result.recommended.micro_batch_size < 4


@pytest.mark.sweep
def test_where_no_micro_batch_surely_fits_the_one_most_likely_to_is_chosen() -> None:
    """Four sequences may have room too, and would be faster."""
    result, four = _of_gpt2_xl(32 << 30), _of_gpt2_xl(32 << 30, micro_batch_size=4)
    assert (result.verdict, four.verdict) == ("tight", "tight")
    assert four.recommended.micro_batch_size == 4  # a plan, had it been asked for
    assert result.recommended.micro_batch_size == 1
    assert result.peak.device_bytes == min(row.device_bytes for row in result.alternatives) < four.peak.device_bytes
    assert result.warnings[0].startswith("no open choice surely fits")
    assert not four.warnings[0].startswith("no open choice surely fits")


def _of_gpt2_xl(capacity_bytes: int, **keys: Any) -> FitResult:
    pinned = {"activation_checkpointing": "sqrt"} if keys else {}
    job = build_job({"model": "gpt2-xl", "gpu": "v100", "allocator": "simulate", **keys, **pinned})
    return answer(job._replace(gpu=job.gpu._replace(capacity_bytes=capacity_bytes)))


def test_a_run_that_meets_no_limit_is_the_same_on_a_larger_device() -> None:
    pinned = {"micro_batch_size": 2, "activation_checkpointing": "none", "allocator": "simulate"}
    replays = Replays()
    with patch("vramplan.planner.reserving.SimulatedRun", side_effect=SimulatedRun) as played:
        one = answer(job_of(**pinned, gpu="16 GiB"), replays=replays)
        other = answer(job_of(**pinned, gpu="24 GiB"), replays=replays)
    assert [call.args[1] for call in played.call_args_list].count(2) == 1  # beside those that look for the largest
    assert one.allocator is not None
    assert one.allocator == other.allocator
