"""An answer made by hand."""

from __future__ import annotations

from vramplan.results.placement import CurvePoint, PlacementResult, Strategy
from vramplan.values.job import Assumption

MIB = 1 << 20
JOB = {
    "model": {"name": "tiny"},
    "gpu": {"name": "card"},
    "precision": "fp32",
    "sequence_length": 128,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "global_batch_size": 8,
    "parallel": {"data": 1},
}
ANSWER = PlacementResult(
    name="tiny on card",
    job=JOB,
    budget_bytes=100 * MIB,
    budget_basis="given",
    blocks=3,
    stacks=(3,),
    stored_block_bytes=20 * MIB,
    checkpoint_bytes=MIB,
    smallest_peak_bytes=70 * MIB,
    verdict="fits",
    strategies=(
        Strategy("none", "all stored", (), 120 * MIB, False, 0, 0.0),
        Strategy("optimal", "least recompute", ((1, 1),), 99 * MIB, True, 1000, 0.1),
        Strategy("full", "each block", ((0, 0), (1, 1), (2, 2)), 70 * MIB, True, 3000, 0.3),
    ),
    curve=(CurvePoint(1, 3, 70 * MIB, 0.3, 4.0, 140 * MIB), CurvePoint(2, 2, 75 * MIB, 0.3, 3.5, 130 * MIB)),
    textbook_segments=2,
    best_blocks_per_segment=1,
    flags="--checkpointing 'layers:[[1,1]]'",
    assumptions=(Assumption("precision", "fp32", "an example"),),
    warnings=("a warning",),
)
