"""Predict traced rows and compare: shared by the tests and by the generator of docs/accuracy.md."""

from __future__ import annotations

import os
from functools import cache, cached_property
from typing import Any

from tests.extent import runs_whole
from tests.oracle.chosen import chosen, cover, path_of, written
from vramplan.job import build_any_job, read_job_file
from vramplan.job.lookup import Catalog
from vramplan.options.words import CASE_KEYS
from vramplan.planner import setups
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import MOST_GRADIENTS

FIGURES = ("peak", "forward", "backward", "step", "saved")
# The replay follows tensors one by one and rounds each as the allocator does, so nothing is left that a tolerance would
# have to cover: a deviation of one byte is a tensor that the rules do not know.
EXACT = 0.0
EVERY_ROW = bool(os.environ.get("VRAMPLAN_EVERY_ROW"))
SIZES = ("model", "segments", "sequence_length", "target_length", "image_size", "dropout", "max_gradient_norm")
"""Of a setup: what there may be a number or more of, and no technique."""
ROWS = {
    "suite": 192,
    "random": 330,
    "families": 252,
    "more_families": 252,
    "optimizers": 213,
    "selective": 220,
    "losses": 174,
    "resnet": 36,
    "vision": 102,
    "precisions": 174,
    "steps": 8,
    "seq2seq": 156,
    "adapters": 305,
    "moe": 245,
    "attention": 246,
    "heads": 140,
    "smoothing": 77,
    "preference": 94,
    "policy": 84,
    "preference_shared": 102,
    "preference_zero": 69,
    "stepped_shared": 27,
    "padding": 61,
    "checkpoints": 200,
    "fp8": 65,
    "fp8_more": 181,
    "frozen": 262,
    "adapted": 143,
    "adapters_more": 221,
    "adapter_kinds": 157,
    "peft_more": 84,
    "peft_more_shared": 27,
    "lora_parts": 18,
    "halves": 192,
    "fully_shard": 158,
    "fully_shard_more": 226,
    "replicated": 42,
    "sharded_bits": 42,
    "flat_parameter": 52,
    "flat_host": 45,
    "flat_adapters": 62,
    "replicas": 16,
    "sharded_more": 70,
    "galore": 161,
    "master": 36,
    "pairs": 462,
    "quantized": 199,
    "losses_more": 536,
    "half_logits": 56,
    "returned": 24,
    "selective_more": 463,
    "litgpt": 240,
    "litgpt_old": 15,
    "litgpt_flat": 32,
    "torchtune": 126,
    "nanogpt": 30,
    "modded": 24,
    "foundry": 52,
    "titan": 37,
    "titan_replicas": 16,
    "titan_units": 28,
    "torchtune_units": 36,
    "sharded_units": 24,
    "zero": 99,
    "zero_offload": 21,
    "zero_adapters": 50,
    "sharded_activations": 43,
    "host_activations": 90,
    "hosted": 38,
    "masks": 63,
    "images": 213,
    "tiles": 77,
    "sharded_tiles": 16,
    "liger": 111,
    "fused_lora": 93,
    "fused_lora_shared": 32,
    "tiled_mlp": 63,
    "tiled_mlp_shared": 21,
    "taught": 30,
    "taught_from_file": 23,
    "torchtune_taught": 36,
    "turns": 35,
    "other_optimizers": 289,
    "tiled": 27,
    "linear": 301,
    "block_kinds": 168,
    "decoders": 471,
    "sharded_decoders": 39,
    "sharded_spaces": 39,
    "state_spaces": 236,
    "short_convolutions": 255,
    "met": 112,
    "rounded": 50,
    "rounded_shared": 22,
    "torchtune_rounded": 19,
    "torchvision": 77,
    "zeroed_late": 28,
    "zeroed_late_shared": 30,
    "older_releases": 153,
    "distilbert": 82,
    "distilbert_shared": 12,
    "whisper": 79,
    "whisper_shared": 9,
    "whisper_zero": 6,
    "dbrx": 43,
    "dbrx_shared": 16,
    "dbrx_zero": 12,
    "deberta_v2": 62,
    "deberta_v2_shared": 22,
    "deberta_v2_zero": 15,
    "electra": 60,
    "electra_shared": 22,
    "electra_zero": 15,
    "modernbert": 111,
    "modernbert_shared": 39,
    "modernbert_zero": 17,
    "virtual_tokens": 76,
    "other_families": 157,
    "other_families_shared": 23,
    "every_type_shared": 42,
    "every_type_zero": 46,
    "types_more": 11,
    "other_families_zero": 16,
    "named_types": 64,
    "vision_more": 89,
    "image_text": 130,
    "stages": 44,
    "image_shared": 54,
    "text_types": 151,
    "speech": 37,
    "further_types": 233,
    "further_types_shared": 57,
    "further_types_zero": 39,
    "added_types": 356,
    "added_types_shared": 73,
    "added_types_zero": 52,
    "optimizers_more": 197,
    "optimizers_more_shared": 42,
    "met_shared": 106,
}
"""How many rows each file has: none may get lost."""
FILES = tuple(ROWS)
COMPILED = {"compile": 83, "compile_more": 119, "compile_beside": 32, "titan_compiled": 18, "torchtune_compiled": 20}
"""The same of the files of compiled steps, which are not exact to the byte."""

OFFLOADED = {
    "other_optimizers": 19,
    "checkpoints": 106,
    "pairs": 91,
    "selective_more": 48,
    "sharded_activations": 43,
    "host_activations": 90,
    "flat_host": 20,
    "flat_adapters": 4,
    "hosted": 38,
    "liger": 22,
    "fused_lora": 2,
    "tiled_mlp": 6,
    "tiled_mlp_shared": 4,
    "tiled": 3,
    "more_families": 10,
    "images": 22,
    "tiles": 2,
    "linear": 8,
    "block_kinds": 6,
    "decoders": 13,
    "sharded_spaces": 4,
    "state_spaces": 45,
    "short_convolutions": 31,
    "met": 7,
    "distilbert": 4,
    "dbrx": 1,
    "deberta_v2": 2,
    "electra": 2,
    "whisper": 1,
    "modernbert": 4,
    "other_families": 5,
    "optimizers_more": 34,
    "optimizers_more_shared": 9,
}
"""How many rows of each file offload what they save."""


class Row:
    """One traced row: predicted and traced bytes of each figure."""

    def __init__(self, job: ResolvedJob, *, direct: bool = False) -> None:
        assert job.micro_batch_size is not None
        self.job, self.batch, self.direct = job, job.micro_batch_size, direct
        trace = job.case["trace"]
        self.traced: dict[str, int] = {
            "peak": job.case["measured"]["peak_bytes"],
            **trace["phase_peaks"],
        }
        if "end_of_forward_saved_bytes" in trace:  # which the rigs of this project do not count
            self.traced["saved"] = trace["end_of_forward_saved_bytes"]

    @cached_property
    def figures(self) -> tuple[dict[str, int], int]:
        """What the replay predicts, when somebody asks for it, and the parameters that it counts."""
        batch = self.batch if self.direct else min(self.batch, 2)
        record = replay(setup_of(self.job), batch=batch, direct=self.direct)
        phases = record.peaks(self.batch)
        return {"peak": max(phases.values()), **phases, "saved": record.saved_bytes(self.batch)}, record.parameters

    @property
    def predicted(self) -> dict[str, int]:
        """Predicted bytes of each figure."""
        return self.figures[0]

    @property
    def parameters(self) -> int:
        """Counted by the replay."""
        return self.figures[1]

    def error(self, figure: str) -> float:
        """Relative error of a figure."""
        return abs(self.predicted[figure] - self.traced[figure]) / self.traced[figure]

    @property
    def wrong(self) -> list[str]:
        """The figures that are not exact to the byte."""
        return [f"{figure}: {self.error(figure):.6%}" for figure in self.traced if self.error(figure) > EXACT]


def setup_of(job: ResolvedJob) -> Setup:
    """The iteration of a fully pinned job."""
    assert job.activation_checkpointing is not None
    assert job.gradient_accumulation_steps is not None
    setup = setups.setup_of(job, job.activation_checkpointing, job.gradient_accumulation_steps > 1)
    # Of stages 1 and 2 of ZeRO the device on which they were traced; an iteration with nothing left before it.
    return setup._replace(rank=MOST_GRADIENTS, outlives=False)


def phases_of(job: ResolvedJob) -> dict[str, int]:
    """The peak of each phase of a fully pinned job, as the quick replay answers it."""
    assert job.micro_batch_size is not None
    return dict(replay(setup_of(job), batch=min(job.micro_batch_size, 2)).peaks(job.micro_batch_size))


@cache
def rows(file: str) -> tuple[Row, ...]:
    """All rows of a file, predicted by the quick replay."""
    return tuple(Row(job) for job in jobs(file))


@cache
def jobs(file: str) -> tuple[ResolvedJob, ...]:
    """The jobs of a file."""
    found = []
    for entry in read_job_file(path_of(file)):
        assert entry.job is not None, entry.problems
        found.append(entry.job)
    return tuple(found)


@cache
def some_rows(file: str) -> tuple[Row, ...]:
    """The rows of a file that everybody runs, predicted by the quick replay; with `--whole` all of them."""
    return rows(file) if runs_whole() else tuple(Row(job) for job in some_jobs(file))


@cache
def some_jobs(file: str) -> tuple[ResolvedJob, ...]:
    """The jobs of a file that everybody runs; with `--whole` all of them."""
    if runs_whole():
        return jobs(file)
    catalog = Catalog((), path_of(file).parent)
    return tuple(_job_of(row, catalog) for row in chosen()[file])


def job_called(file: str, name: str) -> ResolvedJob:
    """One job of a file."""
    path = path_of(file)
    return _job_of(next(row for row in written(path) if row["name"] == name), Catalog((), path.parent))


def _job_of(row: dict[str, Any], catalog: Catalog) -> ResolvedJob:
    """The job of a row by itself: that of its file, which takes longer to read than most rows to replay."""
    keys = {key: value for key, value in row.items() if key not in CASE_KEYS and key != "name"}
    job = build_any_job(keys, catalog=catalog)
    assert isinstance(job, ResolvedJob)
    return job._replace(name=row["name"], case={key: row[key] for key in CASE_KEYS if key in row})


def rows_of_every_block(file: str) -> list[Row]:
    """Rows of a file, predicted by the replay that plays every block.

    So many of all files that one of them has whatever a row has with a type of model (an optimizer, a precision, a
    loss, ... of a task), and one of each file whatever a row of the file has. How a technique repeats over the blocks
    of a type does not depend on the file that has the row. With VRAMPLAN_EVERY_ROW set, all of them.
    """
    if EVERY_ROW:
        return [Row(job, direct=True) for job in jobs(file)]
    return [Row(job, direct=True) for job in _cover(FILES if file in ROWS else (file,))[file]]


@cache
def _cover(files: tuple[str, ...]) -> dict[str, list[ResolvedJob]]:
    """Jobs of each file that have all techniques of all of them, the fewest blocks for each new one."""
    every = [(file, job) for file in files for job in jobs(file)]
    found: dict[str, list[ResolvedJob]] = {file: [] for file in files}
    for at in cover([_techniques(*one) for one in every], [sum(job.model.stacks) for _, job in every]):
        file, job = every[at]
        found[file].append(job)
    return found


def _techniques(file: str, job: ResolvedJob) -> set[tuple[object, ...]]:
    setup = setup_of(job)
    values = {name: value for name, value in setup._asdict().items() if name not in SIZES}
    values |= {
        "checkpoints": (job.activation_checkpointing or "none").partition(":")[0],
        "clipped": setup.max_gradient_norm is not None,
        "loss": setup.loss.partition(":")[0],
        "frozen": bool(setup.frozen),
        "adapter": setup.adapter and setup.adapter.kind,
        "sharding": setup.sharding and setup.sharding.kind,
    }
    of_type = {(job.model.transformers_model_type, job.model.task, *pair) for pair in values.items()}
    return of_type | {(file, *pair) for pair in values.items()}
