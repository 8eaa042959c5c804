"""Where `fit` simulates the allocator by itself, where gates do, and where nothing does."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import run
from vramplan import fit
from vramplan.job import build_job
from vramplan.planner.decision import ALWAYS, IN_DOUBT, MOST_EVENTS, decide
from vramplan.planner.reserving import Simulation, records_of, remarks
from vramplan.replay.caching.reservation import Reservation
from vramplan.replay.caching.run import reserve
from vramplan.values.allocator import DEFAULT
from vramplan.values.job import ResolvedJob

pytestmark = pytest.mark.contract

SMALL: dict[str, Any] = {"model": "gpt2", "gpu": "v100", "sequence_length": 512}


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    "keys",
    [
        SMALL,
        SMALL | {"micro_batch_size": 4, "gradient_accumulation_steps": 1, "activation_checkpointing": "full"},
        {"model": "llama-3.2-1b", "gpu": "rtx-3060"},
        SMALL | {"compile": True},
        {"model": "llama-3.1-8b", "gpu": "h100", "micro_batch_size": 1, "gradient_accumulation_steps": 1},
    ],
)
def test_a_short_iteration_is_answered_as_with_a_simulated_allocator(keys: dict[str, Any]) -> None:
    answered, asked = fit(**keys), fit(**keys, allocator="simulate")
    assert answered.allocator is not None
    assert answered.allocator == asked.allocator
    assert (answered.verdict, answered.peak) == (asked.verdict, asked.peak)
    (taken,) = [one for one in answered.assumptions if one.key == "allocator"]
    assert taken.value == "simulate"


def test_what_is_simulated_by_itself_has_the_settings_of_its_program() -> None:
    keys = {**SMALL, "micro_batch_size": 4, "gradient_accumulation_steps": 1, "activation_checkpointing": "full"}
    offered, asked = (fit(**keys, allocator=f"{how}expandable_segments:True") for how in ("auto,", ""))
    assert offered.allocator is not None
    assert offered.allocator == asked.allocator
    assert (offered.verdict, offered.peak) == (asked.verdict, asked.peak)
    assert offered.peak.reserved_bytes < fit(**keys).peak.reserved_bytes


@pytest.mark.parametrize(
    "keys",
    [
        {"model": "gpt2-xl", "gpu": "v100"},  # a long iteration
        {"model": "gpt2-xl", "gpu": "v100", "allocator": "auto,expandable_segments:True"},
        SMALL | {"micro_batch_size": 512},  # tensors alone are too much
        SMALL | {"allocator": "estimate"},
        {"model": "gpt2-124m", "gpu": "a100", "runtime": "llm.c"},  # which has no caching allocator
    ],
)
def test_others_are_estimated(keys: dict[str, Any]) -> None:
    answered, asked = fit(**keys), fit(**keys | {"allocator": "estimate"})
    assert answered.allocator is None
    assert (answered.verdict, answered.peak) == (asked.verdict, asked.peak)


def test_one_device_of_torchtitan_has_the_allocator_of_its_launcher() -> None:
    answered = fit(model="llama-3.2-1b", gpu="h100", runtime="torchtitan", sequence_length=1024, compile=False)
    assert answered.allocator is not None
    assert answered.allocator.settings == "expandable_segments:True"


@pytest.mark.sweep
def test_an_estimate_with_room_that_does_not_fit_is_seen_by_fit_and_by_a_gate(tmp_path: Path) -> None:
    """Qwen2.5 1.5B: 1.04 times what the tensors need is within what is free, and what the allocator reserves is not."""
    keys: dict[str, Any] = {"model": "qwen2.5-1.5b", "gpu": "rtx-a4000", "gpu_free": "14.4 GiB", "micro_batch_size": 1}
    keys |= {"gradient_accumulation_steps": 1, "activation_checkpointing": "full"}
    estimated = fit(**keys, allocator="estimate")
    assert (estimated.verdict, estimated.headroom_bytes > 0) == ("tight", True)
    assert fit(**keys).verdict == "does-not-fit"
    file = tmp_path / "jobs.yaml"
    lines = "".join(f", {key}: {value}" for key, value in keys.items())
    file.write_text(f"version: 1\njobs:\n  - {{name: a{lines}}}\n  - {{name: b{lines}, allocator: estimate}}\n")
    rows = run("check", str(file), "--format", "json").document["results"]
    assert [row["verdict"] for row in rows] == ["does-not-fit", "tight"]


@pytest.mark.sweep
def test_validate_estimates_where_it_is_told_to(tmp_path: Path) -> None:
    keys = {"model": "llama-3.2-1b", "gpu": "rtx-3060", "micro_batch_size": 1, "gradient_accumulation_steps": 1}
    file = tmp_path / "cases.yaml"
    lines = "".join(f", {key}: {value}" for key, value in keys.items())
    file.write_text(
        f"version: 1\njobs:\n  - {{name: a{lines}, measured: {{peak_bytes: 12000000000, metric: reserved}}}}\n"
    )
    for how in ("estimate", "simulate"):
        (row,) = run("validate", str(file), "--allocator", how, "--format", "json").document["results"]
        assert row["peak"]["reserved_bytes"] == fit(**keys, allocator=how).peak.reserved_bytes


@pytest.mark.parametrize("share", [0.9, 1.0, 1.1, 1.2])
def test_a_gate_has_the_verdict_of_fit_where_it_is_in_doubt(share: float, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"model": "gpt2", "sequence_length": 512, "activation_checkpointing": "none"}
    keys |= {"micro_batch_size": 8, "gradient_accumulation_steps": 1}
    needed = fit(**keys, gpu="h100", allocator="estimate").peak.device_bytes
    memory = int(needed * share)
    answered = fit(**keys, gpu={"name": "card", "memory": f"{memory} B", "architecture": "hopper"})
    file = tmp_path / "jobs.yaml"
    lines = "".join(f", {key}: {value}" for key, value in keys.items())
    file.write_text(
        f"version: 1\njobs:\n  - {{name: a, gpu: {{name: card, memory: {memory} B, architecture: hopper}}{lines}}}\n"
    )
    (row,) = run("check", str(file), "--format", "json").document["results"]
    assert row["verdict"] == answered.verdict
    assert row["peak"]["device_bytes"] == answered.peak.device_bytes


def test_a_gate_looks_at_a_longer_iteration_where_the_estimate_is_tight() -> None:
    keys: dict[str, Any] = {"model": "gpt2-large", "sequence_length": 64, "activation_checkpointing": "none"}
    keys |= {"micro_batch_size": 1, "gradient_accumulation_steps": 2}
    elsewhere = build_job(keys | {"gpu": "h100"})
    assert isinstance(elsewhere, ResolvedJob)
    device = decide(elsewhere).choice.rung.peak.device
    job = build_job(keys | {"gpu": {"name": "card", "memory": f"{device} B", "architecture": "hopper"}})
    assert isinstance(job, ResolvedJob)
    gate = decide(job, closer_from=IN_DOUBT)
    assert MOST_EVENTS < gate.events < MOST_EVENTS * 2
    assert gate.judge.simulates
    assert gate.choice.rung.peak == decide(job, closer_from=ALWAYS).choice.rung.peak


@pytest.mark.parametrize("strategy", ["none", "sqrt", "full"])
@pytest.mark.parametrize("name", ["gpt2", "llama-3.2-1b", "bert-base-uncased", "t5-base"])
def test_events_are_counted_without_playing_them(name: str, strategy: str) -> None:
    """All but those of the optimizer step, which is played parameter by parameter there: a tenth of all."""
    keys = {"model": name, "gpu": "a100", "micro_batch_size": 2, "gradient_accumulation_steps": 1}
    job = build_job(keys | {"activation_checkpointing": strategy})
    assert isinstance(job, ResolvedJob)
    decision = decide(job)
    played = len(records_of(decision.setup, 2)[0].events)
    assert 0.88 * played <= decision.record.events_of_every_copy <= played


LEFT: dict[str, Any] = {"model": "qwen2.5-1.5b", "gpu": "a10g", "parallel": {"data": 8, "sharding": "zero2"}}


def test_what_an_engine_leaves_at_its_start_makes_no_run_uncertain() -> None:
    """DeepSpeed puts all weights together on the device, and the allocator keeps the room of both copies."""
    found = fit(**LEFT)
    micro = found.recommended.micro_batch_size
    assert micro is not None
    assert (found.verdict, found.peak.high_bytes) == ("fits", found.usable_bytes)
    (taken,) = [one for one in found.assumptions if one.key == "micro_batch_size"]
    assert taken.value == micro
    pinned = {"gradient_accumulation_steps": 1, "activation_checkpointing": found.recommended.activation_checkpointing}
    again = fit(**LEFT, **pinned, micro_batch_size=micro)
    assert (again.verdict, again.peak) == ("fits", found.peak)
    assert fit(**LEFT, **pinned, micro_batch_size=micro + 1).verdict != "fits"
    # what it reserves on a device that has room is no more, and has that margin above it
    roomy = fit(**LEFT | {"gpu": "a100"}, **pinned, micro_batch_size=micro)
    assert roomy.peak.allocated_bytes == found.peak.allocated_bytes
    assert roomy.peak.reserved_bytes == found.peak.reserved_bytes
    assert roomy.peak.high_bytes > found.usable_bytes


def test_what_fit_recommends_passes_a_gate(tmp_path: Path) -> None:
    """ResNet's convolutions leave much in the cache, so that larger batches would still come through."""
    found = fit(model="resnet-101", gpu="v100")
    micro = found.recommended.micro_batch_size
    assert found.peak.high_bytes == found.usable_bytes
    file = tmp_path / "jobs.yaml"
    file.write_text(
        f"version: 1\njobs:\n  - {{name: a, model: resnet-101, gpu: v100, micro_batch_size: {micro}, "
        f"gradient_accumulation_steps: 1, activation_checkpointing: none}}\n"
    )
    (row,) = run("check", str(file), "--format", "json").document["results"]
    assert (row["status"], row["verdict"]) == ("pass", "fits")


def test_of_a_pipeline_a_smaller_micro_batch_is_looked_at_where_the_estimate_was_too_low() -> None:
    keys: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "h100-80gb", "runtime": "megatron"}
    keys |= {"parallel": {"pipeline": 2}, "activation_checkpointing": "none", "sequence_length": 512}

    def at(micro: int) -> str:
        return fit(**keys, micro_batch_size=micro, gradient_accumulation_steps=240 // micro).verdict

    assert fit(**keys, micro_batch_size=60, gradient_accumulation_steps=4, allocator="estimate").verdict == "fits"
    found = fit(**keys, global_batch_size=240)
    assert (found.verdict, found.recommended.micro_batch_size) == ("fits", 48)
    assert (at(48), at(60)) == ("fits", "tight")


def test_a_run_that_gives_memory_back_once_lasts() -> None:
    keys = {"model": "llama-3.2-1b", "gpu": "a100", "micro_batch_size": 4, "gradient_accumulation_steps": 1}
    job = build_job(keys | {"activation_checkpointing": "none"})
    assert isinstance(job, ResolvedJob)
    records = records_of(decide(job).setup, 2)
    roomy = reserve(records[0], 4, first=records[1])
    short = reserve(records[0], 4, first=records[1], limit_bytes=roomy.reserved_bytes - (2 << 20))
    assert (short.failure, short.retries, short.last_retries) == (None, 1, 0)
    assert simulation_of(short).lasts
    assert remarks(short, short.reserved_bytes) == [
        "the allocator gives all free segments back once in 3 iterations, and in the last of them no more"
    ]
    again = short._replace(retries=2, last_retries=1)
    assert not simulation_of(again).lasts
    assert remarks(again, again.reserved_bytes) == [
        "the allocator gives all free segments back 2 times in 3 iterations, which is slow"
    ]
    assert not simulation_of(reserve(records[0], 4, first=records[1], limit_bytes=roomy.allocated_bytes // 2)).lasts


def simulation_of(found: Reservation) -> Simulation:
    """A simulation that came to this."""
    return Simulation(4, DEFAULT, found.reserved_bytes, (), False, tuple, {DEFAULT: found}, OrderedDict())
