"""Operator rules of Megatron-LM: layers whose weights are split over devices, and its fused functions.

What a device allocates is all that is said here: sums over devices are in place, and only what a collective writes to
another place is new. Hidden states are [S, B, H]. Functions that `jit_fuser` compiles store their results alone.
Files are those of megatron-core 0.16.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from vramplan.replay.autograd import walk
from vramplan.replay.operators.views import Grads, autocast_half, clone
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import BOOL, FP32, DType, Parameter, Shape, Tensor

SOFTMAX_LENGTHS = (17, 4096)  # of keys: fusions/fused_softmax.py, FusedScaleMaskSoftmax.is_kernel_available


def parallel_linear(
    x: Tensor, weight: Parameter, bias: Parameter | None = None, *, gathered: int = 1, groups: int = 1
) -> Tensor:
    """`LinearWithGradAccumulationAndAsyncCommunication`: new; with a bias the sum is new, and the product goes.

    `gathered` says over how many devices the sequence of x is split: then x is gathered into a buffer that stays.
    `groups`: the weight is those of so many experts, among which the rows are spread.
    Saves `x`: the gradient of the weight needs it; a split one is gathered again. A frozen weight needs none.
    Saves `weight`: nothing new.
    Backward: the gradient of x for the whole sequence, which is summed over devices in place; of a split one its part
    besides; a contiguous copy of the incoming gradient if it is none; that of the weight, and of the bias.
    Under autocast both operands are cast for each product, as a transposed weight is none that the cache takes, and
    gradients are cast back to the element types of what they are of.
    Source: core/tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication; torch/amp/autocast_mode.py,
    custom_fwd and custom_bwd; aten/src/ATen/autocast_mode.cpp, cached_cast.
    """
    tape = x.tape
    half = tape.autocast
    if half is not None:
        return _autocast_linear(x, weight, bias, half, gathered, groups)
    length, batch, inputs = x.shape
    outputs = weight.shape[0] // groups
    whole: Shape = (length * gathered, batch, inputs)
    work = 2 * prod(whole) * outputs
    part, x_dtype, batched, w_shape = x.shape, x.dtype, x.batched, weight.shape
    biased, need_x, need_w = _trained(bias), x.node is not None, weight.node is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(work * (need_x + need_w))
        of_x = tape.new("mm", whole, x_dtype, batched)
        if grad.strides is not None:
            grad = tape.new("clone", grad.shape, grad.dtype, grad.batched)
        result = of_x if gathered == 1 else tape.new("reduce_scatter", part, x_dtype, batched)
        of_weight = tape.new("mm", w_shape, grad.dtype, False) if need_w else None
        of_bias = tape.new("sum", (outputs * groups,), grad.dtype, False) if biased else None
        return (result, of_weight, of_bias)

    node = tape.record("parallel_linear", (x, weight, bias), backward, (x,) if need_w else ())
    tape.work(work)
    out = tape.new("mm", (*whole[:2], outputs), x_dtype, batched, None, node)
    return out if bias is None else tape.like("add", out, None, node)


def _trained(bias: Parameter | None) -> bool:
    return bias is not None and bias.node is not None


def _autocast_linear(
    x: Tensor, weight: Parameter, bias: Parameter | None, half: DType, gathered: int, groups: int
) -> Tensor:
    tape = x.tape
    length, batch, inputs = x.shape
    outputs = weight.shape[0] // groups
    whole: Shape = (length * gathered, batch, inputs)
    work = 2 * prod(whole) * outputs
    part, x_dtype, batched, w_shape, w_dtype = x.shape, x.dtype, x.batched, weight.shape, weight.dtype
    biased, need_x, need_w = _trained(bias), x.node is not None, weight.node is not None

    def cast(given: Tensor, shape: Shape, with_batch: int) -> Tensor:
        return given if given.dtype is half else tape.new("to", shape, half, with_batch)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        if grad.strides is not None:
            grad = tape.new("clone", grad.shape, grad.dtype, grad.batched)
        _weight = cast(weight, w_shape, False)
        tape.launch("mm", (grad, _weight))
        tape.work(work * need_x)
        of_x = tape.new("mm", whole, half, batched)
        del _weight
        result = of_x if gathered == 1 else tape.new("reduce_scatter", part, half, batched)
        if x_dtype is not half:
            result = tape.new("to", part, x_dtype, batched)
        del of_x
        of_weight = None
        if need_w:
            _x = cast(saved[0], whole, batched)
            tape.launch("mm", (grad, _x))
            tape.work(work)
            of_weight = tape.new("mm", w_shape, half, False)
            del _x
        if of_weight is not None and w_dtype is not half:
            of_weight = tape.new("to", w_shape, w_dtype, False)
        of_bias = tape.new("sum", (outputs * groups,), w_dtype, False) if biased else None
        return (result, of_weight, of_bias)

    node = tape.record("parallel_linear", (x, weight, bias), backward, (x,) if need_w else ())
    _x, _weight = cast(x, whole, batched), cast(weight, w_shape, False)
    tape.launch("mm", (_x, _weight))
    tape.work(work)
    out = tape.new("mm", (*whole[:2], outputs), half, batched, None, node)
    del _x, _weight
    return out if bias is None else tape.new("add", out.shape, w_dtype, batched, None, node)


def reduce_scatter(x: Tensor, devices: int) -> Tensor:
    """The sum over devices, of which each keeps a part of the sequence: new.

    Backward: 1 new, the gradients of all parts gathered.
    Source: core/tensor_parallel/mappings.py, _ReduceScatterToSequenceParallelRegion.
    """
    if devices == 1:
        return x
    whole, batched = x.shape, x.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("all_gather", whole, grad.dtype, batched),)

    shape = (whole[0] // devices, *whole[1:])
    node = x.tape.record("reduce_scatter", (x,), backward)
    return x.tape.new("reduce_scatter", shape, x.dtype, batched, None, node)


def scatter(x: Tensor, devices: int) -> Tensor:
    """A device's part of the sequence, cloned so that the whole can go.

    Backward: 1 new, the gradients of all parts gathered.
    Source: core/tensor_parallel/mappings.py, _ScatterToSequenceParallelRegion; core/models/common/embeddings/
    language_model_embedding.py, clone_scatter_output_in_embedding.
    """
    if devices == 1:
        return x
    whole, batched = x.shape, x.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("all_gather", whole, grad.dtype, batched),)

    shape = (whole[0] // devices, *whole[1:])
    part = x.alias(shape, None, x.tape.record("scatter", (x,), backward))
    return clone(part)


def gather_sequence(x: Tensor, devices: int) -> Tensor:
    """The parts of the sequence of all devices, put together: new.

    Backward: 1 new, the sum over devices of the gradients of this device's part.
    Source: core/tensor_parallel/mappings.py, _GatherFromSequenceParallelRegion.
    """
    if devices == 1:
        return x
    part, batched = x.shape, x.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("reduce_scatter", part, grad.dtype, batched),)

    node = x.tape.record("gather_sequence", (x,), backward)
    return x.tape.new("all_gather", (part[0] * devices, *part[1:]), x.dtype, batched, None, node)


def gather_last(x: Tensor, devices: int, *, summed: bool = False) -> Tensor:
    """The parts of the last dimension of all devices: gathered one after the other, then put side by side, new.

    `summed`: devices go on with different values, so that gradients are summed.
    Backward: 1 new, this device's part; where they are summed another one before it, all parts one after the other.
    Source: core/tensor_parallel/mappings.py, _GatherFromModelParallelRegion, _AllGatherFromTensorParallelRegion,
    _gather_along_last_dim and _reduce_scatter_along_last_dim.
    """
    if devices == 1:
        return x
    tape, part, batched = x.tape, x.shape, x.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        _whole = grad.tape.new("cat", (part[0] * devices, *part[1:]), grad.dtype, batched) if summed else None
        return (grad.tape.new("contiguous", part, grad.dtype, batched),)

    node = tape.record("gather_last", (x,), backward)
    _parts = tape.new("all_gather", (part[0] * devices, *part[1:]), x.dtype, batched)
    return tape.new("cat", (*part[:-1], part[-1] * devices), x.dtype, batched, None, node)


def bias_dropout_add(x: Tensor, bias: Parameter | None, residual: Tensor, p: float) -> Tensor:
    """`bias_dropout_add_fused_train`: new, and of a dropout a mask of one byte per element.

    Saves `mask`: backward drops the gradient where the value was dropped.
    Backward: of a dropout 1 new; the sum for the bias; the residual gets the gradient itself.
    Source: core/fusions/fused_bias_dropout.py; torch/_functorch/partitioners.py.
    """
    tape = x.tape
    size = bias.shape if bias is not None and bias.node is not None else None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        of_x = tape.like("native_dropout_backward", grad) if p else grad
        of_bias = None if size is None else tape.new("sum", size, grad.dtype, False)
        return (of_x, of_bias, grad)

    node = tape.record("bias_dropout_add", (x, bias, residual), backward)
    out = tape.new("bias_dropout_add", residual.shape, residual.dtype, residual.batched, None, node)
    if p:
        tape.save(node, tape.new("bias_dropout_add", x.shape, BOOL, x.batched))
    return out


def bias_gelu(x: Tensor, bias: Parameter) -> Tensor:
    """`bias_gelu_impl`: new, in the dtype of the bias, which under autocast is wider than that of x.

    Saves `x`: the slope is a function of the sum of both.
    Backward: 1 new, which the engine sums for the bias.
    Source: core/fusions/fused_bias_gelu.py, GeLUFunction.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        both = grad.tape.new("bias_gelu_back", saved[0].shape, dtype, saved[0].batched)
        return (both, both)

    dtype = bias.dtype
    node = x.tape.record("bias_gelu", (x, bias), backward, (x,))
    return x.tape.new("bias_gelu", x.shape, dtype, x.batched, None, node)


def swiglu(x: Tensor, bias: Parameter | None) -> Tensor:
    """`bias_swiglu_impl`: new, half as wide as its input.

    Saves `x`: the gradients of both halves need both.
    Backward: 1 new, as wide as the input, which the engine sums for a bias.
    Source: core/fusions/fused_bias_swiglu.py, SwiGLUFunction and BiasSwiGLUFunction.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        both = grad.tape.like("swiglu_back", saved[0])
        return (both,) if bias_free else (both, both)

    bias_free = bias is None
    inputs = (x,) if bias is None else (x, bias)
    node = x.tape.record("swiglu", inputs, backward, (x,))
    return x.tape.new("swiglu", (*x.shape[:-1], x.shape[-1] // 2), x.dtype, x.batched, None, node)


def has_fused_softmax(heads: int, length: int) -> bool:
    """Whether the kernel of a causal softmax takes so many heads and keys in 16 bits, whatever the micro-batch is.

    A number of heads that it takes at some micro-batches alone counts as one that it never takes.

    Source: core/fusions/fused_softmax.py, FusedScaleMaskSoftmax.is_kernel_available; scaled_masked_softmax.h,
    get_batch_per_block.
    """
    low, high = SOFTMAX_LENGTHS
    power = 1 << (length - 1).bit_length()
    each_block = 128 // min(power, 32) * (2 if power <= 128 else 1)
    return low <= length <= high and length % 4 == 0 and heads % 4 == 0 and heads % each_block == 0


def causal_softmax(x: Tensor) -> Tensor:
    """`ScaledUpperTriangMaskedSoftmax`: new.

    Saves `out`: the gradient is the result times the incoming one less their row sum.
    Backward: in place of the incoming gradient, a copy of it if it is not contiguous.
    Source: core/fusions/fused_softmax.py, ScaledUpperTriangMaskedSoftmax.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad if grad.strides is None else grad.tape.new("clone", grad.shape, grad.dtype, grad.batched),)

    node = x.tape.record("causal_softmax", (x,), backward)
    out = x.tape.like("causal_softmax", x, None, node)
    x.tape.save(node, out)
    return out


def masked_scores(x: Tensor, mask: Tensor) -> Tensor:
    """`attention_mask_func` with a mask: in place in a view, where no kernel fuses it with the softmax.

    Saves `mask`: backward drops the gradient where the value was replaced.
    Backward: 1 new, as large as what the view is of; beside it a copy of the gradient, and one with zeros at the mask.
    Source: core/transformer/utils.py, attention_mask_func; torch/csrc/autograd/functions/tensor.cpp, CopySlices.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        whole = grad.tape.like("new_empty_strided", grad)
        _copied = grad.tape.like("clone", grad)
        _filled = grad.tape.like("masked_fill", grad)
        return (whole,)

    return x.alias(x.shape, x.strides, x.tape.record("masked_fill", (x,), backward, (mask,)))


def batch_matmul(a: Tensor, b: Tensor) -> Tensor:
    """`torch.bmm` of [N, m, k] x [N, k, n]: new.

    Saves `a`: the gradient of the second operand is the first, transposed, times the incoming one.
    Saves `b`: the gradient of the first operand is the incoming one times the second, transposed.
    Backward: the gradient of the second operand first, then that of the first.
    Source: tools/autograd/derivatives.yaml, bmm.
    """
    a, b = autocast_half(a), autocast_half(b)
    tape = a.tape
    (count, m, k), n = a.shape, b.shape[2]
    a_shape, b_shape, batched = a.shape, b.shape, a.batched
    work = 2 * count * m * k * n

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(2 * work)
        second = tape.new("bmm", b_shape, grad.dtype, batched)
        return (tape.new("bmm", a_shape, grad.dtype, batched), second)

    node = tape.record("bmm", (a, b), backward, (a, b))
    tape.work(work)
    return tape.new("bmm", (count, m, n), a.dtype, batched, None, node)


def core_checkpoint(function: Callable[..., Tensor], *inputs: Tensor, mask: Tensor | None = None) -> Tensor:
    """`tensor_parallel.checkpoint` of a core of attention: one node, whose backward computes it again and walks it.

    Saves `inputs`: queries, keys and values.
    Saves `mask`: an argument like them.
    Backward: the gradients of the inputs, as the inner walk leaves them.
    Source: core/tensor_parallel/random.py, CheckpointFunction.
    """
    tape = inputs[0].tape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        leaves = [_leaf(x) for x in saved[:count]]
        detached = [x.alias(x.shape, x.strides, leaf) for x, leaf in zip(saved, leaves, strict=False)]
        given = saved[count] if len(saved) > count else None
        before = tape.category
        tape.category, tape.direction = "activations", "recompute"
        since = len(tape.nodes)
        out = function(*detached, given)
        tape.category, tape.direction = "temporaries", "backward"
        walk(tape, out, grad, since)
        tape.category = before
        gradients = tuple(leaf.grad for leaf in leaves)
        for leaf in leaves:
            leaf.node = leaf.grad = leaf.storage = None  # it was its own accumulator
        return gradients

    count = len(inputs)
    node = tape.record("CheckpointFunction", inputs, backward, inputs if mask is None else (*inputs, mask))
    outer, tape.no_grad = tape.no_grad, True
    try:
        out = function(*inputs, mask)
    finally:
        tape.no_grad = outer
    return out.alias(out.shape, out.strides, node)


def _leaf(x: Tensor) -> Parameter:
    """An input of a graph that is walked on its own: its gradient is copied unless it is contiguous.

    Source: torch/csrc/autograd/functions/accumulate_grad.h; torch/csrc/autograd/utils/grad_layout_contract.h.
    """
    leaf = Parameter(x.tape, "input", x.shape, x.dtype, 1, trainable=True)
    leaf.storage = x.storage
    leaf.batched = x.batched
    leaf.shared = False
    return leaf


def fused_rms_norm(x: Tensor, weight: Parameter) -> Tensor:
    """`torch.nn.RMSNorm`: new, and the fp32 1 / rms of each row.

    Saves `x`: its gradient and that of the weight need the normalised input, which is made again from x.
    Saves `rstd`: to make it without another pass over x.
    Backward: the gradients of input and weight at once.
    Source: tools/autograd/derivatives.yaml, _fused_rms_norm; aten/src/ATen/native/cuda/layer_norm_kernel.cu.
    """
    tape = x.tape
    w_shape, w_dtype = weight.shape, weight.dtype
    need_x, need_w = x.node is not None, weight.node is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape, source = grad.tape, saved[0]
        of_x = tape.new("_fused_rms_norm_backward", source.shape, source.dtype, source.batched) if need_x else None
        return (of_x, tape.new("_fused_rms_norm_backward", w_shape, w_dtype, False) if need_w else None)

    node = tape.record("_fused_rms_norm", (x, weight), backward, (x,))
    out = tape.new("_fused_rms_norm", x.shape, x.dtype, x.batched, None, node)
    tape.save(node, tape.new("_fused_rms_norm", (*x.shape[:-1], 1), FP32, x.batched))
    return out
