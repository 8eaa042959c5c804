"""Operator rules of tensor and sequence parallelism by DTensor: what is gathered, what is scattered, what stays.

Of t devices each has a part of the heads, of the inner width and of the vocabulary, and between the products a part of
each sequence. Shapes are those of one device.
"""

from __future__ import annotations

from math import prod

from vramplan.replay.operators.ends import sorting_bytes
from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved, Tape
from vramplan.replay.tensors import BOOL, FP32, INT64, DType, Parameter, Shape, Tensor, round_up


def gather_sequence(x: Tensor, devices: int) -> Tensor:
    """A part of each sequence [B, S/t, H] to whole ones [B, S, H]: the parts one after the other, then side by side.

    The second is a copy, but for one sample, whose parts lie right as they come.
    Backward: the gradient, a part of a sum, is summed over the devices, and each keeps its part of the sequences.
    Source: torch/distributed/tensor/_redistribute.py, Redistribute; torch/distributed/_functional_collectives.py,
    all_gather_tensor; torch/_utils.py, _maybe_view_chunk_cat.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (_scattered(grad, devices, None),)

    return _gathered(x, devices, x.tape.record("all_gather", (x,), backward))


def scatter_sequence(x: Tensor, devices: int) -> Tensor:
    """Parts of a sum [B, S, H] are summed over the devices, and each keeps its part of the sequences [B, S/t, H].

    What is sent is a copy with the parts one after the other. A selective checkpoint keeps the result.
    Backward: the gradient is gathered.
    Source: torch/distributed/tensor/_redistribute.py, Redistribute; torch/distributed/_functional_collectives.py,
    reduce_scatter_tensor.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (_gathered(grad, devices, None),)

    return _scattered(x, devices, x.tape.record("reduce_scatter", (x,), backward), is_forward=True)


def _gathered(x: Tensor, devices: int, node: object) -> Tensor:
    batch, part, width = x.shape
    tape, whole = x.tape, (batch, part * devices, width)
    parts = tape.new(
        "all_gather", (devices * batch, part, width), x.dtype, x.batched, None, node if batch == 1 else None
    )
    if batch == 1:
        return parts.alias(whole, None, node)
    return tape.new("cat", whole, x.dtype, x.batched, None, node)


def _scattered(x: Tensor, devices: int, node: object, *, is_forward: bool = False) -> Tensor:
    batch, length, width = x.shape
    tape, shape = x.tape, (batch, length // devices, width)
    _parts = tape.new("cat", (devices * batch, length // devices, width), x.dtype, x.batched)
    selective = is_forward and tape.selective
    kept = tape.recall() if selective else None
    if kept is not None:
        return kept[0].alias(shape, None, node)
    out = tape.new("reduce_scatter", shape, x.dtype, x.batched, None, node)
    if selective:
        tape.keep(False, out)
    return out


def gather_vocabulary(x: Tensor, devices: int) -> Tensor:
    """Logits of a part of the vocabulary [B, S, V/t] to those of all of it [B, S, V]: as `gather_sequence`, a copy.

    Backward: 1 new, this device's part of the gradient.
    Source: torch/distributed/tensor/_redistribute.py, Redistribute; torch/distributed/tensor/placement_types.py, Shard.
    """
    batch, length, part = x.shape
    tape, before = x.tape, x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("clone", before, grad.dtype, grad.batched),)

    node = tape.record("all_gather", (x,), backward)
    _parts = tape.new("all_gather", (devices * batch, length, part), x.dtype, x.batched)
    return tape.new("cat", (batch, length, part * devices), x.dtype, x.batched, None, node)


def embedding_of_part(ids: Tensor, weight: Parameter, devices: int) -> Tensor:
    """`F.embedding` of a part of the vocabulary: rows of other parts are zeros, a part of the sum over the devices.

    Saves `ids`: the gradient of row i is the sum of the incoming rows whose index is i.
    Backward: a dense gradient of the whole vocabulary [V, H], of which the device's part is taken when it is reduced,
    and the scratch of `embedding`.
    Source: torch/distributed/tensor/_ops/_embedding_ops.py; placement_types.py, _MaskPartial.
    """
    tape = weight.tape
    weight.is_table = True
    part, width = weight.shape
    vocabulary, dtype, batched = part * devices, weight.dtype, ids.batched
    per_sample = prod(ids.shape) // (tape.batch if batched else 1)

    def workspace_bytes(batch: int) -> int:
        return sorting_bytes(per_sample * (batch if batched else 1), vocabulary, width)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        out = tape.new("embedding_dense_backward", (vocabulary, width), dtype, False)
        tape.workspace("embedding_dense_backward", workspace_bytes)
        return (out,)

    # the gradient is that of the whole table, which belongs to this device's part
    table = weight.alias((vocabulary, width), None, weight.node)
    node = tape.record("embedding", (table,), backward, (ids,))
    _outside = _outside_of_part(tape, ids.shape, batched)
    _clone = tape.new("clone", ids.shape, INT64, batched)
    _indices = tape.new("sub", ids.shape, INT64, batched)
    del _clone
    return tape.new("embedding", (*ids.shape, width), dtype, batched, None, node)


def _outside_of_part(tape: Tape, shape: Shape, batched: int) -> Tensor:
    """Which indices belong to another device."""
    _below = tape.new("lt", shape, BOOL, batched)
    _above = tape.new("ge", shape, BOOL, batched)
    return tape.new("or", shape, BOOL, batched)


def cross_entropy_of_part(logits: Tensor, target: Tensor) -> Tensor:
    """`F.cross_entropy` of logits in fp32 [N, V/t], a part of the vocabulary: no device ever has a whole row.

    Maxima, sums of exponentials and the target's logarithm are summed over the devices, one number a row.
    Saves `out`: the logarithms of the probabilities, of which the gradient is a function.
    Saves `target`: the places where one is subtracted.
    Saves `total_weight`: the mean divides by it.
    Backward: zeros with one value a row, the probabilities, their sum and its product with the incoming gradient; at
    most three of them together beside what was saved.
    Source: torch/distributed/tensor/parallel/loss.py, _log_softmax_handler, _nll_loss_forward_handler and
    _nll_loss_and_log_softmax_backward.
    """
    tape, shape, batched = logits.tape, logits.shape, logits.batched
    row = (shape[0], 1)

    def new(operator: str, shape: Shape, dtype: DType = FP32) -> Tensor:
        return tape.new(operator, shape, dtype, batched)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        _mean = tape.new("div", (), FP32, False)
        _kept = new("ne", row, BOOL)
        _safe = new("where", row, INT64)
        del _kept
        zeros = new("zeros_like", shape)
        _outside = _outside_of_part(tape, row, batched)
        _clone = new("clone", row, INT64)
        _indices = new("sub", row, INT64)
        del _clone
        _cast = new("to", row)
        _update = new("sub", row)
        del _cast
        _range = new("arange", row, INT64)
        _kept = new("ne", row, BOOL)
        _incoming = new("where", row)
        del _kept, _mean
        probabilities = new("exp", shape)
        total = new("add", shape)
        del probabilities
        result = new("mul", shape)
        del total, zeros
        return (result,)

    node = tape.record("cross_entropy", (logits,), backward, (target,))
    largest = new("amax", row)
    _largest = new("all_reduce", row)
    del largest
    shifted = new("sub", shape)
    exponentials = new("exp", shape)
    sums = new("sum", row)
    del exponentials
    _sums = new("all_reduce", row)
    del sums
    _logarithms = new("log", row)
    out = new("sub", shape)
    del shifted, _largest, _sums, _logarithms
    tape.save(node, out)
    kept = new("ne", row, BOOL)
    _safe = new("where", row, INT64)
    del kept
    outside = _outside_of_part(tape, row, batched)
    clone = new("clone", row, INT64)
    _indices = new("sub", row, INT64)
    del clone
    _gathered = new("gather", row)
    del outside
    _reduced = new("all_reduce", row)
    negative = new("neg", row)
    kept = new("ne", row, BOOL)
    result = new("where", row)
    del kept, negative
    kept = new("ne", row, BOOL)
    count = tape.new("sum", (), INT64, False)
    del kept
    total_weight = tape.new("to", (), FP32, False)
    del count
    tape.save(node, total_weight)
    total = tape.new("sum", (), FP32, False)
    loss = tape.new("div", (), FP32, False, None, node)
    del total, result
    return loss


PADDED_FROM, PADDED_TO = 1024, 32
"""Elements of a row from which on a compiler lays rows of fp32 apart, and of what multiple they then are: 128 bytes."""


def compiled_cross_entropy_of_part(logits: Tensor, target: Tensor) -> Tensor:
    """`cross_entropy_of_part` as it is compiled, of 16-bit logits: sums over the devices part it into several kernels.

    Saves `out`: the logarithms of the probabilities in fp32, of which the gradient is a function.
    Saves `target`: the places where one is subtracted.
    Saves `count`, `total_weight`: the mean divides by them.
    Backward: 1 new, in the element type of the logits.
    Source: torchtitan/components/loss.py, build_cross_entropy_loss; torch/distributed/tensor/parallel/loss.py;
    torch/_inductor/config.py, comprehensive_padding, and ir.py, Layout._pad_strides.
    """
    tape, (rows, width), dtype, batched = logits.tape, logits.shape, logits.dtype, logits.batched
    apart = (rows, round_up(width, PADDED_TO) if width > PADDED_FROM else width)

    def new(operator: str, shape: Shape) -> Tensor:
        return tape.new(operator, shape, FP32, batched)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("cross_entropy_backward", (rows, width), dtype, batched),)

    node = tape.record("cross_entropy", (logits,), backward, (target,))
    largest = new("amax", (rows, 1))
    _largest = new("all_reduce", (rows, 1))
    shifted = new("sub", apart)
    _sums = new("sum", (rows, 1))
    count = tape.new("sum", (), FP32, False)
    total_weight = tape.new("sum", (), FP32, False)
    loss = tape.new("div", (), FP32, False, None, node)
    del largest
    out = new("sub", apart)
    del _sums, shifted, _largest
    tape.save(node, out, count, total_weight)
    return loss
