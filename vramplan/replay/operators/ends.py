"""Operator rules of the two ends of a model: embeddings, and the loss."""

from __future__ import annotations

from math import prod

from vramplan.replay.observers import Outer, Rounding, Sharding, Trained
from vramplan.replay.operators.normalised import log_softmax
from vramplan.replay.operators.views import Grads, autocast_float
from vramplan.replay.recorder import Saved, rounded
from vramplan.replay.tensors import Parameter, Tensor

SORTED_INDICES = 3072  # above so many an embedding's gradient sorts them (aten/src/ATen/native/cuda/Embedding.cu)


def sorting_bytes(indices: int, vocabulary: int, width: int) -> int:
    """Scratch of an embedding's gradient: sorted and original indices, segment offsets and fp32 partial sums.

    The number of partial segments is n // 10 + min(n, V). Up to SORTED_INDICES there is none.
    """
    if indices <= SORTED_INDICES:
        return 0
    segments = min(indices, vocabulary)
    partial = indices // 10 + segments
    sums, offsets = rounded(partial * width * 4), rounded(8 * partial)
    return rounded(sums + offsets + 3 * rounded(8 * indices) + 2 * rounded(8 * segments))


def embedding(ids: Tensor, weight: Parameter, *, returned: bool = True) -> Tensor:
    """The module of a table, or what runs in its place; `returned`: it returns the rows as they are."""
    instead = weight.tape.role(Trained).table(weight)
    found = rows_of_table(ids, weight) if instead is None else instead(ids, weight, None)
    return weight.tape.looked_up(found, weight) if returned else found


def rows_of_table(ids: Tensor, weight: Parameter) -> Tensor:
    """`nn.Embedding`."""
    tape = weight.tape
    wrapped = tape.role(Sharding).wrapped
    if wrapped is not None and type(weight) is Parameter and weight.node is not None:
        weight.is_table = True
        rows: Tensor = wrapped(weight, lambda table: rows_of_table(ids, table))
        return rows
    if type(weight) is Parameter:
        weight.is_table = True
    rounded_table = tape.role(Rounding).table
    with Outer(ids, own=(weight,)):
        return look_up(ids, weight if rounded_table is None else rounded_table(weight))


def look_up(ids: Tensor, table: Tensor) -> Tensor:
    """`F.embedding`: new, the rows that are looked up.

    Saves `ids`: the gradient of row i is the sum of the incoming rows whose index is i; the table itself is not needed.
    Backward: the incoming gradient in row-major order, a copy if it is not; a dense gradient [V, H], and above 3072
    indices a workspace: sorted and original indices, segment offsets and fp32 partial sums; the number of partial
    segments is n // 10 + min(n, V).
    Source: tools/autograd/derivatives.yaml, embedding; aten/src/ATen/native/cuda/Embedding.cu and
    EmbeddingBackwardKernel.cu.
    """
    tape = table.tape
    vocabulary, width = table.shape
    dtype, batched = table.dtype, ids.batched
    per_sample = prod(ids.shape) // (tape.batch if batched else 1)

    def workspace_bytes(batch: int) -> int:
        return sorting_bytes(per_sample * (batch if batched else 1), vocabulary, width)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        _dense = grad if grad.strides is None else tape.new("clone", grad.shape, grad.dtype, grad.batched)
        out = tape.new("embedding_dense_backward", (vocabulary, width), dtype, False)
        tape.workspace("embedding_dense_backward", workspace_bytes)
        return (out,)

    node = tape.record("embedding", (table,), backward, (ids,))
    return tape.new("embedding", (*ids.shape, width), dtype, batched, None, node)


def nll_loss(log_probabilities: Tensor, target: Tensor) -> Tensor:
    """`F.nll_loss` with mean reduction: autocast to fp32; new, the scalar loss and the total weight.

    Saves `x`: the gradient has its shape and layout.
    Saves `target`: the places where the gradient is not zero.
    Saves `total_weight`: the mean divides by it.
    Backward: 1 new, as large as the input, filled with zeros and one value a row.
    Source: tools/autograd/derivatives.yaml, nll_loss_forward; aten/src/ATen/native/cuda/Loss.cu.
    """
    x = autocast_float(log_probabilities)
    tape = x.tape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        source = saved[0]
        return (source.tape.like("nll_loss_backward", source),)

    node = tape.record("nll_loss", (x,), backward, (x, target))
    loss = tape.new("nll_loss", (), x.dtype, False, None, node)
    total_weight = tape.new("nll_loss", (), x.dtype, False)
    tape.save(node, total_weight)
    return loss


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """`F.cross_entropy`: log_softmax, then nll_loss."""
    return nll_loss(log_softmax(logits), target)
