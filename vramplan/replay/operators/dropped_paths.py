"""Operator rules of stochastic depth: the whole of what a block adds to a sample is left out at random."""

from __future__ import annotations

from vramplan.replay.operators.elementwise import mul, mul_scalar
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor


def drop_path(x: Tensor) -> Tensor:
    """`x.div(keep) * floor(rand(B, 1, ...) + keep)`: two new of the shape of x, and a number for each sample.

    Saves `numbers`: the gradient is the incoming one times them.
    Backward: 2 new, times the numbers and divided.
    Source: transformers 5.23, models/swin/modeling_swin.py, SwinDropPath.forward; tools/autograd/derivatives.yaml,
    div.Scalar and mul.Tensor.
    """
    numbers = _numbers(x.tape, x)
    return mul(mul_scalar(x), numbers)


def _numbers(tape: Tape, x: Tensor) -> Tensor:
    shape = (x.shape[0], *(1,) * (len(x.shape) - 1))
    random = tape.new("rand", shape, x.dtype, True)
    shifted = tape.new("add", shape, x.dtype, True)
    del random
    _floor = tape.new("floor", shape, x.dtype, True)
    del shifted
    return _floor
