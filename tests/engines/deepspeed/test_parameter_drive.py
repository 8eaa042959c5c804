"""TRACED TRUTH. Parameters on NVMe: what DeepSpeed's own code has in files and in buffers, and where it stops.

DeepSpeed 0.19.8 ran its stage 3 on tensors of the CPU, with two ranks of a process group that does nothing and a drive
that only counts: a Llama of 1024 by 1536, 8 heads with 4 of keys and values, and a vocabulary of 2000.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.answers import answer
from vramplan.engines.deepspeed import zero3_drive
from vramplan.job import build_job
from vramplan.planner.setups import setup_of
from vramplan.replay.sharding.hosted import pinned_block
from vramplan.replay.step import replay
from vramplan.results import DOES_NOT_FIT
from vramplan.values.job import ResolvedJob

pytestmark = pytest.mark.truth


class Traced(NamedTuple):
    """A run: its switches, and what DeepSpeed said of it."""

    layers: int
    intermediate: int
    buffers: int
    ahead: int
    checkpointing: str
    pinned_bytes: tuple[int, int]  # of the buffers, and of the one that the step fills
    files_bytes: int
    stops: str
    read: int = 0  # elements in a step, where it does not stop


RUNS = (
    Traced(4, 1536, 60, 3_000_000, "none", (1_200_046_080, 71_124_992), 31_358_976, "ask twice"),
    Traced(3, 2048, 6, 1_000_000, "none", (120_004_608, 64_829_440), 29_261_824, "in buffers at a time"),
    Traced(4, 1536, 60, 5_000_000, "full", (1_200_046_080, 71_124_992), 31_358_976, "ask twice"),
    Traced(4, 1536, 60, 0, "none", (1_200_046_080, 71_124_992), 31_358_976, "", 15_679_488),
    Traced(4, 1536, 60, 1, "none", (1_200_046_080, 71_124_992), 31_358_976, "", 15_679_488),
)


def job_of(run: Traced, **parallel: int) -> ResolvedJob:
    shape = {
        "family": "llama",
        "layers": run.layers,
        "hidden_size": 1024,
        "attention_heads": 8,
        "key_value_heads": 4,
        "intermediate_size": run.intermediate,
        "vocabulary_size": 2000,
        "tied_embeddings": False,
    }
    job = build_job(
        {
            "model": shape,
            "gpu": {"name": "any", "memory": "80 GiB"},
            "sequence_length": 8,
            "micro_batch_size": 1,
            "gradient_accumulation_steps": 1,
            "precision": "mixed-bf16",
            "runtime": "deepspeed",
            "activation_checkpointing": run.checkpointing,
            "offload": ["parameters", "gradients", "optimizer"],
            "attention": "efficient",
            "parallel": {
                "data": 2,
                "sharding": "zero3",
                "stage3_prefetch_bucket_size": run.ahead,
                "offload_parameters_device": "nvme",
                "offload_parameters_buffer_count": run.buffers,
                "offload_parameters_buffer_size": 10_000_000,
                "offload_parameters_max_in_cpu": 0,
                **parallel,
            },
        }
    )
    assert isinstance(job, ResolvedJob)
    return job


@pytest.mark.parametrize("run", RUNS)
def test_it_is_what_deepspeed_has(run: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[zero3_drive.Swapped3] = []
    begin = zero3_drive.Swapped3.before_forward
    monkeypatch.setattr(zero3_drive.Swapped3, "before_forward", lambda walk: (made.append(walk), begin(walk))[1])
    kept = replay(setup_of(job_of(run), run.checkpointing, False), batch=1).host_states
    assert kept is not None
    assert run.stops in (kept.doubts or kept.stops)
    (walk,) = made
    small = [2 * part for one, part in enumerate(walk.parts) if one not in walk.files]
    assert walk._parameters_on_host() == (
        sum(run.pinned_bytes) + sum(small),
        sum(run.pinned_bytes) + sum(map(pinned_block, small)),
    )
    if run.read:
        assert not kept.stops
        assert kept.from_drive_bytes == 2 * run.read
    assert kept.drive_bytes == run.files_bytes
    assert kept.to_drive_bytes == run.files_bytes


def test_a_run_that_stops_does_not_fit() -> None:
    found = answer(job_of(RUNS[1]))
    assert found.verdict == DOES_NOT_FIT
    assert found.headroom_bytes > 0
    assert any("--offload-parameters-buffer-count" in one for one in found.warnings)
    assert answer(job_of(RUNS[1]._replace(buffers=60, ahead=0))).verdict != DOES_NOT_FIT


def test_what_stays_on_the_host_is_read_from_nowhere() -> None:
    """CLOSED FORM. With room for all nothing is read, and the host has it as with parameters on the host."""
    kept = replay(setup_of(job_of(RUNS[0], offload_parameters_max_in_cpu=10**9), "none", False), batch=1).host_states
    assert kept is not None
    assert (kept.stops, kept.from_drive_bytes, kept.to_drive_bytes) == ("", 0, 0)
    assert kept.drive_bytes == RUNS[0].files_bytes  # the files of the beginning stay
