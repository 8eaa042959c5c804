"""Operator rules that PyTorch's own model code needs beside the others: fused RMS norms and complex rotations."""

from __future__ import annotations

from vramplan.replay.asked import asked
from vramplan.replay.observers import Release
from vramplan.replay.operators.elementwise import mean_last, mul, pow_scalar, rsqrt
from vramplan.replay.operators.views import Grads, to
from vramplan.replay.recorder import Saved, Tape
from vramplan.replay.tensors import FP32, DType, Parameter, Shape, Tensor

COMPLEX64_BYTES = 8


def rms_norm(x: Tensor, weight: Parameter) -> Tensor:
    """`nn.RMSNorm` on CUDA, one kernel: new, and 1 / rms of each row in fp32.

    Saves `x`: its gradient and that of the weight need the normalised input, which is made again from x.
    Saves `rstd`: to make the normalised input again without another pass over x.
    Backward: the gradients of input and weight at once.
    Source: tools/autograd/derivatives.yaml, _fused_rms_norm; aten/src/ATen/native/cuda/layer_norm_kernel.cu,
    _fused_rms_norm_cuda.
    """
    tape = x.tape
    if tape.role(Release).composed_norms:
        return composed_rms_norm(x, weight)
    need_x, need_w = x.node is not None, weight.node is not None
    w_shape, w_dtype = weight.shape, weight.dtype

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape, source = grad.tape, saved[0]
        gx = tape.new("_fused_rms_norm_backward", source.shape, source.dtype, source.batched) if need_x else None
        gw = tape.new("_fused_rms_norm_backward", w_shape, w_dtype, False) if need_w else None
        return (gx, gw)

    node = tape.record("_fused_rms_norm", (x, weight), backward, (x,))
    out = tape.new("_fused_rms_norm", x.shape, x.dtype, x.batched, None, node)
    rstd = tape.new("_fused_rms_norm", (*x.shape[:-1], 1), FP32, x.batched)
    tape.save(node, rstd)
    return out


def composed_rms_norm(x: Tensor, weight: Parameter) -> Tensor:
    """`nn.RMSNorm` before there was a kernel: 16 bits become fp32 first, and 16 bits again before the weight.

    Source: PyTorch 2.8, aten/src/ATen/native/layer_norm.cpp, rms_norm.
    """
    _wide = to(x, FP32)
    _root = rsqrt(mean_last(pow_scalar(_wide)))
    result = to(mul(_wide, _root), x.dtype)
    return mul(result, weight)


def rotate(x: Tensor) -> Tensor:
    """Pairs of fp32 numbers [B, S, h, d] as complex ones, times the frequencies [S, d / 2] of a buffer: new.

    Only the buffer is saved, as the product is linear in x.
    Backward: 1 new, and while it is made the conjugate frequencies, which the kernel cannot take as a view.
    Source: tools/autograd/derivatives.yaml, mul.Tensor; aten/src/ATen/ConjugateFallback.cpp.
    """
    shape, batched = x.shape, x.batched
    frequencies = (shape[1] * shape[3] // 2 * COMPLEX64_BYTES // FP32.itemsize,)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        _conjugate = tape.new("clone", frequencies, FP32, False)
        return (tape.new("mul", shape, FP32, batched),)

    node = x.tape.record("mul", (x,), backward)
    return x.tape.new("mul", shape, FP32, batched, None, node)


def compiled_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """`F.cross_entropy` of 16-bit logits, cast to fp32 inside of what is compiled: only rows of them are ever in fp32.

    Saves `logits`: the probabilities are computed again from them.
    Saves `target`: the places where one is subtracted.
    Saves `largest`: the maximum of each row.
    Saves `logarithm`: that of the sum of each row's exponentials.
    Saves `count`: the mean divides by it.
    Backward: 1 new, in the element type of the logits.
    Source: torchtitan/components/loss.py, build_cross_entropy_loss; torch/_inductor/scheduler.py, fusion of reductions
    and point-wise operators.
    """
    tape = logits.tape
    row = (logits.shape[0], 1)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like("cross_entropy_backward", saved[0]),)

    node = tape.record("cross_entropy", (logits,), backward, (logits, target))
    largest = tape.new("amax", row, FP32, logits.batched)
    logarithm = tape.new("log", row, FP32, logits.batched)
    count = tape.new("sum", (), FP32, False)
    tape.save(node, largest, logarithm, count)
    return tape.new("cross_entropy", (), FP32, False, None, node)


def received(tape: Tape, shape: Shape, dtype: DType) -> Tensor:
    """What an earlier stage of a pipeline has sent: a leaf that needs a gradient, which goes back to it.

    Nothing new: it is received into a buffer of the stage, one for each micro-batch of the step.
    Source: torch/distributed/pipelining/stage.py, _create_act_recv_info and get_bwd_send_ops.
    """
    return asked(tape.constant(shape, dtype, True))


def sent(x: Tensor) -> Tensor:
    """What a later stage gets: nothing new; a scalar stands for what becomes of it there.

    Backward: nothing new, the gradient that was received into a buffer of the stage.
    Source: torch/distributed/pipelining/stage.py, _create_grad_recv_info.
    """
    shape, dtype, batched = x.shape, x.dtype, bool(x.batched)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.constant(shape, dtype, batched),)

    node = x.tape.record("send", (x,), backward)
    return x.alias((), None, node)
