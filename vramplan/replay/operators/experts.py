"""Operator rules of routing and of mixtures of experts: top-k, rows looked up by index, products grouped by expert.

How many tokens go to which expert is data. None of these operators asks: tokens are sorted by expert, and one product
runs over all of them, so every size here depends on the number of tokens alone. The scratch inside the kernels of sort,
histogram and sorted sums, some tens of bytes per token and expert, is not counted.
"""

from __future__ import annotations

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Backward, Saved
from vramplan.replay.tensors import FP32, INT64, Shape, Tensor, contiguous_strides, normalised


def top_k(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`x.topk(k)` of each row: new, the values and their places (int64).

    Saves `indices`: the gradient goes where the values were taken.
    Backward: 1 new of the full size, zeros with the gradient written into them in place.
    Source: tools/autograd/derivatives.yaml, topk; torch/csrc/autograd/FunctionsManual.cpp,
    value_selecting_reduction_backward.
    """
    tape, whole = x.tape, x.shape
    node = tape.record("topk", (x,), _into_zeros(whole))
    shape = (*whole[:-1], k)
    values = tape.new("topk", shape, x.dtype, x.batched, None, node)
    indices = tape.new("topk", shape, INT64, x.batched)
    tape.save(node, indices)
    return values, indices


def index_rows(x: Tensor, rows: Tensor) -> Tensor:
    """`x[rows]`, rows of x by their numbers: new.

    Saves `rows`: the gradient is added where the rows were taken.
    Backward: 1 new of the full size, zeros with the rows added in place.
    Source: tools/autograd/derivatives.yaml, index.Tensor; torch/csrc/autograd/FunctionsManual.cpp, index_backward.
    """
    tape = x.tape
    node = tape.record("index", (x,), _into_zeros(x.shape), (rows,))
    return tape.new("index", (rows.shape[0], *x.shape[1:]), x.dtype, x.batched, None, node)


def index_numbers(x: Tensor, places: Tensor) -> Tensor:
    """`x[places]`, numbers of a list by their places: new, as many as there are places.

    Saves `places`: the gradient is added where the numbers were taken.
    Backward: 1 new of the full size, zeros with the numbers added in place.
    Source: tools/autograd/derivatives.yaml, index.Tensor; torch/csrc/autograd/FunctionsManual.cpp, index_backward.
    """
    tape = x.tape
    node = tape.record("index", (x,), _into_zeros(x.shape, batched=False), (places,))
    return tape.new("index", places.shape, x.dtype, places.batched, None, node)


def gather_last(x: Tensor, indices: Tensor) -> Tensor:
    """`x.gather(-1, indices)`: new.

    Saves `x`: the shape of its gradient.
    Saves `indices`: the gradient is added where the values were taken.
    Backward: 1 new of the full size, zeros with the gradient added in place.
    Source: tools/autograd/derivatives.yaml, gather; torch/csrc/autograd/FunctionsManual.cpp, gather_backward.
    """
    tape = x.tape
    node = tape.record("gather", (x,), _into_zeros(x.shape), (x, indices))
    return tape.new("gather", indices.shape, x.dtype, x.batched, None, node)


def _into_zeros(whole: Shape, *, batched: bool | None = None) -> Backward:
    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("new_zeros", whole, grad.dtype, grad.batched if batched is None else batched),)

    return backward


def divide(x: Tensor, divisor: Tensor) -> Tensor:
    """x / divisor, of which both need gradients: new, in the wider type.

    Saves `x`: the gradient of the divisor is the incoming one times -x / divisor ** 2.
    Saves `divisor`: both gradients are divided by it.
    Backward: for the divisor two quotients, the negated gradient and their product; then the gradient divided.
    Source: tools/autograd/derivatives.yaml, div.Tensor; torch/csrc/autograd/FunctionsManual.cpp,
    div_tensor_other_grad and div_tensor_self_backward.
    """
    tape = x.tape
    wide = divisor.dtype if divisor.dtype.itemsize > x.dtype.itemsize else x.dtype
    return tape.like("div", x, wide, tape.record("div", (x, divisor), _quotient_backward, (x, divisor)))


def div_in_place(x: Tensor, divisor: Tensor) -> Tensor:
    """x /= divisor: the storage of x; what it was before is cloned first, as its gradient's formula needs it.

    Saves `before`: the gradient of the divisor is the incoming one times -before / divisor ** 2.
    Saves `divisor`: both gradients are divided by it.
    Backward: for the divisor two quotients, the negated gradient and their product; then the gradient divided.
    Source: tools/autograd/derivatives.yaml, div_.Tensor; torch/csrc/autograd/FunctionsManual.cpp,
    div_tensor_other_grad and div_tensor_self_backward.
    """
    tape = x.tape
    before = tape.like("clone", x)
    node = tape.record("div_", (x, divisor), _quotient_backward, (before, divisor))
    return x.alias(x.shape, x.strides, node)


def _quotient_backward(grad: Tensor, saved: Saved) -> Grads:
    """The gradients of a quotient, of what was divided and of the divisor, which are saved: in the wider type."""
    tape, (x, divisor) = grad.tape, saved
    wide = divisor.dtype if divisor.dtype.itemsize > x.dtype.itemsize else x.dtype
    quotient = tape.like("div", x, wide)
    twice = tape.like("div", quotient)
    negative = tape.like("neg", grad)
    other = tape.like("mul", grad, wide)
    del quotient, twice, negative
    return (tape.like("div", grad, wide), other)


def sum_last(x: Tensor) -> Tensor:
    """`x.sum(-1, keepdim=True)`: new, under autocast in fp32; nothing saved.

    Backward: nothing new, the gradient expanded.
    Source: tools/autograd/derivatives.yaml, sum.dim_IntList.
    """
    return _sum(x, len(x.shape) - 1, (*x.shape[:-1], 1))


def sum_middle(x: Tensor) -> Tensor:
    """`x.sum(1)` of three dimensions: new, under autocast in fp32; nothing saved.

    Backward: nothing new, the gradient expanded.
    Source: tools/autograd/derivatives.yaml, sum.dim_IntList.
    """
    return _sum(x, 1, (x.shape[0], x.shape[2]))


def _sum(x: Tensor, dim: int, shape: Shape) -> Tensor:
    whole = x.shape
    keeps = len(shape) == len(whole)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        strides = list(grad.strides or contiguous_strides(grad.shape))
        if keeps:
            strides[dim] = 0
        else:
            strides.insert(dim, 0)
        return (grad.alias(whole, normalised(whole, tuple(strides)), None),)

    node = x.tape.record("sum", (x,), backward)
    dtype = x.dtype if x.tape.autocast is None else FP32
    return x.tape.new("sum", shape, dtype, x.batched, None, node)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)): new.

    Saves `out`: the gradient is the incoming one times out * (1 - out).
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, sigmoid.
    """
    tape = x.tape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like("sigmoid_backward", grad),)

    node = tape.record("sigmoid", (x,), backward)
    out = tape.like("sigmoid", x, None, node)
    tape.save(node, out)
    return out


def grouped_product(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """`F.grouped_mm` of rows [n, in] sorted by expert with all experts' weights [E, out, in], transposed: new [n, out].

    Autocast does not know it: rows are cast to the dtype of the weight, and under autocast that is fp32. On GPUs before
    compute capability 8.0 it is an operator of Transformers that multiplies expert by expert into the same results.
    So it is in a compiled step where weights are not bf16; that operator saves both and makes both gradients, whichever
    are asked for.
    Saves `x`: the gradient of each expert's weight is that of its rows, transposed, times the rows.
    Saves `weight`: the gradient of the rows is the incoming one times the weight of their expert.
    Saves `ends`: where each expert's rows end.
    Backward: the gradient of all weights, used by a token or not, then that of the rows.
    Source: tools/autograd/derivatives.yaml, _grouped_mm; aten/src/ATen/native/cuda/GroupedBlas.cpp; transformers,
    integrations/moe.py, _grouped_mm, _can_use_grouped_mm and _grouped_mm_fallback_bwd.
    """
    tape = x.tape
    experts, outputs, inputs = weight.shape
    rows, dtype, batched = x.shape[0], x.dtype, x.batched
    need_x, need_w = x.node is not None, weight.node is not None
    make_x, make_w = (True, True) if tape.multiplies_by_expert(weight.dtype) else (need_x, need_w)
    work = 2 * rows * inputs * outputs

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(work * (make_x + make_w))
        of_weight = tape.new("_grouped_mm", (experts, outputs, inputs), dtype, False) if make_w else None
        of_rows = tape.new("_grouped_mm", (rows, inputs), dtype, batched) if make_x else None
        return (of_rows if need_x else None, of_weight if need_w else None)

    saves = [t for t, other in ((x, make_w), (weight, make_x)) if other]
    node = tape.record("_grouped_mm", (x, weight), backward, (*saves, ends))
    tape.work(work)
    return tape.new("_grouped_mm", (rows, outputs), dtype, batched, None, node)
