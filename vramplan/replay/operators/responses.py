"""Operator rules of global response normalization: a norm for each channel of an image, over its mean."""

from __future__ import annotations

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import BOOL, FP32, Tensor


def norm_of_image(x: Tensor) -> Tensor:
    """`vector_norm(x, dim=(1, 2), keepdim=True)` of [B, H, W, C]: new, [B, 1, 1, C], which autocast asks for in fp32.

    Saves `x`: the gradient is x times the incoming one divided by the norm.
    Saves `out`: the norms that the incoming one is divided by.
    Backward: x divided by its norm, and where the norm is 0, which is filled with zeros in place; then 1 new. The
    engine casts it where x has another type than its norm.
    Source: tools/autograd/derivatives.yaml, linalg_vector_norm; torch/csrc/autograd/FunctionsManual.cpp,
    linalg_vector_norm_backward; aten/src/ATen/autocast_mode.h, AT_FORALL_FP32.
    """
    tape = x.tape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        source, norm = saved[0], saved[1]
        tape = source.tape
        _unit = tape.new("div", source.shape, norm.dtype, source.batched)
        _is_zero = tape.like("eq", norm, BOOL)
        return (tape.like("mul", _unit),)

    node = tape.record("linalg_vector_norm", (x,), backward, (x,))
    dtype = x.dtype if tape.autocast is None else FP32
    out = tape.new("linalg_vector_norm", (x.shape[0], 1, 1, x.shape[3]), dtype, x.batched, None, node)
    tape.save(node, out)
    return out


def over_mean(x: Tensor, mean: Tensor) -> Tensor:
    """x / mean of [B, 1, 1, C] by [B, 1, 1, 1]: new.

    Saves `x`: the gradient of the mean is minus the incoming one times x / mean / mean.
    Saves `mean`: the gradient of x is the incoming one divided by it.
    Backward: 1 new for x; of the mean x / mean, that / mean, minus the incoming one and the product are alive together.
    Source: tools/autograd/derivatives.yaml, div.Tensor; torch/csrc/autograd/FunctionsManual.cpp, div_tensor_other_grad.
    """
    tape = x.tape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        of_x = tape.like("div", grad)
        ratio = tape.like("div", grad)
        again = tape.like("div", grad)
        negative = tape.like("neg", grad)
        of_mean = tape.like("mul", grad)
        del ratio, again, negative
        return (of_x, of_mean)

    node = tape.record("div", (x, mean), backward, (x, mean))
    return tape.like("div", x, None, node)
