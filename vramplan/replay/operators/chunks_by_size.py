"""Operator rule of Unsloth's head and loss in one compiled function, for chunks of rows whose logits have a bound."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved, rounded
from vramplan.replay.tensors import FP32, INT64, Parameter, Tensor

GIB = 2**30
MULTIPLE = 4  # chunks come in fours


def chunks_of(rows: int, vocabulary: int, most_gib: int) -> int:
    """How many chunks the rows are cut into, so that the logits of none would be larger in fp32.

    As get_chunk_size of unslothai/unsloth-zoo has it since d9fe1f43 (2026-07-06), fused_losses/cross_entropy_loss.py.
    """
    whole, most = rows * vocabulary * FP32.itemsize, most_gib * GIB
    return 1 if whole <= most else -(-whole // (MULTIPLE * most)) * MULTIPLE


def loss_by_size(x: Tensor, weight: Parameter, *, most_gib: int, bounded: bool = False) -> Tensor:
    """Head, loss and their gradients in forward, for x [rows, H] and a weight [V, H]; new, the scalar loss.

    A chunk of rows is one function that TorchInductor compiles: its logits in the type of the product, which become
    their gradient where they are, and the product of that gradient. A bound on the logits (`bounded`) keeps the
    log-probabilities in fp32 beside them. Under autocast a weight in fp32 is cast for each chunk, and its gradient is
    made where that cast was.
    New until it returns: the labels shifted by one, and a few numbers.
    Saves `grad_input`: it is the gradient of x.
    Saves `grad_weight`: it is the gradient of the weight, if the weight is trained; each chunk makes one to add.
    Backward: nothing new; the saved gradients are the results.
    Source: unslothai/unsloth-zoo, fused_losses/cross_entropy_loss.py, UnslothFusedLoss and compute_fused_ce_loss
    (ce232d6c, 2026-08-20); the buffers are those of the code that PyTorch 2.13 compiles of it on the CPU.
    """
    tape = x.tape
    rows, _ = x.shape
    is_trained = weight.node is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        del grad
        return (saved[0], saved[1] if is_trained else None)

    node = tape.record("fused_ce_loss", (x, weight), backward)
    labels = tape.new("empty_like", (rows,), INT64, x.batched)
    divisor = tape.new("to", (), FP32, False)
    grad_input = tape.like("empty_like", x)
    grad_weight = tape.like("zeros_like", weight) if is_trained else None
    tape.workspace("fused_ce_loss", _inside(x, weight, most_gib, bounded=bounded))
    tape.work((4 + 2 * is_trained) * rows * weight.shape[0] * weight.shape[1])  # products: logits, and the gradients
    loss = tape.new("zeros", (), FP32, False, None, node)
    del labels, divisor
    tape.save(node, grad_input, *(() if grad_weight is None else (grad_weight,)))
    return loss


def _inside(x: Tensor, weight: Parameter, most_gib: int, *, bounded: bool) -> Callable[[int], int]:
    """Most bytes alive in the function of a chunk, at a micro-batch."""
    (vocabulary, width), half = weight.shape, x.tape.autocast
    itemsize = (half or weight.dtype).itemsize
    is_cast = half is not None and weight.dtype is FP32
    is_trained = weight.node is not None
    table = rounded(vocabulary * width * itemsize) if is_cast or is_trained else 0
    # The product of the rows, and what the logits were made of, where the gradient of the weight asks for a cast.
    turns = 1 + (is_trained and x.dtype is not (half or weight.dtype))
    per_sample = x.shape[0] // x.tape.batch

    def size(samples: int) -> int:
        rows = per_sample * samples
        chunk = -(-rows // chunks_of(rows, vocabulary, most_gib))
        logits = rounded(chunk * vocabulary * itemsize)
        log_probabilities = rounded(chunk * vocabulary * FP32.itemsize) if bounded else 0
        return logits + log_probabilities + table + turns * rounded(chunk * width * itemsize)

    return size
