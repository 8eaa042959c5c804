"""llm.c: what its runs printed and showed (measured), its lists of tensors (closed form), and what it refuses.

Where the rows of `llmc_rows.json` come from stands in each of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import run
from vramplan.answers.fit import answer
from vramplan.engines.llmc.model import arena, parameters, weights
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.planner.decision import decide
from vramplan.replay.recorder import rounded
from vramplan.replay.step import replay
from vramplan.results import DOES_NOT_FIT, FITS
from vramplan.values.job import ResolvedJob

ROWS = json.loads((Path(__file__).parent / "llmc_rows.json").read_text())
MIB = 1 << 20
NEAR_PERCENT = 2.5  # of what a process shows: 0.6 GB of 24 are the doubt about contexts and communicators


def job(**keys: Any) -> ResolvedJob:
    found = build_job({"model": "gpt2", "gpu": "a100-80gb", "runtime": "llm.c", **keys})
    assert isinstance(found, ResolvedJob)
    return found


def job_of(row: dict[str, Any]) -> ResolvedJob:
    """The job of a row."""
    return job(
        model=row.get("model", "gpt2-xl"),
        gpu=row.get("gpu", "h100-80gb"),
        parallel={"data": row["gpus"], "sharding": row.get("sharding", "zero1")},
        micro_batch_size=row["micro_batch"],
        gradient_accumulation_steps=8,
        activation_checkpointing=row["checkpointing"],
    )


def components(one: ResolvedJob) -> dict[str, int]:
    return {part.name: part.bytes for part in answer(one).components}


def refused(**keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        job(**keys)
    return "; ".join(f"{one.key}: {one.message} ({one.hint})" for one in caught.value.problems)


@pytest.mark.parametrize("found", ROWS["printed"], ids=lambda found: str(found["row"]["model"]))
def test_it_allocates_what_the_runs_printed(found: dict[str, Any]) -> None:
    result, printed = answer(job_of(found["row"])), found["mib"]
    parts = {part.name: part.bytes for part in result.components}
    assert (parts["activations"] + parts["temporaries"]) // MIB == printed["activations"]
    if "parameters" not in found:
        return
    assert result.total_parameters == found["parameters"]
    assert parts["weights"] // MIB == printed["parameters"]
    assert parts["gradients"] // MIB == printed["gradients"]
    assert parts["optimizer"] // 2 // MIB == printed["m"] == printed["v"]
    assert parts["master"] // MIB == printed["master"]


def test_the_largest_micro_batch_is_the_one_that_llm_c_estimates() -> None:
    """The second row of the printed ones says `estimated maximum batch size: 236`, of 81100 MiB."""
    gpu = {"name": "A800", "memory": "81100 MiB", "bf16": True, "flash_attention": True}
    one = job(gpu=gpu, micro_batch_size=56, global_batch_size=448, activation_checkpointing="gelu")
    assert answer(one).recommended.largest_micro_batch_size in (235, 236, 237)  # a context is not known to 330 MiB


@pytest.mark.parametrize("row", ROWS["process"], ids=str)
def test_processes_show_what_is_predicted(row: dict[str, Any]) -> None:
    """Contexts and communicators are those of other programs: no run of llm.c is among their sources."""
    result = answer(job_of(row))
    assert result.verdict == FITS
    assert abs(result.peak.device_bytes / MIB / row["mib"] - 1) * 100 < NEAR_PERCENT
    assert result.peak.low_bytes <= row["mib"] * MIB <= result.peak.high_bytes


def test_two_runs_differ_by_the_gelus_that_are_kept() -> None:
    """Context, communicator and rounding cancel: what is left are the results of 47 more gelus."""
    gelu, none = (row for row in ROWS["process"] if row["gpus"] == 4)
    predicted = components(job_of(none))["activations"] - components(job_of(gelu))["activations"]
    scratch = components(job_of(gelu))["temporaries"] - components(job_of(none))["temporaries"]
    assert (predicted - scratch) // MIB == none["mib"] - gelu["mib"] == 47 * 4 * 1024 * 6400 * 2 // MIB


@pytest.mark.parametrize("row", ROWS["out_of_memory"], ids=str)
def test_runs_that_were_out_of_memory_do_not_fit(row: dict[str, Any]) -> None:
    assert answer(job_of(row)).verdict == DOES_NOT_FIT


def test_the_tensors_are_those_of_the_source() -> None:
    """21 buffers and 16 weights; the logits are the largest of the scratch."""
    shape = job(model="gpt2").model
    assert (len(weights(shape)), parameters(shape)) == (16, 124475904)
    for attention, recomputes in (("flash", None), ("eager", "gelu"), ("flash", "gelu-norms")):
        assert len(arena(shape, 1024, attention, recomputes)) == 21
    sizes = {one.name: one.elements for one in arena(shape, 1024, "eager", "gelu-norms")}
    assert sizes["output"] == 1024 * 50304
    assert sizes["att"] == 12 * 12 * 1024 * 1024
    assert (sizes["ln1"], sizes["ln2"], sizes["fch_gelu"]) == (0, 0, 1024 * 3072)


@pytest.mark.parametrize("attention", ["flash", "eager"])
@pytest.mark.parametrize("checkpointing", ["none", "gelu", "gelu-norms"])
def test_the_quick_replay_is_the_literal_one(attention: str, checkpointing: str) -> None:
    one = job(sequence_length=96, attention=attention, micro_batch_size=3, activation_checkpointing=checkpointing)
    setup = decide(one).setup
    quick, literal = replay(setup), replay(setup, batch=3, direct=True)
    assert quick.peaks(3) == literal.peaks(3)
    assert quick.saved_bytes(3) == literal.saved_bytes(3)
    assert quick.end_bytes(3) == quick.static_bytes(3)
    assert len(set(quick.peaks(3).values())) == 1  # everything is there all the time


def test_states_are_shared_and_weights_are_not() -> None:
    pinned = {"micro_batch_size": 8, "gradient_accumulation_steps": 1, "activation_checkpointing": "gelu"}
    alone = components(job(**pinned))
    shared = components(job(parallel={"data": 8, "sharding": "zero1"}, **pinned))
    replicas = components(job(parallel={"data": 8}, **pinned))
    assert replicas == alone
    assert {name for name in alone if alone[name] != shared[name]} == {"master", "optimizer"}
    each = rounded(124475904 // 8 * 4)
    assert (shared["master"], shared["optimizer"]) == (each, 2 * each)


def test_without_a_copy_of_the_weights_its_bytes_are_gone() -> None:
    pinned = {"micro_batch_size": 8, "gradient_accumulation_steps": 1, "activation_checkpointing": "gelu"}
    mixed = components(job(**pinned))
    pure = components(job(precision="pure-bf16", optimizer_state_dtype="fp32", **pinned))
    assert "master" not in pure
    assert {name: size for name, size in mixed.items() if name != "master"} == pure


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"parallel": {"data": 8, "sharding": "zero1"}},
        {"parallel": {"data": 8}},
        {"precision": "fp32"},
        {"precision": "pure-bf16", "optimizer_state_dtype": "fp32"},
        {"attention": "eager"},
    ],
    ids=str,
)
def test_a_resolved_job_gives_the_same_answer(keys: dict[str, Any]) -> None:
    result = answer(job(**keys))
    again = answer(build_job(json.loads(json.dumps(result.to_dict()["job"]))))
    assert again.to_dict()["job"] == result.to_dict()["job"]
    assert again.peak == result.peak


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"model": "llama-3.2-1b"}, "model: llama is not modelled as llm.c computes it"),
        ({"gpu": "v100"}, "precision: amp-fp16 is not in llm.c"),
        ({"precision": "pure-bf16"}, "optimizer_state_dtype: fp32 is its option -w 0"),
        ({"gradient_dtype": "fp32"}, "gradient_dtype: fp32 is not in llm.c"),
        ({"activation_checkpointing": "full"}, "it has none, gelu, gelu-norms"),
        ({"attention": "efficient"}, "it has eager, flash"),
        ({"optimizer": "sgd"}, "optimizer: sgd is not in llm.c"),
        ({"adapter": {"kind": "lora"}}, "adapter: lora is not in llm.c (leave it out, as it trains every weight"),
        ({"frozen": ["embeddings"]}, "frozen: embeddings is not in llm.c"),
        ({"dropout": 0.1}, "dropout: 0.1 means nothing to llm.c"),
        ({"ema": True}, "ema: true is not in llm.c"),
        ({"allocator": "simulate"}, "allocator: PyTorch's allocator is not in llm.c"),
        ({"pytorch_version": "2.5"}, "pytorch_version: PyTorch is not in llm.c"),
        ({"loss": "chunked:4"}, "loss: "),
        ({"eval_batch_size": 4}, "eval_batch_size: "),
        ({"parallel": {"data": 8, "sharding": "fsdp"}}, "sharding: fsdp is not llm.c's"),
        ({"parallel": {"data": 7, "sharding": "zero1"}}, "zero1 needs tensors that 7 devices can share evenly"),
        ({"parallel": {"data": 8, "sharding": "zero1", "overlap_comm": True}}, "overlap_comm: means nothing to llm.c"),
        ({"parallel": {"data": 8, "gradient_as_bucket_view": True}}, "gradient_as_bucket_view: means nothing"),
        ({"runtime": "transformers", "activation_checkpointing": "gelu"}, "gelu is llm.c's"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_llm_c_has_not_got_is_refused(keys: dict[str, Any], told: str) -> None:
    assert told in refused(**keys)


def test_states_that_have_no_room_go_to_the_host() -> None:
    result = answer(job_of(ROWS["out_of_memory"][3]))
    assert any("managed memory" in warning for warning in result.warnings)
    fits = answer(job_of(ROWS["process"][0]))
    assert not any("managed memory" in warning for warning in fits.warnings)


def test_replicas_that_do_not_fit_are_told_of_zero1() -> None:
    row = {**ROWS["process"][2], "sharding": "ddp"}
    changes = [dict(remedy.change) for remedy in answer(job_of(row)).remedies]
    assert {"parallel": {"sharding": "zero1"}} in changes


@pytest.mark.parametrize("command", ["explain", "checkpoints"])
def test_there_is_nothing_to_derive(command: str) -> None:
    ran = run(command, "--model", "gpt2", "--gpu", "a100", "--runtime", "llm.c")
    assert ran.code == 2
    assert "llm.c has no" in ran.err
