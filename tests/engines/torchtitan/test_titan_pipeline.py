"""Stages of a pipeline under torchtitan: rows of FSDP2 as `torch.distributed.pipelining` drives it.

The rows of `titan_pipeline_rows.json` are of one stage each: torchtitan's model under FSDP2 (torch 2.13), over groups
of replicas and over tensor parallelism, on tensors without data. torchtitan's `pipeline_llama` makes the stage,
and PyTorch's Schedule1F1B or ScheduleGPipe runs it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramplan.catalog.shapes import shape_from_fields
from vramplan.planner.checkpoints import segments_in
from vramplan.replay.pipeline.stages import Stage
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.values.parallel import Sharded, Split

TITAN = "vramplan.engines.torchtitan.model"
ROWS = json.loads((Path(__file__).parent / "titan_pipeline_rows.json").read_text())["rows"]
COUNT = 11
DEFAULTS = {"batch": 2, "seq": 128, "vocab": 1024, "reduce": "fp32", "gpipe": False}


def setup_of(row: dict[str, Any]) -> Setup:
    """The iteration of a row."""
    row = DEFAULTS | row
    fields = {
        "family": "llama",
        "layers": row["layers"],
        "hidden_size": 256,
        "attention_heads": 8,
        "key_value_heads": 4,
        "intermediate_size": 704,
        "vocabulary_size": row["vocab"],
        "max_positions": 128,
        "tied_embeddings": False,
    }
    shape = shape_from_fields(fields, name="row")._replace(family=TITAN, published_family="llama", engine="torchtitan")
    number = 0 if row["first"] else row["stages"] - 1 if row["last"] else 1
    stage = Stage(
        number,
        (row["layers"],),
        row["first"],
        row["last"],
        in_flight=row["flight"],
        steady=not row["gpipe"],
        micro_batches=row["micro"],
    )
    return Setup(
        model=shape,
        precision="fsdp-bf16",
        sequence_length=row["seq"],
        attention="flash",
        segments=segments_in(row["ac"], shape.stacks, every_second_matmul=True),
        optimizer="adamw",
        optimizer_implementation="foreach",
        accumulating=True,
        hold_outputs=False,
        loss="causal-lm-fp32" if row["tp"] == 1 else "vocab-parallel",
        sharding=Sharded("fsdp-grad-op", row["dp"], no_sync=True, reduce_dtype=row["reduce"], replicas=row["rep"]),
        split=Split(
            tensor=row["tp"],
            pipeline=row["stages"],
            sequence_parallel=row["tp"] > 1,
            schedule="gpipe" if row["gpipe"] else "1f1b",
        ),
        stage=stage,
    )


def record_of(traced: dict[str, Any], *, direct: bool = False) -> tuple[Record, int]:
    """The replay of a row, and its micro-batch."""
    batch: int = traced["row"].get("batch", DEFAULTS["batch"])
    return replay(setup_of(traced["row"]), batch=batch if direct else min(batch, 2), direct=direct), batch


def decides_at_the_end(traced: dict[str, Any]) -> bool:
    """Whether a stage holds most when it reduces all gradients."""
    return bool(traced["reduce_bytes"] > max(traced["forward_bytes"], traced["backward_bytes"]))


@pytest.mark.truth
@pytest.mark.parametrize("direct", [False, True])
def test_what_a_stage_allocates(direct: bool) -> None:
    """To the byte: the peak, and the phases of the fullest micro-batch where forward and backward take turns."""
    wrong = []
    for traced in ROWS:
        record, batch = record_of(traced, direct=direct)
        phases = {phase: traced[f"{phase}_bytes"] for phase in ("forward", "backward")}
        found, expected = {"peak": record.peak_bytes(batch)}, {"peak": max(*phases.values(), traced["reduce_bytes"])}
        if traced["row"]["micro"] > traced["row"]["flight"] and not decides_at_the_end(traced):
            found, expected = found | record.peaks(batch), expected | phases
        wrong += [
            (traced["row"], phase, found[phase], size) for phase, size in expected.items() if found[phase] != size
        ]
    assert not wrong
    assert len(ROWS) == COUNT


def test_the_rows_are_of_every_kind() -> None:
    """Stages with and without ends, groups of replicas beside tensor parallelism, and both deciding moments."""
    rows = [traced["row"] for traced in ROWS]
    assert {(row["first"], row["last"]) for row in rows} == {(True, False), (False, False), (False, True)}
    assert {(row["rep"] > 1, row["tp"] > 1) for row in rows} >= {(True, True), (True, False), (False, True)}
    assert {row["micro"] > row["flight"] for row in rows} == {True, False}
    assert {decides_at_the_end(traced) for traced in ROWS} == {True, False}
