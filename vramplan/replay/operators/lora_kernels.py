"""Operator rules of Axolotl's fused LoRA: several linear layers with their adapters as one autograd function.

Read off axolotl 0.19.0, kernels/lora.py (that of 0.18.0 is the same), after Unsloth's. Each function runs without a
graph inside, multiplies in the element type of its input, and saves its input and the thin matrices in that type; what
is between the layers is made once and written over in backward. Triton's kernels allocate nothing.
"""

from __future__ import annotations

from math import prod

from vramplan.replay.layouts import DType, Shape
from vramplan.replay.operators.quantized import BLOCK, FourBits
from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved, Tape
from vramplan.replay.tensors import FP32, Parameter, Tensor, reshape_gradient
from vramplan.tuples import NamedTuple


class FusedLayer(NamedTuple):
    """A linear layer that is not trained, and the two thin matrices beside it."""

    weight: Parameter  # [out, in]
    first: Parameter  # [rank, in]
    second: Parameter  # [out, rank]
    bits: FourBits | None  # how its weight is stored in 4 bits; None: as it is
    bias: Parameter | None = None

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All that a function asks the layer for, whose own module does not run."""
        return tuple(one for one in (self.weight, self.bias, self.first, self.second) if one is not None)


class _Sizes(NamedTuple):
    """What backward knows of a layer."""

    layer: FusedLayer
    inputs: int
    outputs: int
    rank: int


def fused_mlp(
    x: Tensor, dropped: Tensor | None, gate_proj: FusedLayer, up_proj: FusedLayer, down_proj: FusedLayer
) -> Tensor:
    """Gated layers with LoRA over each: new, and the gate and the other projection, which stay.

    `dropped` is the input behind a dropout, which both thin matrices of the first two layers are given.
    Saves `x`: the gradients of the thin matrices need it.
    Saves `lora_x`: the same behind the dropout; without one it is the input a second time.
    Saves `gate`: its gradient is written over it.
    Saves `up`: its gradient is written over it.
    Saves `gate_a`: in the element type of the input, for the gradient of the input.
    Saves `gate_b`: likewise, for that of the first thin matrix.
    Saves `up_a`: likewise.
    Saves `up_b`: likewise.
    Saves `down_a`: likewise.
    Saves `down_b`: likewise.
    Backward: the gradient between the layers, over which their product is written again; for each layer the gradients
    of its thin matrices and two narrow products; then 1 new, the gradient of the input, and behind a dropout another.
    Source: axolotl 0.19.0, kernels/lora.py, LoRA_MLP; kernels/swiglu.py and geglu.py.
    """
    tape, dtype, shape, batched = x.tape, x.dtype, x.shape, x.batched
    layers = [_sizes(one) for one in (gate_proj, up_proj, down_proj)]
    has_dropout, need_x, rows = dropped is not None, x.node is not None, prod(shape[:-1])

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        gate_of, up_of, down_of = layers
        grad = reshape_gradient(grad, (rows, down_of.outputs))
        hidden = _multiplied_back(grad, down_of, dtype, rows, batched)
        tape.launch("gated_", (hidden, saved[2], saved[3]))
        found: list[Tensor | None] = []
        thin = []
        for one, by in ((down_of, grad), (up_of, saved[3]), (gate_of, saved[2])):
            a, b, narrow = _of_thin(by, one, dtype, rows, batched)
            found += (b, a)
            thin.append(narrow)
            del a, b, narrow
        gx = _through(tape, (up_of, gate_of), dtype, shape, batched) if need_x else None
        extra = tape.new("zeros_like", shape, dtype, batched) if has_dropout else None
        return (gx, extra, *reversed(found))

    inputs = (x, dropped, *(one for layer in (gate_proj, up_proj, down_proj) for one in (layer.first, layer.second)))
    node = tape.record("LoRA_MLP", inputs, backward)
    lora_x = x if dropped is None else dropped
    gate = _multiplied(x, gate_proj)
    up = _multiplied(x, up_proj)
    tape.launch("gated", (gate, up))
    hidden = tape.like("gated", gate)
    out = _multiplied(hidden, down_proj)
    gate_a, gate_b = _cast(gate_proj.first, dtype), _cast(gate_proj.second, dtype)
    up_a, up_b = _cast(up_proj.first, dtype), _cast(up_proj.second, dtype)
    down_a, down_b = _cast(down_proj.first, dtype), _cast(down_proj.second, dtype)
    tape.save(node, x, lora_x, gate, up, gate_a, gate_b, up_a, up_b, down_a, down_b)
    return out.alias(out.shape, None, node)


def fused_projections(
    x: Tensor, dropped: Tensor | None, q_proj: FusedLayer, k_proj: FusedLayer, v_proj: FusedLayer
) -> list[Tensor]:
    """Queries, keys and values with LoRA over each: three new.

    `dropped` is the input behind a dropout, which all thin matrices are given.
    Saves `x`: it is kept for the gradients of the thin matrices.
    Saves `lora_x`: the same behind the dropout; without one it is the input a second time.
    Saves `q_a`: in the element type of the input, for the gradient of the input.
    Saves `q_b`: likewise, for that of the first thin matrix.
    Saves `k_a`: likewise.
    Saves `k_b`: likewise.
    Saves `v_a`: likewise.
    Saves `v_b`: likewise.
    Backward: for each layer the gradients of its thin matrices and two narrow products; then 1 new, the gradient of the
    input, whether it needs one or not, and behind a dropout another.
    Source: axolotl 0.19.0, kernels/lora.py, LoRA_QKV.
    """
    tape, dtype, shape, batched = x.tape, x.dtype, x.shape, x.batched
    layers = (q_proj, k_proj, v_proj)
    sizes = [_sizes(one) for one in layers]
    has_dropout, rows = dropped is not None, prod(shape[:-1])

    def backward(grads: list[Tensor | None], saved: Saved) -> Grads:
        tape = next(one.tape for one in grads if one is not None)
        flat = []
        for one, given in zip(sizes, grads, strict=True):
            grad = tape.new("zeros", (*shape[:-1], one.outputs), dtype, batched) if given is None else given
            flat.append(reshape_gradient(grad, (rows, one.outputs)))
            del grad, given
        found: list[Tensor | None] = []
        narrow = []
        for one, by in zip(sizes, flat, strict=True):
            a, b, product = _of_thin(by, one, dtype, rows, batched)
            found += (a, b)
            narrow.append(product)
            del a, b, product
        gx = _through(tape, sizes, dtype, shape, batched)
        extra = tape.new("zeros_like", shape, dtype, batched) if has_dropout else None
        return (gx, extra, *found)

    inputs = (x, dropped, *(one for layer in layers for one in (layer.first, layer.second)))
    node = tape.record("LoRA_QKV", inputs, backward)
    lora_x = x if dropped is None else dropped
    made = [_multiplied(x, layer) for layer in layers]
    q_a, q_b = _cast(q_proj.first, dtype), _cast(q_proj.second, dtype)
    k_a, k_b = _cast(k_proj.first, dtype), _cast(k_proj.second, dtype)
    v_a, v_b = _cast(v_proj.first, dtype), _cast(v_proj.second, dtype)
    tape.save(node, x, lora_x, q_a, q_b, k_a, k_b, v_a, v_b)
    return [one.alias(one.shape, None, node, at) for at, one in enumerate(made)]


def fused_linear(x: Tensor, dropped: Tensor | None, layer: FusedLayer) -> Tensor:
    """A layer with LoRA over it: new.

    `dropped` is the input behind a dropout, which the thin matrices are given.
    Saves `a`: in the element type of the input, for the gradient of the input.
    Saves `b`: likewise, for that of the first thin matrix.
    Saves `x`: the gradients of the thin matrices need it.
    Saves `lora_x`: the same behind the dropout; without one it is the input a second time.
    Backward: the gradients of the thin matrices and two narrow products; then 1 new, the gradient of the input, and
    behind a dropout two more, of which one stays.
    Source: axolotl 0.19.0, kernels/lora.py, LoRA_O.
    """
    tape, dtype, shape, batched = x.tape, x.dtype, x.shape, x.batched
    size = _sizes(layer)
    has_dropout, rows = dropped is not None, prod(shape[:-1])

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        flat = reshape_gradient(grad, (rows, size.outputs))
        ga, gb, _narrow = _of_thin(flat, size, dtype, rows, batched)
        gx = _through(tape, (size,), dtype, shape, batched)
        extra = tape.new("mm", shape, dtype, batched) if has_dropout else None
        if extra is not None:
            extra = tape.like("mul", extra)
        return (gx, extra, ga, gb)

    node = tape.record("LoRA_O", (x, dropped, layer.first, layer.second), backward)
    out = _multiplied(x, layer)
    lora_x = x if dropped is None else dropped
    a, b = _cast(layer.first, dtype), _cast(layer.second, dtype)
    tape.save(node, a, b, x, lora_x)
    return out.alias(out.shape, None, node)


def _sizes(layer: FusedLayer) -> _Sizes:
    outputs, inputs = layer.weight.shape
    return _Sizes(layer, inputs, outputs, layer.first.shape[0])


def _multiplied(x: Tensor, layer: FusedLayer) -> Tensor:
    """matmul_lora: the layer's product, to which that of the thin matrices is added in place; a bias is, too."""
    tape, dtype, rows = x.tape, x.dtype, prod(x.shape[:-1])
    _, inputs, outputs, rank = _sizes(layer)
    whole = _whole(layer)
    tape.launch("mm", (x, layer.weight))
    tape.work(2 * rows * inputs * outputs)
    out = tape.new("mm", (*x.shape[:-1], outputs), dtype, x.batched)
    del whole
    a, b = _cast(layer.first, dtype), _cast(layer.second, dtype)
    tape.launch("mm", (x, a))
    tape.work(2 * rows * inputs * rank)
    thin = tape.new("mm", (rows, rank), dtype, x.batched)
    tape.launch("addmm_", (out, thin, b))
    tape.work(2 * rows * rank * outputs)
    del thin
    return out


def _multiplied_back(grad: Tensor, size: _Sizes, dtype: DType, rows: int, batched: int) -> Tensor:
    """The same with weights that are transposed: the gradient of the input of a layer. Its thin matrices are saved."""
    tape = grad.tape
    whole = _whole(size.layer)
    tape.launch("mm", (grad, size.layer.weight))
    tape.work(2 * rows * size.inputs * size.outputs)
    out = tape.new("mm", (rows, size.inputs), dtype, batched)
    del whole
    tape.work(2 * rows * size.outputs * size.rank)
    thin = tape.new("mm", (rows, size.rank), dtype, batched)
    tape.launch("addmm_", (out, thin))
    tape.work(2 * rows * size.rank * size.inputs)
    del thin
    return out


def _of_thin(grad: Tensor, size: _Sizes, dtype: DType, rows: int, batched: int) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of both thin matrices, and the incoming one times the second of them, which is used again."""
    tape, rank = grad.tape, size.rank
    tape.launch("mm", (grad,))
    tape.work(2 * rows * size.outputs * rank)
    narrow = tape.new("mm", (rows, rank), dtype, batched)
    ga = tape.new("empty_like", (rank, size.inputs), dtype, False)
    gb = tape.new("empty_like", (size.outputs, rank), dtype, False)
    tape.launch("addmm_", (ga, narrow))
    tape.work(2 * rows * rank * size.inputs)
    tape.work(2 * rows * rank * size.inputs)
    across = tape.new("mm", (rank, rows), dtype, batched)
    tape.launch("addmm_", (gb, across, grad))
    tape.work(2 * rows * rank * size.outputs)
    del across
    return ga, gb, narrow


def _through(tape: Tape, sizes: list[_Sizes] | tuple[_Sizes, ...], dtype: DType, shape: Shape, batched: int) -> Tensor:
    """The gradient of an input that several layers share: the first product, to which the others are added."""
    gx: Tensor | None = None
    rows = prod(shape[:-1])
    for size in sizes:
        whole = _whole(size.layer)
        work = 2 * rows * size.inputs * size.outputs
        if gx is None:
            if whole is not None:  # else the product is what the function began with
                tape.launch("mm", (size.layer.weight,))
            tape.work(work)
            gx = tape.new("mm", shape, dtype, batched)
        else:
            tape.launch("addmm_", (gx, size.layer.weight))
            tape.work(work)
        del whole
    assert gx is not None
    for size in sizes:
        tape.launch("addmm_", (gx,))
        tape.work(2 * rows * size.rank * size.inputs)
    return gx


def _whole(layer: FusedLayer) -> Tensor | None:
    """A copy of a weight of 4 bits while it is multiplied; None of one that is as it is.

    With double quantization the maxima of its blocks are made in fp32 behind the copy, and go before the product.
    Source: axolotl 0.19.0, kernels/quantize.py, dequantize.
    """
    if layer.bits is None:
        return None
    weight, tape = layer.weight, layer.weight.tape
    tape.launch("dequantize_4bit", (weight,))
    whole = tape.new("dequantize_4bit", weight.shape, layer.bits.stored, False, category="weight_casts")
    if layer.bits.nested:
        _maxima = tape.new("dequantize_blockwise", (-(-weight.elements // BLOCK),), FP32, False)
    return whole


def _cast(weight: Parameter, dtype: DType) -> Tensor:
    """A thin matrix in the element type of the products: itself, or a copy."""
    if weight.dtype is dtype:
        return weight
    weight.tape.launch("to", (weight,))
    return weight.tape.new("to", weight.shape, dtype, False)
