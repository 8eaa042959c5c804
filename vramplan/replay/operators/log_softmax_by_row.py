"""Operator rules of TRL's log-probabilities of labels over whole logits before it had a kernel for them.

N is the number of sequences, two for each pair, S the sequence, V the vocabulary. The library goes through the
sequences in a loop: a tensor here stands for those of all of them, each of which the allocator rounds by itself.
`torch.stack` of their results, and the views that the loop takes, are part of the rule.
"""

from __future__ import annotations

from vramplan.replay.operators.elementwise import add, neg
from vramplan.replay.operators.loss_parts import gather_last
from vramplan.replay.operators.one_row import for_each
from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved, Tape
from vramplan.replay.tensors import FP32, DType, Shape, Tensor

SEQUENCES = 2  # of a pair


def log_softmax_by_row(logits: Tensor, labels: Tensor) -> Tensor:
    """`selective_log_softmax(logits, labels)` of logits [N, S, V]: [N, S], in their dtype.

    Source: trl 0.15.0 to 1.13.0, trainer/utils.py, selective_log_softmax.
    """
    if logits.dtype is not FP32:
        return _of_log_probabilities(logits, labels)
    selected = gather_last(logits, labels)
    return add(selected, neg(_logsumexp(logits)))


def _logsumexp(logits: Tensor) -> Tensor:
    """`torch.stack([torch.logsumexp(row, dim=-1) for row in logits])`: new, [N, S].

    The largest logits of a row and what is left without them are there meanwhile.
    Saves `logits`: its share of the sum is the exponential of it less the result.
    Saves `results`: of each row.
    Backward: N as large as a row, beside two more for the last of them, and all of them stacked.
    Source: tools/autograd/derivatives.yaml, logsumexp and unbind.int; torch/csrc/autograd/FunctionsManual.cpp,
    logsumexp_backward and unbind_backward; aten/src/ATen/native/ReduceOps.cpp, logsumexp_out_impl.
    """
    tape, whole, dtype = logits.tape, logits.shape, logits.dtype

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (_stacked(grad.tape, whole, dtype, temporaries=("sub", "exp")),)

    node = tape.record("logsumexp", (logits,), backward, (logits,))
    largest, rest = (
        _row(tape, operator, shape, dtype) for operator, shape in (("amax", whole[1:2]), ("sub", whole[1:]))
    )
    results = _rows(tape, "sum", whole[:2], dtype)
    del largest, rest
    tape.save(node, results)
    return tape.new("stack", whole[:2], dtype, True, None, node)


def _of_log_probabilities(logits: Tensor, labels: Tensor) -> Tensor:
    """Of 16 bits, whose rows get log-probabilities of their own: new, [N, S].

    Saves `log_probabilities`: of each row, as its gradient is made of them; the logits are not needed.
    Saves `labels`: where the gradient goes.
    Backward: N as large as a row, beside one of zeros and the gradient at the labels, and all of them stacked; each row
    of log-probabilities goes when its gradient is there.
    Source: tools/autograd/derivatives.yaml, _log_softmax, gather and unbind.int; torch/csrc/autograd/
    FunctionsManual.cpp, gather_backward and unbind_backward.
    """
    tape, whole, dtype = logits.tape, logits.shape, logits.dtype

    def backward(grad: Tensor, saved: Saved) -> Grads:
        zeros = _row(grad.tape, "zeros", whole[1:], dtype)
        last = _row(grad.tape, "_log_softmax_backward_data", whole[1:], dtype)
        del zeros, last
        if isinstance(saved, list):
            saved.clear()  # row by row, as the gradients come
        return (_stacked(grad.tape, whole, dtype),)

    node = tape.record("log_softmax_by_row", (logits,), backward, (labels,))
    if tape.no_grad:  # a row goes when the next one is there
        last = [_row(tape, "_log_softmax", whole[1:], dtype) for _ in range(2)]
        del last
    else:
        tape.save(node, _rows(tape, "_log_softmax", whole, dtype))
    selected = _rows(tape, "gather", whole[:2], dtype)
    out = tape.new("stack", whole[:2], dtype, True, None, node)
    del selected
    return out


def _stacked(tape: Tape, whole: Shape, dtype: DType, temporaries: tuple[str, ...] = ()) -> Tensor:
    """The gradients of all rows, and what the loop's views make of them: one tensor."""
    rows = _rows(tape, "gradients_of_rows", whole, dtype)
    beside = [_row(tape, operator, whole[1:], dtype) for operator in temporaries]
    del beside
    out = tape.new("stack", whole, dtype, True)
    del rows
    return out


def _row(tape: Tape, operator: str, shape: Shape, dtype: DType) -> Tensor:
    """What one sequence needs."""
    return tape.new(operator, shape, dtype, False)


def _rows(tape: Tape, operator: str, shape: Shape, dtype: DType) -> Tensor:
    """The tensors of all sequences, each rounded by itself; a sample is a pair of them."""
    elements = 1
    for length in shape[1:]:
        elements *= length
    return for_each(tape, operator, (tape.batch, SEQUENCES, *shape[1:]), dtype, elements * dtype.itemsize, SEQUENCES)
