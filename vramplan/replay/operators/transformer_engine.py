"""Operator rule of Transformer Engine's Linear in fp8, as llm-foundry has it with `fc_type: te`.

Read off Transformer Engine 0.10, which its benchmarks install: transformer_engine/pytorch/module/linear.py and base.py.
Its kernels are no part of PyTorch, so that this was not traced.
"""

from __future__ import annotations

from math import prod

from vramplan.replay.operators.float8 import E4M3, E5M2
from vramplan.replay.operators.views import Grads, view
from vramplan.replay.recorder import Saved, rounded
from vramplan.replay.tensors import FP32, Parameter, Tensor, reshape_gradient

SCALES = 3  # of a layer's input, weight and output
META_TENSORS = 6  # of a layer: scales, their inverses and histories of the largest values, of forward and of backward
CUBLAS_WORKSPACE_BYTES = 32 << 20  # on Hopper; get_cublas_workspace_size_bytes


def te_linear(x: Tensor, weight: Parameter, bias: Parameter) -> Tensor:
    """te.Linear: x and the weight [out, in] are cast to fp8, each with a transposed copy; new, in the dtype of x.

    Both casts of the weight are made for each micro-batch (`is_first_microbatch` is None).
    Saves `turned`: x in fp8, transposed, which the gradient of the weight is made of; x itself is not saved.
    Saves `weight`: as it is.
    Saves `turned_weight`: the weight in fp8, transposed, which the gradient of x is made of.
    Saves `inverses`: what undoes the scales.
    Backward: the incoming gradient in fp8 (e5m2) and transposed, with the gradient of the bias; then the gradient of x,
    then that of the weight, both in 16 bits.
    Source: TransformerEngine 0.10, transformer_engine/pytorch/module/linear.py, _Linear; base.py,
    get_fp8_weights_empty_tensors and grad_output_preprocess.
    """
    tape = x.tape
    out_features, in_features = weight.shape
    lead = x.shape[:-1]
    rows = prod(lead)
    dtype, batched = x.dtype, x.batched
    x = view(x, (rows, in_features))
    work = 2 * rows * in_features * out_features

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        flat = reshape_gradient(grad, (rows, out_features))
        of_bias = tape.new("fp8_cast_transpose_bgrad_fused", (out_features,), dtype, False)
        _cast = tape.new("fp8_cast_transpose_bgrad_fused", (rows, out_features), E5M2, batched)
        _turned = tape.new("fp8_cast_transpose_bgrad_fused", (out_features, rows), E5M2, batched)
        del flat
        tape.work(2 * work)
        of_x = tape.new("fp8_gemm", (rows, in_features), dtype, batched)
        of_weight = tape.new("fp8_gemm", (out_features, in_features), dtype, False)
        return (of_x, of_weight, of_bias)

    node = tape.record("te_linear", (x, weight, bias), backward)
    _weight = tape.new("empty", weight.shape, E4M3, False)
    turned_weight = tape.new("empty", (in_features, out_features), E4M3, False)
    _x = tape.new("fp8_cast_transpose_fused", (rows, in_features), E4M3, batched)
    turned = tape.new("fp8_cast_transpose_fused", (in_features, rows), E4M3, batched)
    tape.work(work)
    out = tape.new("fp8_gemm", (rows, out_features), dtype, batched)
    inverses = tape.new("clone", (SCALES,), FP32, False)
    tape.save(node, turned, weight, turned_weight, inverses)
    return view(out.alias(out.shape, None, node), (*lead, out_features))


def kept_by(layers: int) -> list[int]:
    """Bytes that so many layers keep from one step to the next, and the workspace that all share."""
    return [CUBLAS_WORKSPACE_BYTES, layers * META_TENSORS * rounded(FP32.itemsize)]
