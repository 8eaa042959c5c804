"""Gradients that one kernel of a compiled backward makes together.

Kernels that read the same tensors are fused, though neither needs what the other gives: both gradients of a gated
activation are made from one pass over its inputs. All are stored then, and what they were made from goes.
Source: torch/_inductor/scheduler.py, Scheduler.can_fuse_horizontal and score_fusion_memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vramplan.replay import autograd
from vramplan.replay.compiled_storages import DeferringTape
from vramplan.replay.deferred import Deferred, sources_of
from vramplan.replay.fusible import FUSIBLE
from vramplan.replay.recorder import Node, Tape
from vramplan.replay.tensors import Tensor

NEAR = 12  # nodes of a graph that are looked at; those of one kernel are next to each other


def waiting(node: Node) -> Iterator[Deferred]:
    """Gradients that are there for a node and are not stored."""
    for one in node.grads or ():
        if one is not None and type(one.storage) is Deferred and one.storage.index < 0:
            yield one.storage


def together_with(tape: DeferringTape, gradients: Sequence[Any], targets: Sequence[Any]) -> list[Deferred]:
    """What the kernel makes that stores these gradients: they, and others from the same tensors.

    `targets` are the nodes that the reader of these gradients has gradients for in its turn. Fused operators that wait
    for gradients of that kernel alone are run ahead of their turn, as their results are made in it.
    """
    found = [
        one.storage
        for one in gradients
        if type(one) is Tensor and type(one.storage) is Deferred and one.storage.index < 0 and one.batched
    ]
    if len(found) != 1:
        return []
    size, read = found[0].size, {id(one) for one in sources_of(found[0])}

    def shares(one: Deferred) -> bool:
        differs = tape.compared.differ(one.size, bool(one.batched), size, True)
        return not differs and any(id(source) in read for source in sources_of(one))

    nodes = tape.nodes
    at = len(nodes) - 1
    while at >= max(0, len(nodes) - NEAR):
        node = nodes[at]
        if node.path is not tape.path:
            break
        if node.operator in FUSIBLE and any(shares(one) for one in waiting(node)) and not _is_fed(tape, at, targets):
            del nodes[at]
            autograd.run(tape, node)
        at -= 1
    for node in nodes[-NEAR:]:
        if node.operator not in FUSIBLE and node.path is tape.path:
            found += [one for one in waiting(node) if one is not found[0] and one.batched and shares(one)]
    return found if len(found) > 1 else []


def _is_fed(tape: Tape, at: int, targets: Sequence[Any]) -> bool:
    """Whether more will be added to what a node waits for."""
    node = tape.nodes[at]
    if any(one is node for one in targets):
        return True
    return any(edge[0] is node for later in tape.nodes[at + 1 :] for edge in later.edges)
