"""What was found once: jobs and files that crashed, hung, or had a value that was dropped without a word."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import TINY, refused, run
from tests.extent import runs_whole
from tests.fuzz import oracles
from tests.fuzz.draws import Keys
from tests.fuzz.run import judged, limited
from vramplan import InputError
from vramplan.catalog.config_classes import COUNT, MODEL_TYPES
from vramplan.catalog.hf_config import read_hf_config
from vramplan.options import table, words
from vramplan.options.option import FLAG, WORD, Option

pytestmark = pytest.mark.contract

ALL = (*oracles.ALWAYS, oracles.pinned, oracles.more_work)
A100: Keys = {"gpu": "a100-80gb"}
QLORA: Keys = {"adapter": {"kind": "lora"}, "quantization": "nf4"}


def shards(sharding: str | None, count: int, **keys: Any) -> Keys:
    """A job on eight devices, of which `count` are to share the states."""
    kind = {} if sharding is None else {"sharding": sharding}
    return {"model": "bert-tiny", "gpu": "a100-80gb", "parallel": {"data": 8, "shards": count, **kind}, **keys}


REFUSED = {
    "more devices than are counted": (
        {
            "model": "gpt2",
            **A100,
            "runtime": "deepspeed",
            "parallel": {"data": 2**20, "context": 4, "sharding": "zero3"},
        },
        "parallel.data",
    ),
    "shards beside zero3": (shards("zero3", 2, precision="mixed-bf16"), "parallel.shards"),
    "shards beside zero1": (shards("zero1", 4, precision="mixed-bf16"), "parallel.shards"),
    "shards beside ddp": (shards("ddp", 2), "parallel.shards"),
    "shards beside the default": (shards(None, 2), "parallel.shards"),
    "shards beside none": (shards("none", 8), "parallel.shards"),
    "shards of one device": ({"model": "bert-tiny", **A100, "parallel": {"shards": 1}}, "parallel.shards"),
    "states of 8 bits": (
        {"model": "gpt2", **A100, "optimizer": "adamw-8bit", "optimizer_state_dtype": "fp32"},
        "optimizer_state_dtype",
    ),
    "states of 8 bits, paged": (
        {"model": "gpt2", **A100, "optimizer": "adamw-8bit-paged", "optimizer_state_dtype": "fp32"},
        "optimizer_state_dtype",
    ),
    "states of lion": (
        {
            "model": "gpt2",
            **A100,
            "optimizer": "lion",
            "optimizer_state_dtype": "bf16",
            "precision": "pure-bf16",
            "weight_dtype": "bf16",
        },
        "optimizer_state_dtype",
    ),
    "more chunks than are replayed": (
        {"model": "llama-3.2-1b", **A100, "sequence_length": 131072, "loss": "chunked:10000"},
        "loss",
    ),
}


@pytest.mark.parametrize(("keys", "key"), REFUSED.values(), ids=REFUSED)
def test_a_value_that_would_be_dropped_is_refused(keys: Keys, key: str) -> None:
    with pytest.raises(InputError) as refusal, limited(5):
        oracles.Asker()(keys)
    assert [problem.key for problem in refusal.value.problems] == [key]
    assert refusal.value.problems[0].hint


SAID = {
    "host memory": ({"host_memory": "1 kB"}, "host_memory is not looked at"),
    "network": ({"parallel": {"data": 4, "node_bandwidth": "1 GB/s"}}, "node_bandwidth is not looked at"),
    "another half": (
        {"precision": "amp-fp16", "compute_dtype": "bf16"},
        "precision amp-fp16 beside compute_dtype bf16 is answered as amp-bf16",
    ),
    "no half": (
        {"precision": "amp-bf16", "compute_dtype": "fp32"},
        "precision amp-bf16 beside compute_dtype fp32 is answered as fp32",
    ),
}


@pytest.mark.parametrize(("keys", "words"), SAID.values(), ids=SAID)
def test_a_value_that_changes_nothing_is_said_to(keys: Keys, words: str) -> None:
    result = oracles.Asker()({"model": "bert-tiny", **A100, **keys})
    assert any(words in warning for warning in result.warnings), result.warnings


@pytest.mark.parametrize(("given", "devices"), [(100, 8), (512, 1)])
def test_a_node_has_no_more_devices_than_the_job(given: int, devices: int) -> None:
    parallel = {"data": devices, "devices_per_node": given}
    result = oracles.Asker()({"model": "bert-tiny", **A100, "parallel": parallel})
    assert result.job["parallel"]["devices_per_node"] == devices
    assert f"parallel.devices_per_node {given} is more than the {devices} devices of the job" in result.warnings


def test_reentrant_checkpoints_where_there_are_none_are_a_warning() -> None:
    keys = {"model": "gpt2", **A100, "checkpoint_reentrant": True, "activation_checkpointing": "none"}
    result = oracles.Asker()(keys)
    assert "checkpoint_reentrant changes nothing: nothing is checkpointed" in result.warnings


def test_states_of_an_optimizer_without_states_are_an_assumption() -> None:
    result = oracles.Asker()({"model": "gpt2", **A100, "optimizer": "sgd", "optimizer_state_dtype": "fp32"})
    assert ("optimizer_state_dtype", "none") in [(one.key, one.value) for one in result.assumptions]


ANSWERED: dict[str, Keys] = {
    "packed and padded with smoothed labels": {
        "model": "gpt2",
        "packing": True,
        "padding": "right",
        "label_smoothing": 0.1,
    },
    "packed in code without its mask": {"model": "gpt2", "runtime": "nanogpt", "packing": True},
    "the head of a reward model beside an adapter": {"model": "gpt2", "adapter": {"kind": "ia3"}, "loss": "reward"},
    "the own loss of chatglm under a runtime with another": {"model": "chatglm2-6b", "runtime": "llm-foundry"},
    "its logits in fp32": {"model": "chatglm2-6b", "runtime": "llm-foundry", "loss": "fp32-logits"},
    "its logits held in fp32": {"model": "chatglm2-6b", "hold_outputs": True, "loss": "fp32-logits"},
    "images have no tokens in the textbook": {
        "model": "resnet-18",
        "runtime": "textbook",
        "activation_model": "zero-paper",
        "micro_batch_size": 2,
    },
    "images with tokens in the textbook": {
        "model": "vit-base-patch16-224",
        "runtime": "textbook",
        "activation_model": "book",
    },
    "a switch that decides nothing is echoed": {
        "model": "gpt2",
        "precision": "mixed-bf16",
        "parallel": {"data": 2, "sharding": "zero2", "allgather_bucket_size": 100000},
    },
    "the largest micro-batch of an echo": {
        "model": "resnet-18",
        "gpu": "rtx-3060",
        "optimizer": "lamb",
        "precision": "pure-bf16",
        "allocator": "roundup_power2_divisions:4",
    },
    "a global batch with many divisors": {
        "model": "llama-3.2-1b",
        "runtime": "megatron",
        "parallel": {"pipeline": 2},
        "global_batch_size": 735134400,
    },
    "more chunks than tokens": {"model": "gpt2", "sequence_length": 256, "loss": "chunked:300"},
    "a default loss in more chunks than tokens": {
        "model": "llama-3.2-1b",
        "runtime": "torchtune",
        "sequence_length": 3,
    },
}


@pytest.mark.sweep(16)
@pytest.mark.parametrize("keys", ANSWERED.values(), ids=ANSWERED)
def test_no_oracle_finds_anything_any_more(keys: Keys) -> None:
    assert judged({"gpu": "a100-80gb", **keys}, ALL) is None


@pytest.mark.sweep
def test_many_divisors_of_a_small_batch_have_the_answer_of_trying_each() -> None:
    """The search by halves over the schedules of a pipeline finds what a look at each of them finds."""
    ask = oracles.Asker()
    keys: Keys = {
        "model": "llama-3.2-1b",
        "gpu": "h100-80gb",
        "runtime": "megatron",
        "parallel": {"pipeline": 2},
        "activation_checkpointing": "none",
        "sequence_length": 512,
    }
    batch = 240
    best = ask(keys | {"global_batch_size": batch}).recommended.micro_batch_size
    fitting = [
        micro
        for micro in range(1, batch + 1)
        if batch % micro == 0
        and ask(keys | {"micro_batch_size": micro, "gradient_accumulation_steps": batch // micro}).verdict == "fits"
    ]
    assert best == max(fitting)


@pytest.mark.sweep
def test_a_placement_that_is_best_at_once_is_found_quickly() -> None:
    keys: Keys = {
        "model": "llava-1.5-7b",
        "gpu": "b200",
        "micro_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "activation_checkpointing": "optimal",
    }
    with limited(15):  # of processor time; halving from the least possible peak took 20
        assert oracles.Asker()(keys).verdict == "fits"


def values(option: Option) -> list[Any]:
    """Every word of a row, or both values of a switch."""
    if option.kind == FLAG:
        return [True, False]
    named = {"N": "2", "K": "2", "RANK": "4", "V": "2"}
    return [
        f"{head}:{named.get(rest, rest)}" if colon else word
        for word in option.words
        for head, colon, rest in [word.partition(":")]
    ]


SMALL = TINY | {"layers": 2}
BESIDE: dict[str, Keys] = {
    "one device": {},
    "fsdp": {"parallel": {"data": 4, "sharding": "fsdp"}},
    "zero3": {"parallel": {"data": 4, "sharding": "zero3"}, "precision": "mixed-bf16"},
    "textbook": {"runtime": words.TEXTBOOK},
}


WORDED = [one for one in table.TABLE if one.kind in (WORD, FLAG) and one.key not in ("runtime", "adapter.kind")]


@pytest.mark.plain
@pytest.mark.sweep(96)
@pytest.mark.parametrize("beside", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("option", WORDED, ids=lambda option: option.key)
def test_every_word_of_every_key_is_used_refused_or_said(option: Option, beside: Keys) -> None:
    ask, dropped = oracles.Asker(), []
    every = values(option)
    for value in every if runs_whole() else every[:: -(-len(every) // 8)]:
        keys: Keys = {"model": SMALL, **A100, "sequence_length": 64, **beside}
        if option.group:
            inside = {"kind": "lora"} if option.group == "adapter" else {}
            keys[option.group] = inside | keys.get(option.group, {}) | {option.name: value}
        else:
            keys[option.key] = value
        result = ask.accepted(keys)
        if result is not None:
            dropped.append(oracles.echo(ask, keys, result))
    assert not any(dropped), dropped


LARGE = (10**9, 10**18)


@pytest.mark.sweep(8)
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_sizes_are_in_range_before_anything_is_listed(model_type: str, tmp_path: Path) -> None:
    keys = [key for key, (_, kind) in MODEL_TYPES[model_type].keys.items() if kind == COUNT]
    file = tmp_path / "config.json"
    for key in (*keys, "first_k_dense_replace", "decoder_sparse_step", "max_window_layers"):
        for large in LARGE:
            file.write_text(json.dumps({"model_type": model_type, key: large}))
            with limited(2), contextlib.suppress(InputError):
                read_hf_config(file)


@pytest.mark.parametrize("key", ["num_hidden_layers", "first_k_dense_replace"])
@pytest.mark.parametrize("model_type", ["qwen2_moe", "qwen3_moe", "deepseek_v3", "llama"])
def test_blocks_beyond_any_model_are_refused_or_none(model_type: str, key: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": model_type, key: 10**9}))
    if key == "num_hidden_layers":
        with pytest.raises(InputError, match="1000000000 is out of range, 1 to 10000"):
            read_hf_config(file)
    else:
        shape, _ = read_hf_config(file)  # all blocks are dense, or the class does not know the key
        assert shape.experts is None or len(shape.experts.dense_layers) <= shape.layers


@pytest.mark.plain
@pytest.mark.sweep(6)
@pytest.mark.parametrize("listed", ["adapter.targets", "adapter.feedforward_targets", "adapter.modules_to_save"])
@pytest.mark.parametrize("kind", words.ADAPTERS)
def test_an_empty_list_of_an_adapter_is_no_crash(kind: str, listed: str) -> None:
    keys: Keys = {"model": "bert-tiny", **A100, "adapter": {"kind": kind, listed.partition(".")[2]: []}}
    found = judged(keys, ALL)
    assert found is None or found[0] == "refused"


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", ["\x1b[31mred", "two\nlines", "=1+1", "a" * 20000])
def test_the_name_in_a_config_is_one_line_that_can_be_fed_back(name: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "gpt2", "n_layer": 2, "_name_or_path": name}))
    assert judged({"model": str(file), **A100}, ALL) is None
    for more in (("--format", "csv"), ("--print", "name"), ("--format", "markdown"), ()):
        ran = run("fit", "--model", file, "--gpu", "a100-80gb", *more)
        assert ran.code == 0
        assert all(char.isprintable() or char == "\n" for char in ran.out)


@pytest.mark.parametrize("text", ["0", "0 GB", "0.0 GiB"])
def test_nothing_free_is_no_question_of_its_unit(text: str) -> None:
    ran = refused("fit", "-m", "gpt2", "-g", "v100", "--gpu-free", text)
    assert "is nothing; a size is more than zero" in ran.err
    assert "write 0" not in ran.err


@pytest.mark.sweep
def test_the_sums_of_both_stacks_are_explained() -> None:
    """Both stacks of T5 add gradients of a bias up from block to block, and the names of these sums are the same."""
    keys: Keys = {"model": "t5-small", "gpu": "v100", "activation_checkpointing": "full"}
    keys |= {"micro_batch_size": 1, "gradient_accumulation_steps": 1}
    assert judged(keys, (oracles.commands,)) is None


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "keys",
    [
        {"model": "gpt2", **A100, "loss": "reward"},  # a head of one class, which any other loss makes a regression
        {"model": "gpt2", **A100, "parallel": {"sharding": "zero3"}},  # one device, of which a launcher has to be told
        # a scaler with a precision that DeepSpeed lacks: the files say another precision, which has no such scaler
        {"model": "gpt2", **A100, "runtime": "deepspeed", "precision": "amp-fp16", "grad_scaler": True},
        # a compiled step whose sums come from each other: what one is made of was walked through on every way
        {"model": "bart-large", **A100, **QLORA, "compile": True, "offload": ["activations"]},
    ],
)
def test_what_was_found_in_jobs_by_keys(keys: Keys) -> None:
    assert judged(keys, (*ALL, oracles.written)) is None


def test_advice_for_a_model_that_an_engine_alone_replays() -> None:
    """A textbook counts it, and asks whether it has batch normalisation."""
    words = ("--runtime", "textbook", "--base-lr", "0.001", "--base-batch-size", "8")
    assert run("fit", "modded-nanogpt-2024-12-10", "-g", "a100-80gb", *words).code == 0
