"""Operator rules of contrastive models: vectors of unit length, compared with each other over the micro-batch.

B is the micro-batch, P the elements of a vector; the similarities [B, B] grow with its square.
"""

from __future__ import annotations

from vramplan.replay.operators.views import Grads, autocast_float, autocast_half
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import BOOL, FP32, INT32, INT64, SQUARED, Parameter, Shape, Tensor, dense_like


def sigmoid(x: Tensor) -> Tensor:
    """sigmoid(x): new.

    Saves `out`: the gradient is the incoming one times out * (1 - out).
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, sigmoid.
    """
    node = x.tape.record("sigmoid", (x,), _sigmoid_backward)
    out = x.tape.like("sigmoid", x, None, node)
    x.tape.save(node, out)
    return out


def _sigmoid_backward(grad: Tensor, saved: Saved) -> Grads:
    return (grad.tape.like("sigmoid_backward", grad),)


def exp(x: Tensor) -> Tensor:
    """exp(x): autocast to fp32, then new.

    Saves `out`: the gradient is the incoming one times the result.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, exp.
    """
    x = autocast_float(x)
    node = x.tape.record("exp", (x,), _exp_backward)
    out = x.tape.like("exp", x, None, node)
    x.tape.save(node, out)
    return out


def _exp_backward(grad: Tensor, saved: Saved) -> Grads:
    return (grad.tape.like("mul", grad),)


def sum_last(x: Tensor) -> Tensor:
    """x.sum(-1, keepdim=True): autocast to fp32, then new; nothing saved.

    Backward: nothing new; the gradient is expanded, a view.
    Source: tools/autograd/derivatives.yaml, sum.dim_IntList.
    """
    x = autocast_float(x)
    shape = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.alias(shape, (*([1] * (len(shape) - 1)), 0), None),)

    node = x.tape.record("sum", (x,), backward)
    return x.tape.new("sum", (*shape[:-1], 1), x.dtype, x.batched, None, node)


def div(a: Tensor, b: Tensor) -> Tensor:
    """a / b with promotion, where b is one number for each row: new.

    Saves `a`: the gradient of b is minus the incoming one times a / b / b.
    Saves `b`: the gradient of a is the incoming one divided by b.
    Backward: of b first: a / b, that / b, minus the incoming one and the product are alive together; then the gradient
    of a, 1 new.
    Source: tools/autograd/derivatives.yaml, div.Tensor; torch/csrc/autograd/FunctionsManual.cpp, div_tensor_other_grad.
    """
    tape = a.tape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        ratio = tape.like("div", grad)
        again = tape.like("div", grad)
        negative = tape.like("neg", grad)
        gb = tape.like("mul", grad)
        del ratio, again, negative
        return (tape.like("div", grad), gb)

    node = tape.record("div", (a, b), backward, (a, b))
    dtype = a.dtype if a.dtype.itemsize >= b.dtype.itemsize else b.dtype
    return tape.new("div", a.shape, dtype, a.batched, None, node)


def vector_norm(x: Tensor) -> Tensor:
    """`x.norm(p=2, dim=-1, keepdim=True)` of vectors: new, a number for each vector, which autocast asks for in fp32.

    Saves `x`: the gradient is the incoming one times x divided by its norm.
    Saves `out`: the norms that x is divided by.
    Backward: x divided by its norm, and where the norm is 0, which is filled with zeros in place; then 1 new. The
    engine casts it where x has another type than its norm.
    Source: tools/autograd/derivatives.yaml, linalg_vector_norm; torch/csrc/autograd/FunctionsManual.cpp,
    linalg_vector_norm_backward.
    """
    tape = x.tape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        source, norm = saved[0], saved[1]
        tape = source.tape
        _unit = tape.new("div", source.shape, norm.dtype, source.batched)
        _is_zero = tape.new("eq", norm.shape, BOOL, norm.batched)
        return (tape.like("mul", _unit),)

    node = tape.record("linalg_vector_norm", (x,), backward, (x,))
    dtype = x.dtype if tape.autocast is None else FP32
    out = tape.new("linalg_vector_norm", (*x.shape[:-1], 1), dtype, x.batched, None, node)
    tape.save(node, out)
    return out


def repeat_samples(x: Parameter, times: int) -> Tensor:
    """`x.repeat(B, 1, 1)` of [1, 1, P]: new, one for each sample; nothing saved.

    Backward: 1 new, the gradient summed over the samples; of one sample it is a view.
    Source: tools/autograd/derivatives.yaml, repeat; torch/csrc/autograd/FunctionsManual.cpp, repeat_backward.
    """
    whole = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        if grad.shape == whole:
            return (grad,)
        return (grad.tape.new("sum", whole, grad.dtype, False),)

    node = x.tape.record("repeat", (x,), backward)
    return x.tape.new("repeat", (times, *whole[1:]), x.dtype, True, None, node)


def scale(x: Tensor, factor: Tensor) -> Tensor:
    """x times a number on the device: new, in the dtype of x; a factor is saved only if the other needs a gradient.

    Saves `x`: the gradient of the number is the sum of the incoming one times x.
    Saves `factor`: the gradient of x is the incoming one times the number.
    Backward: for each gradient that is wanted 1 new of the full size, both before the engine sums the second.
    Source: tools/autograd/derivatives.yaml, mul.Tensor.
    """
    need_x, need_factor = x.node is not None, factor.node is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        first = grad.tape.like("mul", grad) if need_x else None
        return (first, grad.tape.like("mul", grad) if need_factor else None)

    saves = [one for one, other in ((x, need_factor), (factor, need_x)) if other]
    node = x.tape.record("mul", (x, factor), backward, saves)
    strides = None if x.strides is None else dense_like(x.shape, x.strides)
    return x.tape.new("mul", x.shape, x.dtype, x.batched, strides, node)


def similarities(a: Tensor, b: Tensor) -> Tensor:
    """The product of two matrices [B, P] x [P, B]: new, [B, B]; one is saved only if the other needs a gradient.

    Saves `a`: the gradient of the second matrix is the first, transposed, times the incoming one.
    Saves `b`: the gradient of the first matrix is the incoming one times the second, transposed.
    Backward: the gradient of the second first, then that of the first.
    Source: tools/autograd/derivatives.yaml, mm.
    """
    a, b = autocast_half(a), autocast_half(b)
    tape, batch, width = a.tape, a.shape[0], a.shape[1]
    a_shape, b_shape = a.shape, b.shape
    need_a, need_b = a.node is not None, b.node is not None
    work = 2 * batch * batch * width

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(work * (need_a + need_b))
        second = tape.new("mm", b_shape, grad.dtype, True) if need_b else None
        return (tape.new("mm", a_shape, grad.dtype, True) if need_a else None, second)

    saves = [one for one, other in ((a, need_b), (b, need_a)) if other]
    node = tape.record("mm", (a, b), backward, saves)
    tape.work(work)
    return tape.new("mm", (batch, batch), a.dtype, SQUARED, None, node)


def spread(x: Parameter, shape: Shape) -> Tensor:
    """`x.expand(shape)` of a vector over samples: a view with strides 0, nothing new.

    Backward: 1 new, the gradient summed.
    Source: tools/autograd/derivatives.yaml, expand.
    """
    before = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("sum", before, grad.dtype, False),)

    wide = x.alias(shape, (*([0] * (len(shape) - 1)), 1), x.tape.record("expand", (x,), backward))
    wide.batched = True
    return wide


def at_end_of_text(hidden: Tensor, ids: Tensor) -> Tensor:
    """`hidden[arange(B), (ids == end).argmax(-1)]`: new, one row for each sample.

    Saves `rows`: where the gradient goes.
    Saves `places`: where the gradient goes.
    Backward: 1 new, zeros of the whole with the gradient in its places.
    Source: transformers, models/clip/modeling_clip.py, CLIPTextModel.forward; tools/autograd/derivatives.yaml,
    index.Tensor.
    """
    tape, whole = hidden.tape, hidden.shape
    rows = tape.new("arange", whole[:1], INT64, True)
    narrow_ids = tape.new("to", ids.shape, INT32, True)
    found = tape.new("eq", ids.shape, BOOL, True)
    del narrow_ids
    marked = tape.new("to", ids.shape, INT32, True)
    del found
    places = tape.new("argmax", whole[:1], INT64, True)
    del marked

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("new_zeros", whole, grad.dtype, True),)

    node = tape.record("index", (hidden,), backward, (rows, places))
    return tape.new("index", (whole[0], *whole[2:]), hidden.dtype, True, None, node)
