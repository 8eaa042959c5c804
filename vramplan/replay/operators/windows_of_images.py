"""Operator rules of attention in windows of an image: rolled images, their masks, learned biases of places, and squares
of four patches that become one.

Images are [B, h, w, C], with their channels last; a window has n by n patches.
"""

from __future__ import annotations

from math import prod

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved, Tape, rounded
from vramplan.replay.tensors import BOOL, INT64, DType, Tensor, contiguous_strides, normalised


def roll(x: Tensor) -> Tensor:
    """`torch.roll(x, shifts, dims)` along two dimensions: new; while it runs x rolled along the first one is there.

    Backward: 1 new in the same way, the gradient rolled back.
    Source: aten/src/ATen/native/cuda/TensorTransformations.cu, roll_cuda; aten/src/ATen/native/
    TensorTransformations.h, roll_common; tools/autograd/derivatives.yaml, roll.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (_rolled(grad),)

    out = _rolled(x)
    out.node = x.tape.record("roll", (x,), backward)
    return out


def _rolled(x: Tensor) -> Tensor:
    tape, each = x.tape, prod(x.shape) // x.tape.batch * x.dtype.itemsize
    out = tape.new("roll", x.shape, x.dtype, True)
    tape.workspace("roll", lambda samples: rounded(each * samples), each)
    return out


def pad_edges(x: Tensor, amount: int) -> Tensor:
    """`F.pad` of an image at its right and lower edge: new, nothing saved; a copy where nothing is missing.

    Backward: 1 new, a copy of the part that was not padded.
    Source: tools/autograd/derivatives.yaml, constant_pad_nd; aten/src/ATen/native/PadNd.cpp.
    """
    batch, height, width, channels = before = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("constant_pad_nd_backward", before, grad.dtype, True),)

    shape = (batch, height + amount, width + amount, channels)
    node = x.tape.record("constant_pad_nd", (x,), backward)
    return x.tape.new("constant_pad_nd", shape, x.dtype, True, None, node)


def every_second_along(x: Tensor, dim: int, start: int) -> Tensor:
    """`x[:, start::2]` along a dimension: a view, nothing new.

    Backward: 1 new, a zero-filled tensor of the whole with the gradient in its places (`slice_backward`).
    Source: tools/autograd/derivatives.yaml, slice.Tensor.
    """
    whole = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("slice_backward", whole, grad.dtype, True),)

    shape = (*whole[:dim], (whole[dim] - start + 1) // 2, *whole[dim + 1 :])
    old = x.strides or contiguous_strides(whole)
    strides = normalised(shape, (*old[:dim], 2 * old[dim], *old[dim + 1 :]))
    return x.alias(shape, strides, x.tape.record("slice", (x,), backward))


def of_places(table: Tensor, places: int) -> Tensor:
    """`table[index]` of a table [T, a] and a buffer of places: new, [places, a].

    Backward: 1 new, zeros of the size of the table, to which the gradients are added; what sorting needs is left out.
    Source: tools/autograd/derivatives.yaml, index.Tensor; torch/csrc/autograd/FunctionsManual.cpp, index_backward.
    """
    tape, whole = table.tape, table.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("index_put", whole, grad.dtype, False),)

    node = tape.record("index", (table,), backward)
    return tape.new("index", (places, whole[1]), table.dtype, False, None, node)


def rolled_mask(tape: Tape, edge: int, window: int, dtype: DType) -> Tensor:
    """Which patches of each window of a rolled image were not neighbours: new, [(h / n) (w / n), n n, n n].

    Source: transformers 5.23, models/swin/modeling_swin.py, SwinLayer.get_attn_mask.
    """
    whole, patches = (1, edge, edge, 1), window**2
    windows = (edge // window) ** 2
    _numbers = [tape.new("arange", (edge,), INT64, False) for _ in "hw"]
    _regions = [_region(tape, edge) for _ in "hw"]
    times = tape.new("mul", (1, edge, 1, 1), INT64, False)
    sums = tape.new("add", whole, INT64, False)
    del times
    _image = tape.new("to", whole, dtype, False)
    del sums
    several = edge > window
    _windows = tape.new("clone", (windows, patches), dtype, False) if several and window > 1 else _image
    apart = (windows, patches, patches)
    _differences = tape.new("sub", apart, dtype, False)
    which = tape.new("ne", apart, BOOL, False)
    filled = tape.new("masked_fill", apart, dtype, False)
    del which
    _same = tape.new("eq", apart, BOOL, False)
    mask = tape.new("masked_fill", apart, dtype, False)
    del filled
    return mask


def _region(tape: Tape, edge: int) -> Tensor:
    numbers = []
    for _ in range(2):
        which = tape.new("ge", (edge,), BOOL, False)
        numbers.append(tape.new("to", (edge,), INT64, False))
        del which
    return tape.new("add", (edge,), INT64, False)


def mask_of_each(mask: Tensor) -> Tensor:
    """A mask [w, N, N] of the windows of an image, as those of all images have it: [B w, 1, N, N], new for several.

    Source: transformers 5.23, models/swin/modeling_swin.py, SwinAttention.forward: expand and reshape.
    """
    tape, (windows, length, _) = mask.tape, mask.shape
    shape = (tape.batch * windows, 1, length, length)
    return mask.alias(shape, None, None) if tape.batch == 1 else tape.new("clone", shape, mask.dtype, True)


def bias_and_mask(bias: Tensor, mask: Tensor) -> Tensor:
    """bias [1, a, N, N] + mask [W, 1, N, N]: new, [W, a, N, N]; nothing saved. The mask needs no gradient.

    Backward: nothing new; the engine sums the gradient to the shape of the bias.
    Source: tools/autograd/derivatives.yaml, add.Tensor.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad, None)

    dtype = max(bias.dtype, mask.dtype, key=lambda one: one.itemsize)
    shape = (mask.shape[0], *bias.shape[1:])
    node = bias.tape.record("add", (bias, mask), backward)
    return bias.tape.new("add", shape, dtype, True, None, node)
