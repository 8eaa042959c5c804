"""Operator rules of PyTorch's own context parallelism: the flash kernel over keys and values of all devices in turn.

Each device has an early and a late part of every sequence. What is said is of the last device, whose queries see the
most. Shapes are [B, a, S, d].
Source: torch/distributed/tensor/experimental/_context_parallel/_attention.py, torch 2.13.
"""

from __future__ import annotations

from math import prod

from vramplan.replay.operators.attention import FLASH_ROWS, FLASH_WIDTH, _again
from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved, Tape, rounded
from vramplan.replay.tensors import FP32, INT64, DType, Tensor, round_up


class _Rotater:
    """How keys and values of the other devices come: all at once, or from one device to the next."""

    def __init__(self, tape: Tape, devices: int, *, gathers: bool) -> None:
        self.tape, self.devices, self.gathers = tape, devices, gathers
        self.buffer: Tensor | None = None

    def exchange(self, pair: Tensor) -> None:
        """`exchange_buffers`: what is gathered is gathered once."""
        size = pair.shape[0]
        if not self.gathers:
            self.buffer = self.tape.new("permute_tensor", (size,), pair.dtype, pair.batched)
        elif self.buffer is None:
            self.buffer = self.tape.new("all_gather", (self.devices * size,), pair.dtype, pair.batched)


def ring_flash(q: Tensor, k: Tensor, v: Tensor, devices: int, *, gathers: bool) -> Tensor:
    """`F.scaled_dot_product_attention` by the flash kernel, in `context_parallel`: new, [B, a, S, d].

    Each step's result is added to the ones before in fp32; beside them are keys and values, and what came of others.
    Saves `q`: the scores are made again from q and k.
    Saves `k`: the scores are made again from q and k.
    Saves `v`: the gradient of the probabilities is the incoming one times v.
    Saves `out`: the row sums of the softmax's gradient are those of the incoming one times the output.
    Saves `lse`: it turns the scores back into probabilities.
    Saves `seed`: the dropout mask is drawn again from it.
    Saves `offset`: the dropout mask is drawn again from it.
    Backward: the gradients in fp32, those of keys and values with a buffer to send and one to receive; keys and values
    again; the gradients of one step.
    Source: _templated_ring_attention and _templated_ring_attention_backward; _SDPAMerger with convert_to_f32.
    """
    tape, dtype, batched = q.tape, q.dtype, q.batched
    batch, heads, length, width = q.shape
    pair = (prod(k.shape) + prod(v.shape),)
    work = 4 * batch * heads * length * length * devices * width

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(5 * work // 2, work // 2, width)
        return _backward(tape, saved, devices, gathers=gathers)

    node = tape.record("ring_flash", (q, k, v), backward, (q, k, v))
    kept = tape.recall() if tape.selective else None
    if kept is not None:
        return _again(node, kept)
    tape.work(work, 0, width)
    keys: list[Tensor | None] = [_contiguous(k), _contiguous(v)]
    rotater = _Rotater(tape, devices, gathers=gathers)
    lse = out = total = None
    rest: tuple[Tensor, ...] = ()
    for step in range(devices):
        came = rotater.buffer
        if step < devices - 1:
            _sent = tape.new("cat", pair, dtype, batched)
            rotater.exchange(_sent)
            del _sent
        if step > 0:
            keys[:] = [came, None]
        del came
        new = tape.like("flash_attention", q)
        numbers = tape.new("flash_attention", (batch, heads, length), FP32, batched)
        drawn = (tape.new("flash_attention", (2,), INT64, False), tape.new("flash_attention", (), INT64, False))
        out, rest = new, drawn
        del new, drawn
        wide = tape.like("to", out, FP32)
        if total is None or lse is None:
            total, lse = wide, numbers
        else:
            total, lse = _merged(total, wide, lse)
        del wide, numbers
    assert total is not None
    assert lse is not None
    result = tape.like("to", total, dtype, node)
    if tape.selective:
        tape.keep(False, result, lse, *rest)
    tape.save(node, result, lse, *rest)
    return result


def _merged(total: Tensor, wide: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """`_merge_one`: the weighted sum of two results, and the logarithm of both their sums."""
    tape = total.tape
    gap = tape.like("sub", lse)
    share = tape.like("sigmoid", lse)
    del gap
    difference = tape.like("sub", wide)
    product = tape.like("mul", wide)
    del share, difference
    both = tape.like("sub", wide)
    del product
    gap = tape.like("sub", lse)
    logarithm = tape.like("log_sigmoid", lse)
    del gap
    numbers = tape.like("sub", lse)
    del logarithm
    return both, numbers


def _contiguous(x: Tensor) -> Tensor:
    return x if x.strides is None else x.tape.new("clone", x.shape, x.dtype, x.batched)


def _backward(tape: Tape, saved: Saved, devices: int, *, gathers: bool) -> Grads:
    q, k, v = saved[:3]
    dtype, batched = q.dtype, q.batched
    half = (*k.shape[:2], k.shape[2] // 2, k.shape[3])
    pair = (prod(k.shape) + prod(v.shape),)
    of_q = tape.like("zeros_like", q, FP32)
    of_keys: list[Tensor] = [tape.like("zeros_like", x, FP32) for x in (k, v)]
    keys: list[Tensor | None] = [_contiguous(k), _contiguous(v)]
    rotater, gradients = _Rotater(tape, devices, gathers=gathers), _Rotater(tape, devices, gathers=False)
    steps: list[Tensor] = []
    sent = flat = None
    for step in range(devices):
        came = rotater.buffer
        if step < devices - 1:
            fresh = tape.new("cat", pair, dtype, batched)
            sent = fresh
            del fresh
            rotater.exchange(sent)
        if step > 0:
            keys[:] = [came, None]
        del came
        steps = _step(tape, q, k if step == 0 else None, half, dtype)
        if step > 0:
            flat = gradients.buffer  # what was sent goes
            of_keys.clear()
            of_keys += [tape.new("cat", k.shape, FP32, batched) for _ in "kv"]
        flat = _flattened(of_keys, pair)
        gradients.exchange(flat)
    result = tape.like("to", q)
    del of_q
    assert gradients.buffer is not None
    whole = tape.new("to", pair, dtype, batched)
    del steps, sent, flat
    return (result, whole.alias(k.shape, None, None), whole.alias(v.shape, None, None))


def _step(tape: Tape, q: Tensor, k: Tensor | None, half: tuple[int, ...], dtype: DType) -> list[Tensor]:
    """The gradients of one step, and the scratch of its kernel; keys of other devices are half of theirs."""
    batch, heads, length, width = q.shape
    found = [tape.like("flash_attention_backward", q)]
    shape = half if k is None else k.shape
    found += [tape.new("flash_attention_backward", shape, dtype, q.batched) for _ in "kv"]
    rows = round_up(length, FLASH_ROWS)
    parts = [rows * heads * round_up(width, FLASH_WIDTH) * FP32.itemsize, heads * rows * FP32.itemsize]
    samples = batch // tape.batch

    def of(count: int) -> int:
        return sum(rounded(samples * count * part) for part in parts)

    tape.workspace("flash_attention_backward", of, samples * sum(parts))
    return found


def _flattened(gradients: list[Tensor], pair: tuple[int, ...]) -> Tensor:
    """`torch.cat` of both as rows, of which those that are not contiguous are copied first."""
    tape = gradients[0].tape
    _copies = [_contiguous(x) for x in gradients]
    return tape.new("cat", pair, FP32, gradients[0].batched)
