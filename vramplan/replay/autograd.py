"""The autograd engine: walks the recorded graph backwards and recomputes checkpoints on the way.

Rules of the engine (numbers of torch 2.13; `torch/csrc/autograd/engine.cpp`, `accumulate_grad.h`, `input_buffer.cpp`):

1. Nodes run in the reverse order of recording; one that no gradient reaches is skipped.
2. While a node runs, its incoming gradients, its saved tensors and its results are alive together. Then, input by
   input, a result of another shape is summed and one of another dtype is cast (`validate_outputs`); only then the saved
   tensors and the incoming gradients go. Under a checkpoint the unpacked tensors go when the formula returns.
3. Two gradients that meet are added in place if nobody else holds the first, else out of place.
4. A parameter's gradient is the produced tensor itself, or a copy of it if somebody else holds it too; where one is
   already there, it is added and freed. A parameter used twice waits for both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from sys import getrefcount
from typing import Any

from vramplan.replay.checkpoints import Frame, StopRecomputation
from vramplan.replay.observers import Accumulation
from vramplan.replay.recorder import IN_ANOTHERS, Node, Tape, rounded
from vramplan.replay.tensors import DType, Parameter, Shape, Tensor, dense_like, reshape_gradient


def _references_of_one_variable() -> int:
    """What getrefcount says of an object that one local variable holds: 2, or 1 where arguments are borrowed."""
    one = object()
    return getrefcount(one)


ALONE = _references_of_one_variable()


def checkpoint(tape: Tape, function: Callable[..., Any], *inputs: Any, keeps: str | None = None) -> Any:
    """Run a segment without keeping what it saves; backward computes it again.

    Its inputs stay alive until the last node of the segment that saved something has run. With `keeps` it is a
    selective checkpoint: results of the operators that it names stay too, each until recomputation has come to it.
    Source: torch/utils/checkpoint.py, checkpoint(use_reentrant=False), the default of Transformers, and
    create_selective_checkpoint_contexts.
    """
    for checkpointed in tape.told.checkpointed:
        return checkpointed(function, inputs)
    frame = Frame(function, tape.packed(inputs), tape.path, tape.autocast, keeps)
    tape.frame = frame
    try:
        return function(*inputs)
    finally:
        tape.frame = None


@contextmanager
def dropped(tape: Tape) -> Iterator[list[Any]]:
    """What is recorded inside needs gradients, but no loss will hang on it.

    The list that it gives holds what that graph saved, and lives as long as the caller wants the graph to. Casts of
    weights that autocast keeps for others are no part of it.
    """
    graph: list[Any] = []
    start, frame = len(tape.nodes), tape.recomputing
    taken = None if frame is None else frame.taken
    already = 0 if taken is None else len(taken)
    try:
        yield graph
    finally:
        if taken is not None:  # nobody will ask for it
            graph += taken[already:]
            taken[already:] = [None] * (len(taken) - already)
        kept = {id(cast.node) for cast in tape.casts.values()}
        for node in tape.nodes[start:]:
            if id(node) in kept:
                continue
            graph.append(node.saved)
            node.saved = None
            for target, *_ in node.edges:
                if type(target) is Parameter:
                    target.pending -= 1
            node.edges = []  # who abandons it once more takes nothing back


def _recompute(tape: Tape, frame: Frame) -> None:
    frame.taken = []
    path, category, autocast = tape.path, tape.category, tape.autocast
    casts, tape.casts = tape.casts, {}
    held, tape.held = tape.held, []
    tape.enter(frame.path)
    tape.recomputing, tape.category, tape.autocast = frame, "activations", frame.autocast
    phase, tape.direction = tape.direction, "recompute"
    try:
        inputs: Sequence[Any] = tape.unpacked(frame.inputs)
        frame.function(*inputs)
    except StopRecomputation:
        pass
    finally:
        inputs = ()
        tape.recomputing, tape.category, tape.autocast = None, category, autocast
        tape.direction = phase
        tape.enter(frame.path)
        tape.casts.clear()  # the recomputation's own autocast context ends
        tape.casts, tape.held = casts, held
        tape.enter(path)


def backward(tape: Tape, loss: Tensor, *, received: bool = False) -> list[Any]:
    """Walk the graph from the loss; leave the gradients on the parameters.

    It begins with one scalar, the gradient of the loss with respect to itself, or with a gradient that was `received`.
    That is returned, and what nodes hold besides what they save: these are there until the callbacks at the end of
    backward are through.
    Source: torch/autograd/__init__.py, _make_grads; torch/csrc/autograd/engine.cpp, Engine::thread_main.
    """
    tape.category, tape.direction = "temporaries", "backward"
    root = tape.constant((), loss.dtype, False) if received else tape.new("ones_like", (), loss.dtype, False)
    walk(tape, loss, root, since=0)
    tape.enter(())
    for walked in tape.told.graph_walked:
        walked([*tape.held, *tape.leaves])
    for kept in tape.held:
        if type(kept) is Parameter:
            kept.node = kept.grad = kept.waiting = kept.storage = None  # it is its own accumulator: a cycle
    held, tape.held = tape.held, []
    return [root, *held]


def walk(tape: Tape, out: Tensor, gradient: Tensor, since: int) -> None:
    """Run the nodes that came after the first `since`, in reverse, from a result whose gradient is there."""
    walk_from(tape, (out,), (gradient,), since)


def walk_from(tape: Tape, outs: Sequence[Tensor], gradients: Sequence[Tensor], since: int) -> None:
    """The same from several results; those that need no gradient are left out.

    Source: torch/autograd/__init__.py, backward; torch/csrc/autograd/engine.cpp, Engine::execute.
    """
    for out in outs:
        if type(out.node) is Parameter:
            out.node.pending += 1
    for out, gradient in zip(outs, gradients, strict=True):
        if type(out.node) is Parameter:
            _receive(tape, out.node, gradient, [])
        elif out.node is not None:
            _take(tape, out.node, out.output_index, gradient)
    nodes = tape.nodes
    while len(nodes) > since:
        node = nodes.pop()
        if node.grads is not None:
            run(tape, node)
        node.saved = None
        node.frame = None


def walk_reached(tape: Tape, waiting: Collection[int]) -> None:
    """Run the nodes that a walk inside of another one has reached, of those that were recorded before it began.

    A graph that hangs on no argument of a function is walked with it, and not when the walk around it comes there.
    `waiting` are the nodes, by identity, that the outer walk had brought gradients to. A weight that is used outside of
    that graph too gets the gradient of each walk by itself.
    """
    nodes = tape.nodes
    with _weights_apart(_uses_in(nodes, waiting)):
        for position in range(len(nodes) - 1, -1, -1):
            node = nodes[position]
            if node.grads is not None and id(node) not in waiting:
                run(tape, node)


def _uses_in(nodes: Sequence[Node], waiting: Collection[int]) -> dict[int, tuple[Parameter, int]]:
    """Weights, by identity, and how often the graph uses them that hangs on the nodes with a gradient but `waiting`."""
    uses: dict[int, tuple[Parameter, int]] = {}
    reached: set[int] = set()
    for node in reversed(nodes):
        if id(node) not in reached and (node.grads is None or id(node) in waiting):
            continue
        for target, *_ in node.edges:
            if type(target) is Parameter:
                uses[id(target)] = target, uses.get(id(target), (target, 0))[1] + 1
            elif target is not None:
                reached.add(id(target))
    return uses


@contextmanager
def _weights_apart(uses: Mapping[int, tuple[Parameter, int]]) -> Iterator[None]:
    """Weights wait for these uses of theirs alone, and then again for those that are left."""
    left = []
    for parameter, times in uses.values():
        if parameter.pending > times:
            left.append((parameter, parameter.waiting, parameter.pending - times))
            parameter.waiting, parameter.pending = None, times
    yield
    for parameter, gradient, times in left:
        parameter.waiting, parameter.pending = gradient, times


def run(tape: Tape, node: Node) -> None:
    """Run a node whose gradients are there, and hand what it gives to the nodes and weights before it."""
    grads = node.grads
    assert grads is not None
    node.grads = None
    told = tape.told
    if node.path is not tape.path:
        tape.enter(node.path)
    if node.viewed is not None:
        viewed = grads.pop()
        assert viewed is not None
        grads = [reshape_gradient(viewed, node.viewed)]
        del viewed
    grad: Any = grads[0] if len(grads) == 1 else grads
    if node.frame is not None:
        frame = node.frame
        if frame.taken is None:
            for recomputing in told.recomputing:
                recomputing(node)
            _recompute(tape, frame)
        taken = frame.taken
        assert taken is not None
        start, end = node.slot, node.slot + node.width
        saved = taken[start:end]
        taken[start:end] = [None] * node.width
        for launched in told.launched:
            launched(node.operator, (*grads, *saved))
        results = list(node.fn(grad, saved))
        del saved, taken, frame  # the input of a checkpoint goes with its last node, before weights get their gradients
    elif told.unpacking and node.saved and not any(one.unpacks for one in told.observers):
        unpacked = tape.unpacked(node.saved)
        for launched in told.launched:
            launched(node.operator, (*grads, *unpacked))
        results = list(node.fn(grad, unpacked))
        del unpacked
    else:
        for launched in told.launched:
            launched(node.operator, (*grads, *(node.saved or ())))
        results = list(node.fn(grad, node.saved or ()))
    _validate(tape, node, results)
    node.saved = None
    node.frame = None
    del grads, grad
    if told.weights_first or node.views_input:
        _hand_to_weights(tape, node, results)
    results.reverse()
    ready: list[Parameter] = []
    for target, output_index, _, _, _ in node.edges:
        result = results.pop()
        if result is None or target is None:
            continue
        if type(target) is Parameter:
            _receive(tape, target, result, ready)
            del result
            continue
        if target.grads is None and not output_index:
            target.grads = [result]
        else:
            _take(tape, target, output_index, result)
        del result
    for parameter in ready:
        _accumulate(tape, parameter)


def _take(tape: Tape, target: Node, output_index: int, result: Tensor) -> None:
    """A node is brought the gradient of one of its results."""
    buffers = target.grads
    if buffers is None:
        target.grads = buffers = [None]
    while len(buffers) <= output_index:
        buffers.append(None)
    if buffers[output_index] is None:
        buffers[output_index] = result
    else:
        buffers[output_index] = _sum(tape, buffers, output_index, result)


def whole_gradients(tape: Tape, grads: Sequence[Tensor | None], made: Sequence[tuple[Shape, DType, int]]) -> list[Any]:
    """Those of all that an `autograd.Function` has `made`: it is given zeros where no gradient came.

    Source: torch/csrc/autograd/python_function.cpp, PyNode::apply (materialize_grads).
    """
    found = [*grads, *[None] * (len(made) - len(grads))]
    return [tape.new("zeros", *as_made) if one is None else one for one, as_made in zip(found, made, strict=True)]


def _hand_to_weights(tape: Tape, node: Node, results: list[Tensor | None]) -> None:
    """Gradients of weights, which get them before that of an input meets others.

    A function between the input and the operator runs after accumulators, which come before all that is ready.
    Source: torch/csrc/autograd/engine.cpp, CompareNodeTaskTime; accumulate_grad.h, AccumulateGrad.
    """
    ready: list[Parameter] = []
    for i, (target, _, _, _, _) in enumerate(node.edges):
        result = results[i]
        if result is not None and type(target) is Parameter and target.storage is None:
            results[i] = None
            _receive(tape, target, result, ready)
        del result
    for parameter in ready:
        _accumulate(tape, parameter)


def _validate(tape: Tape, node: Node, results: list[Tensor | None]) -> None:
    """A gradient is brought to its input: summed to its shape, then cast to its dtype, each new.

    Source: torch/csrc/autograd/engine.cpp, validate_outputs.
    """
    for i, (target, _, shape, batched, dtype) in enumerate(node.edges):
        result = results[i]
        if result is None or target is None:
            results[i] = None
            continue
        if result.shape != shape:
            results[i] = result = tape.new("sum", shape, result.dtype, batched)
        if result.dtype is not dtype:
            results[i] = tape.like("to", result, dtype)
        del result


def _sum(tape: Tape, buffers: list[Tensor | None], i: int, other: Tensor) -> Tensor:
    """Two gradients that meet are added: in place if nobody else holds the first, else out of place.

    Dropping the first before allocating the sum is the same in both cases, unless it is an expanded view, which is
    smaller than the sum. Whose block the sum takes is noted for the caching allocator.
    Source: torch/csrc/autograd/input_buffer.cpp, InputBuffer::accumulate.
    """
    old = buffers[i]
    assert old is not None
    tape.meets(old, other)
    shape, strides, dtype, batched = old.shape, old.strides, old.dtype, old.batched
    stored = [None if one.storage is None else one.storage.index for one in (old, other)]
    buffers[i] = None
    if strides is None or 0 not in strides:
        del old
    total = tape.new("add", shape, dtype, batched, None if strides is None else dense_like(shape, strides))
    assert total.storage is not None
    tape.unseen.summed[total.storage.index] = stored[0], stored[1]
    return total


def _receive(tape: Tape, parameter: Parameter, gradient: Tensor, ready: list[Parameter]) -> None:
    parameter.pending -= 1
    if parameter.waiting is None:
        parameter.waiting = gradient
    else:
        buffers: list[Tensor | None] = [parameter.waiting]
        parameter.waiting = None
        parameter.waiting = _sum(tape, buffers, 0, gradient)
    if parameter.pending == 0:
        ready.append(parameter)


def _accumulate(tape: Tape, parameter: Parameter) -> None:
    """A parameter's gradient is the produced tensor itself; where one is already there, it is added to it and freed.

    A tensor that is also another's gradient, as where a parameter is a summand, is copied, and so is one that lies
    otherwise than the parameter.
    Hooks of the accumulator run before it takes the gradient, and after.
    Source: torch/csrc/autograd/functions/accumulate_grad.h, AccumulateGrad::accumulateGrad.
    """
    total, parameter.waiting = parameter.waiting, None
    assert total is not None
    if parameter.storage is not None:  # no weight: a leaf inside the model, or an input that was asked for its gradient
        for reached in tape.told.leaf_reached:
            reached(parameter)
        copied = parameter.shared is not None and (total.strides != parameter.strides or parameter.shared)
        layout = total.shape, total.dtype, total.batched, parameter.strides
        parameter.grad = tape.new("clone", *layout) if copied else total
        return
    accumulation = tape.role(Accumulation)
    for before in () if accumulation.waits else tape.told.before_accumulate:
        before(parameter)
    if parameter.grad is not None:  # of a tile before: it is added in place, and freed here
        tape.accumulated(total)
    elif accumulation.resident:  # rule 4: it is added in place and freed here
        tape.accumulated(total)
        if total.storage is not None and getrefcount(total) == ALONE:  # what an earlier micro-step has made so is kept
            index, size = total.storage.index, tape.size_of(total.storage)
            if size > rounded(parameter.elements * total.dtype.itemsize) and any(
                one.grad_index == index for one in tape.parameters
            ):
                size = IN_ANOTHERS  # several tokens of one sequence
            parameter.grad_bytes, parameter.grad_index = size, index
    else:  # it becomes .grad
        if getrefcount(total) > ALONE:
            total = tape.like("clone", total)
        elif total.strides is not None:
            total = tape.new("clone", total.shape, total.dtype, total.batched)
        tape.relabel(total, "gradients")
        parameter.grad = total
    del total
    told = tape.told
    for after in told.partly_accumulated if accumulation.waits else told.after_accumulate:
        after(parameter)
