"""The operator rule of TRL's divergence between two models by tiles of their logits, of which none is ever whole.

Read off trl 1.16.0, kernels/chunked_divergence.py; its Triton kernels write in place and allocate nothing. Every
position counts as one of a completion: how many are masked depends on the data, and fewer need less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from vramplan.replay.operators.log_probabilities import TILE_COLUMNS, TILE_ROWS
from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved, Tape, rounded
from vramplan.replay.tensors import FP32, DType, Parameter, Tensor
from vramplan.tuples import NamedTuple

STATISTICS = 7  # of each position: of both models a maximum, a sum and a gap, and another sum of the student
OF_MIXTURES = 2  # more, which only a mixture of both has and which are made all the same


class Projected(NamedTuple):
    """What a head is given, of each position, and the head."""

    hidden: Tensor
    weight: Parameter
    bias: Parameter | None


def tiled_divergence(student: Projected, teacher: Projected, *, forward: bool, reverse: bool) -> tuple[Tensor, Tensor]:
    """The divergence at each position [N] under heads [V, H] over [N, H], and the student's entropy: new, in fp32.

    Two buffers hold the logits of a tile in fp32, 4096 rows by 32768 columns, whatever the vocabulary is. `forward` and
    `reverse` are the divergences of one from the other; without both it is that of each from their mixture.
    Saves `hidden`: the logits of each tile are made again, of both models.
    Saves `weight`: the logits of each tile are made again, of both models.
    Saves `log_z`: it turns the logits back into probabilities, of both models.
    Saves `aux`: the gradient needs the divergence, or with a mixture that of the student from it.
    Backward: the gradients of the student's hidden states, weight and bias, summed over tiles in fp32 beside both
    buffers, then cast.
    Source: trl 1.16.0, kernels/chunked_divergence.py, ChunkedDivergenceFunction.
    """
    tape = student.hidden.tape
    rows, width = student.hidden.shape
    other_width = teacher.hidden.shape[1]
    hidden, weight, _ = student
    need_x, need_w, need_b = (one is not None and one.node is not None for one in student)
    x_shape, x_dtype, w_shape, w_dtype = hidden.shape, hidden.dtype, weight.shape, weight.dtype
    tiles = _Tiles(rows // tape.batch, weight.shape[0], _side(tape, student), _side(tape, teacher))
    inputs: list[Tensor] = [one for one in student if one is not None]

    count = len(inputs)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        _of_each = tape.new("clone", (rows,), FP32, True)
        gx = tape.new("zeros", x_shape, FP32, True) if need_x else None
        gw = tape.new("zeros", w_shape, FP32, False) if need_w else None
        gb = tape.new("zeros", (w_shape[0],), FP32, False) if need_b else None
        tape.workspace("tiled_divergence_backward", tiles.most_in_backward(summed=need_b))
        tape.work(2 * rows * w_shape[0] * (width * (1 + need_x + need_w) + other_width))
        _left = tape.scratch_of("tiled_divergence_backward", tiles.left_by_backward)
        first = None if gx is None else _cast(tape, gx, x_dtype)
        second = None if gw is None else _cast(tape, gw, w_dtype)
        third = None if gb is None else _cast(tape, gb, w_dtype)
        return (first, second, third)[:count]

    def one(operator: str, of: object = None) -> Tensor:
        return tape.new(operator, (rows,), FP32, True, None, of)

    def begins_with(count: int) -> list[Tensor]:
        """As many of zeros, less something that is infinite."""
        return [_after(one("zeros"), lambda: one("sub")) for _ in range(count)]

    def after_loop(sums: Tensor | None = None) -> Tensor:
        return _after(one("log"), lambda: one("add"))

    node = tape.record("tiled_divergence", inputs, backward)
    _maxima = begins_with(2)
    _sums = [one("zeros") for _ in range(STATISTICS - 2)]
    _of_mixture, of_student = [one("zeros") for _ in range(OF_MIXTURES)]
    mixes = not (forward or reverse)
    tape.workspace("tiled_divergence", tiles.most_in_forward(mixes=mixes))
    tape.work(2 * rows * weight.shape[0] * (width + other_width) * (2 if mixes else 1))
    left = tape.scratch_of("tiled_divergence", tiles.left_by_forward)
    of_tile = [tape.scratch_of("tiled_divergence", tiles.of_last_rows) for _ in range(2)]
    student_log_z = after_loop()
    del of_tile[0]
    teacher_log_z = after_loop()
    del of_tile
    entropy = _after(one("div"), lambda: one("sub"))
    if not mixes:
        divergence = _after(_after(one("div"), lambda: one("sub")), lambda: one("add", node))
    else:
        divergence = _of_mixture.alias(_of_mixture.shape, None, node)
    aux = of_student if mixes else divergence
    kept = [x for one in (student, teacher) for x in one if x is not None]
    tape.save(node, *kept, student_log_z, teacher_log_z, aux)
    del left
    return divergence, entropy


def _after(first: Tensor, then: Callable[[], Tensor]) -> Tensor:
    """What is made of a tensor that goes then."""
    made = then()
    del first
    return made


def _cast(tape: Tape, x: Tensor, dtype: DType) -> Tensor:
    return x if x.dtype is dtype else tape.like("to", x, dtype)


class _Side(NamedTuple):
    """What the projection of a tile of one model casts."""

    width: int
    compute: DType
    casts_rows: bool
    casts_weight: bool
    casts_bias: bool  # to fp32

    def rows_bytes(self, rows: int) -> int:
        """Of the hidden states of a tile."""
        return rounded(rows * self.width * self.compute.itemsize) if self.casts_rows else 0

    def projecting(self, columns: int) -> Iterator[int]:
        """The columns of the weight, which stay until those of the bias are added."""
        weight = rounded(columns * self.width * self.compute.itemsize) if self.casts_weight else 0
        bias = rounded(columns * FP32.itemsize) if self.casts_bias else 0
        yield from (weight, bias, -bias - weight)


def _side(tape: Tape, of: Projected) -> _Side:
    compute = tape.autocast or of.hidden.dtype
    casts_rows, casts_weight = of.hidden.dtype is not compute, of.weight.dtype is not compute
    casts_bias = of.bias is not None and of.bias.dtype is not FP32
    return _Side(of.hidden.shape[1], compute, casts_rows, casts_weight, casts_bias)


class _Tiles(NamedTuple):
    """The scratch beside the tensors that are counted one by one: what is made is positive, what goes negative."""

    per_sample: int  # rows
    vocabulary: int
    student: _Side
    teacher: _Side

    def buffers_bytes(self, samples: int) -> int:
        """The logits of one tile of both."""
        return 2 * rounded(min(self.per_sample * samples, TILE_ROWS) * TILE_COLUMNS * FP32.itemsize)

    def heights(self, samples: int) -> list[int]:
        """The rows of the first two tiles and of the last: those between are as the second."""
        rows = self.per_sample * samples
        starts = sorted({0, min(TILE_ROWS, rows), rows - 1 - (rows - 1) % TILE_ROWS})
        return [min(TILE_ROWS, rows - start) for start in starts if start < rows]

    def columns(self) -> list[int]:
        """Of each tile of a row of tiles."""
        return [min(TILE_COLUMNS, self.vocabulary - start) for start in range(0, self.vocabulary, TILE_COLUMNS)]

    def of_last_rows(self, samples: int) -> int:
        """Of a number for each position of the last tile."""
        return rounded(self.heights(samples)[-1] * FP32.itemsize)

    def most_in_forward(self, *, mixes: bool) -> Callable[[int], int]:
        """Most bytes alive inside. A mixture needs the sums of the probabilities of all columns, and comes second."""
        return lambda samples: _most(self._forward(samples, mixes))

    def _forward(self, samples: int, mixes: bool) -> Iterator[int]:
        yield self.buffers_bytes(samples)
        before, sums = [0, 0], 0
        for rows in self.heights(samples):
            for i, side in enumerate((self.student, self.teacher)):
                yield side.rows_bytes(rows)
                yield -before[i]
                before[i] = side.rows_bytes(rows)
            own = rounded(rows * FP32.itemsize)
            for columns in self.columns():
                yield from self.student.projecting(columns)
                yield from self.teacher.projecting(columns)
            for _ in range(2):
                yield from (own, own, -own, -sums)  # a logarithm, and what is made of it
            sums = own
            for columns in self.columns() if mixes else ():
                yield from self.student.projecting(columns)
                yield from self.teacher.projecting(columns)

    def left_by_forward(self, samples: int) -> int:
        """What is there until the function returns: both buffers, and the cast rows of the last tile."""
        last = self.heights(samples)[-1]
        return self.buffers_bytes(samples) + self.student.rows_bytes(last) + self.teacher.rows_bytes(last)

    def most_in_backward(self, *, summed: bool) -> Callable[[int], int]:
        """The same of backward. The gradient of a tile's logits stays until the next one is there."""
        return lambda samples: _most(self._backward(samples, summed))

    def _backward(self, samples: int, summed: bool) -> Iterator[int]:
        yield self.buffers_bytes(samples)
        student, itemsize = self.student, self.student.compute.itemsize
        before, tile = [0, 0], 0
        for rows in self.heights(samples):
            for i, side in enumerate((self.student, self.teacher)):
                yield side.rows_bytes(rows)
                yield -before[i]
                before[i] = side.rows_bytes(rows)
            for columns in self.columns():
                yield from student.projecting(columns)
                yield from self.teacher.projecting(columns)
                cast = rounded(rows * columns * itemsize) if student.compute is not FP32 else 0
                yield from (cast, -tile)
                tile = cast
                weight = rounded(columns * student.width * itemsize) if student.casts_weight else 0
                yield from (weight, -weight)
                if summed:
                    yield from (rounded(columns * FP32.itemsize), -rounded(columns * FP32.itemsize))

    def left_by_backward(self, samples: int) -> int:
        """And the gradient of the last tile's logits."""
        last, columns = self.heights(samples)[-1], self.columns()[-1]
        is_cast = self.student.compute is not FP32
        cast = rounded(last * columns * self.student.compute.itemsize) if is_cast else 0
        return self.left_by_forward(samples) + cast


def _most(changes: Iterable[int]) -> int:
    """The highest level of what is made and goes."""
    return max(accumulate(changes))
