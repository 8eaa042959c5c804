"""Operator rule of Liger's fused linear cross-entropy: the head and the loss in one function, chunk by chunk.

Read off liger-kernel 0.8.5, ops/fused_linear_cross_entropy.py; its Triton kernels write in place and allocate nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.observers import Sharding
from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved, rounded
from vramplan.replay.tensors import BOOL, FP32, INT64, Parameter, Tensor


def chunk_rows(rows: int, width: int, vocabulary: int) -> int:
    """Rows of one chunk, whose logits then need about as much as the hidden states of all rows.

    A power of two, and never more than there are rows.
    Source: liger-kernel 0.8.5, ops/fused_linear_cross_entropy.py, fused_linear_cross_entropy_forward.
    """
    chunks = -(-vocabulary // width)
    wanted = -(-rows // chunks)
    return min(1 << (wanted - 1).bit_length(), rows)


def fused_linear_cross_entropy(x: Tensor, weight: Parameter, *, accumulates: bool = True) -> Tensor:
    """Head, loss and their gradients in forward, for x [rows, H] and a weight [V, H]; new, the scalar loss.

    The logits of one chunk of rows at a time are made and turned into their gradient in place. New until it returns:
    the losses of the rows in fp32 and the mask of the labels. In 16 bits without autocast the logits of all chunks
    share one buffer, and the products go straight where they belong; in fp32 there is beside it one more tensor as
    large as the weight, for each chunk. On GPUs before compute capability 8.0 (`accumulates` is false) the product of
    16 bits is a tensor too, and then cast to fp32. Under autocast operands are cast: the transposed weight for each
    chunk, the weight once, as autocast keeps that of a leaf: of a view, as weights are in FSDP1, it keeps none.
    A weight that needs no gradient has none made, and autocast casts it for each product.
    Saves `grad_input`: it is the gradient of x, but for the incoming factor.
    Saves `grad_weight`: it is the gradient of the weight, but for the incoming factor; it has the dtype of the weight.
    Backward: one scalar to compare with; the saved gradients, scaled in place, are the results.
    Source: liger-kernel 0.8.5, ops/fused_linear_cross_entropy.py, LigerFusedLinearCrossEntropyFunction.
    """
    tape = x.tape
    rows, width = x.shape
    vocabulary = weight.shape[0]
    per_sample = rows // tape.batch
    need_w = weight.node is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        one = grad.tape.new("full", (), grad.dtype, False)
        del one
        return (saved[0], saved[1] if need_w else None)

    node = tape.record("fused_linear_cross_entropy", (x, weight), backward)
    grad_input = tape.like("zeros_like", x)
    grad_weight = tape.new("zeros_like", weight.shape, weight.dtype, False) if need_w else None
    losses = tape.new("zeros", (rows,), FP32, x.batched)
    mask = tape.new("ne", (rows,), BOOL, x.batched)
    count = tape.new("sum", (), INT64, False)
    del count
    if need_w:
        is_leaf = not tape.role(Sharding).weights_are_views
        first, later = _scratch(x, weight, per_sample, accumulates, keeps_cast=is_leaf)
        tape.workspace("fused_linear_cross_entropy", first)
        if tape.autocast is not None and weight.dtype is FP32 and weight not in tape.casts and is_leaf:
            tape.casts[weight] = tape.new("to", weight.shape, tape.autocast, False, category="weight_casts")
        tape.workspace("fused_linear_cross_entropy", later)
    else:
        tape.workspace("fused_linear_cross_entropy", _scratch_of_a_frozen_head(x, weight, per_sample))
    tape.work((4 + 2 * need_w) * rows * vocabulary * width)  # products: logits, and the gradients
    loss = tape.new("sum", (), FP32, False, None, node)
    del losses, mask
    tape.save(node, grad_input, *(() if grad_weight is None else (grad_weight,)))
    return loss


def _scratch(
    x: Tensor, weight: Parameter, per_sample: int, accumulates: bool, *, keeps_cast: bool
) -> tuple[Callable[[int], int], Callable[[int], int]]:
    """Most bytes alive inside at a micro-batch: until the first chunk has its logits, and from then on.

    Under autocast the cast of the weight is made in between, and is no part of either where autocast keeps it.
    """
    vocabulary, width = weight.shape
    half = None if x.dtype is weight.dtype is not FP32 else x.tape.autocast
    is_half = x.dtype is half  # as the norm of some models gives it
    itemsize = (half or x.dtype).itemsize
    table = rounded(vocabulary * width * itemsize)
    cast_table = table if weight.dtype is FP32 else 0
    summed = 0 if accumulates or itemsize == FP32.itemsize else rounded(vocabulary * width * FP32.itemsize)

    def sizes(samples: int) -> list[int]:
        """The rows of the first, an inner and the last chunk."""
        rows = per_sample * samples
        size = chunk_rows(rows, width, vocabulary)
        return [size, *([size] if rows > 2 * size else []), *([(rows - 1) % size + 1] if rows > size else [])]

    def logits(rows: int) -> int:
        return rounded(rows * vocabulary * itemsize)

    def hidden(rows: int) -> int:
        return rounded(rows * width * itemsize)

    def cast(rows: int) -> int:
        return 0 if is_half else hidden(rows)

    def first(samples: int) -> int:
        size = sizes(samples)[0]
        return cast_table + cast(size) + logits(size) if half is not None else logits(size)

    def later(samples: int) -> int:
        chunks = sizes(samples)
        product = table + summed if summed or itemsize == FP32.itemsize else 0
        if half is None:
            return logits(chunks[0]) + product
        largest = chunks[0]
        own = hidden(largest) + (table if summed else 0)  # the chunk cast, or a product as large, and the product of it
        passing = 0 if keeps_cast else cast_table + hidden(largest)  # of the gradient of the rows
        again = [cast_table + cast(n) + logits(n) for n in chunks[1:]]  # the transposed weight is cast for each chunk
        return max(logits(largest) + max(own, product, passing), *again, 0)

    return first, later


def _scratch_of_a_frozen_head(x: Tensor, weight: Parameter, per_sample: int) -> Callable[[int], int]:
    """Most bytes alive inside at a micro-batch: the logits of a chunk, and what autocast makes for one product.

    That is the weight, cast at each use, and the rows of the chunk, cast or as the product that is copied away.
    """
    (vocabulary, width), half = weight.shape, x.tape.autocast
    plain = x.dtype is weight.dtype and half in (None, x.dtype)
    itemsize = (half or x.dtype).itemsize
    table = rounded(vocabulary * width * itemsize) if half is not None and weight.dtype is FP32 else 0

    def size(samples: int) -> int:
        rows = chunk_rows(per_sample * samples, width, vocabulary)
        logits = rounded(rows * vocabulary * itemsize)
        return logits if plain else logits + table + rounded(rows * width * itemsize)

    return size
