"""Operator rules: what each operator of PyTorch produces, saves for backward, and allocates there.

One function per operator; nothing else in the program knows these numbers. Letters: B micro-batch, S sequence,
H hidden size, V vocabulary, a heads, d head size; "new" is one allocation. Unless said otherwise a rule was read off
`tools/autograd/derivatives.yaml` of PyTorch 2.13 and the kernel it names, and is checked byte by byte against traces of
the real model code (tests/oracle). Composite functions of model libraries (gelu_new, RMSNorm, rotary embeddings, eager
attention) are written where the models are, from these operators.

Autocast casts are the lists of `aten/src/ATen/autocast_mode.h`: matrix products and attention run in the autocast
dtype, normalisation, softmax, pow and losses in fp32, everything else promotes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from vramplan.replay.observers import Release, Sharding
from vramplan.replay.operators.views import Grads, autocast_float, autocast_half, reshape_gradient, same, to, view
from vramplan.replay.recorder import Saved, rounded
from vramplan.replay.tensors import (
    BOOL,
    FP16,
    FP32,
    DType,
    Parameter,
    Shape,
    Tensor,
    dense_like,
)

# ------------------------------------------------------------------------------------------------------ elementwise


def broadcast(a: Tensor, b: Tensor) -> tuple[Shape, Tensor]:
    """The common shape, and the operand that has it and so decides the dimension order (the first of two)."""
    if a.shape == b.shape:
        return a.shape, a
    rank = max(len(a.shape), len(b.shape))
    wide = [(1,) * (rank - len(x.shape)) + x.shape for x in (a, b)]
    shape = tuple(max(pair) for pair in zip(*wide, strict=True))
    return shape, a if a.shape == shape else b


def add(a: Tensor, b: Tensor) -> Tensor:
    """a + b with promotion: new, nothing saved.

    The gradient of a sum is the gradient itself, so no value of the inputs is needed.
    Backward: nothing new; both inputs get the SAME gradient tensor, which the engine casts and sums to each of them.
    Source: tools/autograd/derivatives.yaml, add.Tensor.
    """
    shape, lead = broadcast(a, b)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad, grad)

    node = a.tape.record("add", (a, b), backward)
    dtype = a.dtype if a.dtype.itemsize >= b.dtype.itemsize else b.dtype
    strides = None if lead.strides is None else dense_like(lead.shape, lead.strides)
    return a.tape.new("add", shape, dtype, a.batched or b.batched, strides, node)


def add_scalar(x: Tensor) -> Tensor:
    """x + number: new, nothing saved.

    Backward: nothing new; the gradient is handed through.
    Source: tools/autograd/derivatives.yaml, add.Scalar.
    """
    return x.tape.like("add", x, None, x.tape.record("add", (x,), same))


def add_in_place(a: Tensor, b: Tensor) -> Tensor:
    """a += b of one dtype, and of one shape or a bias: the storage of a, nothing saved.

    Backward: nothing new; both inputs get the same gradient tensor, which the engine sums to a bias.
    Source: tools/autograd/derivatives.yaml, add.Tensor.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad, grad)

    return a.alias(a.shape, a.strides, a.tape.record("add", (a, b), backward))


def div_by(x: Tensor, divisor: Tensor) -> Tensor:
    """x / divisor, where the divisor is a number on the device that needs no gradient: new.

    Saves `divisor`: the gradient is the incoming one divided by it.
    Backward: 1 new, the gradient divided.
    Source: tools/autograd/derivatives.yaml, div.Tensor.
    """
    return x.tape.like("div", x, None, x.tape.record("div", (x,), _divided, (divisor,)))


def _divided(grad: Tensor, saved: Saved) -> Grads:
    return (grad.tape.like("div", grad),)


def mul_scalar(x: Tensor) -> Tensor:
    """x * number (also / number, and -x): new, nothing saved, as the number is no tensor.

    Backward: 1 new, the gradient times the number.
    Source: tools/autograd/derivatives.yaml, mul.Scalar, div.Scalar and neg.
    """
    return x.tape.like("mul", x, None, x.tape.record("mul", (x,), _scaled))


neg = mul_scalar


def _scaled(grad: Tensor, saved: Saved) -> Grads:
    return (grad.tape.like("mul", grad),)


def mul(a: Tensor, b: Tensor) -> Tensor:
    """a * b: new; an operand is saved only if the other one needs a gradient.

    Saves `a`: the gradient of b is the incoming one times a.
    Saves `b`: the gradient of a is the incoming one times b.
    Backward: for each gradient that is wanted 1 new of the full size, both before the engine sums them to their inputs.
    Source: tools/autograd/derivatives.yaml, mul.Tensor.
    """
    shape, lead = broadcast(a, b)
    need_a, need_b = a.node is not None, b.node is not None
    dtype = a.dtype if a.dtype.itemsize >= b.dtype.itemsize else b.dtype
    batched = a.batched or b.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        def product() -> Tensor:
            return grad.tape.like("mul", grad)

        return (product() if need_a else None, product() if need_b else None)

    saves = [x for x, other in ((a, need_b), (b, need_a)) if other]
    node = a.tape.record("mul", (a, b), backward, saves)
    strides = None if lead.strides is None else dense_like(lead.shape, lead.strides)
    return a.tape.new("mul", shape, dtype, batched, strides, node)


def pow_scalar(x: Tensor) -> Tensor:
    """x ** n: autocast to fp32, then new.

    Saves `x`: its gradient is n * x ** (n - 1) times the incoming one.
    Backward: x ** (n - 1), n times that, and the product with the gradient are alive together.
    Source: tools/autograd/derivatives.yaml, pow.Tensor_Scalar; torch/csrc/autograd/FunctionsManual.cpp, pow_backward.
    """
    x = autocast_float(x)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape, source = grad.tape, saved[0]
        power = tape.like("pow", source)
        scaled = tape.like("mul", source)
        result = tape.like("mul", source)
        del power, scaled
        return (result,)

    return x.tape.like("pow", x, None, x.tape.record("pow", (x,), backward, (x,)))


def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x): new.

    Saves `out`: the gradient is -1/2 times the incoming one times the result ** 3.
    Backward: -grad / 2, result ** 3 and their product are alive together.
    Source: tools/autograd/derivatives.yaml, rsqrt.
    """
    node = x.tape.record("rsqrt", (x,), _rsqrt_backward)
    out = x.tape.like("rsqrt", x, None, node)
    x.tape.save(node, out)
    return out


def _rsqrt_backward(grad: Tensor, saved: Saved) -> Grads:
    tape, result = grad.tape, saved[0]
    scaled = tape.like("mul", grad)
    cube = tape.like("pow", result)
    out = tape.like("mul", result)
    del scaled, cube
    return (out,)


def mean_last(x: Tensor) -> Tensor:
    """x.mean(-1, keepdim=True): new, nothing saved, as only the number of elements is needed.

    Backward: 1 new of the full size, the expanded gradient divided.
    Source: tools/autograd/derivatives.yaml, mean.dim; torch/csrc/autograd/FunctionsManual.cpp, mean_backward.
    """
    shape = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("div", shape, grad.dtype, grad.batched),)

    node = x.tape.record("mean", (x,), backward)
    return x.tape.new("mean", (*shape[:-1], 1), x.dtype, x.batched, None, node)


def _from_saved(operator: str) -> Callable[[Tensor, Saved], Grads]:
    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like(operator, grad),)

    return backward


_TANH, _GELU, _SILU = _from_saved("tanh_backward"), _from_saved("gelu_backward"), _from_saved("silu_backward")
_MASKED = _from_saved("masked_fill")
_RELU, _DROPOUT = _from_saved("threshold_backward"), _from_saved("native_dropout_backward")


def tanh(x: Tensor) -> Tensor:
    """tanh(x): new.

    Saves `out`: the gradient is the incoming one times 1 - tanh(x) ** 2, which needs the result and not x.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, tanh.
    """
    return _saving_result("tanh", x, _TANH)


def relu(x: Tensor) -> Tensor:
    """max(x, 0): new.

    Saves `out`: the gradient passes where the result is positive.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, relu; threshold_backward.
    """
    return _saving_result("relu", x, _RELU)


def _saving_result(operator: str, x: Tensor, backward: Callable[[Tensor, Saved], Grads]) -> Tensor:
    node = x.tape.record(operator, (x,), backward)
    out = x.tape.like(operator, x, None, node)
    x.tape.save(node, out)
    return out


def gelu(x: Tensor) -> Tensor:
    """The fused kernel of gelu (exact or tanh): new.

    Saves `x`: the slope of gelu is a function of x.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, gelu.
    """
    return x.tape.like("gelu", x, None, x.tape.record("gelu", (x,), _GELU, (x,)))


def bloom_gelu(x: Tensor) -> Tensor:
    """BLOOM's gelu, an autograd function of its own: new, by operators without gradients, some alive together.

    Saves `x`: the tanh inside is computed again from it.
    Backward: the slope, operator by operator, some alive together; then its product with the gradient.
    Source: transformers, models/bloom/modeling_bloom.py, GeLUFunction, bloom_gelu_forward and bloom_gelu_back.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        plain = saved[0].alias(saved[0].shape, saved[0].strides, None)
        result = tanh(mul(mul_scalar(plain), add_scalar(mul(mul_scalar(plain), plain))))
        slope = add(
            mul(
                mul_scalar(plain),
                mul(add_scalar(mul_scalar(mul(result, result))), add_scalar(mul(mul_scalar(plain), plain))),
            ),
            mul_scalar(add_scalar(result)),
        )
        return (mul(slope, grad),)

    node = x.tape.record("GeLUFunction", (x,), backward)
    plain = x.alias(x.shape, x.strides, None)
    out = mul(mul_scalar(plain), add_scalar(tanh(mul(mul_scalar(plain), add_scalar(mul(mul_scalar(plain), plain))))))
    x.tape.save(node, x)
    return out.alias(out.shape, out.strides, node)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x): new.

    Saves `x`: the slope of silu is a function of x.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, silu.
    """
    return x.tape.like("silu", x, None, x.tape.record("silu", (x,), _SILU, (x,)))


def dropout(x: Tensor, p: float) -> Tensor:
    """`native_dropout`: new, and a mask of one byte per element; p = 0 is no operator at all.

    Saves `mask`: backward drops the gradient where the value was dropped.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, native_dropout; aten/src/ATen/native/cuda/Dropout.cu.
    """
    if p == 0:
        return x
    tape = x.tape
    node = tape.record("native_dropout", (x,), _DROPOUT)
    mask = tape.like("native_dropout", x, BOOL)  # the kernel's code makes it before the result
    out = tape.like("native_dropout", x, None, node)
    tape.save(node, mask)
    return out


# --------------------------------------------------------------------------------------------------- linear algebra


def linear(x: Tensor, weight: Tensor, bias: Parameter | None = None, *, transposed: bool = False) -> Tensor:
    """`F.linear` (weight [out, in]) or GPT-2's Conv1D (`transposed`: weight [in, out]): new.

    Autocast casts bias, weight, x (Conv1D: weight, x, bias), each a node of its own.
    Saves `x`: the gradient of the weight is x^T times the incoming one; only if the weight needs a gradient.
    Saves `w`: the gradient of x is the incoming one times the weight; only if x needs a gradient.
    Backward: without bias (mm) the gradient of the weight first, with bias (addmm) that of the input; the gradient of
    the bias is the engine's sum.
    ZeRO-3 of DeepSpeed puts a function of its own in the place of `F.linear`, which saves both and the bias whatever
    needs a gradient, when the result is there (deepspeed/runtime/zero/linear.py, LinearFunctionForZeroStage3).
    Source: tools/autograd/derivatives.yaml, mm and addmm; aten/src/ATen/native/Linear.cpp; transformers
    pytorch_utils.py, Conv1D.forward.
    """
    tape = x.tape
    out_features = weight.shape[1 if transposed else 0]
    in_features = weight.shape[0 if transposed else 1]
    lead = x.shape[:-1]
    rows = prod(lead)
    b: Tensor | None = bias
    is_function = not transposed and tape.role(Sharding).linear_is_function
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
            if b is not None and len(lead) > 1:  # ATen multiplies, and adds the bias in place
                product = linear(x, weight)
                if is_function:
                    tape.save(product.node, b)
                return add_in_place(product, b)
            x = view(x, (rows, in_features))
    need_x, need_w = x.node is not None, w.node is not None
    x_shape, w_shape, g_shape, batched = x.shape, weight.shape, (rows, out_features), x.batched
    work = 2 * rows * in_features * out_features
    bias_first = bias is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        flat = reshape_gradient(grad, g_shape)
        del grad

        def gx() -> Tensor | None:
            return tape.new("mm", x_shape, flat.dtype, batched) if need_x else None

        def gw() -> Tensor | None:
            return tape.new("mm", w_shape, flat.dtype, False) if need_w else None

        tape.work(work * (need_x + need_w))
        if bias_first:
            first = gx()
            return (flat, first, gw())
        second = gw()
        return (gx(), second)

    operands = (x, w) if b is None else (x, w, b)
    saves = [t for t, other in ((x, need_w), (w, need_x)) if other and not is_function]
    inputs: tuple[Tensor | None, ...] = (x, w) if bias is None else (b, x, w)
    node = tape.record("addmm" if bias_first else "mm", inputs, backward, saves)
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
        tape.keep(True, out)
    return out


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Batched product [B, a, m, k] x [B, a, k, n], or of tensors with more dimensions before these two: new.

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
    a_shape, b_shape, batched = a3.shape, b3.shape, a3.batched
    work = 2 * count * m * k * n

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(work * (need_a + need_b))
        second = tape.new("bmm", b_shape, grad.dtype, batched) if need_b else None
        first = tape.new("bmm", a_shape, grad.dtype, batched) if need_a else None
        return (first, second)

    saves = [t for t, other in ((a3, need_b), (b3, need_a)) if other]
    node = tape.record("bmm", (a3, b3), backward, saves)
    kept = tape.recall() if tape.selective else None
    if kept is not None:
        return view(kept[0].alias(kept[0].shape, None, node), (*many, m, n))
    tape.work(work)
    out = tape.new("bmm", (count, m, n), a3.dtype, batched, None, node)
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


# ---------------------------------------------------------------------------------------- normalisation and softmax


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`native_layer_norm`: autocast to fp32; new, and the fp32 mean and 1 / std of each row.

    Saves `x`: its gradient and that of the weight need the normalised input, which is made again from x.
    Saves `scale`: the fp32 copy of the weight, where autocast has cast it: the input's gradient is multiplied by it.
    Saves `shift`: the fp32 copy of the bias, where autocast has cast it.
    Saves `mean`: to make the normalised input again without another pass over x.
    Saves `rstd`: to make the normalised input again without another pass over x.
    Backward: the gradients of input, weight and bias at once.
    Source: tools/autograd/derivatives.yaml, native_layer_norm; aten/src/ATen/native/cuda/layer_norm_kernel.cu.
    """
    x = autocast_float(x)
    scale = autocast_float(weight)
    shift = None if bias is None else autocast_float(bias)
    tape = x.tape
    need_x = x.node is not None
    need_w = weight.node is not None
    need_b = bias is not None and bias.node is not None
    w_shape, w_dtype = scale.shape, scale.dtype
    saves = [x]
    away = bool(tape.told.packing) and tape.frame is None  # then the weights themselves are worth saving too
    if scale is not weight or away:
        saves.append(scale)
    if shift is not None and (shift is not bias or away):
        saves.append(shift)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape, source = grad.tape, saved[0]
        gx = tape.new("native_layer_norm_backward", source.shape, source.dtype, source.batched) if need_x else None
        gw = tape.new("native_layer_norm_backward", w_shape, w_dtype, False) if need_w else None
        gb = tape.new("native_layer_norm_backward", w_shape, w_dtype, False) if need_b else None
        return (gx, gw, gb)

    node = tape.record("native_layer_norm", (x, scale, shift), backward, saves)
    out = tape.new("native_layer_norm", x.shape, x.dtype, x.batched, None, node)
    rows = (*x.shape[:-1], 1)
    mean = tape.new("native_layer_norm", rows, FP32, x.batched)
    rstd = tape.new("native_layer_norm", rows, FP32, x.batched)
    tape.save(node, mean, rstd)
    return out


def masked_fill(x: Tensor, mask: Tensor) -> Tensor:
    """x.masked_fill(mask, number): new.

    Saves `mask`: backward drops the gradient where the value was replaced.
    Backward: 1 new, the gradient with zeros at the mask.
    Source: tools/autograd/derivatives.yaml, masked_fill.Scalar.
    """
    return x.tape.like("masked_fill", x, None, x.tape.record("masked_fill", (x,), _MASKED, (mask,)))


def softmax(x: Tensor, dtype: DType | None = None) -> Tensor:
    """`F.softmax(x, -1)`, optionally in fp32: new.

    To fp32 from fp16 it is one kernel, whose gradient comes out in fp16; from bf16 it is a cast and a softmax.
    Saves `out`: the gradient is the result times the incoming one less their row sum; x is not needed.
    Saves `x`: only before PyTorch 1.11, whose backward asked it for its element type.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, _softmax (of 1.10: _softmax_backward_data(grad, result, dim, self));
    aten/src/ATen/native/cuda/SoftMax.cu, host_softmax.
    """
    target = dtype or (FP32 if x.tape.autocast is not None else x.dtype)
    return _normalised_exponential("_softmax", x, target)


def log_softmax(x: Tensor) -> Tensor:
    """`F.log_softmax(x, -1)` inside `cross_entropy`, in the dtype of x: new.

    Saves `out`: the gradient is the incoming one less exp(result) times its row sum; x is not needed.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, _log_softmax; aten/src/ATen/native/cuda/SoftMax.cu, host_softmax.
    """
    return _normalised_exponential("_log_softmax", x, x.dtype)


SOFTMAX_WITHOUT_INPUT = (1, 11)  # of PyTorch: from then on backward needs no input of a softmax


def _normalised_exponential(operator: str, x: Tensor, target: DType) -> Tensor:
    tape = x.tape
    if x.dtype is not target and x.dtype is not FP16:
        x = to(x, target)
    source = x.dtype
    name = operator + "_backward_data"

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like(name, saved[0], source),)

    node = tape.record(operator, (x,), backward)
    out = tape.like(operator, x, target, node)
    tape.save(node, out)
    pytorch = tape.role(Release).pytorch
    if pytorch is not None and pytorch < SOFTMAX_WITHOUT_INPUT:
        tape.save(node, x)
    return out


# ------------------------------------------------------------------------------------------------ embedding and loss

SORTED_INDICES = (
    3072  # above so many indices the embedding gradient sorts them (aten/src/ATen/native/cuda/Embedding.cu)
)


def embedding(ids: Tensor, weight: Parameter, *, returned: bool = True) -> Tensor:
    """`F.embedding`: new, the rows that are looked up; `returned` says that the module returns them as they are.

    Saves `ids`: the gradient of row i is the sum of the incoming rows whose index is i; the table itself is not needed.
    Backward: the incoming gradient in row-major order, a copy if it is not; a dense gradient [V, H], and above 3072
    indices a workspace: sorted and original indices, segment offsets and fp32 partial sums; the number of partial
    segments is n // 10 + min(n, V).
    Source: tools/autograd/derivatives.yaml, embedding; aten/src/ATen/native/cuda/Embedding.cu and
    EmbeddingBackwardKernel.cu.
    """
    tape = weight.tape
    weight.is_table = True
    vocabulary, width = weight.shape
    dtype, batched = weight.dtype, ids.batched
    per_sample = prod(ids.shape) // (tape.batch if batched else 1)

    def workspace_bytes(batch: int) -> int:
        n = per_sample * (batch if batched else 1)
        if n <= SORTED_INDICES:
            return 0
        segments = min(n, vocabulary)
        partial = n // 10 + segments
        scratch = rounded(partial * width * 4) + rounded(8 * partial) + 3 * rounded(8 * n) + 2 * rounded(8 * segments)
        return rounded(scratch)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        _dense = grad if grad.strides is None else tape.new("clone", grad.shape, grad.dtype, grad.batched)
        out = tape.new("embedding_dense_backward", (vocabulary, width), dtype, False)
        tape.workspace("embedding_dense_backward", workspace_bytes)
        return (out,)

    node = tape.record("embedding", (weight,), backward, (ids,))
    found = tape.new("embedding", (*ids.shape, width), dtype, batched, None, node)
    return tape.looked_up(found, weight) if returned else found


def nll_loss(log_probabilities: Tensor, target: Tensor) -> Tensor:
    """`F.nll_loss` with mean reduction: autocast to fp32; new, the scalar loss and the total weight.

    Saves `x`: the gradient has its shape and layout.
    Saves `target`: the places where the gradient is not zero.
    Saves `total_weight`: the mean divides by it.
    Backward: 1 new, as large as the input, filled with zeros and one value a row.
    Source: tools/autograd/derivatives.yaml, nll_loss_forward; aten/src/ATen/native/cuda/Loss.cu.
    """
    x = autocast_float(log_probabilities)
    tape = x.tape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        source = saved[0]
        return (source.tape.like("nll_loss_backward", source),)

    node = tape.record("nll_loss", (x,), backward, (x, target))
    loss = tape.new("nll_loss", (), x.dtype, False, None, node)
    total_weight = tape.new("nll_loss", (), x.dtype, False)
    tape.save(node, total_weight)
    return loss


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """`F.cross_entropy`: log_softmax, then nll_loss."""
    return nll_loss(log_softmax(logits), target)
