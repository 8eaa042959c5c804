"""Random jobs are written by every program, and read back they are the same job, or an error says what is not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.configs.round_trip import Job, differences, read_back
from tests.fuzz import draws
from vramplan.configs.asked import asked_of
from vramplan.configs.writers import MODULES, writer_of
from vramplan.configs.writing import Unsaid, made
from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict

SEEDS, JOBS = 60, 3  # of each program, and more where none of them was written
MOST = 6  # settings that are taken as the nearest, one after the other
MODELS = ("llama-3.2-1b", "gpt2", "qwen2.5-0.5b", "llama-3.1-8b", "mixtral-8x7b", "phi-2", "t5-small", "bert-base")
RUN = {"micro_batch_size": 2, "gradient_accumulation_steps": 3, "sequence_length": 96}


def drawn(name: str, seed: int) -> Job | None:
    """A random job of the program's runtime, every default explicit; None where it is none."""
    random = Random(f"{name} {seed}")
    keys = draws.job(random) | RUN | {"runtime": random.choice(writer_of(name).runtimes)}
    keys["model"] = random.choice(MODELS)
    keys.setdefault("activation_checkpointing", random.choice(["none", "full"]))
    for key in ("global_batch_size", "target_length", "image_size"):
        keys.pop(key, None)
    try:
        return dict(job_to_dict(build_job(keys)))
    except InputError:
        return None


def followed(name: str, job: Job) -> tuple[Job, dict[str, str], str] | list[str]:
    """The job that is written, its files and how they are read; of what cannot be said, the nearest is taken.

    A list has what is said where no file is written in the end.
    """
    said: list[str] = []
    for _ in range(MOST):
        try:
            files = made(asked_of(job, ()), writer_of(name), (), (), lambda line: "")
        except InputError as caught:
            said = [str(problem) for problem in caught.problems]
            if not isinstance(caught, Unsaid) or "model" in caught.nearest:
                return said
            for key, value in caught.nearest.items():
                group, _, inner = key.rpartition(".")
                job = job | ({group: {**(job.get(group) or {}), inner: value}} if group else {key: value})
            try:
                job = dict(job_to_dict(build_job(job)))
            except InputError:  # the nearest of several keys need not go together
                return said
            continue
        return job, dict(files.texts), f"read back: {files.again}"
    return said


def is_free(key: str, pair: tuple[Any, Any]) -> bool:
    """Whether any value will do: the factor of an adapter that a job leaves open, and a dropout of nothing."""
    if key in ("expect", "max_utilization"):  # of a gate, which only job files have
        return True
    return (key == "adapter.alpha" and pair[0] is None) or (key == "dropout" and not any(pair))


@pytest.mark.parametrize("name", MODULES)
def test_a_random_job_is_read_back_as_it_was_or_what_is_not_is_said(name: str, tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    with draws.SESSION.open():
        jobs = filter(None, (drawn(name, seed) for seed in range(SEEDS)))
        for job in jobs:
            if outcomes.total() >= JOBS and outcomes["same"]:
                break
            found = followed(name, job)
            if isinstance(found, list):
                outcomes["said"] += 1
                assert all(len(one) > len(name) for one in found)
                continue
            wanted, texts, told = found
            again, err = read_back(tmp_path, texts, told, str(wanted["gpu"]["name"]))
            assert again is not None, (err, wanted)
            differing = {key: pair for key, pair in differences(wanted, again).items() if not is_free(key, pair)}
            assert not differing, (differing, texts)
            outcomes["same"] += 1
    assert outcomes["same"], outcomes


def test_every_setting_that_is_changed_is_noticed(tmp_path: Path) -> None:
    """The comparison above can fail: of a file each setting of the job is said otherwise, one at a time."""
    wanted = dict(job_to_dict(build_job({"model": "llama-3.2-1b", "gpu": "h100", "runtime": "transformers", **SEEN})))
    files = made(asked_of(wanted, ()), writer_of("axolotl"), (), (), lambda line: "")
    (text,), told = files.texts.values(), f"read back: {files.again}"
    for before, after in OTHERWISE.items():
        assert before in text
        changed = {"axolotl.yaml": text.replace(before, after)}
        again, err = read_back(tmp_path, changed, told, "h100-80gb")
        differing = set() if again is None else set(differences(wanted, again))
        assert err.startswith("error") if again is None else differing - {"adapter.alpha"}, (before, differing)


SEEN = {
    **RUN,
    "precision": "amp-bf16",
    "weight_dtype": "bf16",
    "activation_checkpointing": "full",
    "optimizer": "adamw-8bit",
    "adapter": {"kind": "lora", "rank": 16, "targets": ["q_proj"], "dropout": 0.1},
}
OTHERWISE = {
    "sequence_len: 96": "sequence_len: 97",
    "micro_batch_size: 2": "micro_batch_size: 1",
    "gradient_accumulation_steps: 3": "gradient_accumulation_steps: 4",
    "gradient_checkpointing: true": "gradient_checkpointing: false",
    "adamw_bnb_8bit": "adamw_torch_fused",
    "lora_r: 16": "lora_r: 8",
    "[q_proj]": "[k_proj]",
    "lora_dropout: 0.1": "lora_dropout: 0.2",
    "bf16: true": "fp16: true",
    "Llama-3.2-1B": "Llama-3.2-3B",
}
