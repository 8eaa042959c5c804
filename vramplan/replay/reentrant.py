"""Reentrant checkpoints: one node for a segment, whose backward computes it again and walks a graph of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vramplan.replay.autograd import walk, walk_reached
from vramplan.replay.observers import Observer
from vramplan.replay.precision import Precision
from vramplan.replay.recorder import Leaf, Saved, Tape
from vramplan.replay.setup import Setup
from vramplan.replay.techniques import Technique
from vramplan.replay.tensors import Parameter, Tensor


class RunsReentrantly(Observer):
    """Makes the checkpoints of a tape reentrant."""

    walks_others = False

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.outside: list[Parameter] = []  # weights of segments that are not in the graph

    def checkpointed(self, function: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
        """A segment runs. One that is given nothing that needs a gradient is not in the graph, whatever it trains."""
        parameters = self.tape.parameters
        before = len(parameters)
        out = reentrant_checkpoint(function, *inputs)
        result: Any = out
        if (result[0] if type(result) is tuple else result).node is None:
            self.outside += parameters[before:]
        else:
            self.hold(function)
        return out

    def hold(self, function: Callable[..., Any]) -> None:
        """The node has the function, and that has what its blocks were handed by name, until the outputs go.

        Source: torch/utils/checkpoint.py, CheckpointFunction.forward (ctx.run_function).
        """
        known = {id(one) for one in self.tape.held}
        for one in getattr(function, "holds", tuple)():
            if one.storage is not None and id(one) not in known:
                known.add(id(one))
                self.tape.held.append(one)

    def passed_by_name(self, tensor: Tensor) -> None:
        """The function that backward runs again holds it."""
        self.tape.held.append(tensor)


class ReentrantCheckpoints(Technique):
    """Checkpoints are reentrant."""

    records_in_backward = True

    def __init__(self, setup: Setup, tape: Tape, precision: Precision) -> None:
        super().__init__(setup, tape, precision)
        self.runs = RunsReentrantly(tape)

    def before_model(self) -> None:
        """Segments that are checkpointed run so from now on."""
        self.tape.observe(self.runs)

    def never_walked(self) -> Sequence[Parameter]:
        """The weights of the segments that backward does not come to."""
        return self.runs.outside


def reentrant_checkpoint(function: Callable[..., Any], x: Tensor, *others: Tensor) -> Any:
    """`torch.utils.checkpoint.checkpoint(use_reentrant=True)`: forward records nothing but this one node.

    Backward computes the whole segment again, with a graph, and walks that graph; so everything that the segment saves
    is there at once, and what it returns lives until all of it is done. Nothing stops early. What functions of the
    segment keep by themselves lives as long.
    Its node holds what the function holds, and lives as long as the loss: until backward is over.
    Saves `x`: the segment is computed again from it.
    Saves `others`: the other arguments: a mask, or what an encoder gave.
    Backward: the gradients of those that need one, as the inner walk leaves them.
    Source: torch/utils/checkpoint.py, CheckpointFunction.
    """
    tape, path, autocast = x.tape, x.tape.path, x.tape.autocast

    def backward(grad: Tensor, saved: Saved) -> tuple[Tensor | None, ...]:
        tape = grad.tape
        leaves = [Leaf("AccumulateGrad", _no_backward, [], path) if each else None for each in need]
        detached = [one.alias(one.shape, one.strides, leaf) for one, leaf in zip(saved, leaves, strict=True)]
        before = tape.path, tape.category, tape.autocast
        casts, tape.casts = tape.casts, {}
        held, tape.held = tape.held, []
        tape.enter(path)
        tape.category, tape.autocast, tape.direction = "activations", autocast, "recompute"
        since = len(tape.nodes)
        waiting = {id(node) for node in tape.nodes if node.grads is not None} if captures else set()
        out = function(*detached)
        tape.casts.clear()  # the recomputation's own autocast context ends
        tape.casts, tape.autocast = casts, before[2]
        tape.category, tape.direction = "temporaries", "backward"
        walk(tape, out[0] if type(out) is tuple else out, grad, since)
        if captures:
            walk_reached(tape, waiting)
        tape.enter(path)  # what hangs on the graph of all its blocks goes with it
        tape.held = held
        tape.enter(before[0])
        tape.category = before[1]
        return tuple(None if leaf is None or leaf.grads is None else leaf.grads[0] for leaf in leaves)

    need = [one.node is not None for one in (x, *others)]
    node = tape.record("CheckpointFunction", (x, *others), backward, (x, *others))
    outer, tape.no_grad = tape.no_grad, True
    try:
        out = function(x, *others)
    finally:
        tape.no_grad = outer
    # blocks have them since they ran: what hangs on a graph that is no argument's
    captures = any(one.node is not None for one in getattr(function, "holds", tuple)())
    if type(out) is tuple:  # a hidden state, and attention weights that a fused kernel does not make
        hidden, *others_of_block = out
        assert all(one is None for one in others_of_block)
        return hidden.alias(hidden.shape, hidden.strides, node), *others_of_block
    return out.alias(out.shape, out.strides, node)


def _no_backward(grad: Any, saved: Saved) -> tuple[Tensor | None, ...]:
    raise AssertionError("the end of a graph")  # pragma: no cover
