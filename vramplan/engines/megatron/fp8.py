"""Operator rule of Transformer Engine's linear layers in fp8, as Megatron-LM has them with `--fp8-format`.

Read off Transformer Engine 2.8: transformer_engine/pytorch/module/{linear,layernorm_linear,base}.py,
and megatron-core's core/extensions/transformer_engine.py. Its kernels are no part of PyTorch: this was not traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from vramplan.replay.operators.float8 import E4M3, E5M2
from vramplan.replay.operators.transformer_engine import CUBLAS_WORKSPACE_BYTES
from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved, rounded
from vramplan.replay.tensors import Parameter, Shape, Tensor

COPIES = 2  # of a weight in fp8: as it is, and transposed


def fp8_linear(
    x: Tensor, weight: Parameter, bias: Parameter | None = None, *, gathered: int = 1, groups: int = 1
) -> Tensor:
    """te.Linear of a layer whose weight is kept in fp8: x is cast to fp8, with a transposed copy; new, in 16 bits.

    `gathered` says over how many devices the sequence of x is split: then x is gathered in fp8.
    `groups`: the weight is those of so many experts, among which the rows are spread.
    Saves `turned`: x in fp8, transposed, which the gradient of the weight is made of; x itself is not saved. A frozen
    weight needs none.
    Saves `weight`: nothing new, as its copies in fp8 stay from one micro-batch to the next (`is_first_microbatch`).
    Backward: the incoming gradient in fp8 (e5m2) and transposed, with the gradient of the bias; then the gradient of x,
    of a split one its part besides; then that of the weight, both in 16 bits.
    Source: TransformerEngine 2.8, transformer_engine/pytorch/module/linear.py, _Linear; base.py, get_weight_workspace
    and grad_output_preprocess; megatron-core, core/extensions/transformer_engine.py, TELinear.forward.
    """
    tape = x.tape
    length, batch, inputs = x.shape
    outputs = weight.shape[0] // groups
    whole: Shape = (length * gathered, batch, inputs)
    rows = whole[0] * batch
    work = 2 * prod(whole) * outputs
    part, dtype, batched, w_shape = x.shape, x.dtype, x.batched, weight.shape
    need_x, need_w = x.node is not None, weight.node is not None
    biased = bias is not None and bias.node is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(work * (need_x + need_w))
        of_bias = tape.new("sum", (outputs * groups,), grad.dtype, False) if biased else None
        _cast = tape.new("fp8_cast_transpose", (rows, outputs), E5M2, batched)
        _turned = tape.new("fp8_cast_transpose", (outputs, rows), E5M2, batched) if need_w else None
        of_x = tape.new("fp8_gemm", whole, dtype, batched)
        result = of_x if gathered == 1 else tape.new("reduce_scatter", part, dtype, batched)
        del of_x
        _whole = tape.new("all_gather", (inputs, rows), E4M3, batched) if gathered > 1 and need_w else None
        of_weight = tape.new("fp8_gemm", w_shape, grad.dtype, False) if need_w else None
        return (result, of_weight, of_bias)

    node = tape.record("te_linear", (x, weight, bias), backward)
    _x = tape.new("fp8_cast_transpose", (prod(part[:2]), inputs), E4M3, batched)
    turned = tape.new("fp8_cast_transpose", (inputs, prod(part[:2])), E4M3, batched) if need_w else None
    if gathered > 1:
        _x = tape.new("all_gather", (rows, inputs), E4M3, batched)
    tape.work(work)
    out = tape.new("fp8_gemm", (*whole[:2], outputs), dtype, batched)
    tape.save(node, *(() if turned is None else (turned,)), weight)
    return out.alias(out.shape, None, node)


def kept_by(parameters: Sequence[Parameter], shards: int) -> list[int]:
    """Bytes of the copies in fp8 that layers keep of their weights, and of the workspace that all share.

    `shards`: the devices that share the weights, of whose copies each has a part, as with `--fp8-param-gather`.
    """
    layers = [one for one in parameters if one.in_linear]
    return [CUBLAS_WORKSPACE_BYTES, sum(COPIES * rounded(one.elements) * one.copies for one in layers) // shards]
