"""Each remedy does what it says: typed, it gives that verdict, that peak, and saves those bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.draws import jobs
from tests.cli.running import run
from tests.job.test_combinations import ALONE
from tests.job.test_families import small
from vramplan import fit
from vramplan.answers.fit import answer, answered
from vramplan.answers.processes import usable
from vramplan.catalog.config_classes import MODEL_TYPES
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.options import table
from vramplan.planner.candidate import COSTS, rank_of
from vramplan.results import FitResult, Remedy

SHIPPED = Path(__file__).resolve().parents[2] / "profiles"
CARD = {"name": "x", "memory": "2 GiB", "bf16": True, "flash_attention": True, "compute_capability": 9.0}


def typed(keys: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a job with those of a remedy: null takes a key away, and the rest is replaced."""
    result = dict(keys)
    for key, value in change.items():
        if key in table.GROUPS and value is not None:
            value = {**result.get(key, {}), **value}
            value = {name: item for name, item in value.items() if item is not None}
        result[key] = value
    return {key: value for key, value in result.items() if value is not None}


def verify(keys: Mapping[str, Any], result: FitResult) -> None:
    if result.verdict == "fits":
        assert result.remedies == ()
        return
    assert result.remedies is not None
    for remedy in result.remedies:
        verify_one(keys, result, remedy)
    now = keys.get("parallel", {}).get("data", 1)
    order = [
        (remedy.verdict != "fits", rank_of(remedy.costs), _is_of_nodes(remedy, now), _seconds(remedy))
        for remedy in result.remedies
    ]
    assert order == sorted(order)


def _is_of_nodes(remedy: Remedy, now: int) -> bool:
    """Whether it takes more GPUs than a node has, and more than twice those that are there: larger cards come first."""
    return (remedy.change.get("parallel") or {}).get("data", now) > max(8, 2 * now)


def _seconds(remedy: Remedy) -> float:
    """Of a token of all devices, of a sample where there are no tokens."""
    rate = remedy.tokens_per_second or remedy.samples_per_second
    return inf if rate is None else 1 / rate


def verify_one(keys: Mapping[str, Any], result: FitResult, remedy: Remedy) -> None:
    again = fit(**typed(keys, remedy.change))
    assert again.verdict == remedy.verdict != "does-not-fit", remedy
    assert again.peak.device_bytes == remedy.device_bytes, remedy
    assert again.usable_bytes == remedy.usable_bytes, remedy
    rates = (None, None) if again.time is None else (again.time.samples_per_second, again.time.tokens_per_second)
    assert rates == (remedy.samples_per_second, remedy.tokens_per_second), remedy
    assert result.peak.device_bytes - again.peak.device_bytes == remedy.saves_bytes, remedy
    if remedy.verdict == "tight" and result.verdict == "tight":
        assert again.headroom_bytes >= 0 > result.headroom_bytes, remedy
    assert remedy.cost
    assert remedy.option
    assert remedy.costs in COSTS


REAL: tuple[dict[str, Any], ...] = (
    {"model": "gpt2-xl", "gpu": "v100", "micro_batch_size": 32, "activation_checkpointing": "full"},
    {"model": "gpt2-xl", "gpu": "v100", "activation_checkpointing": "none", "attention": "eager"},
    {"model": "gpt2-xl", "gpu": "v100", "precision": "fp32", "runtime": "pytorch", "micro_batch_size": 32},
    {"model": "gpt2-xl", "gpu": "t4", "precision": "mixed-fp16", "optimizer": "rmsprop"},
    {"model": "gpt2-large", "gpu": "t4", "micro_batch_size": 8, "hold_outputs": True},
    {"model": "llama-3-8b", "gpu": "a100-80gb", "precision": "mixed-bf16"},
    {
        "model": "llama-3-8b",
        "gpu": "a100-80gb",
        "parallel": {"data": 8},
        "sequence_length": 8192,
        "weight_dtype": "fp32",
    },
    {"model": "mistral-7b", "gpu": "a100", "attention": "eager", "sequence_length": 6000, "weight_dtype": "fp32"},
    {"model": "gpt2-xl", "gpu": "t4", "parallel": {"data": 8, "sharding": "fsdp"}, "micro_batch_size": 16},
    {"model": "bert-base-uncased", "gpu": "rtx-3060", "micro_batch_size": 96, "activation_checkpointing": "none"},
    {"model": "bert-base-uncased", "gpu": {"name": "card", "memory": "6 GiB"}, "micro_batch_size": 512},
    {"model": "gpt2-xl", "gpu": "v100", "frozen": ["embeddings", "layers.0-23"], "micro_batch_size": 32},
    # a card whose context no source knows in that release; one that other people use
    {"model": "mistral-nemo-12b", "gpu": "rtx-3060", "micro_batch_size": 4, "pytorch_version": "1.13"},
    {"model": "qwen2.5-0.5b", "gpu": "rtx-3090", "gpu_free": "9 GiB", "micro_batch_size": 8, "sequence_length": 2048},
    # a program that lacks adapters, and keys that belong to what is replaced
    {"model": "tinyllama-1.1b", "gpu": "jetson-orin-nx-8gb", "runtime": "fms-fsdp", "sequence_length": 128},
    {"model": "qwen2.5-0.5b", "gpu": "t4", "micro_batch_size": 8, "gradient_dtype": "fp32"},
    {"model": "qwen2.5-0.5b", "gpu": "8 GiB", "loss": "classification", "precision": "fp32", "micro_batch_size": 32},
    # what follows from the card and from the weights
    {"model": "gpt2-xl", "gpu": "v100", "micro_batch_size": 32, "activation_checkpointing": "none"},
    {"model": "codellama-7b", "gpu": "rtx-3090", "precision": "pure-fp16", "micro_batch_size": 4},
)


@pytest.mark.sweep(20)
@pytest.mark.contract
@pytest.mark.parametrize("keys", REAL, ids=lambda keys: f"{keys['model']}")
def test_every_remedy_of_a_real_run_keeps_its_word(keys: dict[str, Any]) -> None:
    result = fit(**keys)
    assert result.verdict != "fits"
    assert result.remedies
    verify(keys, result)


@pytest.mark.sweep
@pytest.mark.contract
def test_a_placement_by_size_is_judged_on_the_card_of_the_remedy() -> None:
    keys = {
        "model": "llama-3.2-1b",
        "gpu": "rtx-4090",
        "runtime": "torchtitan",
        "micro_batch_size": 4,
        "global_batch_size": 32,
        "precision": "mixed-bf16",
        "activation_checkpointing": "optimal",
        "parallel": {"data": 2, "sharding": "ddp", "gradient_as_bucket_view": True},
    }
    verify(keys, fit(**keys))


@pytest.mark.sweep(9)
@pytest.mark.contract
@settings(deadline=None, max_examples=8)
@given(jobs(), st.integers(1, 400))
def test_every_remedy_of_a_random_run_keeps_its_word(raw: dict[str, Any], room: int) -> None:
    # the context takes 614.4 MiB
    keys = {**raw, "gpu": {**raw["gpu"], "memory": f"{614 + room * room // 100} MiB"}}
    verify(keys, fit(**keys))


def first_are_those_of_all(keys: dict[str, Any]) -> None:
    result = fit(**keys)
    if result.remedies:
        for enough in (1, 3):
            some = answered(keys, (), enough=enough).remedies
            assert some is not None
            assert some[:enough] == result.remedies[:enough]


@pytest.mark.sweep(20)
@pytest.mark.contract
@pytest.mark.parametrize("keys", REAL[::3], ids=lambda keys: f"{keys['model']}")
def test_who_is_shown_some_is_shown_the_first_of_all(keys: dict[str, Any]) -> None:
    first_are_those_of_all(keys)


@pytest.mark.sweep(9)
@pytest.mark.contract
@settings(deadline=None, max_examples=8)
@given(jobs(), st.integers(1, 400))
def test_so_it_is_of_random_runs(raw: dict[str, Any], room: int) -> None:
    first_are_those_of_all({**raw, "gpu": {**raw["gpu"], "memory": f"{614 + room * room // 100} MiB"}})


@pytest.mark.contract
def test_who_is_shown_none_waits_for_none() -> None:
    keys = {"model": "gpt2-xl", "gpu": "v100", "micro_batch_size": 64}
    assert answered(keys, (), enough=0) == fit(**keys)._replace(remedies=None)


@pytest.mark.sweep(3)
@pytest.mark.contract
@pytest.mark.parametrize("enough", [3, None])
@pytest.mark.parametrize(
    "keys",
    [
        {"model": "llama-3.2-3b", "gpu": "rtx-4090", "sequence_length": 512},
        {"model": "qwen2.5-3b", "gpu": "a10g", "parallel": {"data": 2, "sharding": "fsdp"}, "sequence_length": 512},
        {"model": "llama-3.2-3b", "gpu": "rtx-3090", "micro_batch_size": 4, "gradient_accumulation_steps": 1},
    ],
    ids=lambda keys: f"{keys['model']} {keys['gpu']}" if isinstance(keys, dict) else None,
)
def test_several_processes_find_the_same(keys: dict[str, Any], enough: int | None) -> None:
    if usable() < 2:
        pytest.skip("one processor")
    one_by_one = answered(keys, (), enough=enough)
    assert one_by_one.remedies
    assert answered(keys, (), enough=enough, at_once=True) == one_by_one


@pytest.mark.contract
def test_two_changes_that_train_the_same_stand_before_one_that_does_not() -> None:
    keys = {
        "model": "llama-3.1-70b",
        "gpu": "a100-80gb",
        "micro_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "parallel": {"data": 32, "sharding": "fsdp"},
    }
    first, *others = answered(keys, (), enough=3).remedies or ()
    offload = ("parameters", "gradients", "optimizer")
    assert (first.verdict, dict(first.change)) == ("fits", {"parallel": {"no_sync": False}, "offload": offload})
    assert "training" in {one.costs for one in others}
    verify_one(keys, fit(**keys), first)


@pytest.mark.contract
def test_what_helps_nothing_alone_is_tried_beside_another_change() -> None:
    """Full fine-tuning of 7B on 12 GiB: a fused loss saves nothing until the weights are in 4 bits."""
    keys = {"model": "qwen2.5-7b", "gpu": "rtx-3060"}
    found = [dict(one.change) for one in answered(keys, (), enough=3).remedies or () if one.verdict == "fits"]
    assert any(one.get("quantization") == "nf4" and one.get("loss") == "fused" for one in found)


def changes(result: FitResult) -> list[dict[str, Any]]:
    assert result.remedies is not None
    return [dict(remedy.change) for remedy in result.remedies]


@pytest.mark.contract
def test_the_pinned_micro_batch_that_needs_too_much() -> None:
    keys = {"model": "gpt2-xl", "gpu": "v100", "activation_checkpointing": "full", "gradient_accumulation_steps": 2}
    result = fit(**keys, micro_batch_size=64)
    change = next(one for one in changes(result) if "micro_batch_size" in one)
    assert change["micro_batch_size"] * change["gradient_accumulation_steps"] == 128
    assert fit(**{**keys, **change}).verdict == "fits"


@pytest.mark.sweep
@pytest.mark.contract
def test_larger_cards_of_the_data_sheet_are_named_with_their_caveat() -> None:
    result = fit(model="llama-3.1-8b", gpu="rtx-4090", precision="amp-bf16", weight_dtype="fp32")
    assert result.remedies is not None
    cards = {one.change["gpu"]: one.cost for one in result.remedies if "gpu" in one.change}
    assert len(cards) == 3
    assert "data sheet" in cards["mi300x"]
    assert all(one.costs == "money" for one in result.remedies if "gpu" in one.change)


@pytest.mark.sweep
@pytest.mark.contract
def test_replicas_that_do_not_fit_are_told_every_way_to_share() -> None:
    result = fit(model="llama-3.2-3b", gpu="rtx-4090", sequence_length=1024, parallel={"data": 8})
    shared = [one["parallel"].get("sharding") for one in changes(result) if "parallel" in one]
    assert {"zero3", "fsdp"} <= set(shared)  # ZeRO-2 may fit, and three changes surely do


@pytest.mark.sweep
@pytest.mark.contract
def test_a_tight_run_is_told_to_synchronise_each_micro_step() -> None:
    keys = {"model": "llama-3.1-8b", "gpu": "a100-80gb", "sequence_length": 4096, "global_batch_size": 512}
    keys |= {"precision": "amp-bf16", "weight_dtype": "fp32", "parallel": {"data": 8, "sharding": "fsdp"}}
    result = fit(**keys)
    assert result.verdict == "tight"
    assert {"parallel": {"no_sync": False}} in changes(result)


def more_devices(keys: dict[str, Any], enough: int = 3) -> Remedy:
    remedies = answered(keys, (), enough=enough).remedies
    assert remedies is not None
    [found] = [one for one in remedies if (one.change.get("parallel") or {}).get("data")]
    return found


@pytest.mark.sweep
def test_nodes_of_gpus_stand_behind_a_larger_card_for_who_has_one() -> None:
    keys: dict[str, Any] = {"model": "phi-4", "gpu": "rtx-5090", "sequence_length": 8192, "micro_batch_size": 1}
    keys |= {"adapter": {"kind": "lora"}, "activation_checkpointing": "full"}
    found = fit(**keys).remedies
    assert found is not None
    bought = [one.change for one in found if one.costs == "money" and one.verdict == "fits"]
    data = [change.get("parallel", {}).get("data", 1) for change in bought]
    assert data[-1] > 8  # the fewest that surely fit
    assert set(data[:-1]) == {1}


@pytest.mark.sweep
@pytest.mark.contract
def test_more_devices_are_more_nodes_where_those_of_a_node_were_typed() -> None:
    card = {**CARD, "memory": "3.5 GiB", "memory_bandwidth": "50 TB/s"}  # beside which all larger cards are slow
    keys: dict[str, Any] = {"model": "gpt2-large", "gpu": card, "parallel": {"data": 2, "sharding": "fsdp"}}
    keys |= {"optimizer": "sgd", "adapter": {"kind": "lora", "rank": 8}}  # which leaves little else to change
    plain = more_devices(keys)
    assert plain.option == f"--gpus {plain.change['parallel']['data']}"
    keys["parallel"] = {**keys["parallel"], "devices_per_node": 2}
    in_nodes = more_devices(keys)
    data = in_nodes.change["parallel"]["data"]
    assert data > 2
    assert in_nodes.option == f"--nodes {data // 2} --gpus 2"
    verify_one(keys, fit(**keys), in_nodes)


@pytest.mark.sweep
@pytest.mark.contract
def test_the_fewest_devices_are_those_that_an_answer_about_them_calls_certain() -> None:
    keys: dict[str, Any] = {"model": "llama-3.1-70b", "gpu": "h100", "sequence_length": 8192, "allocator": "estimate"}
    sharing = {"sharding": "fsdp", "devices_per_node": 8}
    found = more_devices({**keys, "parallel": {**sharing, "data": 16}}, enough=12)  # offload and adapters come before
    count = found.change["parallel"]["data"]
    assert found.option == f"--nodes {count // 8} --gpus 8"
    assert fit(**keys, parallel={**sharing, "data": count}).verdict == "fits"
    assert fit(**keys, parallel={**sharing, "data": count // 2}).verdict != "fits"


@pytest.mark.sweep
@pytest.mark.contract
def test_what_surely_fits_is_found_before_what_may() -> None:
    """FSDP and ZeRO alone are tight here, and a search for what is tight takes as long as several answers."""
    keys = {"model": "qwen2.5-0.5b", "gpu": {**CARD, "memory": "4.8 GiB"}, "parallel": {"data": 8}}
    remedies = answered({**keys, "sequence_length": 1024}, (), enough=3).remedies
    assert remedies is not None
    assert [one.verdict for one in remedies[:3]] == ["fits"] * 3


@pytest.mark.sweep
@pytest.mark.contract
def test_two_changes_that_do_the_same_are_one_pair() -> None:
    """ZeRO-3 with the optimizer on the host needs no more than with its gradients there too."""
    keys = {"model": "mixtral-8x7b", "gpu": "a100-80gb", "parallel": {"data": 8, "sharding": "zero2"}}
    remedies = answered(keys, (), enough=3).remedies
    assert remedies is not None
    offloading = [one.change["offload"] for one in remedies if "offload" in one.change]
    assert offloading == [("optimizer",)]


@pytest.mark.sweep(2)
@pytest.mark.contract
@pytest.mark.parametrize("precision", [None, "amp-bf16"])
def test_one_card_is_offered_the_memory_of_its_host(precision: str | None) -> None:
    """Plain loops have no way to keep states there; DeepSpeed's ZeRO has one, of one device too."""
    keys = {"model": "llama-3.1-8b", "gpu": "rtx-4090"} | ({} if precision is None else {"precision": precision})
    remedies = answered(keys, (), enough=3).remedies
    assert remedies is not None
    (hosted,) = [one for one in remedies if "offload" in one.change]
    assert hosted.change["offload"] == ("parameters", "optimizer")
    assert ("precision" in hosted.change) is (precision is not None)
    with_it = fit(**{**keys, **hosted.change})
    assert with_it.verdict == hosted.verdict == "fits"
    assert with_it.job["parallel"]["sharding"] == "zero3"
    assert with_it.host is not None
    assert with_it.host.node_bytes == hosted.host_bytes
    assert all(one.host_bytes is None for one in remedies if one is not hosted)


@pytest.mark.contract
def test_two_changes_are_offered_where_one_is_not_enough() -> None:
    keys = {"model": "gpt2-xl", "gpu": "12 GiB", "precision": "amp-fp16", "frozen": ["embeddings"]}
    result = fit(**keys)
    assert result.verdict == "does-not-fit"
    ours = [one for one in result.remedies or () if one.costs != "money"]
    assert ours
    assert all(len(one.change) > 1 for one in ours)
    verify(keys, result)


@pytest.mark.sweep(99)
@pytest.mark.contract
@pytest.mark.parametrize("place", range(len(MODEL_TYPES)), ids=sorted(MODEL_TYPES))
def test_every_remedy_of_a_model_type_is_a_job(place: int) -> None:
    """Of every type, each with one technique: all three of each would take minutes, and the fuzzer draws them."""
    model_type = sorted(MODEL_TYPES)[place]
    technique: dict[str, Any] = ({}, ALONE["adapter"], ALONE["compile"])[place % 3]
    keys = {"model": small(model_type), "gpu": CARD, "micro_batch_size": 2048, **technique}
    try:
        result = fit(**keys)
    except InputError:
        assert technique, "a plain job of every model type is modelled"
        return
    for change in changes(result):
        build_job(typed(keys, change))


@pytest.mark.sweep
@pytest.mark.contract
def test_a_job_of_a_runtime_of_its_own_folder_has_remedies(tmp_path: Path) -> None:
    text = (SHIPPED / "runtimes" / "pytorch.yaml").read_text("utf-8")
    (tmp_path / "runtimes").mkdir()
    (tmp_path / "runtimes" / "mine.yaml").write_text(text.replace("name: pytorch", "name: mine", 1), "utf-8")
    keys = {"model": "gpt2-xl", "gpu": "10 GiB", "parallel": {"data": 4, "sharding": "fsdp"}}
    mine = fit(**keys, runtime="mine", profiles=tmp_path)
    shipped = fit(**keys, runtime="pytorch")
    assert mine.verdict == shipped.verdict == "does-not-fit"
    assert changes(mine) == changes(shipped)
    assert shipped.remedies


@pytest.mark.contract
def test_a_resolved_job_alone_has_remedies_on_its_echo() -> None:
    result = answer(build_job({"model": "gpt2-xl", "gpu": "v100", "micro_batch_size": 512}))
    assert result.verdict == "does-not-fit"
    assert result.remedies
    verify(result.job, result)


@pytest.mark.contract
def test_an_absurd_micro_batch_is_answered_at_once() -> None:
    keys = {"model": "gpt2", "gpu": "v100", "micro_batch_size": 10**12}
    result = fit(**keys)
    assert result.verdict == "does-not-fit"
    verify(keys, result)


def test_8bit_layers_are_offered_reentrant_checkpoints() -> None:
    card = {"name": "x", "memory": "6.5 GiB"}
    keys: dict[str, Any] = {"model": "whisper-small", "gpu": card, "quantization": "int8", "adapter": {"kind": "lora"}}
    keys |= {"micro_batch_size": 8, "activation_checkpointing": "full"}
    result = fit(**keys)
    found = next(one for one in result.remedies or () if one.change == {"checkpoint_reentrant": True})
    assert found.costs == "nothing"
    verify_one(keys, result, found)


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("model", "keys"),
    [
        ("mixtral-8x7b", {"transformers_version": "4.57"}),
        ("gpt-oss-20b", {"quantized_experts": True}),
        ("falcon-7b", {"transformers_version": "5.4"}),
    ],
)
def test_what_stays_in_16_bits_beside_quantized_layers_can_have_few(model: str, keys: dict[str, Any]) -> None:
    """By the release of Transformers whose experts or layers are quantized, where it has the model, or by Axolotl."""
    memory = {"mixtral-8x7b": "48 GiB", "falcon-7b": "12 GiB", "gpt-oss-20b": "32 GiB"}[model]
    job = {"model": model, "gpu": {**CARD, "memory": memory}}
    job |= {"quantization": "nf4", "adapter": {"kind": "lora"}, "sequence_length": 512, "micro_batch_size": 1}
    result = fit(**job)
    assert any(re.search(r"\bstays? in 16 bits", one) for one in result.warnings)
    found = next(one for one in result.remedies or () if keys.items() <= one.change.items())
    verify_one(job, result, found)


def test_flat_parameters_are_offered_where_most_devices_would_have_no_expert() -> None:
    """fully_shard cuts the tensor of all experts by its first size, so that four of sixteen devices have one each."""
    model = {"family": "mixtral", "name": "m", "layers": 4, "hidden_size": 1024, "attention_heads": 16}
    model |= {"intermediate_size": 3584, "vocabulary_size": 1000, "experts": {"count": 4, "active": 2}}
    keys: dict[str, Any] = {"model": model, "sequence_length": 256, "micro_batch_size": 1, "weight_dtype": "fp32"}
    keys |= {
        "gpu": {**CARD, "memory": "2500 MiB"},
        "activation_checkpointing": "full",
        "gradient_accumulation_steps": 1,
    }
    keys |= {"parallel": {"data": 16, "sharding": "fsdp"}}
    result = fit(**keys)
    assert result.verdict == "does-not-fit"
    found = [one for one in result.remedies or () if one.change == {"parallel": {"fsdp_version": 1}}]
    assert [one.costs for one in found] == ["nothing"]
    verify_one(keys, result, found[0])
    even = fit(**{**keys, "parallel": {"data": 4, "sharding": "fsdp"}})
    assert all(one.change != {"parallel": {"fsdp_version": 1}} for one in even.remedies or ())


def test_a_change_that_keeps_the_card_is_shown_though_it_is_tight_and_larger_cards_fit() -> None:
    ran = run("fit", "-m", "qwen2.5-32b", "-g", "rtx-3090", "--runtime", "unsloth")
    shown = [line for line in ran.out.splitlines() if " GiB " in line and "--" in line]
    assert [line.split()[-1] for line in shown] == ["fits", "tight"]
    assert "--gpu" in shown[0]
    assert "--qlora" in shown[-1]


def test_two_changes_that_keep_the_card_are_shown_though_they_are_tight_and_nothing_else_keeps_it() -> None:
    words = ("fit", "-m", "llama-3.2-1b", "-g", "gtx-1650")
    ran = run(*words)
    shown = [
        line.removeprefix("  to fit ").strip() for line in ran.out.splitlines() if line.endswith((" fits", " tight"))
    ]
    assert [line.split()[0] for line in shown[:-1]] == ["--gpu", "--gpu"]
    *change, size, _, verdict = shown[-1].split()
    assert (verdict, {"--loss", "--qlora"} <= {*change}) == ("tight", True)
    typed = run(*words, *change)
    assert typed.out.startswith("TIGHT")
    assert f"  memory  {size} of" in typed.out
