"""Operator rules of Megatron-LM's split vocabulary: the embedding, and the loss over parts of the logits.

Files are those of megatron-core 0.16.
"""

from __future__ import annotations

from math import prod

from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import BOOL, FP32, INT32, INT64, Parameter, Tensor


def parallel_embedding(ids: Tensor, weight: Parameter, devices: int) -> Tensor:
    """`VocabParallelEmbedding`: rows of the part of the table that a device has; the others are zero, and summed.

    Saves `mask`: which tokens are not in this part; their gradient is none.
    Backward: a copy of the gradient with zeros at the mask, then that of the look-up.
    Source: core/tensor_parallel/layers.py, VocabParallelEmbedding.forward; tools/autograd/derivatives.yaml, index_put_.
    """
    if devices == 1:
        return embedding(ids, weight)
    mask, masked = _outside_part(ids)
    found = embedding(masked, weight)
    del masked

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like("index_put", grad),)

    return found.alias(found.shape, found.strides, found.tape.record("index_put_", (found,), backward, (mask,)))


def _outside_part(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Which tokens are outside a device's part of the vocabulary, and their numbers within it."""
    tape = ids.tape
    _below = tape.new("lt", ids.shape, BOOL, ids.batched)
    _above = tape.new("ge", ids.shape, BOOL, ids.batched)
    mask = tape.new("bitwise_or", ids.shape, BOOL, ids.batched)
    del _below, _above
    copied = tape.new("clone", ids.shape, INT64, ids.batched)
    numbers = tape.new("sub", ids.shape, INT64, ids.batched)
    del copied
    return mask, numbers


def summed_loss(losses: Tensor, mask: Tensor) -> Tensor:
    """The sum of the tokens' losses that count, over their number, which is kept with what is logged.

    Saves `mask`: the gradient of a loss that does not count is zero.
    Saves `tokens`: the sum is divided by it in place.
    Backward: the gradient divided, and the products with the mask.
    Source: pretrain_gpt.py, loss_func; core/pipeline_parallel/schedules.py, forward_step_calc_loss.
    """
    tape = losses.tape
    shape, batched = losses.shape, losses.batched
    flat = (prod(shape),)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        _one = tape.new("div", (), FP32, False)
        _two = tape.new("div", (), FP32, False)
        return (tape.new("mul", flat, FP32, batched).alias(shape, None, None),)

    node = tape.record("loss", (losses,), backward, (mask,))
    product = tape.new("mul", flat, FP32, batched)
    loss = tape.new("sum", (), FP32, False, None, node)
    del product
    number = tape.new("sum", (), FP32, False)
    copied = tape.new("clone", (), FP32, False)
    _tokens = tape.new("to", (), INT32, False)
    del number, copied
    one = tape.new("clone", (), FP32, False)
    report = tape.new("cat", (2,), FP32, False)
    del one
    tape.held.append(report)
    tape.save(node, tape.new("clamp", (), INT32, False))
    return loss


def vocab_parallel_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """`_VocabParallelCrossEntropy`: the loss of each token, of logits [S, B, V] whose vocabulary is split.

    A copy of the logits in fp32 becomes the softmax in place.
    Saves `softmax`: it is the gradient, once the targets' ones are subtracted.
    Saves `mask`: which targets are in other parts.
    Saves `masked`: the targets' numbers in this part.
    Backward: a few numbers per token; the softmax itself, which the engine casts to the logits' type.
    Source: core/tensor_parallel/cross_entropy.py, VocabParallelCrossEntropy.
    """
    tape, batched = logits.tape, logits.batched
    tokens = logits.shape[:-1]
    rows = (prod(tokens),)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape, softmax = grad.tape, saved[0]
        _arange = tape.new("arange", rows, INT64, batched)
        mask = tape.new("to", rows, FP32, batched)
        _update = tape.new("rsub", rows, FP32, batched)
        del mask
        found = tape.new("index", rows, FP32, batched)
        del found
        grad.storage = None  # the arguments of a Python function go when it returns, before the engine casts
        return (softmax.alias(softmax.shape, None, None),)

    node = tape.record("vocab_parallel_cross_entropy", (logits,), backward)
    softmax = tape.new("to", logits.shape, FP32, batched) if logits.dtype is not FP32 else logits
    largest = tape.new("max", tokens, FP32, batched)
    places = tape.new("max", tokens, INT64, batched)
    del places
    mask, masked = _outside_part(target)
    arange = tape.new("arange", rows, INT64, batched)
    first = tape.new("index", rows, FP32, batched)
    predicted = tape.new("clone", rows, FP32, batched)
    del first
    total = tape.new("sum", tokens, FP32, batched)
    del arange
    _log = tape.new("log", tokens, FP32, batched)
    loss = tape.new("sub", tokens, FP32, batched, None, node)
    del _log, total, predicted, largest
    tape.save(node, softmax.alias(softmax.shape, None, None), mask, masked)
    return loss
