"""Where the checkpoints of a strategy are."""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import sqrt

from vramplan.replay.checkpoints import ALTERNATE_MATMULS, MATMULS
from vramplan.replay.models.modules import CORE, GELU, GELU_NORMS, Segment

STRATEGIES = ("none", "sqrt", "full")  # the ladder, in the order of extra compute
OPTIMAL = "optimal"  # where its checkpoints are depends on sizes: planner/placements.py
SELECTIVE = "selective"  # the attention core of every block (arXiv:2205.05198, section 5)
SELECTIVE_OP = "selective-op"  # every block, with the results of matrix products and fused attention kept


def blocks_per_segment(strategy: str, layers: int) -> int | None:
    """k of `every:k`, for the strategies that are one; None for the others."""
    if strategy in ("full", SELECTIVE_OP):
        return 1
    if strategy == "sqrt":
        return max(1, round(sqrt(layers)))
    if strategy.startswith("every:"):
        return int(strategy.removeprefix("every:"))
    return None


def checkpoint_ranges(strategy: str, layers: int) -> tuple[tuple[int, int], ...]:
    """First and last block of each checkpoint of whole blocks, 0-based and inclusive.

    Of `selective-layer:K` it is each K-th block, the blocks counted from 1.
    Source: torchtitan 0.2, torchtitan/distributed/activation_checkpoint.py, _apply_layer_sac.
    """
    if strategy.startswith("selective-layer:"):
        step = int(strategy.removeprefix("selective-layer:"))
        return tuple((block, block) for block in range(step - 1, layers, step))
    k = blocks_per_segment(strategy, layers)
    if k is not None:
        return tuple((first, min(first + k, layers) - 1) for first in range(0, layers, k))
    if strategy.startswith("layers:"):
        return tuple((first, last) for first, last in json.loads(strategy.removeprefix("layers:")))
    return ()


def spelled(ranges: Iterable[tuple[int, int]]) -> str:
    """The strategy that has these checkpoints: `layers:[[0,6],[7,13]]`."""
    inner = ",".join(f"[{first},{last}]" for first, last in ranges)
    return f"layers:[{inner}]" if inner else "none"


def segments_of(strategy: str, layers: int, *, every_second_matmul: bool = False) -> tuple[Segment, ...]:
    """The walk over the blocks: equal consecutive checkpoints together, stored blocks between them."""
    if strategy == SELECTIVE:
        return (Segment(1, layers, False, CORE),)
    if strategy in (GELU, GELU_NORMS):  # of llm.c
        return (Segment(1, layers, False, strategy),)
    if strategy == SELECTIVE_OP:
        return (Segment(layers, 1, True, ALTERNATE_MATMULS if every_second_matmul else MATMULS),)
    runs: list[Segment] = []
    at = 0
    for first, last in (*checkpoint_ranges(strategy, layers), (layers, layers - 1)):
        if first > at:
            runs.append(Segment(1, first - at, False))
        size = last - first + 1
        if size > 0:
            before = runs[-1] if runs else None
            if before is not None and before.checkpointed and before.blocks == size:
                runs[-1] = Segment(before.times + 1, size, True)
            else:
                runs.append(Segment(1, size, True))
        at = last + 1
    assert all(segment.blocks > 0 for segment in runs)
    return tuple(runs)
