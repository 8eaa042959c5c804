"""Operator rules of models that put images among the tokens of a text.

B is the micro-batch, S the sequence, P the patches of an image, H the hidden size.
"""

from __future__ import annotations

from math import prod

from vramplan.replay.operators.elementwise import add_in_place
from vramplan.replay.operators.views import Grads, view
from vramplan.replay.recorder import Saved, Tape, rounded
from vramplan.replay.tensors import BOOL, INT64, Parameter, Tensor


def rejoin(x: Tensor) -> Tensor:
    """`torch.cat(list(x))`: the samples apart and together again as rows, new.

    Backward: 1 new, the gradients of the samples stacked.
    Source: tools/autograd/derivatives.yaml, unbind.int and cat; torch/csrc/autograd/FunctionsManual.cpp,
    unbind_backward.
    """
    whole = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("stack", whole, grad.dtype, True),)

    node = x.tape.record("cat", (x,), backward)
    return x.tape.new("cat", (whole[0] * whole[1], whole[2]), x.dtype, True, None, node)


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """`x.masked_scatter(mask, source)` of rows: new; a workspace of a counter and a mask for each element.

    Saves `mask`: the gradient of x is zero where the mask is set, that of the source is what is there.
    Backward: the incoming gradient with zeros at the mask, then what is at the mask, which needs the three indices of
    each element and the mask as workspace.
    Source: tools/autograd/derivatives.yaml, masked_scatter; aten/src/ATen/native/cuda/IndexKernel.cpp,
    masked_scatter__cuda and masked_select_out_cuda_impl; aten/src/ATen/native/cuda/Nonzero.cu.
    """
    tape, rows = x.tape, source.shape
    each = prod(x.shape) // tape.batch
    taken = prod(rows) // tape.batch

    def counters(samples: int) -> int:
        return rounded(8 * each * samples) + rounded(each * samples)

    def indices(samples: int) -> int:
        return rounded(24 * taken * samples) + rounded(each * samples)

    need_x, need_source = x.node is not None, source.node is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        first = tape.like("masked_fill", grad) if need_x else None
        second = tape.new("masked_select", rows, grad.dtype, True) if need_source else None
        if need_source:
            tape.workspace("masked_select", indices, 24 * taken + each)
        return (first, second)

    node = tape.record("masked_scatter", (x, source), backward, (mask,))
    out = tape.new("masked_scatter", x.shape, x.dtype, True, None, node)
    tape.workspace("masked_scatter", counters, 9 * each)
    return out


def linear_of_a_view(x: Tensor, weight: Parameter, bias: Parameter) -> Tensor:
    """`F.linear` with a bias of a tensor that is not contiguous: copied, multiplied, and the bias added in place.

    Saves `rows`: the gradient of the weight is x^T times the incoming one.
    Saves `weight`: the gradient of x is the incoming one times the weight.
    Backward: the gradient of the weight first, then that of x; the gradient of the bias is the engine's sum.
    Source: aten/src/ATen/native/Linear.cpp, linear; tools/autograd/derivatives.yaml, mm.
    """
    tape, lead, (outputs, inputs) = x.tape, x.shape[:-1], weight.shape
    rows = view(x, (prod(lead), inputs))
    need_x, need_w = rows.node is not None, weight.node is not None
    rows_shape, weight_shape, batched = rows.shape, weight.shape, rows.batched
    work = 2 * prod(lead) * inputs * outputs

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(work * (need_x + need_w))
        second = tape.new("mm", weight_shape, grad.dtype, False) if need_w else None
        return (tape.new("mm", rows_shape, grad.dtype, batched) if need_x else None, second)

    saves = [t for t, other in ((rows, need_w), (weight, need_x)) if other]
    node = tape.record("mm", (rows, weight), backward, saves)
    tape.work(work)
    out = view(tape.new("mm", (prod(lead), outputs), x.dtype, batched, None, node), (*lead, outputs))
    return add_in_place(out, bias)


def tokens_of_images(ids: Tensor) -> Tensor:
    """`ids == image_token` and the check of how many there are: new, of one byte each.

    Source: transformers, models/llava/modeling_llava.py, LlavaModel.get_placeholder_mask.
    """
    tape = ids.tape
    mask = tape.new("eq", ids.shape, BOOL, True)
    _number = tape.new("sum", (), INT64, False)
    elements = tape.new("mul", (), INT64, False)
    tape.new("eq", (), BOOL, False)
    del elements
    return mask


def rejoined_rows(x: Tensor) -> Tensor:
    """`torch.cat(torch.split(x, sizes))`: the rows of each image apart and together again, new.

    Backward: 1 new, the gradients of the images concatenated.
    Source: tools/autograd/derivatives.yaml, split_with_sizes and cat; torch/csrc/autograd/FunctionsManual.cpp,
    split_with_sizes_backward.
    """
    whole = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("cat", whole, grad.dtype, True),)

    node = x.tape.record("cat", (x,), backward)
    return x.tape.new("cat", whole, x.dtype, True, None, node)


def average_pool(x: Tensor, size: int) -> Tensor:
    """`F.avg_pool2d(x, size)` of squares that do not overlap: new.

    Saves `x`: for the sizes alone, but the whole tensor stays.
    Backward: 1 new of the full size, to which each square's gradient is spread.
    Source: tools/autograd/derivatives.yaml, avg_pool2d; aten/src/ATen/native/cuda/AveragePool2d.cu.
    """
    tape, whole = x.tape, x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("avg_pool2d_backward", whole, grad.dtype, True),)

    node = tape.record("avg_pool2d", (x,), backward, (x,))
    shape = (*whole[:2], whole[2] // size, whole[3] // size)
    return tape.new("avg_pool2d", shape, x.dtype, True, None, node)


def of_places(x: Tensor, places: Tensor, rows: int) -> Tensor:
    """`x[places]` of x [B, S, H] and a mask [B, S] that is true at so many places: new, [rows, H].

    While it runs the numbers of the places are there, 16 bytes each.
    Saves `places`: the gradient goes to those places.
    Backward: 1 new of the full size, zeros with the gradient added in place; what sorting needs is left out.
    Source: tools/autograd/derivatives.yaml, index.Tensor; aten/src/ATen/native/IndexingUtils.h, expandTensors.
    """
    tape, whole = x.tape, x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("index_put", whole, grad.dtype, True),)

    node = tape.record("index", (x,), backward, (places,))
    found = tape.new("index", (rows, whole[-1]), x.dtype, True, None, node)
    _numbers_of_places(tape, rows)
    return found


def in_places(x: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """`x[places] = values` of x [B, S, H], a mask [B, S] and values [rows, H]: the storage of x.

    Saves `places`: the gradient of x is zero there, that of the values is what is there.
    Backward: zeros as large as the values, and a copy of the gradient that they are put into; then the gradient at the
    places, whose numbers are there meanwhile.
    Source: tools/autograd/derivatives.yaml, index_put_; aten/src/ATen/native/TensorAdvancedIndexing.cpp, index_put.
    """
    tape, whole, rows = x.tape, x.shape, values.shape
    need_x, need_values = x.node is not None, values.node is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        first = second = None
        if need_x:
            zeros = tape.new("zeros", rows, grad.dtype, True)
            first = tape.new("index_put", whole, grad.dtype, True)
            del zeros
        if need_values:
            second = tape.new("index", rows, grad.dtype, True)
            _numbers_of_places(tape, rows[0])
        return (first, second)

    return x.alias(whole, x.strides, tape.record("index_put_", (x, values), backward, (places,)))


def _numbers_of_places(tape: Tape, rows: int) -> None:
    each = rows // tape.batch
    tape.workspace("index", lambda samples: rounded(16 * each * samples), 16 * each)
