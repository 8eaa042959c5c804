"""The rule of FlashAttention 1, the kernel of `F.scaled_dot_product_attention` in PyTorch 2.0 and 2.1."""

from __future__ import annotations

from vramplan.replay.layouts import contiguous_strides, view_strides
from vramplan.replay.operators.ragged import ends_of_pieces
from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import FP32, Tensor, round_up

WIDEST_OF_LONG_BLOCKS = 64  # elements of a head whose keys the kernel takes 256 at a time; else 128
LONG_BLOCK, SHORT_BLOCK = 256, 128
ROWS = 16  # fmha_api.cpp: the lengths of queries are rounded to 16


def first_flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """FlashAttention 1 of [B, a, S, d]: new, always [B, S, a, d] in memory, whatever the layout of q is.

    The kernel takes rows of all samples, [B * S, a, d]: queries, keys and values that cannot be seen so are copied, in
    forward and in backward, and the copies go with the call. Where the keys are more than the kernel takes at once, the
    output is summed in fp32 beside. The seed and the offset are on the host.
    Saves `q`: the scores are made again from q and k.
    Saves `k`: the scores are made again from q and k.
    Saves `v`: the gradient of the probabilities is the incoming one times v.
    Saves `out`: the row sums of the softmax's gradient are those of the incoming one times the output.
    Saves `lse`: it turns the scores back into probabilities.
    Saves `ends`: where each sequence begins and ends, of queries and of keys.
    Backward: dq, dk, dv, in the layout of the output; before them the copies, also of the gradient; workspace:
    softmax_d, and where the keys are more than the kernel takes at once an fp32 accumulator of dq.
    Source: PyTorch 2.1, aten/src/ATen/native/transformers/cuda/attention.cu and attention_backward.cu,
    _scaled_dot_product_flash_attention_cuda; flash_attn/fmha_api.cpp, mha_fwd and mha_bwd.
    """
    tape = q.tape
    batch, heads, length, width = q.shape
    kv_length = k.shape[2]
    per_sample = batch // tape.batch
    loops = kv_length > (LONG_BLOCK if width <= WIDEST_OF_LONG_BLOCKS else SHORT_BLOCK)
    sums_bytes = per_sample * heads * length * width * FP32.itemsize
    rows = round_up(length, ROWS)
    scratch_bytes = [per_sample * heads * rows * FP32.itemsize] + [sums_bytes] * loops

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        scores = 2 * batch * heads * length * kv_length * width
        tape.work(5 * scores, scores, width)  # five products: scores again, dv, dp, dq, dk
        _copies = [_in_rows(x) for x in (*saved[:3], grad)]
        grads = tuple(tape.by_position("flash_attention_backward", x) for x in saved[:3])
        tape.scratch("flash_attention_backward", scratch_bytes)
        return grads

    node = tape.record("flash_attention", (q, k, v), backward, (q, k, v))
    kept = tape.recall() if tape.selective else None
    if kept is not None:
        out = kept[0].alias(kept[0].shape, kept[0].strides, node)
        tape.save(node, out, *kept[1:])
        return out
    tape.work(4 * batch * heads * length * kv_length * width, 0, width)
    ends = [ends_of_pieces(tape, per_sample, "arange") for _ in range(2)]
    _copies = [_in_rows(x) for x in (q, k, v)]
    out = tape.by_position("flash_attention", q, node)
    if loops:
        tape.scratch("flash_attention", [sums_bytes])
    lse = tape.new("flash_attention", (batch, heads, rows), FP32, q.batched)
    del _copies
    if tape.selective:
        tape.keep(False, out, lse, *ends)
    tape.save(node, out, lse, *ends)
    return out


def _in_rows(x: Tensor) -> Tensor | None:
    """`x.transpose(1, 2).reshape(B * S, a, d)`: None where that is a view, else the copy."""
    batch, heads, length, width = x.shape
    own = contiguous_strides(x.shape) if x.strides is None else x.strides
    rows = (batch * length, heads, width)
    is_view, _strides = view_strides((batch, length, heads, width), (own[0], own[2], own[1], own[3]), rows)
    return None if is_view else x.tape.new("clone", rows, x.dtype, x.batched)
