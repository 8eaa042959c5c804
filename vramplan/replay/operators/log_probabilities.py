"""Operator rules of TRL's head for preference training: log-probabilities of labels, tile by tile, without logits.

Read off trl 1.16.0, kernels/chunked_logprob.py; its Triton kernels write in place and allocate nothing. Every position
counts as one of a completion: how many are masked depends on the data, and fewer need less.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import prod

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved, Tape, rounded
from vramplan.replay.tensors import BOOL, FP32, INT64, DType, Parameter, Tensor
from vramplan.tuples import NamedTuple

ENTROPY, MEAN, TOP = "entropy", "mean-logit", "top"  # what the head can give beside log-probabilities
TILE_ROWS = 4096  # TOKEN_CHUNK_SIZE
TILE_COLUMNS = 32768  # _CHUNKED_LOGPROB_CHUNK_SIZE of trainer/utils.py


class Scores(NamedTuple):
    """What the head gives for each label."""

    log_probabilities: Tensor
    others: tuple[Tensor, ...] = ()  # what was asked for of entropy, mean of the logits, and being the likeliest


def masked_rows(x: Tensor, mask: Tensor) -> Tensor:
    """`x[mask]` of [B, S, H] by a mask [B, S]: new, [rows, H]; the positions are found first, two int64 numbers each.

    Saves `mask`: where the gradients go.
    Backward: 1 new, as large as x, filled with zeros and the gradients in their places.
    Source: tools/autograd/derivatives.yaml, index.Tensor; torch/csrc/autograd/FunctionsManual.cpp, index_backward;
    aten/src/ATen/native/IndexingUtils.h, expandTensors.
    """
    tape, whole = x.tape, x.shape
    rows = prod(mask.shape)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("zeros", whole, grad.dtype, grad.batched),)

    node = tape.record("index", (x,), backward, (mask,))
    _places = tape.new("nonzero", (rows, len(mask.shape)), INT64, True)
    return tape.new("index", (rows, *whole[len(mask.shape) :]), x.dtype, True, None, node)


def masked_scatter(x: Tensor, mask: Tensor) -> Tensor:
    """`x.new_zeros(mask.shape).masked_scatter(mask, x)`: the zeros, and a new tensor.

    Saves `mask`: where the gradients come from.
    Backward: 1 new, the gradients at the mask.
    Source: tools/autograd/derivatives.yaml, masked_scatter; torch/csrc/autograd/FunctionsManual.cpp,
    masked_scatter_backward.
    """
    tape, before = x.tape, x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("masked_scatter_backward", before, grad.dtype, grad.batched),)

    _zeros = tape.new("new_zeros", mask.shape, x.dtype, True)
    node = tape.record("masked_scatter", (x,), backward, (mask,))
    return tape.new("masked_scatter", mask.shape, x.dtype, True, None, node)


def chunked_log_probabilities(
    x: Tensor, weight: Parameter, bias: Parameter | None, targets: Tensor, *, others: tuple[str, ...]
) -> Scores:
    """Log-probabilities of targets [N] under a head [V, H] over x [N, H]: new; seven statistics of each row in fp32.

    One buffer holds the logits of a tile, 4096 rows by 32768 columns, whatever the vocabulary is. Operands of another
    dtype than autocast's are cast: the rows of a tile, and the columns of the weight for each tile.
    Saves `x`: the logits of each tile are made again.
    Saves `weight`: the logits of each tile are made again.
    Saves `bias`: it is added to them.
    Saves `targets`: the gradient of a logit depends on whether it is the target's.
    Saves `log_z`: it turns the logits back into probabilities.
    Saves `entropy`: its gradient, if it had one; without an entropy `log_z` takes its place.
    Backward: the gradients of x, the weight and the bias, summed over tiles in fp32 beside a tile, then cast.
    Source: trl 1.16.0, kernels/chunked_logprob.py, ChunkedLogProbFunction.
    """
    tape = x.tape
    rows, width = x.shape
    vocabulary = weight.shape[0]
    compute = tape.autocast or x.dtype
    has_bias = bias is not None
    need_b = bias is not None and bias.node is not None
    x_shape, x_dtype, w_shape, w_dtype = x.shape, x.dtype, weight.shape, weight.dtype
    need_x, need_w = x.node is not None, weight.node is not None
    tile = _Tile(rows // tape.batch, width, vocabulary, compute, x.dtype is not compute, weight.dtype is not compute)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        gx = tape.new("zeros", x_shape, FP32, True) if need_x else None
        gw = tape.new("zeros", w_shape, FP32, False) if need_w else None
        gb = tape.new("zeros", (vocabulary,), FP32, False) if need_b else None
        tape.workspace("chunked_log_probabilities_backward", tile.backward_bytes(has_bias, need_b))
        tape.work(2 * rows * vocabulary * width * (1 + need_x + need_w))
        first = None if gx is None else _cast(tape, gx, x_dtype)
        second = None if gw is None else _cast(tape, gw, w_dtype)
        third = None if gb is None else _cast(tape, gb, w_dtype)
        tape.workspace("chunked_log_probabilities_backward", tile.left_by_backward_bytes)
        return (first, second, third) if has_bias else (first, second)

    inputs = (x, weight, bias) if has_bias else (x, weight)
    node = tape.record("chunked_log_probabilities", inputs, backward)
    _statistics = [tape.new("full", (rows,), FP32, True) for _ in range(7)]
    tape.workspace("chunked_log_probabilities", tile.forward_bytes(has_bias))
    tape.work(2 * rows * vocabulary * width)

    def one(operator: str, dtype: DType = FP32, of: object = None) -> Tensor:
        return tape.new(operator, (rows,), dtype, True, None, of)

    logarithm = one("log")
    log_z = one("add")
    del logarithm
    scores = one("sub", of=node)
    found: list[Tensor] = []
    if ENTROPY in others:
        quotient = one("div")
        found.append(one("sub"))
        tape.workspace("chunked_log_probabilities", tile.left_bytes)
        del quotient
    if MEAN in others:
        found.append(one("div"))
    compared = [one("ge", BOOL), one("gt", BOOL)] if TOP in others else []
    if TOP in others:
        found.append(one("bitwise_and", BOOL))
    if others != (ENTROPY,):
        tape.workspace("chunked_log_probabilities", tile.left_bytes)
    compared.clear()
    biases = () if bias is None else (bias,)
    entropy = found[0] if ENTROPY in others else log_z
    tape.save(node, x, weight, *biases, targets, log_z, entropy)
    return Scores(scores, tuple(found))


def _cast(tape: Tape, x: Tensor, dtype: DType) -> Tensor:
    return x if x.dtype is dtype else tape.like("to", x, dtype)


class _Tile(NamedTuple):
    """The scratch beside the tensors that are counted one by one."""

    per_sample: int  # rows
    width: int
    vocabulary: int
    compute: DType
    casts_rows: bool
    casts_weight: bool

    def buffer_bytes(self, samples: int) -> int:
        """The logits of one tile."""
        rows = min(self.per_sample * samples, TILE_ROWS)
        return rounded(rows * TILE_COLUMNS * self.compute.itemsize)

    def rows_bytes(self, samples: int) -> list[int]:
        """The cast rows of the first two tiles and of the last."""
        rows = self.per_sample * samples
        starts = sorted({0, min(TILE_ROWS, rows), rows - 1 - (rows - 1) % TILE_ROWS})
        sizes = [min(TILE_ROWS, rows - start) for start in starts]
        return [rounded(n * self.width * self.compute.itemsize) if self.casts_rows else 0 for n in sizes if n]

    def columns_bytes(self, width: int) -> list[int]:
        """The cast columns of the weight, or with a width of 1 those of the bias, of each tile."""
        if not self.casts_weight:
            return [0]
        starts = range(0, self.vocabulary, TILE_COLUMNS)
        columns = [min(TILE_COLUMNS, self.vocabulary - start) for start in starts]
        return [rounded(n * width * self.compute.itemsize) for n in columns]

    def left_bytes(self, samples: int) -> int:
        """What is there until the function returns: the tile, and the cast rows of the last one."""
        return self.buffer_bytes(samples) + self.rows_bytes(samples)[-1]

    def left_by_backward_bytes(self, samples: int) -> int:
        """The same in backward, and the last columns of the weight."""
        return self.left_bytes(samples) + self.columns_bytes(self.width)[-1]

    def forward_bytes(self, has_bias: bool) -> Callable[[int], int]:
        """Most bytes alive inside: a tile's rows, and the columns of the weight, which go at once."""
        columns = max(self.columns_bytes(self.width))

        def size(samples: int) -> int:
            rows = self.rows_bytes(samples)
            both = max((a + b for a, b in pairwise(rows)), default=0)
            return self.buffer_bytes(samples) + max(rows[0] + columns, both)

        return size

    def backward_bytes(self, has_bias: bool, need_b: bool) -> Callable[[int], int]:
        """Most bytes alive inside: rows and columns are held until the next ones are there."""
        columns = self.columns_bytes(self.width)
        pairs = [a + b for a, b in pairwise(columns)]
        wrapped = columns[-1] + columns[0]  # the next tile of rows begins with the first columns again
        bias = max(self.columns_bytes(1)) if has_bias else 0
        summed = rounded(min(TILE_COLUMNS, self.vocabulary) * FP32.itemsize) if need_b else 0

        def size(samples: int) -> int:
            rows = self.rows_bytes(samples)
            inside = rows[0] + max([columns[0] + max(bias, summed), *pairs])
            for before, after in pairwise(rows):
                inside = max(inside, before + after + columns[-1], after + wrapped, after + max(pairs, default=0))
            return self.buffer_bytes(samples) + inside

        return size
