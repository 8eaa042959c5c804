"""A change of a resolved job is taken or refused as the changed job would be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vramplan.answers.fit import answer
from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict
from vramplan.job.recheck import rechecker
from vramplan.values.job import Job

SHIPPED = Path(__file__).resolve().parents[2] / "profiles"
PINNED = {"micro_batch_size": 1, "gradient_accumulation_steps": 1, "activation_checkpointing": "none"}
JOBS: dict[str, dict[str, Any]] = {
    "fsdp": {"model": "gpt2-xl", "gpu": "v100", "parallel": {"data": 4, "sharding": "fsdp"}},
    "zero": {"model": "gpt2-xl", "gpu": "a100-40gb", "parallel": {"data": 8, "sharding": "zero3"}},
    "megatron": {"model": "llama-3-8b", "gpu": "h100-80gb", "parallel": {"tensor": 2}},
    "litgpt": {"model": "llama-3.2-1b", "gpu": "a100-40gb", "runtime": "litgpt"},
    "llm.c": {"model": "gpt2", "gpu": "a100-40gb", "runtime": "llm.c"},
    "torchtune": {"model": "llama-3.2-1b", "gpu": "a100-40gb", "runtime": "torchtune"},
    "one device": {"model": "gpt2", "gpu": "t4"},
}
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"micro_batch_size": 2},
    {"allocator": "expandable_segments:True"},
    {"activation_checkpointing": "full", "every_second_matmul": False},
    {"attention": "efficient"},
    {"optimizer": "adafactor", "optimizer_implementation": "for-loop"},
    {"optimizer": "sgd", "optimizer_implementation": "foreach"},
    {"precision": "pure-fp16", "grad_scaler": False},
    {"sequence_length": 128},
    {"parallel": {"sharding": "zero2"}},
    {"parallel": {"data": 16}},
    {"gpu": "h100-80gb", "gpu_free": None},
    {"adapter": {"kind": "lora", "rank": 16, "targets": ["all-linear"]}, "weight_dtype": "fp16"},
    {"quantization": "nf4"},
)


def built(job: Job, change: dict[str, Any]) -> bool:
    """Whether the job that the changed text describes can be computed."""
    keys = job_to_dict(job)
    changed = {**keys, **change}
    if "parallel" in change:
        changed["parallel"] = {**keys["parallel"], **change["parallel"]}
    try:
        build_job(changed)
    except InputError:
        return False
    return True


@pytest.mark.parametrize("keys", JOBS.values(), ids=list(JOBS))
def test_a_change_is_taken_as_the_changed_job_is(keys: dict[str, Any]) -> None:
    job = build_job({**keys, **PINNED})
    is_modelled = rechecker(job)
    once, again = ([is_modelled(change) for change in CHANGES] for _ in range(2))
    assert once == again == [built(job, change) for change in CHANGES]
    assert once[0]


def test_the_changes_are_of_both_kinds() -> None:
    asked = [rechecker(build_job({**keys, **PINNED}))(change) for keys in JOBS.values() for change in CHANGES]
    assert {True, False} == set(asked)


def test_a_job_of_a_runtime_of_its_own_folder_has_remedies(tmp_path: Path) -> None:
    text = (SHIPPED / "runtimes" / "pytorch.yaml").read_text("utf-8")
    (tmp_path / "runtimes").mkdir()
    (tmp_path / "runtimes" / "mine.yaml").write_text(text.replace("name: pytorch", "name: mine", 1), "utf-8")
    keys = {"model": "gpt2-xl", "gpu": "10 GiB", "parallel": {"data": 4, "sharding": "fsdp"}}
    mine = answer(build_job({**keys, "runtime": "mine"}, profile_dirs=[tmp_path]))
    shipped = answer(build_job({**keys, "runtime": "pytorch"}))
    assert mine.verdict == shipped.verdict == "does-not-fit"
    assert [one.change for one in mine.remedies] == [one.change for one in shipped.remedies]
    assert shipped.remedies
