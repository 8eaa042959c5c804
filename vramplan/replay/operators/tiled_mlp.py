"""An MLP in tiles along the sequence: one node, whose backward runs tile after tile again.

Each has a graph of its own, which is walked at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod

from vramplan.replay.autograd import walk
from vramplan.replay.checkpoints import ALTERNATE_MATMULS
from vramplan.replay.observers import Accumulation, TiledWeights
from vramplan.replay.recorder import Leaf, Saved, Tape
from vramplan.replay.tensors import Parameter, Tensor, UnevenRows, contiguous_strides, normalised, reshape_gradient

Grads = tuple[Tensor | None, ...]
Feed = Callable[[Tensor], Tensor]


class OfTiles(Accumulation):
    """Gradients of a tile: until the last one has run, hooks of accumulators wait where a library makes them wait."""

    waits = True


def tiles_summed_apart(x: Tensor, mlp: Feed, weights: Sequence[Parameter], number: int) -> Tensor:
    """Axolotl's TiledMLP: forward keeps the results of all tiles until they are one tensor.

    Backward begins with zeros for the gradient of the input and for those of the weights. It computes tile after tile
    again, with a graph that it walks at once, and adds the gradients to these zeros. The result of a tile, and the
    gradient of the last weight, live until the next tile has its own. Where gradients of earlier micro-steps are there,
    the sums with them are new. Backward runs outside of the context of autocast.
    Saves `x`: every tile is computed again from it.
    Backward: the zeros, then what a tile saves, and its gradients.
    Source: axolotl 0.19.0, monkeypatch/tiled_mlp/base.py, TiledMLP.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape, whole = grad.tape, saved[0]
        x_grad = tape.like("zeros_like", whole)
        sums = [tape.new("zeros_like", one.shape, one.dtype, False, category="gradients") for one in weights]
        _output = _last = None
        with _walking(tape) as outer:
            for size, _ in _sizes(tape, whole.shape[1], number, one_by_one=False):
                tile, given = _part(whole, size), _part(grad, size)
                leaf = tile.node = Leaf("AccumulateGrad", _no_backward, [], tape.path)
                since = len(tape.nodes)
                _output = _again(tape, mlp, tile)
                _walk(tape, _output, given, since, leaf)
                for one in weights:
                    if one.grad is not None:
                        _last, one.grad = one.grad, None
                        tape.launch("add_", (_last, _last))
                del tile, given, leaf
        news = []
        for one, total in zip(weights, sums, strict=True):
            if outer.resident:
                news.append(tape.new("add", one.shape, one.dtype, False, category="gradients"))
            else:
                one.grad = total
            del total
        return (x_grad,)

    return _forward(x, mlp, weights, number, backward, one_by_one=False)


def tiles_summed_in_place(x: Tensor, mlp: Feed, weights: Sequence[Parameter], number: int) -> Tensor:
    """DeepSpeed's TiledMLP: forward keeps the results of all tiles until they are one tensor.

    Backward takes the tokens of all samples as one row and cuts that. It computes tile after tile again, with a graph
    that it walks at once; gradients of weights are added where they lie, and nobody is told of them before those of the
    last tile are there. The result of a tile lives until the next tile has its own. Backward runs outside of the
    context of autocast.
    Saves `x`: every tile is computed again from it.
    Backward: the gradient of the input, then what a tile saves, and its gradients.
    Source: DeepSpeed 0.19.8, deepspeed/runtime/sequence_parallel/ulysses_sp.py, TiledMLP.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape, whole = grad.tape, saved[0]
        shape = whole.shape
        rows, whole_batched = prod(shape[:-1]), whole.batched
        flat, incoming = reshape_gradient(whole, (rows, shape[-1])), reshape_gradient(grad, (rows, grad.shape[-1]))
        del whole
        x_grad = tape.like("zeros_like", flat)
        _output = None
        with _walking(tape) as outer:
            for size, is_last in _sizes(tape, rows, number, one_by_one=True):
                if is_last:
                    tape.enlist(Accumulation, outer)
                batched = _batched(whole_batched, tape.batch, rows, number, is_last=is_last)
                tile, given = _rows(flat, size, batched), _rows(incoming, size, batched)
                leaf = tile.node = Leaf("AccumulateGrad", _no_backward, [], tape.path)
                since = len(tape.nodes)
                _output = _again(tape, mlp, tile)
                _walk(tape, _output, given, since, leaf)
                del tile, given, leaf
        return (x_grad.alias(shape, None, None),)

    return _forward(x, mlp, weights, number, backward, one_by_one=True)


def _forward(
    x: Tensor,
    mlp: Feed,
    weights: Sequence[Parameter],
    number: int,
    backward: Callable[[Tensor, Saved], Grads],
    *,
    one_by_one: bool,
) -> Tensor:
    """All tiles without a graph, and the node of their function."""
    tape = x.tape
    node = tape.record("TiledMLP", (x,), backward)
    outer, tape.no_grad = tape.no_grad, True
    outputs: list[Tensor] = []
    try:
        for size, _ in _sizes(tape, x.shape[1], number, one_by_one=one_by_one):
            outputs.append(mlp(_part(x, size)))
    finally:
        tape.no_grad = outer
    one = outputs[0]
    tape.launch("cat", outputs)
    out = tape.new("cat", (*x.shape[:-1], one.shape[-1]), one.dtype, x.batched)
    del one
    if node is not None:
        tape.role(TiledWeights).tiled(weights)
        tape.save(node, x)
    return out.alias(out.shape, None, node)


def _sizes(tape: Tape, length: int, number: int, *, one_by_one: bool) -> Iterator[tuple[int, bool]]:
    """How long each tile is, and whether it is the last one: as torch.chunk cuts.

    `one_by_one`: what is gathered for a tile stays for others, so that none stands for several. Nor does one where a
    checkpoint keeps every second product: which of a tile's these are depends on how many there were before.
    """
    step = -(-length // number)
    number = -(-length // step)
    frame = tape.frame or tape.recomputing
    apart = range(number) if frame is not None and frame.keeps == ALTERNATE_MATMULS else ()
    for index in range(number) if one_by_one else (index for index, _ in tape.repeat(number, stride=0, apart=apart)):
        is_last = index == number - 1
        yield (length - index * step if is_last else step), is_last


def _part(x: Tensor, size: int) -> Tensor:
    """So many tokens of each sample: a view."""
    shape = (x.shape[0], size, *x.shape[2:])
    return x.alias(shape, normalised(shape, x.strides or contiguous_strides(x.shape)), None)


def _rows(x: Tensor, size: int, batched: int) -> Tensor:
    """So many tokens of all samples: a view."""
    part = x.alias((size, x.shape[-1]), None, None)
    part.batched = batched
    return part


def _batched(whole: int, batch: int, rows: int, number: int, *, is_last: bool) -> int:
    """How the tokens of a tile grow with the micro-batch: as it does, where those of a sample fill whole tiles."""
    length = rows // batch
    if not whole or length % number == 0:
        return whole

    def at(batch: int) -> int:
        step = -(-length * batch // number)
        return length * batch - (-(-length * batch // step) - 1) * step if is_last else step

    return UnevenRows(at(batch), at)


def _again(tape: Tape, mlp: Feed, tile: Tensor) -> Tensor:
    """A tile runs again, with a graph; what hangs on that of the tile before goes with its result."""
    tape.category, tape.direction = "activations", "recompute"
    before, tape.held = tape.held, []
    out = mlp(tile)
    before.clear()
    tape.category, tape.direction = "temporaries", "backward"
    return out


def _walk(tape: Tape, out: Tensor, given: Tensor, since: int, leaf: Leaf) -> None:
    """Its graph is walked; the gradient of its input is added to the part of the whole one that it is of."""
    if given.dtype is not out.dtype:
        given = tape.like("to", given, out.dtype)
    walk(tape, out, given, since)
    tape.launch("add_", tuple(leaf.grads or ()))
    leaf.grads = None


@contextmanager
def _walking(tape: Tape) -> Iterator[Accumulation]:
    """Tiles run in the backward of a node; gives who says what happens to gradients otherwise."""
    outer, path, category, autocast = tape.role(Accumulation), tape.path, tape.category, tape.autocast
    held, tape.held = tape.held, []
    tape.autocast = None
    tape.enlist(Accumulation, OfTiles())
    yield outer
    tape.enlist(Accumulation, outer)
    tape.held, tape.category, tape.autocast = held, category, autocast
    tape.enter(path)


def _no_backward(grad: Tensor, saved: Saved) -> Grads:
    raise AssertionError("the end of a graph")  # pragma: no cover
