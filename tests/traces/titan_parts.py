"""torchtitan with parts of sequences: the job of a row, and the figures of its trace.

A row says the form of Llama, the devices that share states (`dp`), sequences (`cp`) and tensors (`tp`), and how many
groups of replicas there are (`rep`).
"""

from __future__ import annotations

from typing import Any

from tests.traces import titan
from tests.traces.programs import traced as traced_program
from vramplan.job import build_job
from vramplan.values.job import ResolvedJob

KEYS = (
    *("layers", "dim", "heads", "kv", "ffn", "vocab", "seq", "batch", "ac"),
    *("dp", "cp", "tp", "rep", "comm", "reduce"),
)
"""What a row may say."""

TRACE = {"name": "trace", "memory": "8192 GiB", "bf16": True, "flash_attention": True}


def model_of(row: dict[str, Any]) -> dict[str, Any]:
    """The form of Llama that a row says."""
    return {
        "name": "row",
        "family": "llama",
        "transformers_model_type": "llama",
        "layers": row["layers"],
        "hidden_size": row["dim"],
        "attention_heads": row["heads"],
        "key_value_heads": row["kv"],
        "intermediate_size": row["ffn"],
        "vocabulary_size": row["vocab"],
        "max_positions": row["seq"],
        "tied_embeddings": False,
    }


def keys_of(row: dict[str, Any]) -> dict[str, Any]:
    """The keys of a job that every row says."""
    return {
        "model": model_of(row),
        "gpu": TRACE,
        "runtime": "torchtitan",
        "sequence_length": row["seq"],
        "micro_batch_size": row["batch"],
        "precision": "fsdp-bf16",
        "optimizer": "adamw",
        "optimizer_implementation": "foreach",
        "activation_checkpointing": row["ac"],
        "attention": "flash",
    }


def job_of(row: dict[str, Any]) -> ResolvedJob:
    """The job of a row whose sequences are in parts."""
    shards, replicas, tensor = row["dp"], row.get("rep", 1), row.get("tp", 1)
    parallel = {
        "data": replicas * shards // row["cp"],
        "sharding": "fsdp",
        "tensor": tensor,
        "context": row["cp"],
        "context_communication": row["comm"],
        "fsdp_units": "blocks",
    }
    if replicas > 1:
        parallel["shards"] = shards
    if "reduce" in row:
        parallel["reduce_dtype"] = row["reduce"]
    keys = {"gradient_accumulation_steps": 1, "hold_outputs": False, "max_gradient_norm": 1.0, "parallel": parallel}
    found = build_job(keys_of(row) | keys)
    assert isinstance(found, ResolvedJob)
    return found


def traced(row: dict[str, Any]) -> dict[str, int]:
    """What the last device of a sequence allocates."""
    program = titan.PROGRAM(job_of(row))
    program.check()
    found = traced_program(program)
    figures = {"static": found.static, "saved": found.saved, **found.phases}
    return {f"{name}_bytes": size for name, size in figures.items()}
