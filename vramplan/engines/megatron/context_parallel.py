"""Operator rules of attention whose sequences are split over devices, as Transformer Engine has it.

Each device has an early and a late part of every sequence, and its queries see the keys and values of all devices.
What is said is of the last device of the ring, whose queries see the most. Shapes are [S, B, a, d], contiguous.
Files are those of Transformer Engine 2.10. Workspaces inside the kernel are those of the flash kernel
(vramplan/replay/operators/attention.py): the kernel's own are not in any source.
"""

from __future__ import annotations

from math import prod

from vramplan.replay.models.modules import Slice
from vramplan.replay.operators.attention import FLASH_ROWS, FLASH_WIDTH
from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved, Tape, rounded
from vramplan.replay.tensors import FP32, INT32, INT64, Tensor, round_up


def starts_of_parts(batch: int, part: Slice) -> list[int]:
    """Bytes of what is kept for all layers and steps: where sequences begin, and the order of gathered parts.

    For a ring that is of whole sequences, of parts and of their halves; else of whole sequences, and of what each half
    of the queries may see. The order is there for keys and values, and for their gradients.
    Source: pytorch/attention/dot_product_attention/utils.py, get_full_cu_seqlens; context_parallel.py,
    _get_cu_seqlens_info_with_cp, get_seq_chunk_ids_for_reordering_before_attn and the one after it.
    """
    if part.context == 1:
        return []
    starts = [INT32.itemsize * (batch + 1)] * 3
    return starts if part.ring else [*starts, *[INT32.itemsize * 2 * part.context] * 2]


def ring_attention(q: Tensor, k: Tensor, v: Tensor, devices: int) -> Tensor:
    """`AttnFuncWithCPAndKVP2P`: keys and values go round, and each step's result waits for the last one.

    New are the result, the buffers of all steps with what each gives, and all but the result goes when forward returns.
    Saves `q`: the scores are made again from queries and keys.
    Saves `kv`: the buffer that came last.
    Saves `out`: the row sums of the softmax's gradient are those of the incoming one times the output.
    Saves `lse`: it turns the scores back into probabilities.
    Saves `seeds`: the dropout mask of each step is drawn again.
    Backward: that of the queries; two buffers with keys, values and the gradients of both; those of one step.
    Source: pytorch/attention/dot_product_attention/context_parallel.py, AttnFuncWithCPAndKVP2P; arXiv:2310.01889.
    """
    tape = q.tape
    length, batch, heads, width = q.shape
    pair, batched = (2 * prod(k.shape),), q.batched
    k_shape, k_dtype, q_dtype = k.shape, k.dtype, q.dtype
    half = (length // 2, *k_shape[1:])
    rows = (batch, heads, length, 1)
    work = _work(length, batch, heads, width, length * devices)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(5 * work // 2, work // 2, width)
        if grad.strides is not None:
            grad = tape.new("clone", grad.shape, grad.dtype, batched)
        of_q = tape.like("empty_like", saved[0])
        buffers = [tape.new("send_recv", (2, *pair), k_dtype, batched) for _ in range(2)]
        _steps: tuple[Tensor, ...] = ()
        for step in range(devices):
            _steps = ()
            keys = k_shape if step == devices - 1 else half
            _steps = tuple(
                tape.new("fused_attn_bwd", shape, q_dtype, batched) for shape in ((length, *q.shape[1:]), keys, keys)
            )
            _workspace(tape, (length, batch, heads, width), keys, q_dtype.itemsize)
        kept = buffers[devices % 2]
        return (of_q, kept.alias(k_shape, None, None), kept.alias(k_shape, None, None))

    node = tape.record("ring_attention", (q, k, v), backward, (q,))
    tape.work(work, 0, width)
    buffers = [tape.new("cat", pair, k_dtype, batched)]
    results, sums, seeds = [], [], []
    whole = None
    for step in range(devices):
        if step < devices - 1:
            buffers.append(tape.like("empty_like", buffers[0]))
        results.append(tape.like("fused_attn_fwd", q))
        sums.append(tape.new("fused_attn_fwd", rows, FP32, batched))
        seeds.append(tape.new("fused_attn_fwd", (2,), INT64, False))
        if step == 0:
            continue
        if whole is None:
            whole = tape.like("clone", sums[0])
    assert whole is not None
    out = tape.like("out_correction", q, None, node)
    tape.save(node, buffers[-1], out, whole, *seeds)
    return out


def gathered_attention(q: Tensor, k: Tensor, v: Tensor, devices: int) -> Tensor:
    """`AttnFuncWithCPAndKVAllGather`: keys and values of all devices, sorted; then one half of the queries at a time.

    New are the result, what is gathered, and what each half gives; of what is gathered nothing stays.
    Saves `q`: the scores are made again from queries and keys.
    Saves `k`: it is gathered again.
    Saves `v`: it is gathered again.
    Saves `outs`: what each half gave, beside the result that is made of both.
    Saves `lses`: they turn the scores back into probabilities.
    Saves `seeds`: the dropout mask of each half is drawn again.
    Saves `starts`: where the parts of the queries begin, for the kernel.
    Backward: that of the queries; keys and values and their gradients of all devices; the gradients of both halves.
    Source: pytorch/attention/dot_product_attention/context_parallel.py, AttnFuncWithCPAndKVAllGather; arXiv:2407.21783,
    section 3.3.2.
    """
    tape = q.tape
    length, batch, heads, width = q.shape
    whole = (length * devices, *k.shape[1:])
    dtype, batched, q_shape = q.dtype, q.batched, q.shape
    half = (length // 2, *q_shape[1:])
    ranges = [(length // 2 * chunks, *k.shape[1:]) for chunks in (devices, devices + 1)]  # that each half may see
    work = _work(length, batch, heads, width, length * devices)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(5 * work // 2, work // 2, width)
        of_q = tape.like("empty_like", saved[0])
        of_both = [tape.new("zeros", whole, dtype, batched) for _ in "kv"]
        parts = [tape.new("all_gather", whole, dtype, batched) for _ in "kv"]
        for i in range(2):
            parts[i] = tape.new("index_select", whole, dtype, batched)
        _steps = []
        for seen in ranges:
            if grad.strides is not None:
                _copied = tape.new("clone", half, dtype, batched)
            _steps.append([tape.new("fused_attn_bwd", shape, dtype, batched) for shape in (half, seen, seen)])
            _workspace(tape, half, seen, dtype.itemsize)
        for i in range(2):
            of_both[i] = tape.new("index_select", whole, dtype, batched)
        for i in range(2):
            of_both[i] = tape.new("reduce_scatter", saved[1].shape, dtype, batched)
        return (of_q, *of_both)

    node = tape.record("gathered_attention", (q, k, v), backward, (q, k, v))
    tape.work(work, 0, width)
    starts = tape.new("floor_divide", (2,), INT32, False)  # one more than samples, and no more than one block of memory
    parts = [tape.new("all_gather", whole, dtype, batched) for _ in "kv"]
    for i in range(2):
        parts[i] = tape.new("index_select", whole, dtype, batched)
    out = tape.like("empty_like", q, None, node)
    results, sums, seeds = [], [], []
    for _half in range(2):
        results.append(tape.new("fused_attn_fwd", half, dtype, batched))
        sums.append(tape.new("fused_attn_fwd", (batch, heads, length // 2, 1), FP32, batched))
        seeds.append(tape.new("fused_attn_fwd", (2,), INT64, False))
    tape.save(node, *results, *sums, *seeds, starts)
    return out


def _work(length: int, batch: int, heads: int, width: int, keys: int) -> int:
    """Operations of both products of forward, over all keys that a device's queries may see."""
    return 4 * length * batch * heads * width * keys


def _workspace(tape: Tape, queries: tuple[int, ...], keys: tuple[int, ...], itemsize: int) -> None:
    """An fp32 accumulator of the gradient of the queries and its row sums; those of keys and values by query head."""
    length, _, heads, width = queries
    rows = round_up(length, FLASH_ROWS)
    parts = [rows * heads * round_up(width, FLASH_WIDTH) * FP32.itemsize, heads * rows * FP32.itemsize]
    if keys[2] != heads:
        parts += [keys[0] * heads * width * itemsize] * 2

    def of(samples: int) -> int:
        return sum(rounded(samples * part) for part in parts)

    tape.workspace("fused_attn_bwd", of, sum(parts))
