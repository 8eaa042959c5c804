"""The operator rule of Axolotl's divergence from the likeliest tokens of a teacher, by chunks of positions.

Read off axolotl 0.19.0, integrations/kd/kernels/liger.py. It asks torch.compile for the function of a chunk, which
stops at the masks that choose tokens: from the second step on PyTorch runs its operators one by one.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved, rounded
from vramplan.replay.tensors import BOOL, FP32, INT64, Parameter, Tensor

CHUNK = 1024  # positions; a chunk has up to twice as many, as their number is rounded down
OF_LOGITS = 5  # in fp32 at once: cast; the exponentials of two backwards and their product; zeros, and a sum with them
OF_TOKENS = {"forward-kl": 10, "reverse-kl": 12, "jsd": 16}  # tensors of the likeliest tokens at that moment
OF_POSITIONS = 3  # numbers for each
SCALARS = {"forward-kl": 8, "reverse-kl": 9, "jsd": 9}


def top_token_divergence(x: Tensor, weight: Parameter, labels: Tensor, *, word: str, top: int) -> Tensor:
    """Head, loss and gradients in forward, for x [B, T, H] and a weight [V, H]: new, a scalar of the type of x.

    `torch.func.grad_and_value` differentiates each chunk of positions, with a graph that could be differentiated
    again. Its highest level is one of two. Where the gradient of the logits of the likeliest tokens is put among zeros
    there are five tensors [C, V] in fp32, and the log-probabilities of the cross-entropy in the type of x. Where the
    gradient of the weight is made, which is another [V, H] though none may be asked, the logits' gradient and that of
    the cross-entropy are beside these, in the type of x, and the exponentials in fp32. The gradients of the hidden
    states of all chunks wait until they are one tensor.
    Saves `grad_input`: it is the gradient of x, but for the incoming factor.
    Saves `grad_weight`: it is the gradient of the weight, but for the incoming factor.
    Backward: a scalar to compare with, and both gradients times the incoming one, beside those that are saved.
    Source: axolotl 0.19.0, integrations/kd/kernels/liger.py, LigerFusedLinearKLTopKLogprobFunction; PyTorch 2.13.0,
    torch/csrc/autograd/FunctionsManual.cpp, gather_backward, which copies what functorch wraps.
    """
    tape = x.tape
    batch, length, width = x.shape
    vocabulary, need_w = weight.shape[0], weight.node is not None
    rows = batch * length
    x_shape = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        one = grad.tape.new("full", (), grad.dtype, False)
        del one
        gx = grad.tape.like("mul", saved[0])
        gw = grad.tape.like("mul", saved[1])
        return (gx.alias(x_shape, None, None), gw if need_w else None)

    node = tape.record("top_token_divergence", (x, weight), backward)
    grad_weight = tape.new("zeros_like", weight.shape, weight.dtype, False)
    _labels = tape.new("constant_pad_nd", (batch, length + 1), INT64, labels.batched)
    tape.workspace("top_token_divergence", _inside(x, vocabulary, top, word))
    tape.work(6 * rows * vocabulary * width)  # logits, and both gradients
    grad_input = tape.new("cat", (rows, width), x.dtype, x.batched)
    loss = tape.new("add", (), x.dtype, False, None, node)
    tape.save(node, grad_input, grad_weight)
    return loss


def _inside(x: Tensor, vocabulary: int, top: int, word: str) -> Callable[[int], int]:
    """Most bytes alive inside at a micro-batch."""
    length, width, itemsize = x.shape[1], x.shape[2], x.dtype.itemsize

    def chunk(rows: int) -> int:
        of_tokens = OF_TOKENS[word] * rounded(rows * top * FP32.itemsize)
        valid = 0 if word == "forward-kl" else rounded(rows * top * BOOL.itemsize)
        numbers = OF_POSITIONS * rounded(rows * FP32.itemsize) + SCALARS[word] * rounded(1)
        logits, own = rounded(rows * vocabulary * FP32.itemsize), rounded(rows * vocabulary * itemsize)
        among_zeros = OF_LOGITS * logits + own
        gone = rounded(rows * top * FP32.itemsize) + 2 * rounded(1)  # one of the tokens, and two scalars
        products = rounded(vocabulary * width * itemsize) + rounded(rows * width * itemsize)
        return of_tokens + valid + numbers + max(among_zeros, logits + 3 * own + products - gone)

    def size(samples: int) -> int:
        rows = length * samples
        each = -(-rows // max(1, rows // CHUNK))
        number = -(-rows // each)
        gradient, last = rounded(each * width * itemsize), rows - (number - 1) * each
        all_but_last = (number - 1) * gradient
        before_last = chunk(each) + max(0, number - 2) * gradient if number > 1 else 0
        whole = all_but_last + rounded(last * width * itemsize) + rounded(rows * width * itemsize)
        copied = rounded(rows * INT64.itemsize) if samples > 1 else 0  # labels, which a slice of one sample is
        return copied + max(before_last, chunk(last) + all_but_last, whole)

    return size
