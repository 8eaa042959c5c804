"""Operator rules of linear layers and products of matrices."""

from __future__ import annotations

from math import prod

from vramplan.replay.observers import Sharding
from vramplan.replay.operators.elementwise import add, add_in_place
from vramplan.replay.operators.views import Grads, autocast_half, view
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import SQUARED, Parameter, Shape, Tensor, reshape_gradient, view_strides


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, transposed: bool = False, patched: bool = True
) -> Tensor:
    """`F.linear` (weight [out, in]) or GPT-2's Conv1D (`transposed`: weight [in, out]): new.

    Autocast casts bias, weight, x (Conv1D: weight, x, bias), each a node of its own.
    Saves `x`: the gradient of the weight is x^T times the incoming one; only if the weight needs a gradient.
    Saves `w`: the gradient of x is the incoming one times the weight; only if x needs a gradient.
    Backward: without bias (mm) the gradient of the weight first, with bias (addmm) that of the input; the gradient of
    the bias is the engine's sum. With bias an input that is more than rows is viewed before the weight is transposed,
    so that the weight has its gradient before that of the input meets others; without, after it.
    An input that is no rows one after another is copied, unless the weight needs no gradient: then each sample is
    multiplied by itself, with the weight expanded to as many (bmm).
    ZeRO-3 of DeepSpeed puts a function of its own in the place of `F.linear`, which saves both and the bias whatever
    needs a gradient, when the result is there (deepspeed/runtime/zero/linear.py, LinearFunctionForZeroStage3). It saves
    an input that is no rows one after another as it is, multiplies it sample by sample, and copies it in backward, and
    a gradient that is none for each of its products.
    `patched` is false where code multiplies without `F.linear`.
    Source: tools/autograd/derivatives.yaml, mm and addmm; aten/src/ATen/native/Linear.cpp;
    LinearAlgebra.cpp, should_fold; transformers pytorch_utils.py, Conv1D.forward.
    """
    tape = x.tape
    wrapped = tape.role(Sharding).wrapped
    if wrapped is not None and type(weight) is Parameter and weight.node is not None:
        beside = () if bias is None else (bias,)
        found: Tensor = wrapped(weight, lambda *own: linear(x, *own, transposed=transposed), *beside)
        return found
    out_features = weight.shape[1 if transposed else 0]
    in_features = weight.shape[0 if transposed else 1]
    lead = x.shape[:-1]
    rows = prod(lead)
    b: Tensor | None = bias
    is_function = patched and not transposed and tape.role(Sharding).linear_is_function
    is_apart = False
    if transposed:
        x = view(x, (rows, in_features))  # Conv1D flattens before it multiplies, and so before autocast casts
        w = autocast_half(weight)
        x = autocast_half(x)
        b = autocast_half(bias) if bias is not None else None
    else:
        b = autocast_half(bias) if bias is not None else None
        w = autocast_half(weight)
        x = autocast_half(x)
        if x.strides is not None:
            if b is not None and len(lead) > 1 and not is_function:
                # ATen multiplies and adds the bias: in place, but where a mode sees its operators, as that of a
                # selective checkpoint (Linear.cpp, linear; aten/src/ATen/TensorSubclassLikeUtils.h)
                product = linear(x, w)
                return add(product, b) if tape.selective else add_in_place(product, b)
            if w.node is None and not is_function and not _folds(x.shape, x.strides):
                return matmul(x, _for_each(w, lead[:-1]))
            is_apart = not view_strides(x.shape, x.strides, (rows, in_features))[0]
            is_apart = is_apart and is_function
            x = x if is_apart else view(x, (rows, in_features))
    need_x, need_w = x.node is not None, w.node is not None
    x_shape, w_shape, g_shape, batched = x.shape, weight.shape, (rows, out_features), x.batched
    work = 2 * rows * in_features * out_features
    bias_first = bias is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape, dtype = grad.tape, grad.dtype
        copies = is_function and not view_strides(grad.shape, grad.strides, g_shape)[0]
        flat = grad if copies or grad.shape == g_shape else reshape_gradient(grad, g_shape)
        del grad

        def gx() -> Tensor | None:
            if not need_x:
                return None
            _gradient = tape.new("clone", g_shape, dtype, batched) if copies else None
            return tape.new("mm", x_shape, dtype, batched)

        def gw() -> Tensor | None:
            if not need_w:
                return None
            _gradient = tape.new("clone", g_shape, dtype, batched) if copies else None
            _rows = tape.new("clone", (rows, in_features), dtype, batched) if is_apart else None
            return tape.new("mm", w_shape, dtype, False)

        tape.work(work * (need_x + need_w))
        if bias_first:
            first = gx()
            return (flat, first, gw())
        if is_function:
            first = gx()
            return (first, gw())
        second = gw()
        return (gx(), second)

    operands = (x, w) if b is None else (x, w, b)
    saves = [t for t, other in ((x, need_w), (w, need_x)) if other and not is_function]
    inputs: tuple[Tensor | None, ...] = (x, w) if bias is None else (b, x, w)
    node = tape.record("addmm" if bias_first else "mm", inputs, backward, saves)
    if not is_function and len(lead) > 1:
        tape.view_result(node, g_shape)
        if bias_first and not transposed:
            tape.view_input(node)
    kept = tape.recall() if tape.selective else None
    if kept is not None:
        if is_function:
            tape.save(node, *operands)
        return kept[0].alias(kept[0].shape, None, node)
    tape.work(work)
    out = tape.new("addmm" if bias_first else "mm", (*lead, out_features), x.dtype, x.batched, None, node)
    if is_function:
        tape.save(node, *operands)
    if tape.selective:
        tape.keep(need_w or not is_apart, out)  # what is multiplied sample by sample is no mm, and kept each time
    return out


def _folds(shape: Shape, strides: Shape) -> bool:
    """Whether ATen sees rows one after another: of a single sample too its stride counts."""
    pairs = zip(strides[:-2], strides[1:-1], shape[1:-1], strict=True)
    return all(outer == inner * size for outer, inner, size in pairs)


def _for_each(weight: Tensor, lead: Shape) -> Tensor:
    """A weight [out, in], transposed, and looked at once for each matrix of the other operand."""
    out_features, in_features = weight.shape
    return weight.alias((*lead, in_features, out_features), (*(0 for _ in lead), 1, in_features), None)


def matmul(a: Tensor, b: Tensor, *, squares: bool = False) -> Tensor:
    """Batched product [B, a, m, k] x [B, a, k, n], or of tensors with more dimensions before these two: new.

    `squares` says that m and n are each of all samples, which stand in one row.
    Operands that cannot be seen as [B*a, m, k] are copied, and the copies are what is saved.
    Saves `a3`: the gradient of the second operand is the first, transposed, times the incoming one.
    Saves `b3`: the gradient of the first operand is the incoming one times the second, transposed.
    Backward: the gradient of the second operand first, then that of the first.
    Source: tools/autograd/derivatives.yaml, bmm; aten/src/ATen/native/LinearAlgebra.cpp, _matmul_impl.
    """
    a, b = autocast_half(a), autocast_half(b)
    *many, m, k = a.shape
    count, n = prod(many), b.shape[-1]
    a3, b3 = view(a, (count, m, k)), view(b, (count, k, n))
    tape = a3.tape
    need_a, need_b = a3.node is not None, b3.node is not None
    a_shape, b_shape, of_a, of_b = a3.shape, b3.shape, a3.batched, b3.batched
    batched = of_b if of_a == SQUARED else of_a or of_b
    work = 2 * count * m * k * n

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(work * (need_a + need_b))
        second = tape.new("bmm", b_shape, grad.dtype, of_b) if need_b else None
        first = tape.new("bmm", a_shape, grad.dtype, of_a) if need_a else None
        return (first, second)

    saves = [t for t, other in ((a3, need_b), (b3, need_a)) if other]
    node = tape.record("bmm", (a3, b3), backward, saves)
    kept = tape.recall() if tape.selective else None
    if kept is not None:
        return view(kept[0].alias(kept[0].shape, None, node), (*many, m, n))
    tape.work(work)
    out = tape.new("bmm", (count, m, n), a3.dtype, SQUARED if squares else batched, None, node)
    if tape.selective:
        tape.keep(False, out)
    return view(out, (*many, m, n))


def baddbmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """bias + number * (a @ b) of batched matrices [N, m, k] x [N, k, n]: new; the bias needs no gradient.

    Autocast casts all three, the bias at each use.
    Saves `a`: the gradient of the second operand is the first, transposed, times the incoming one.
    Saves `b`: the gradient of the first operand is the incoming one times the second, transposed.
    Backward: for the first operand, then for the second, a product and that product times the number.
    Source: tools/autograd/derivatives.yaml, baddbmm; torch/csrc/autograd/FunctionsManual.cpp, maybe_multiply.
    """
    bias, a, b = autocast_half(bias), autocast_half(a), autocast_half(b)
    tape = a.tape
    need_a, need_b = a.node is not None, b.node is not None
    a_shape, b_shape, batched = a.shape, b.shape, a.batched
    count, m, k = a.shape
    n = b.shape[2]
    work = 2 * count * m * k * n

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(work * (need_a + need_b))

        def product(shape: Shape) -> Tensor:
            return tape.like("mul", tape.new("bmm", shape, grad.dtype, batched))

        return (product(a_shape) if need_a else None, product(b_shape) if need_b else None)

    saves = [t for t, other in ((a, need_b), (b, need_a)) if other]
    node = tape.record("baddbmm", (a, b), backward, saves)
    tape.work(work)
    return tape.new("baddbmm", (count, m, n), a.dtype, batched, None, node)
