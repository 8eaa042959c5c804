"""Operator rules that only LitGPT's code needs: LoRA over a part of a fused projection, and its losses."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.operators.normalised import log_softmax
from vramplan.replay.operators.views import Grads, autocast_half
from vramplan.replay.recorder import Saved, Tape, rounded
from vramplan.replay.tensors import FP32, INT64, Tensor

NUMBER_BYTES = rounded(1)  # of a tensor of one number


def empty_part(x: Tensor) -> Tensor:
    """`x[..., d:]` of d columns: an empty view with a graph, nothing new.

    Backward: 1 new, a zero-filled tensor of the whole (`slice_backward`), as large as if there had been something.
    Source: tools/autograd/derivatives.yaml, slice.Tensor; torch/csrc/autograd/FunctionsManual.cpp,
    slice_backward_wrapper.
    """
    whole = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("slice_backward", whole, grad.dtype, grad.batched),)

    return x.alias((*whole[:-1], 0), None, x.tape.record("slice", (x,), backward))


def conv1d(x: Tensor, weight: Tensor) -> Tensor:
    """`F.conv1d` of a kernel of one place: x [B, in, T], weight [out, in / groups]; new, [B, out, T].

    Autocast casts weight, x, each a node of its own.
    Saves `x`: the gradient of the weight needs it.
    Saves `w`: the gradient of x needs it.
    Backward: the gradients of x and of the weight, each only if it is wanted. What cuDNN takes inside is not counted:
    its workspaces, and copies into the layout that it computes in.
    Source: tools/autograd/derivatives.yaml, convolution; aten/src/ATen/native/Convolution.cpp, convolution_backward.
    """
    tape = x.tape
    w = autocast_half(weight)
    x = autocast_half(x)
    batch, inputs, length = x.shape
    outputs, rank = w.shape
    need_x, need_w = x.node is not None, w.node is not None
    shape, batched = (batch, inputs, length), x.batched
    work = 2 * batch * outputs * length * rank

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape, dtype = grad.tape, grad.dtype
        tape.work(work * (need_x + need_w))
        gx = tape.new("convolution_backward", shape, dtype, batched) if need_x else None
        gw = tape.new("convolution_backward", (outputs, rank), dtype, False) if need_w else None
        return (gx, gw)

    node = tape.record("convolution", (x, w), backward, (x, w))
    tape.work(work)
    return tape.new("convolution", (batch, outputs, length), x.dtype, batched, None, node)


def zero_padded(x: Tensor, width: int, *, copies: bool = True) -> Tensor:
    """Columns put into a wider tensor of zeros: `new_zeros`, then `index_copy_` in place; new, [..., width].

    Saves `index`: the gradient is picked out by it; it is a copy of the buffer that holds the places, or that buffer.
    Saves `x`: what is picked out is expanded to its shape.
    Backward: 1 new, the columns of the gradient that were put in (`index_select`).
    Source: tools/autograd/derivatives.yaml, index_copy; litgpt/lora.py, LoRAQKVLinear.zero_pad.
    """
    tape, narrow_shape = x.tape, x.shape
    places = (narrow_shape[-1],)
    index = tape.new("clone", places, INT64, False) if copies else tape.constant(places, INT64, False)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("index_select", narrow_shape, grad.dtype, grad.batched),)

    node = tape.record("index_copy", (x,), backward, (index, x))
    return tape.new("new_zeros", (*narrow_shape[:-1], width), x.dtype, x.batched, None, node)


def cross_entropy_each(logits: Tensor, target: Tensor) -> Tensor:
    """`F.cross_entropy(..., reduction="none")`: log_softmax, then nll_loss; new, one number a row.

    Saves `x`: the gradient has its shape and layout.
    Saves `target`: the places where the gradient is not zero.
    Saves `total_weight`: a number, though nothing is divided by it.
    Backward: 1 new, as large as the input, filled with zeros and one value a row.
    Source: tools/autograd/derivatives.yaml, nll_loss_forward; aten/src/ATen/native/cuda/Loss.cu.
    """
    x = log_softmax(logits)
    tape = x.tape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        source = saved[0]
        return (source.tape.like("nll_loss_backward", source),)

    node = tape.record("nll_loss", (x,), backward, (x, target))
    losses = tape.new("nll_loss", (x.shape[0],), x.dtype, x.batched, None, node)
    total_weight = tape.new("nll_loss", (), x.dtype, False)
    tape.save(node, total_weight)
    return losses


def cross_entropy_by_rows(logits: Tensor, target: Tensor, rows: int) -> Tensor:
    """The same of logits [N, V] that are split into chunks of so many rows, and the losses put together: new, [N].

    The chunks are looked at as a whole: what they save is as large as the logits, and in backward each gives its
    place to its gradient, beside which the two gradients of one chunk are made.
    Saves `probabilities`: of all chunks.
    Saves `target`: the places where the gradient is not zero.
    Saves `total_weights`: a number for each chunk.
    Backward: 1 new as large as the logits, the gradients of the chunks concatenated.
    Source: litgpt/utils.py, chunked_cross_entropy; tools/autograd/derivatives.yaml, split.Tensor.
    """
    tape, shape, batched = logits.tape, logits.shape, logits.batched
    per_sample, logits_dtype = shape[0] // tape.batch, logits.dtype
    row = shape[1] * logits_dtype.itemsize

    def before_the_last(batch: int) -> int:
        """Two gradients of the largest chunk but the one that is done last; numbers of those that are done are gone."""
        full, rest = divmod(per_sample * batch, rows)
        if full > 1:
            return 2 * rounded(rows * row) - NUMBER_BYTES * (2 if rest else 1)
        return 2 * rounded(rest * row) - NUMBER_BYTES if full and rest else 0

    def joined(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("cat", shape, grad.dtype, batched),)

    def of_probabilities(grad: Tensor, saved: Saved) -> Grads:
        size = lambda batch: 2 * rounded(min(rows, per_sample * batch) * row)  # noqa: E731
        grad.tape.workspace("_log_softmax_backward_data", size)
        return (saved[0].alias(shape, None, None),)

    def of_losses(grad: Tensor, saved: Saved) -> Grads:
        grad.tape.workspace("_log_softmax_backward_data", before_the_last)
        return (grad.tape.constant(shape, logits_dtype, bool(batched)),)  # it takes the place of the probabilities

    parts = logits.alias(shape, None, tape.record("split", (logits,), joined))
    node = tape.record("_log_softmax", (parts,), of_probabilities)
    probabilities = tape.new("_log_softmax", shape, logits.dtype, batched, None, node)
    tape.save(node, probabilities)
    total_weights = _numbers(tape, lambda batch: -(-per_sample * batch // rows))
    node = tape.record("nll_loss", (probabilities,), of_losses, (target, total_weights))
    return tape.new("nll_loss", (shape[0],), logits.dtype, batched, None, node)


def _numbers(tape: Tape, count: Callable[[int], int]) -> Tensor:
    """Numbers of a storage each, of which there are as many as `count` says at a micro-batch."""
    tensor = tape.new("nll_loss", (), FP32, False)
    assert tensor.storage is not None
    here = NUMBER_BYTES * count(tape.batch) if tape.direct else 0
    tape.resize(tensor.storage.index, here, size=lambda batch: NUMBER_BYTES * count(batch), is_affine=False)
    return tensor
