"""Operator rules of Liger's kernels beside its loss: norms, gated activations and rotary positions.

Read off liger-kernel 0.8.5, ops/rms_norm.py, swiglu.py, geglu.py and rope.py: each is an autograd function whose Triton
kernels allocate nothing. What they return is made before anything is saved, and an input that is not in row-major order
is copied.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.operators.views import Grads, contiguous, to, transpose, view
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import FP32, Parameter, Tensor

MULTIPROCESSORS = 132
"""Of an H100 and an H200; an A100 has 108, a B200 148. In backward a norm has one row in fp32 for each of them."""


def rms_norm(x: Tensor, weight: Parameter, *, in_place: bool) -> Tensor:
    """Liger's RMSNorm over the last dimension: new, and 1 / rms of each row in fp32.

    Saves `x`: its gradient and that of the weight need the normalised input, which is made again from x.
    Saves `weight`: the gradient of x is multiplied by it.
    Saves `rstd`: to make the normalised input again without another pass over x.
    Backward: for each multiprocessor of the GPU a row in fp32, which are summed to the gradient of the weight, and then
    cast; `in_place` writes the gradient of x over the incoming one, else it is new.
    Source: liger-kernel 0.8.5, ops/rms_norm.py, LigerRMSNormFunction.
    """
    tape = x.tape
    w_shape, w_dtype, need_w = weight.shape, weight.dtype, weight.node is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        grad = _row_major(grad)
        _rows = tape.new("empty", (MULTIPROCESSORS, *w_shape), FP32, False) if need_w else None
        gx = grad if in_place else tape.like("zeros_like", grad)
        del grad
        if not need_w:
            return (gx, None)
        gw = tape.new("sum", w_shape, FP32, False)
        if w_dtype is not FP32:
            gw = tape.new("to", w_shape, w_dtype, False)
        return (gx, gw)

    node = tape.record("LigerRMSNorm", (x, weight), backward)
    x = _row_major(x)
    out = tape.like("empty", x, None, node)
    rstd = tape.new("empty", (*x.shape[:-1], 1), FP32, x.batched)
    tape.save(node, x, weight, rstd)
    return out


def layer_norm(x: Tensor, weight: Parameter, bias: Parameter | None) -> Tensor:
    """Liger's LayerNorm over the last dimension: new, and mean and 1 / deviation of each row in fp32.

    Saves `x`: its gradient and that of the weight need the normalised input, which is made again from x.
    Saves `weight`: the gradient of x is multiplied by it.
    Saves `bias`: it is kept beside the weight.
    Saves `mean`: to make the normalised input again without another pass over x.
    Saves `rstd`: likewise.
    Backward: for each multiprocessor of the GPU two rows in fp32, which are summed to the gradients of weight and bias,
    and then cast; the gradient of x is new.
    Source: liger-kernel 0.8.5, ops/layer_norm.py, LigerLayerNormFunction.
    """
    tape, parts = x.tape, (weight, bias)
    sizes = [None if one is None or one.node is None else (one.shape, one.dtype) for one in parts]

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        grad = _row_major(grad)
        _rows = [None if one is None else tape.new("empty", (MULTIPROCESSORS, *one[0]), FP32, False) for one in sizes]
        gx = tape.like("empty", grad)
        del grad
        found: list[Tensor | None] = []
        for one in sizes:
            total = None if one is None else tape.new("sum", one[0], FP32, False)
            if one is not None and one[1] is not FP32:
                total = tape.new("to", *one, False)
            found.append(total)
            del total
        return (gx, found[0], found[1])

    node = tape.record("LigerLayerNorm", (x, weight, bias), backward)
    x = _row_major(x)
    out = tape.like("empty", x, None, node)
    mean = tape.new("empty", (*x.shape[:-1], 1), FP32, x.batched)
    rstd = tape.new("empty", (*x.shape[:-1], 1), FP32, x.batched)
    tape.save(node, x, weight, bias, mean, rstd)
    return out


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Liger's SwiGLU, silu(gate) * up: new.

    Saves `gate`: the slope is a function of it, and its gradient is written over it.
    Saves `up`: the gradient of the gate is multiplied by it, and its gradient is written over it.
    Backward: nothing new.
    Source: liger-kernel 0.8.5, ops/swiglu.py, LigerSiLUMulFunction.
    """
    return _gated("LigerSiLUMul", gate, up)


def gelu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Liger's GeGLU, gelu(gate) * up with the tanh of gelu: new.

    Saves `gate`: the slope is a function of it, and its gradient is written over it.
    Saves `up`: the gradient of the gate is multiplied by it, and its gradient is written over it.
    Backward: nothing new.
    Source: liger-kernel 0.8.5, ops/geglu.py, LigerGELUMulFunction.
    """
    return _gated("LigerGELUMul", gate, up)


def _gated(operator: str, gate: Tensor, up: Tensor) -> Tensor:
    tape = gate.tape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        _grad = _row_major(grad)
        return (saved[0], saved[1])

    node = tape.record(operator, (gate, up), backward)
    gate, up = _row_major(gate), _row_major(up)
    out = tape.like("empty_like", gate, None, node)
    tape.save(node, gate, up)
    return out


def rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Liger's rotary positions of queries and keys [B, a, S, d]: they are turned where they lie, if the positions come
    before the heads there, and else copied to be so.

    Saves `cos`: the gradient is turned back by the same angles.
    Saves `sin`: the gradient is turned back by the same angles.
    Backward: gradients are turned where they lie, or copied in the same way.
    Source: liger-kernel 0.8.5, ops/rope.py, LigerRopeFunction.
    """
    tape = query.tape

    def backward(grads: list[Tensor | None], saved: Saved) -> Grads:
        found = [None if one is None else _by_position(one) for one in grads]
        return (found[0], found[1])

    node = tape.record("LigerRope", (query, key), backward)
    turned = _by_position(query), _by_position(key)
    cos, sin = _row_major(cos), _row_major(sin)
    tape.save(node, cos, sin)
    first, second = (one.alias(one.shape, one.strides, node, at) for at, one in enumerate(turned))
    return first, second


def rotary_of_images(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Liger's rotary positions of queries and keys [N, a, d] of images: as of a text [1, a, N, d], in fp32.

    Source: liger-kernel 0.8.5, transformers/rope.py, liger_rotary_pos_emb_vision.
    """
    dtype = query.dtype
    _q32 = _as_text(to(query, FP32))
    _k32 = _as_text(to(key, FP32))
    _cos32 = to(cos, FP32)
    _sin32 = to(sin, FP32)
    q_out, k_out = rotary(_q32, _k32, _cos32, _sin32)
    q_out = to(_as_images(q_out), dtype)
    k_out = to(_as_images(k_out), dtype)
    return q_out, k_out


def _as_text(x: Tensor) -> Tensor:
    """[N, a, d] as [1, a, N, d]."""
    return transpose(view(x, (1, *x.shape)), 1, 2)


def _as_images(x: Tensor) -> Tensor:
    """[1, a, N, d] as [N, a, d]."""
    x = transpose(x, 1, 2)
    return view(x, x.shape[1:])


def _row_major(x: Tensor) -> Tensor:
    """The tensor in row-major order, apart from the graph."""
    return contiguous(x.alias(x.shape, x.strides, None))


def _by_position(x: Tensor) -> Tensor:
    """A tensor [B, a, S, d] over memory that has the positions before the heads, apart from the graph."""
    return transpose(_row_major(transpose(x.alias(x.shape, x.strides, None), 1, 2)), 1, 2)


GATED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"silu": silu_mul, "gelu_pytorch_tanh": gelu_mul}
"""The gated activations that Liger has, by the word of a model."""
