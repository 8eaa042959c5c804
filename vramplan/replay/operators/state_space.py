"""Operator rules of state spaces: sums of products over named dimensions, clamps, and masks of triangles.

B is the micro-batch, S the sequence, C chunks, H heads.
"""

from __future__ import annotations

from math import prod

from vramplan.replay.operators.elementwise import mul
from vramplan.replay.operators.indexing import permute, unsqueeze
from vramplan.replay.operators.products import matmul
from vramplan.replay.operators.views import Grads, autocast_half, view
from vramplan.replay.recorder import Saved, Tape
from vramplan.replay.tensors import BOOL, Tensor


def clamp(x: Tensor) -> Tensor:
    """`torch.clamp(x, min, max)`: new.

    Saves `x`: the gradient passes where it lies between both.
    Backward: 1 new, beside a zero and two masks, of which the first lives as long.
    Source: tools/autograd/derivatives.yaml, clamp; torch/csrc/autograd/FunctionsManual.cpp, clamp_backward.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape, source = grad.tape, saved[0]
        _zero = tape.new("scalar_tensor", (), grad.dtype, False)
        _above = tape.like("ge", source, BOOL)
        below = tape.like("le", source, BOOL)
        del below
        return (tape.like("where", source, grad.dtype),)

    return x.tape.like("clamp", x, None, x.tape.record("clamp", (x,), backward, (x,)))


def triangle(tape: Tape, size: int) -> Tensor:
    """`torch.tril(torch.ones(size, size, dtype=torch.bool))`: new, beside the ones.

    Source: aten/src/ATen/native/native_functions.yaml, ones and tril.
    """
    ones = tape.new("ones", (size, size), BOOL, False)
    lower = tape.new("tril", (size, size), BOOL, False)
    del ones
    return lower


def inverted(mask: Tensor) -> Tensor:
    """`~mask`: new.

    Source: aten/src/ATen/native/native_functions.yaml, bitwise_not.
    """
    return mask.tape.like("bitwise_not", mask)


def einsum(equation: str, a: Tensor, b: Tensor) -> Tensor:
    """`torch.einsum` of two tensors, as one batched product.

    Autocast casts both tensors. Dimensions of all three stand before, then those of the left and the result, then those
    that are summed; what cannot be seen so is copied. The two change places where the right one's dimensions come first
    in the result. Without a dimension to sum both are multiplied element by element.
    Source: aten/src/ATen/native/Linear.cpp, einsum and sumproduct_pair; aten/src/ATen/autocast_mode.h,
    AT_FORALL_LOWER_PRECISION_FP.
    """
    given, result = equation.split("->")
    left, right = given.split(",")
    a, b = autocast_half(a), autocast_half(b)
    order = result + "".join(sorted({*left, *right} - {*result}))
    a, b = aligned(a, left, order), aligned(b, right, order)
    kept = len(result)
    if all(size == 1 for size in a.shape[kept:]):
        out = mul(a, b)
        return view(out, out.shape[:kept])
    return product_of_pair(a, b, kept)


def aligned(x: Tensor, names: str, order: str) -> Tensor:
    """Its dimensions in an order, with new ones of size 1 where it has none of a name."""
    missing = [name for name in order if name not in names]
    for _ in missing:
        x = unsqueeze(x, len(x.shape))
    places = (*names, *missing)
    return permute(x, tuple(places.index(name) for name in order))


def product_of_pair(a: Tensor, b: Tensor, kept: int) -> Tensor:
    """sumproduct_pair: the first `kept` dimensions stay, the others are summed."""
    rank = len(a.shape)
    both: list[int] = []
    of_a: list[int] = []
    of_b: list[int] = []
    summed = list(range(kept, rank))
    for i in range(kept):
        in_a, in_b = a.shape[i] != 1, b.shape[i] != 1
        (both if in_a and in_b else of_a if in_a else of_b).append(i)
    if of_a and of_b and of_b[-1] < of_a[0]:
        a, b, of_a, of_b = b, a, of_b, of_a
    sizes = [tuple(x.shape[i] for i in dims) for x, dims in ((a, both), (a, of_a), (b, of_b), (a, summed))]
    many, rows, columns, inner = (prod(one) for one in sizes)
    a3 = view(permute(a, (*both, *of_a, *summed, *of_b)), (many, rows, inner))
    b3 = view(permute(b, (*both, *summed, *of_b, *of_a)), (many, inner, columns))
    out = matmul(a3, b3)
    out = view(out, (*sizes[0], *sizes[1], *(1 for _ in summed), *sizes[2]))
    places = (*both, *of_a, *summed, *of_b)
    out = permute(out, tuple(places.index(i) for i in range(rank)))
    return view(out, out.shape[:kept])
