"""What a training program has no code for is refused at its key, with a way out: for every engine and every key."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan import engines
from vramplan.catalog.runtimes import find_runtime
from vramplan.errors import InputError, Problem
from vramplan.job import build_job
from vramplan.job.behaviour import under
from vramplan.options import table, words

pytestmark = pytest.mark.contract

MODELS = {"llm.c": "gpt2", "nanogpt": "gpt2", "modded-nanogpt": "modded-nanogpt-2024-12-17", "llm-foundry": "mpt-7b"}
"""A model that the engine has code of, where that is not Llama."""

GIVEN: dict[str, Any] = {
    "adapter": {"kind": "lora"},
    "allocator": "simulate",
    "checkpoint_reentrant": True,
    "compile": True,
    "cuda_module_loading": "lazy",
    "dropout": 0.25,
    "ema": True,
    "eval_batch_size": 3,
    "frozen": ["embeddings"],
    "generation_batch_size": 2,
    "generation_length": 5,
    "grad_scaler": True,
    "hold_outputs": True,
    "use_cache": True,
    "transformers_version": "4.57",
    "label_smoothing": 0.1,
    "litgpt_version": "0.4.5",
    "deepspeed_version": "0.18.6",
    "max_gradient_norm": 1.5,
    "offload": ["activations"],
    "optimizer_in_backward": True,
    "packing": True,
    "padding": "right",
    "pytorch_version": "2.5",
    "quantization": "nf4",
}
ENGINES = [name for name in engines.FOLDERS if name != "deepspeed"]
LACKED = [(name, key) for name in ENGINES for key in under(find_runtime(name)[0]).lacks]


def refusals(name: str, **keys: Any) -> list[Problem]:
    devices = {"parallel": {"data": 2}} if name == "modded-nanogpt" else {}
    job = {"model": MODELS.get(name, "llama-2-7b"), "gpu": "a100", "runtime": name, **devices, **keys}
    with pytest.raises(InputError) as caught:
        build_job(job)
    return list(caught.value.problems)


def test_there_are_engines_that_lack_something() -> None:
    assert {name for name, _ in LACKED} >= {"megatron", "llm.c", "modded-nanogpt", "torchtitan"}


@pytest.mark.parametrize(("name", "key"), LACKED, ids=lambda one: str(one))
def test_a_key_that_an_engine_knows_nothing_of_is_refused_once_with_a_way_out(name: str, key: str) -> None:
    found = [one for one in refusals(name, **{key: GIVEN[key]}) if one.key == key]
    assert len(found) == 1, found
    assert found[0].message.endswith(f" is not in {name}")
    assert found[0].hint


def test_keys_that_an_engine_knows_nothing_of_are_refused_together() -> None:
    keys = sorted(under(find_runtime("megatron")[0]).lacks)
    found = refusals("megatron", **{key: GIVEN[key] for key in keys})
    assert sorted(one.key or "" for one in found) == keys


OFFERED: dict[str, tuple[str, ...]] = {
    "precision": tuple(dict.fromkeys(words.PRECISIONS.values())),
    "optimizer": words.OPTIMIZERS,
    "attention": table.find("attention").words,
    "activation_checkpointing": words.CHECKPOINTINGS,
    "loss": table.find("loss").words,
}
FILLED = {"every:K": "every:2", "selective-layer:K": "selective-layer:2", "chunked:N": "chunked:8"}
FILLED |= {"galore-adamw:RANK": "galore-adamw:8"}


def unknown() -> list[tuple[str, str, str]]:
    """Every engine, key and word of the job format that the engine does not accept at the key."""
    found = []
    for name in ENGINES:
        runtime = find_runtime(name)[0]
        for key, offered in OFFERED.items():
            known = runtime.only.get(key) or under(runtime).accepts.get(key, ())
            found += [(name, key, word) for word in offered if known and word not in known and word not in MEANT]
    return found


MEANT = ("sdpa", "auto", "vocab-parallel", "fp32-logits", "classification")  # words that stand for others


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("name", "key", "word"), unknown(), ids=lambda one: str(one))
def test_a_word_that_an_engine_does_not_know_is_refused_with_a_way_out(name: str, key: str, word: str) -> None:
    found = [one for one in refusals(name, **{key: FILLED.get(word, word)}) if one.key == key]
    assert found
    assert found[0].hint, found
