"""Operator rules of the fused attention kernels (scaled_dot_product_attention): flash and memory-efficient.

q, k, v are [B, a, S, d]. Workspaces inside the kernels are read off their sources; they cannot be seen in a trace of
operators, so they are agreement with the reading of a source, not with a measurement.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.observers import Release
from vramplan.replay.operators.views import (
    Grads,
    autocast_half,
    narrow,
    pad_last,
    repeat_interleave,
)
from vramplan.replay.recorder import Saved, Tape, rounded
from vramplan.replay.tensors import FP32, INT64, Tensor, dense_like, round_up

FLASH_ROWS, FLASH_WIDTH = 128, 32  # flash_api.cpp, mha_bwd: seqlen_q rounded to 128, head size to 32
FLASH_HEAD_MULTIPLE = 8  # sdp_utils.cpp / attention.cu: heads are padded to a multiple of 8 elements
LARGEST_FLASH_HEAD = 256  # elements; sdp_utils.cpp, check_head_dim_size_flash
EFFICIENT_ROWS, EFFICIENT_LSE = 64, 32  # mem_eff_attention kernel_backward.h; attention.cu: logsumexp padded to 32


def scaled_dot_product(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    backend: str,
    dropout_p: float,
    mask: Tensor | None = None,
    *,
    causal: bool = True,
) -> Tensor:
    """`F.scaled_dot_product_attention` as the named backend runs it; [B, a, S, d].

    With a mask flash is not asked, as it takes none, and `sdpa` is the memory-efficient kernel; without one `sdpa` is
    what PyTorch is left with where fewer key-value heads than heads come in, plain operators.
    `causal` is whether a token sees earlier ones alone, where there is no mask to say so.

    The scores [B, a, S, S] are never stored: fused kernels make them again in backward.
    Flash pads the head size to a multiple of 8; the memory-efficient kernel gets a copy of each key and value head for
    every query head of its group.
    Source: aten/src/ATen/native/transformers/attention.cpp, scaled_dot_product_attention.
    """
    q, k, v = autocast_half(q), autocast_half(k), autocast_half(v)
    if backend == "math" or (backend == "sdpa" and mask is None and k.shape[1] != q.shape[1]):
        from vramplan.replay.operators.masked_attention import additive_mask, unfused_attention

        added = None if mask is None else additive_mask(autocast_half(mask), q.dtype)
        return unfused_attention(q, k, v, added, dropout_p, causal=causal)
    if mask is not None:
        return masked_attention(q, k, v, mask, dropout_p)
    del dropout_p  # fused kernels redraw the dropout in backward from a seed: it costs no memory
    head = v.shape[3]
    if backend == "flash" and q.tape.role(Release).first_flash and k.shape[1] == q.shape[1]:
        from vramplan.replay.operators.first_flash import first_flash

        return first_flash(q, k, v)
    if backend == "flash":
        missing = -q.shape[3] % FLASH_HEAD_MULTIPLE
        if missing:
            q, k, v = pad_last(q, missing), pad_last(k, missing), pad_last(v, missing)
        out = _flash(q, k, v)
        return narrow(out, -1, head)
    groups = q.shape[1] // k.shape[1]
    if k.shape[1] != q.shape[1]:
        k, v = repeat_interleave(k, groups), repeat_interleave(v, groups)
    return efficient(q, k, v)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout_p: float) -> Tensor:
    """`F.scaled_dot_product_attention` with a mask, boolean or of numbers, that needs no gradient.

    The kernel is the memory-efficient one, or none where there are fewer key-value heads than heads.
    Source: aten/src/ATen/native/transformers/attention.cpp, scaled_dot_product_attention; cuda/sdp_utils.cpp,
    check_for_attn_mask and check_batch_size_and_num_heads_dense.
    """
    from vramplan.replay.operators.masked_attention import additive_mask, aligned_mask, unfused_attention

    scores = (*q.shape[:3], k.shape[2])
    if k.shape[1] != q.shape[1]:
        return unfused_attention(q, k, v, additive_mask(autocast_half(mask), q.dtype), dropout_p)
    # no name for the mask of numbers: where its rows are padded, it goes before the kernel runs
    return efficient(q, k, v, aligned_mask(additive_mask(autocast_half(mask), q.dtype), scores))


def _flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The flash kernel: new, in the memory layout of q; the logsumexp (fp32 per row), seed and offset.

    Saves `q`: the scores are made again from q and k.
    Saves `k`: the scores are made again from q and k.
    Saves `v`: the gradient of the probabilities is the incoming one times v.
    Saves `out`: the row sums of the softmax's gradient are those of the incoming one times the output.
    Saves `lse`: it turns the scores back into probabilities.
    Saves `seed`: the dropout mask is drawn again from it.
    Saves `offset`: the dropout mask is drawn again from it.
    Backward: dq, dk, dv; workspace: softmax_d, an fp32 accumulator of dq, and under grouped queries dk and dv per query
    head.
    Source: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_fwd and mha_bwd; arXiv:2205.14135,
    algorithm 4.
    """
    tape = q.tape
    batch, heads, length, width = q.shape
    kv_heads, kv_length = k.shape[1], k.shape[2]
    per_sample = batch // tape.batch
    itemsize = q.dtype.itemsize

    rows = round_up(length, FLASH_ROWS)
    parts = [heads * rows * 4, rows * heads * round_up(width, FLASH_WIDTH) * 4]
    if kv_heads != heads:
        parts += [kv_length * heads * width * itemsize] * 2

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        scores = 2 * batch * heads * length * kv_length * width
        tape.work(5 * scores, scores, width)  # five products: scores again, dv, dp, dq, dk
        grads = tuple(tape.like("flash_attention_backward", x) for x in saved[:3])
        tape.scratch("flash_attention_backward", [per_sample * part for part in parts])
        return grads

    node = tape.record("flash_attention", (q, k, v), backward, (q, k, v))
    kept = tape.recall() if tape.selective else None
    if kept is not None:
        return _again(node, kept)
    tape.work(4 * batch * heads * length * kv_length * width, 0, width)
    shape = (*q.shape[:3], v.shape[3])  # Transformer Engine's takes values of another width
    out = tape.new("flash_attention", shape, q.dtype, q.batched, dense_like(shape, q.strides), node)
    lse = tape.new("flash_attention", (batch, heads, length), FP32, q.batched)
    seed = tape.new("flash_attention", (2,), INT64, False)
    offset = tape.new("flash_attention", (), INT64, False)
    if tape.selective:
        tape.keep(False, out, lse, seed, offset)
    tape.save(node, out, lse, seed, offset)
    return out


def efficient(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, wider: Tensor | None = None) -> Tensor:
    """The memory-efficient kernel: new, [B, S, a, d] in memory; the logsumexp (rows padded to 32), seed and offset.

    Where all samples stand in one row, as the images of Pixtral, the batch is 1 and the row is as long as they are.
    Saves `q`: the scores are made again from q and k.
    Saves `k`: the scores are made again from q and k.
    Saves `v`: the gradient of the probabilities is the incoming one times v.
    Saves `bias`: a mask, where there is one, is added to the scores again.
    Saves `wider`: the copy of the mask of a row that is kept in its place, where its rows were too short.
    Saves `out`: the row sums of the softmax's gradient are those of the incoming one times the output.
    Saves `lse`: it turns the scores back into probabilities.
    Saves `seed`: the dropout mask is drawn again from it.
    Saves `offset`: the dropout mask is drawn again from it.
    Backward: dq, dk, dv; workspace: an fp32 accumulator of dq and delta.
    Source: aten/src/ATen/native/transformers/cuda/attention.cu and attention_backward.cu; arXiv:2112.05682.
    """
    tape = q.tape
    batch, heads, length, width = q.shape
    kv_length = k.shape[2]
    value_width = v.shape[3]  # values may be narrower or wider than queries and keys
    row = length // tape.batch if q.batched and batch < tape.batch else None  # of one sample, where all are in one
    per_sample = 1 if row is not None else batch // tape.batch

    def parts(length: int) -> tuple[int, int]:
        return heads * round_up(length, EFFICIENT_ROWS) * width * 4, heads * length * 4

    per_sample_bytes = per_sample * (heads * row * (width + 1) * 4 if row is not None else sum(parts(length)))

    def workspace_bytes(samples: int) -> int:
        if row is not None:
            return sum(rounded(part) for part in parts(row * samples))
        return sum(rounded(per_sample * samples * part) for part in parts(length))

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        scores = 2 * batch * heads * length * kv_length
        tape.work(scores * (3 * width + 2 * value_width), scores * width, width)
        grads = tuple(tape.by_position("efficient_attention_backward", x) for x in saved[:3])
        tape.workspace("efficient_attention_backward", workspace_bytes, per_sample_bytes)
        return grads

    saves = [one for one in (q, k, v, bias, wider) if one is not None]
    node = tape.record("efficient_attention", (q, k, v), backward, saves)
    kept = tape.recall() if tape.selective else None
    if kept is not None:
        return _again(node, kept)
    tape.work(2 * batch * heads * length * kv_length * (width + value_width), 0, width)
    out = tape.by_position("efficient_attention", q, node, value_width)
    rows = 0 if tape.no_grad else round_up(length, EFFICIENT_LSE)  # nobody will ask for it where nothing is recorded
    lse = tape.new("efficient_attention", (batch, heads, rows), FP32, q.batched)
    if row is not None and rows:
        assert lse.storage is not None
        _resize_row(tape, lse.storage.index, lambda samples: heads * round_up(row * samples, EFFICIENT_LSE) * 4)
    seed = tape.new("efficient_attention", (1,), INT64, False)
    offset = tape.new("efficient_attention", (1,), INT64, False)
    if tape.selective:
        tape.keep(False, out, lse, seed, offset)
    tape.save(node, out, lse, seed, offset)
    return out


def _resize_row(tape: Tape, index: int, size: Callable[[int], int]) -> None:
    """Give a storage the bytes that a row of so many samples has, which are not as many times those of one."""
    if not tape.direct:
        tape.resize(index, 0, size(tape.batch) // tape.batch, lambda samples: rounded(size(samples)))
        tape.unseen.rows[index] = size


def _again(node: object, kept: tuple[Tensor, ...]) -> Tensor:
    """The results of a kernel that a selective checkpoint kept, in place of running it again."""
    out, lse, seed, offset = kept
    out = out.alias(out.shape, out.strides, node)
    out.tape.save(node, out, lse, seed, offset)
    return out
