"""Context parallelism under torchtitan: rows of PyTorch's own ring, over FSDP2, and what must always hold.

The rows of `titan_context_rows.json` are torchtitan's model in its own context of `context_parallel` (torch 2.13), on
tensors without data, with the flash kernel as it allocates, some of them beside tensor parallelism and over groups of
replicas (`rep`), of which each has `dp` devices. They are of the last device of a sequence.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.answers import answer
from tests.cli.running import run
from vramplan.catalog.shapes import shape_from_fields
from vramplan.job import build_job
from vramplan.planner.checkpoints import segments_in
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.values.parallel import Sharded, Split

TITAN = "vramplan.engines.torchtitan.model"
ROWS = json.loads((Path(__file__).parent / "titan_context_rows.json").read_text())["rows"]
COUNT = 18


def setup_of(row: dict[str, Any]) -> Setup:
    """The iteration of a row."""
    fields = {
        "family": "llama",
        "layers": row["layers"],
        "hidden_size": row["dim"],
        "attention_heads": row["heads"],
        "key_value_heads": row["kv"],
        "intermediate_size": row["ffn"],
        "vocabulary_size": row["vocab"],
        "max_positions": row["seq"],
        "tied_embeddings": False,
    }
    shape = shape_from_fields(fields, name="row")._replace(family=TITAN, published_family="llama", engine="torchtitan")
    tensor = row.get("tp", 1)
    return Setup(
        model=shape,
        precision="fsdp-bf16",
        sequence_length=row["seq"],
        attention="flash",
        segments=segments_in(row["ac"], shape.stacks),
        optimizer="adamw",
        optimizer_implementation="foreach",
        accumulating=False,
        hold_outputs=False,
        loss="fp32-logits" if tensor == 1 else "vocab-parallel",
        max_gradient_norm=1.0,
        sharding=Sharded("fsdp", row["dp"], reduce_dtype=row.get("reduce"), replicas=row.get("rep", 1)),
        split=Split(tensor, context=row["cp"], sequence_parallel=tensor > 1, context_communication=row["comm"]),
    )


@pytest.mark.truth
def test_what_the_library_allocates() -> None:
    """Every phase, to the byte."""
    wrong = []
    for traced in ROWS:
        row = traced["row"]
        batch: int = row["batch"]
        record = replay(setup_of(row), batch=1 if batch == 1 else 2)
        found = {f"{phase}_bytes": size for phase, size in record.peaks(batch).items()}
        found["static_bytes"] = record.static_bytes(batch)
        found["saved_bytes"] = record.saved_bytes(batch)
        wrong += [(row, key, size, traced[key]) for key, size in found.items() if size != traced[key]]
    assert not wrong
    assert len(ROWS) == COUNT


OPTIONS = (
    "fit",
    "--model",
    "llama-3-8b",
    "--gpu",
    "h100",
    "--runtime",
    "torchtitan",
    "--micro-batch",
    "1",
    "--steps",
    "1",
)


def test_states_are_shared_over_data_and_context() -> None:
    ran = run(*OPTIONS, "--gpus", "2", "--context", "4", "--seq", "16384", "--format", "json")
    document = json.loads(ran.out)
    parallel = document["job"]["parallel"]
    assert (parallel["shards"], parallel["context"], parallel["context_communication"]) == (8, 4, "all-gather")


def test_a_product_is_echoed() -> None:
    model = {"name": "m", "family": "llama", "layers": 4, "hidden_size": 256, "attention_heads": 8}
    model |= {"intermediate_size": 704, "vocabulary_size": 1024, "max_positions": 4096, "tied_embeddings": False}
    job = {
        "model": model,
        "gpu": {"name": "card", "memory": "8 GiB", "bf16": True, "flash_attention": True},
        "runtime": "torchtitan",
        "sequence_length": 1024,
        "micro_batch_size": 1,
        "activation_checkpointing": "none",
        "gradient_accumulation_steps": 4,
        "parallel": {"data": 2, "tensor": 2, "context": 2, "pipeline": 2, "context_communication": "ring"},
    }
    first = answer(build_job(job))
    again = answer(build_job(first.to_dict()["job"]))
    assert again.peak == first.peak
    assert again.components == first.components


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("--context 3 --gpus 2", "parallel.context"),
        ("--context 2 --gpus 2 --attention efficient", "attention"),
        ("--context 2 --sharding ddp --gpus 2", "sharding"),
    ],
)
def test_what_does_not_go_with_it_is_refused(options: str, word: str) -> None:
    ran = run(*OPTIONS, "--seq", "8192", *options.split())
    assert ran.code == 2
    assert word in ran.err
