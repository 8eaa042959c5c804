"""Keys and values that blocks hand to later ones, as transformers 5.23 does it in Gemma 4
(models/gemma4/modeling_gemma4.py; cache_utils.py, KVSharingDict).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor

OWN, STORES, REUSES = "own", "stores", "reuses"
"""What a block does: it has keys and values of its own, hands them on, or takes those that were handed on."""


def saved_again(tape: Tape) -> Sequence[Any]:
    """What the recomputation of a checkpoint has saved so far; nothing outside of one."""
    frame = tape.recomputing
    return () if frame is None else tuple(frame.taken or ())


class SharedKeys:
    """Keys and values by the kind of their blocks.

    Every block is handed this, and so is every checkpoint, which then holds it. A checkpoint that runs a second time
    puts its own keys and values in the place of the first ones. With them goes the graph that they have come from,
    which nobody walks; so what its operators saved stays too.
    """

    def __init__(self) -> None:
        self.pairs: dict[bool, tuple[Tensor, Tensor]] = {}
        self.graphs: dict[bool, Sequence[Any]] = {}

    def put(self, kind: bool, pair: tuple[Tensor, Tensor], graph: Sequence[Any]) -> None:
        """Hand on keys and values, and what the operators before them saved in recomputation."""
        self.pairs[kind] = pair
        self.graphs[kind] = graph
