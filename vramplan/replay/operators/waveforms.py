"""Operator rules of models that take the samples of a sound: norms of channels and of weights, places, and CTC.

B is the micro-batch, T the frames, C channels, V the vocabulary.
"""

from __future__ import annotations

from vramplan.replay.operators.views import Grads, autocast_float, autocast_half
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import BOOL, FP32, INT64, Parameter, Tensor


def group_norm(x: Tensor, weight: Parameter, bias: Parameter, groups: int) -> Tensor:
    """`F.group_norm` of [B, C, T]: autocast to fp32; new, and the mean and 1 / std of each group of each sample.

    Saves `x`: its gradient and that of the weight need the normalised input, which is made again from x.
    Saves `scale`: the weight, where it is a copy that autocast made in fp32.
    Saves `mean`: to make the normalised input again without another pass over x.
    Saves `rstd`: to make the normalised input again without another pass over x.
    Backward: the gradients of input, weight and bias at once.
    Source: tools/autograd/derivatives.yaml, native_group_norm; aten/src/ATen/native/cuda/group_norm_kernel.cu.
    """
    shift, scale, x = autocast_float(bias), autocast_float(weight), autocast_float(x)
    tape, channels = x.tape, weight.shape
    need_x, need_w, need_b = x.node is not None, scale.node is not None, shift.node is not None
    w_dtype = scale.dtype

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape, source = grad.tape, saved[0]
        gx = tape.like("native_group_norm_backward", source) if need_x else None
        gw = tape.new("native_group_norm_backward", channels, w_dtype, False) if need_w else None
        gb = tape.new("native_group_norm_backward", channels, w_dtype, False) if need_b else None
        return (gx, gw, gb)

    saves = [x] if type(scale) is Parameter else [x, scale]
    node = tape.record("native_group_norm", (x, scale, shift), backward, saves)
    out = tape.like("native_group_norm", x, None, node)
    rows = (x.shape[0], groups)
    mean = tape.new("native_group_norm", rows, x.dtype, x.batched)
    rstd = tape.new("native_group_norm", rows, x.dtype, x.batched)
    tape.save(node, mean, rstd)
    return out


def weight_norm(direction: Parameter, size: Parameter) -> Tensor:
    """`torch._weight_norm` over the last dimension of [out, in, k]: new, in the type of the parameters.

    One kernel makes it, over the first and the last dimension.
    Saves `direction`: its gradient is made of it.
    Saves `size`: the gradient of the direction is scaled by it.
    Saves `norms`: the fp32 norm of each slice.
    Backward: the gradients of direction and sizes at once.
    Source: tools/autograd/derivatives.yaml, _weight_norm_interface; aten/src/ATen/native/WeightNorm.cpp, _weight_norm.
    """
    tape = direction.tape
    need_v, need_g = direction.node is not None, size.node is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        gv = grad.tape.new("_weight_norm_interface_backward", direction_shape, dtype, False) if need_v else None
        gg = grad.tape.new("_weight_norm_interface_backward", size_shape, dtype, False) if need_g else None
        return (gv, gg)

    direction_shape, size_shape, dtype = direction.shape, size.shape, direction.dtype
    node = tape.record("_weight_norm_interface", (direction, size), backward, (direction, size))
    out = tape.new("_weight_norm_interface", direction_shape, dtype, False, None, node)
    norms = tape.new("_weight_norm_interface", size_shape, FP32, False)
    tape.save(node, norms)
    return out


def is_large(frames: int, batch: int, letters: int) -> bool:
    """Whether the gradient of a CTC loss is made by operators for blanks and a kernel for letters.

    Source: aten/src/ATen/native/cuda/LossCTC.cu, ctc_loss_backward_gpu_template.
    """
    return 2 * frames + 24 * batch // 10 + 2 * letters // 10 > 450


def mask_rows(x: Tensor, mask: Tensor, vector: Tensor, rows: int, *, is_view: bool) -> Tensor:
    """`x[mask] = vector` of x [B, T, C] and a mask [B, T] that is true at so many places of a sample: the storage of x.

    Where x is a view of what a product gave, its gradient goes through copies.
    Saves `mask`: the gradient of x is zero there, that of the vector is the sum of what is there.
    Backward: of a view a new gradient and a copy of the incoming one; zeros, and a copy that they are put into; then
    the gradient at the places, which the engine sums.
    Source: tools/autograd/derivatives.yaml, index_put_; torch/csrc/autograd/functions/tensor.cpp, CopySlices::apply.
    """
    whole, need_x, need_vector = x.shape, x.node is not None, vector.node is not None
    places = (rows * x.shape[0], x.shape[2])

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape, dtype = grad.tape, grad.dtype
        result = piece = first = second = None
        if is_view:
            result = tape.new("new_empty_strided", whole, dtype, True)
            piece = tape.new("clone", whole, dtype, True)
        if need_x:
            zeros = tape.new("zeros", whole[2:], dtype, False)
            first = tape.new("index_put", whole, dtype, True)
            del zeros
        if need_vector:
            second = tape.new("index", places, dtype, True)
            tape.scratch("index", [16 * rows])
        del piece
        return (first if result is None else result, second)

    node = x.tape.record("index_put_", (x, vector), backward, (mask,))
    return x.alias(whole, x.strides, node)


def letters(labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of labels [B, L] those that are letters, all of them: one after the other, how many each sample has, and where.

    Source: transformers 5.23, loss/loss_ctc.py, ForCTCLoss; aten/src/ATen/native/cuda/IndexKernel.cpp,
    masked_select_out_cuda_impl.
    """
    tape, (batch, length) = labels.tape, labels.shape
    counted = tape.new("ne", (batch, length), BOOL, True)
    other = tape.new("ne", (batch, length), BOOL, True)
    mask = tape.new("bitwise_and", (batch, length), BOOL, True)
    del counted, other
    lengths = tape.new("sum", (batch,), INT64, True)
    found = tape.new("masked_select", (batch * length,), INT64, True)
    tape.scratch("masked_select", [16 * length])
    return found, lengths, mask


def ctc_loss(x: Tensor, targets: Tensor, frames: Tensor, lengths: Tensor) -> Tensor:
    """`F.ctc_loss` of log-probabilities [T, B, V] with PyTorch's own kernel: the loss of each sample, and its sum.

    Saves `x`: the gradient is made of it.
    Saves `targets`: the letters.
    Saves `frames`: how many each sample has.
    Saves `lengths`: how many letters each sample has.
    Saves `loss`: the gradient is divided by what it stands for.
    Saves `alphas`: a number for each frame, and each letter and the places between.
    Backward: as many numbers again, and the gradient; larger problems add up every second of both inside.
    Source: tools/autograd/derivatives.yaml, _ctc_loss; aten/src/ATen/native/cuda/LossCTC.cu.
    """
    tape, (steps, batch, vocabulary) = x.tape, x.shape
    places = 2 * (targets.shape[0] // batch) + 1
    alphas_shape = (batch, steps, places)
    numbers = [8, 8, 8]

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        gx = tape.new("_ctc_loss_backward", (steps, batch, vocabulary), FP32, True)
        inside = [*numbers, 4 * steps * places]
        if is_large(steps, batch, vocabulary):
            inside += [4 * steps * (places // 2 + 1)] * 2 + [4 * steps] * 2
        tape.scratch("_ctc_loss_backward", inside)
        return (gx,)

    node = tape.record("_ctc_loss", (x,), backward, (x, targets, frames, lengths))
    loss = tape.new("_ctc_loss", (batch,), FP32, True, None, node)
    alphas = tape.new("_ctc_loss", alphas_shape, FP32, True)
    tape.save(node, loss, alphas)
    tape.scratch("_ctc_loss", numbers)
    return loss


def sum_all(x: Tensor) -> Tensor:
    """`x.sum()`: new, a number.

    Backward: nothing new, the gradient expanded.
    Source: tools/autograd/derivatives.yaml, sum.
    """
    shape, batched = x.shape, x.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        wide = grad.alias(shape, (0,) * len(shape), None)
        wide.batched = batched
        return (wide,)

    return x.tape.new("sum", (), x.dtype, False, None, x.tape.record("sum", (x,), backward))


def biased_product(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`torch.baddbmm(bias, a, b)` of batched matrices [N, m, k] x [N, k, n] and a bias of each number: new.

    Autocast casts all three.
    Saves `a`: the gradient of the second operand is the first, transposed, times the incoming one.
    Saves `b`: the gradient of the first operand is the incoming one times the second, transposed.
    Backward: nothing new for the bias, whose gradient is the incoming one; a product for each operand.
    Source: tools/autograd/derivatives.yaml, baddbmm; torch/csrc/autograd/FunctionsManual.cpp, maybe_multiply, which
    returns what a factor of 1 is given; aten/src/ATen/autocast_mode.h, AT_FORALL_LOWER_PRECISION_FP.
    """
    bias, a, b = autocast_half(bias), autocast_half(a), autocast_half(b)
    tape = a.tape
    need_bias, need_a, need_b = (one.node is not None for one in (bias, a, b))
    a_shape, b_shape, batched = a.shape, b.shape, a.batched
    count, m, k = a.shape
    n = b.shape[2]
    work = 2 * count * m * k * n

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(work * (need_a + need_b))
        first = tape.new("bmm", a_shape, grad.dtype, batched) if need_a else None
        second = tape.new("bmm", b_shape, grad.dtype, batched) if need_b else None
        return (grad if need_bias else None, first, second)

    saves = [one for one, other in ((a, need_b), (b, need_a)) if other]
    node = tape.record("baddbmm", (bias, a, b), backward, saves)
    tape.work(work)
    return tape.new("baddbmm", (count, m, n), a.dtype, batched, None, node)
