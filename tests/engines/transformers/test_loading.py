"""What Transformers and PEFT ask a device for before the first step, against traces of them and what runs printed."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from vramplan.job import build_job
from vramplan.planner.reserving import Simulation, remarks
from vramplan.planner.setups import setup_of
from vramplan.replay.caching.reservation import Reservation
from vramplan.replay.caching.run import SimulatedRun, reserve
from vramplan.replay.loading import LEFT_BYTES
from vramplan.replay.record import Record
from vramplan.replay.start import Room, Start
from vramplan.replay.step import replay
from vramplan.values.allocator import DEFAULT, Settings
from vramplan.values.job import ResolvedJob

GIB = 2**30
SAID = json.loads((Path(__file__).parent / "loaded.json").read_text(encoding="utf-8"))
LEAST_BYTES = 4096  # of what a row tells
GIVEN_BACK = 0  # in the place of a size

PRINTED = {
    "llama-3.3-70b": ("a100-80gb", "4.55", 0, 39.221),
    "qwen3-32b": ("a100-40gb", "4.55", 0, 19.121),
    "gemma-3-27b-text": ("a100-40gb", "4.55", 0, 19.074),
    "llama-3.2-1b": ("a10g", "4.51", 0, 1.457),
    "qwen2.5-7b": ("a100-40gb", "4.48", 0, 5.393),
    "llama-3-8b": ("t4", "4.41", 8192, 5.594),
    "llama-3.1-8b": ("t4", "4.43", 32768, 5.984),
    "llama-3.2-3b": ("t4", "4.45", 32768, 2.635),
    "mistral-7b-v0.3": ("t4", "4.41", 32768, 4.520),
    "qwen2-7b": ("t4", "4.41", 131072, 7.072),
    "qwen2.5-coder-14b": ("t4", "4.46", 32768, 10.287),
}
"""GiB of `torch.cuda.max_memory_reserved` when everything is loaded and wrapped, with the card and the release.

Before them: the tokens for which Unsloth of 2024 kept cosines and sines in 16 bits in each layer (models/llama.py of
2024.8 and 2024.10.0, LlamaRotaryEmbedding), which no release of today does.
Source: unslothai/notebooks at bdda2ef, what these print of themselves ("39.221 GB of memory reserved."):
nb/Llama3.3_(70B)_A100-Conversational, Qwen3_(32B)_A100-Reasoning-Conversational, Gemma3_(27B)_A100-Conversational,
Llama3.2_(1B)-RAFT, CodeForces-cot-Finetune_for_Reasoning_on_CodeForces, Llama3_(8B)-Alpaca, Llama3.1_(8B)-Alpaca,
Llama3.2_(1B_and_3B)-Conversational, Mistral_v0.3_(7B)-Alpaca, Qwen2_(7B)-Alpaca and Qwen2.5_Coder_(14B)-Conversational.
The first three are half of what the device had less 1.2 GiB, which the program asks for at once.
"""


def job_of(**more: Any) -> ResolvedJob:
    return build_job(SAID["job"] | more)


def record_of(job: ResolvedJob) -> Record:
    return replay(setup_of(job, "none", accumulates=False), batch=1, unrolled=True)


def start_of(job: ResolvedJob) -> Start:
    found = record_of(job).start
    assert found is not None
    return found


def told(start: Start) -> list[int]:
    """As a row tells it."""
    found = []
    for event in start.events:
        size = GIVEN_BACK if event is None else start.sizes[event] if event >= 0 else -start.sizes[~event]
        if event is None or abs(size) >= LEAST_BYTES:
            found.append(size)
    return found


def loaded(job: ResolvedJob, room_bytes: int | None = None) -> SimulatedRun:
    """The run of a job before its first iteration."""
    run = SimulatedRun(record_of(job), 1, DEFAULT, room_bytes, None, (), waits=False)
    for _ in run._unbroken(run._start):
        raise AssertionError("nothing is too much")
    return run


@pytest.mark.truth
@pytest.mark.parametrize("row", SAID["rows"], ids=lambda row: json.dumps(row["job"]).translate({34: None, 32: None}))
def test_what_is_asked_for_is_that_of_the_trace(row: dict[str, Any]) -> None:
    start = start_of(job_of(**row["job"]))
    assert start.room is not None
    assert told(start) == row["events"]
    assert start.room.whole_bytes // start.room.parts == row["room"]


@pytest.mark.truth
@pytest.mark.parametrize("name", PRINTED)
def test_what_is_reserved_then_is_what_runs_have_printed(name: str) -> None:
    gpu, release, tokens, printed = PRINTED[name]
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    job = build_job(
        {
            "model": name,
            "gpu": gpu,
            "runtime": "unsloth",
            "transformers_version": release,
            "quantization": "nf4-double",
            "sequence_length": 2048,
            "micro_batch_size": 1,
            "adapter": {"kind": "lora", "rank": 16, "targets": targets},
        }
    )
    room = job.usable_bytes - job.runtime.context_on(job.gpu.architecture)
    rotary = job.model.layers * 2 * tokens * job.model.head_size * 2
    assert loaded(job, room).allocator.peak_reserved_bytes + rotary == pytest.approx(printed * GIB, rel=0.02)


@pytest.mark.closed_form
def test_a_block_is_part_of_a_model_or_of_what_a_device_has() -> None:
    room = Room(16 * GIB, 2, LEFT_BYTES)
    assert room.within(100 * GIB) == 8 * GIB
    assert room.within(10 * GIB) == (10 * GIB - LEFT_BYTES) // 2
    assert room.within(GIB) == 0


BIG: dict[str, Any] = {
    "model": SAID["job"]["model"] | {"hidden_size": 2048, "intermediate_size": 8192, "vocabulary_size": 32000},
    "quantization": "nf4-double",
    "weight_dtype": "bf16",
}
"""Large enough for what segments are rounded to not to matter."""


def elements_of(job: ResolvedJob) -> tuple[int, int]:
    """Of linear layers that are quantized, and of the rest."""
    shape = job.model
    width = shape.hidden_size
    block = width * (2 * width + 2 * width // 2 + 3 * shape.intermediate_size)
    return shape.layers * block, 2 * shape.vocabulary_size * width + (2 * shape.layers + 1) * width


@pytest.mark.closed_form
@pytest.mark.parametrize(
    ("release", "most_halves", "of_quantized", "of_others"),
    [("4.49", 1, 0, 0), ("4.50", 2, 0, 0), ("4.51", 2, 1, 1), ("4.57", 2, 1, 1), ("5.0", 1, 0.5, 2), (None, 1, 0.5, 2)],
)
def test_releases_load_in_other_ways(
    release: str | None, most_halves: int, of_quantized: float, of_others: float
) -> None:
    """Bytes of the block that is asked for first, by element, and how often a weight is there in 16 bits."""
    more = {} if release is None else {"transformers_version": release}
    job = job_of(**BIG, **more)
    start, (quantized, others) = start_of(job), elements_of(job)
    asked = 0 if start.room is None else start.room.within(GIB * 1024)
    assert asked == int(of_quantized * quantized + of_others * others)
    half = 2 * job.model.hidden_size * job.model.intermediate_size
    level = most = 0
    for event in start.events:
        if event is not None and start.sizes[event if event >= 0 else ~event] == half:
            level += 1 if event >= 0 else -1
            most = max(most, level)
    assert (most, level) == (most_halves, 0)


@pytest.mark.closed_form
@pytest.mark.parametrize("quantization", ["nf4", "nf4-double", "int8"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("runtime", ["transformers", "pytorch"])
def test_what_loading_leaves_is_what_the_replay_counts(quantization: str, dtype: str, runtime: str) -> None:
    """No byte of it is counted twice, so that the simulation allocates what the replay says."""
    job = job_of(**(BIG | {"quantization": quantization, "weight_dtype": dtype, "runtime": runtime}))
    record = record_of(job)
    peak = record.peak_bytes(1)
    assert peak <= reserve(record, 1).later_allocated_bytes <= 1.02 * peak  # what is not split off blocks


@pytest.mark.closed_form
def test_the_trainer_gives_back_what_loading_left_and_a_loop_does_not() -> None:
    """fp32 is made of 16 bits, whose segments are free as a whole; PEFT gives them back, and so does the Trainer."""
    jobs = [
        job_of(**(BIG | {"weight_dtype": "fp32", "transformers_version": "4.49", "runtime": one})) for one in RUN_BY
    ]
    held = [loaded(job).allocator.reserved_bytes for job in jobs]
    most = [loaded(job).allocator.peak_reserved_bytes for job in jobs]
    table = 2 * jobs[0].model.vocabulary_size * jobs[0].model.hidden_size
    assert held[0] <= held[1] < held[1] + table <= min(most)


RUN_BY = ("transformers", "pytorch")


@pytest.mark.closed_form
def test_a_run_that_needs_less_than_loading_says_so() -> None:
    """With half of a model in 16 bits asked for at once, and steps of one token."""
    shape = BIG["model"] | {"layers": 8, "vocabulary_size": 2048}
    job = job_of(**(BIG | {"model": shape, "transformers_version": "4.57", "sequence_length": 4}))
    found = reserve(record_of(job), 1)
    assert found.loading_is_worst
    assert found.reserved_bytes >= found.start_reserved_bytes > 1.5 * found.allocated_bytes
    words = [one for one in remarks(found, 80 * GIB) if "loading" in one]
    assert len(words) == 1
    few = reserve(record_of(job_of(**BIG, sequence_length=512)), 4)
    assert few.start_reserved_bytes < few.step_reserved_bytes == few.reserved_bytes
    assert not [one for one in remarks(few, 80 * GIB) if "loading" in one]


@pytest.mark.closed_form
def test_a_device_with_less_room_does_not_take_the_run_of_one_with_more() -> None:
    """The block is part of what the device has free, so the runs differ though neither meets a limit."""
    shape = BIG["model"] | {"layers": 8, "vocabulary_size": 2048}
    job = job_of(**(BIG | {"model": shape, "transformers_version": "4.57", "sequence_length": 4}))
    record = record_of(job)
    known: dict[Settings, Reservation] = {}
    assert record.start is not None
    assert record.start.room is not None

    def simulated(room_bytes: int) -> Reservation:
        given = (1, DEFAULT, room_bytes, (), False)
        return Simulation(*given, lambda: ((record, None),), known, OrderedDict()).reservation

    whole = record.start.room.whole_bytes
    roomy, tight = simulated(80 * GIB), simulated(LEFT_BYTES + whole // 2)
    assert whole / 2 <= roomy.start_reserved_bytes <= whole / 2 + 40 * 2**20  # and segments of small blocks
    assert tight.start_reserved_bytes < 0.8 * roomy.start_reserved_bytes
    assert simulated(80 * GIB) == simulated(40 * GIB) == roomy
