"""Which blocks the checkpoints of a strategy are of, in models of one or more stacks of blocks.

A strategy is one of each stack: `sqrt` and `every:K` begin anew with the next one. Blocks are numbered through all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import sqrt

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


def checkpoint_ranges_in(strategy: str, stacks: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """First and last block of each checkpoint, 0-based and inclusive, numbered through the stacks."""
    ranges: list[tuple[int, int]] = []
    at = 0
    for one, layers in zip(in_each(strategy, stacks), stacks, strict=True):
        ranges += [(at + first, at + last) for first, last in checkpoint_ranges(one, layers)]
        at += layers
    return tuple(ranges)


def in_each(strategy: str, stacks: Sequence[int]) -> list[str]:
    """The strategy of each stack by its own numbers."""
    if len(stacks) == 1 or not strategy.startswith("layers:"):
        return [strategy] * len(stacks)
    ranges = checkpoint_ranges(strategy, sum(stacks))
    strategies, at = [], 0
    for layers in stacks:
        inside = [(first - at, last - at) for first, last in ranges if at <= first and last < at + layers]
        strategies.append(spelled(inside))
        at += layers
    return strategies


def walks_first_stack_again(strategy: str, stacks: Sequence[int]) -> bool:
    """Whether backward comes to the first stack more than once, where reentrant checkpoints are of blocks that read it.

    A checkpoint of several blocks is given nothing but their hidden state: what the first stack gave is no argument of
    its function, and its backward goes through that stack. The switch of Transformers, of each block, makes it one.
    Source: torch/utils/checkpoint.py, CheckpointFunction.backward.
    """
    ranges, first, blocks = checkpoint_ranges_in(strategy, stacks), stacks[0], sum(stacks)
    if len(stacks) == 1 or len(ranges) == blocks:
        return False
    own = [(low, high) for low, high in ranges if low >= first]
    stored = blocks - first - sum(high - low + 1 for low, high in own)
    return bool(own) and len(own) + bool(stored) > 1
