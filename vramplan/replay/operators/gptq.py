"""Operator rule of a linear layer with GPTQ weights, as gptqmodel 7.7 trains through it on CUDA.

The weights need no gradient. They are stored in 4 bits, and each forward pass makes a whole copy of them in fp16, which
autograd keeps: nothing computes it again in backward, but a checkpoint around the layer.
"""

from __future__ import annotations

from math import prod

from vramplan.replay.operators.products import linear
from vramplan.replay.operators.views import Grads, to, view
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import FP16, Parameter, Tensor


def gptq_linear(x: Tensor, weight: Parameter, bias: Parameter | None) -> Tensor:
    """`TorchLinear.forward` with a weight [out, in] and a bias in fp16: new, in the dtype of the input or of autocast.

    A working copy of the weight [in, out] is made in fp16 by one compiled kernel, without temporaries, then cast to the
    dtype of the input; under autocast the product casts it again where that is fp32. The bias is added in place.
    Saves `copy`: the gradient of x is the incoming one times the weight; only if x needs a gradient.
    Backward: with a bias 2 new, the gradient copied twice, as the addition in place was to a view; then the gradient
    of x.
    Source: gptqmodel 7.7.0, nn_modules/qlinear/tritonv2.py, TritonV2Linear.forward; nn_modules/qlinear/torch.py,
    TorchLinear._forward_eager and optimize; nn_modules/qlinear/__init__.py, PackableQuantLinear.dequantize_weight;
    torch/csrc/autograd/functions/tensor.cpp, CopySlices.
    """
    outputs, inputs = weight.shape
    lead = x.shape[:-1]
    rows = prod(lead)
    x = view(x, (rows, inputs))
    tape = x.tape
    copy = tape.new("dequantize_weight", (inputs, outputs), FP16, False, category="weight_casts")
    copy = to(copy, x.dtype, category="weight_casts")
    out = linear(x, copy, transposed=True)
    del copy
    if bias is None:
        return view(out, (*lead, outputs))
    _cast = None if out.dtype is FP16 else tape.new("to", (outputs,), out.dtype, False)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        whole = grad.tape.new("new_empty_strided", grad.shape, grad.dtype, grad.batched)
        grad.tape.new("clone", grad.shape, grad.dtype, grad.batched)
        return (whole,)

    return view(out.alias(out.shape, None, tape.record("add_", (out,), backward)), (*lead, outputs))
