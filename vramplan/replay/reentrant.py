"""Reentrant checkpoints: one node for a segment, whose backward computes it again and walks a graph of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count as count_from
from typing import Any
from weakref import ref

from vramplan.replay.autograd import walk_from, walk_reached, whole_gradients
from vramplan.replay.observers import Observer
from vramplan.replay.precision import Precision
from vramplan.replay.recorder import ARGUMENT, Leaf, Path, Saved, Tape
from vramplan.replay.setup import Setup
from vramplan.replay.techniques import Technique
from vramplan.replay.tensors import DType, Parameter, Shape, Tensor


class RunsReentrantly(Observer):
    """Makes the checkpoints of a tape reentrant."""

    walks_others = False

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.outside: list[Parameter] = []  # weights of segments that are not in the graph
        self.inside: list[tuple[ref[Any], list[Parameter]]] = []  # nodes of those that are, and their weights

    def checkpointed(self, function: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
        """A segment runs. One that is given nothing that needs a gradient is not in the graph, whatever it trains."""
        parameters = self.tape.parameters
        before = len(parameters)
        out = reentrant_checkpoint(function, *inputs)
        result: Any = out
        node = (result[0] if type(result) is tuple else result).node
        if node is None:
            self.outside += parameters[before:]
        else:
            self.inside.append((ref(node), parameters[before:]))
            self.hold(function)
        return out

    def abandoned(self, weight: Parameter) -> None:
        """A weight outside of all segments may have had no other use."""
        self.outside.append(weight)

    def unreached(self) -> list[Parameter]:
        """The weights that backward does not come to: those of segments whose result nobody used too."""
        walked = {*self.tape.nodes}
        gone = [one for node, weights in self.inside if node() not in walked for one in weights]
        return list(dict.fromkeys([*self.outside, *gone]))

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
        """The weights of the segments that backward does not come to, and of operators that went unused."""
        return self.runs.unreached()


def reentrant_checkpoint(function: Callable[..., Any], x: Any, *others: Tensor) -> Any:
    """`torch.utils.checkpoint.checkpoint(use_reentrant=True)`: forward records nothing but this one node.

    Backward computes the whole segment again, with a graph, and walks that graph; so everything that the segment saves
    is there at once, and what it returns lives until all of it is done. Nothing stops early. What functions of the
    segment keep by themselves lives as long.
    Its node holds what the function holds, and lives as long as the loss: until backward is over.
    Where it returns several tensors, one that no gradient comes to has one of zeros.
    Saves `x`: the segment is computed again from it; so are the tensors that come with the hidden state.
    Saves `others`: the other arguments: a mask, or what an encoder gave.
    Backward: the gradients of those that need one, as the inner walk leaves them.
    Source: torch/utils/checkpoint.py, CheckpointFunction; torch/csrc/autograd/python_function.cpp, PyNode::apply.
    """
    carried = x if type(x) is tuple else (x,)
    count, gives = len(carried), [one is not None for one in (*carried, *others)]
    inputs = [one for one in (*carried, *others) if one is not None]
    tape = inputs[0].tape
    path, autocast = tape.path, tape.autocast
    returned: list[tuple[Shape, DType, int]] = []  # of each tensor that it returns

    def run(given: Sequence[Tensor]) -> Any:
        left = iter(given)
        every = [next(left) if each else None for each in gives]
        return function(every[0] if count == 1 else tuple(every[:count]), *every[count:])

    def backward(grad: Any, saved: Saved) -> tuple[Tensor | None, ...]:
        own = whole_gradients(tape, grad if type(grad) is list else [grad], returned)
        leaves = [_leaf(tape, one, path, first=i == 0) if need[i] else None for i, one in enumerate(saved)]
        detached = [one.alias(one.shape, one.strides, leaf) for one, leaf in zip(saved, leaves, strict=True)]
        before = tape.path, tape.category, tape.autocast
        casts, tape.casts = tape.casts, {}
        held, tape.held = tape.held, []
        outer_leaves, tape.leaves = tape.leaves, []
        tape.enter(path)
        tape.category, tape.autocast, tape.direction = "activations", autocast, "recompute"
        since = len(tape.nodes)
        waiting = {id(node) for node in tape.nodes if node.grads is not None} if captures else set()
        out = run(detached)
        tape.casts.clear()  # the recomputation's own autocast context ends
        tape.casts, tape.autocast = casts, before[2]
        tape.category, tape.direction = "temporaries", "backward"
        walk_from(tape, _tensors(out), own, since)
        if captures:
            walk_reached(tape, waiting)
        tape.enter(path)  # what hangs on the graph of all its blocks goes with it
        tape.drop_leaves()
        tape.held, tape.leaves = held, outer_leaves
        tape.enter(before[0])
        tape.category = before[1]
        return tuple(None if leaf is None else _gradient_of(leaf) for leaf in leaves)

    need = [one.node is not None for one in inputs]
    node = tape.record("CheckpointFunction", inputs, backward, inputs)
    outer, tape.no_grad = tape.no_grad, True
    try:
        out = function(x, *others)
    finally:
        tape.no_grad = outer
    # blocks have them since they ran: what hangs on a graph that is no argument's
    captures = any(one.node is not None for one in getattr(function, "holds", tuple)())
    returned += [(one.shape, one.dtype, one.batched) for one in _tensors(out)]
    if type(out) is not tuple:
        return out.alias(out.shape, out.strides, node)
    numbers = count_from(0)  # attention weights are none, as a fused kernel makes none
    return tuple(None if one is None else one.alias(one.shape, one.strides, node, next(numbers)) for one in out)


def _tensors(out: Any) -> list[Tensor]:
    """Those that a segment returns."""
    return [one for one in (out if type(out) is tuple else (out,)) if one is not None]


def _leaf(tape: Tape, saved: Tensor, path: Path, *, first: bool) -> Leaf | Parameter:
    """What receives the gradient of an argument.

    That of the hidden state comes from one place. Others are returned as they came, so that the gradient of what was
    returned meets that of the segment, and the sum is brought to the layout of the argument.
    """
    if first:
        return Leaf("AccumulateGrad", _no_backward, [], path)
    leaf = Parameter(tape, ARGUMENT, saved.shape, saved.dtype, tape.copies, True)
    leaf.storage, leaf.strides, leaf.batched, leaf.shared = saved.storage, saved.strides, saved.batched, False
    return leaf


def _gradient_of(leaf: Leaf | Parameter) -> Tensor | None:
    if type(leaf) is Leaf:
        return None if leaf.grads is None else leaf.grads[0]
    assert type(leaf) is Parameter
    leaf.node, gradient = None, leaf.grad  # it was its own accumulator
    return gradient


def _no_backward(grad: Any, saved: Saved) -> tuple[Tensor | None, ...]:
    raise AssertionError("the end of a graph")  # pragma: no cover
