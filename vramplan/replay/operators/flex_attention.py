"""Operator rules of FlexAttention with a block mask of documents, and of an RMS norm without a weight."""

from __future__ import annotations

from vramplan.replay.operators.elementwise import mean_last, mul, pow_scalar, rsqrt
from vramplan.replay.operators.views import Grads, same, to
from vramplan.replay.recorder import Saved, Tape
from vramplan.replay.tensors import FP32, INT32, INT64, Tensor, dense_like

BLOCK = 128  # tokens of a side of a block of the mask


def plain_rms_norm(x: Tensor) -> Tensor:
    """`F.rms_norm(x, (n,))` without a weight, as PyTorch composed it before it had a kernel for that: new.

    In fp32: the square, its mean, the root of that, and the product, which is cast back.
    Source: aten/src/ATen/native/layer_norm.cpp of 2.6, rms_norm_symint.
    """
    upcasted_input = to(x, FP32)
    _squares = pow_scalar(upcasted_input)
    rqrst_input = rsqrt(add_scalar_in_place(mean_last(_squares)))
    del _squares
    _upcasted_result = mul(upcasted_input, rqrst_input)
    return to(_upcasted_result, x.dtype)


def add_scalar_in_place(x: Tensor) -> Tensor:
    """x += number: the storage of x, nothing saved.

    Backward: nothing new; the gradient is handed through.
    Source: tools/autograd/derivatives.yaml, add.Scalar.
    """
    return x.alias(x.shape, x.strides, x.tape.record("add", (x,), same))


def document_mask(tape: Tape, length: int) -> tuple[list[Tensor], list[Tensor]]:
    """`BlockMask.from_kv_blocks` of causal blocks within documents: what the kernel reads, and what else is alive.

    The kernel reads the document of each token, and for partial and for full blocks, by rows and by columns, how many
    there are and which. The first and last document of each block stay in the model's locals. What is made on the way
    is smaller than any activation, and over before there is one.
    Source: torch/nn/attention/flex_attention.py, BlockMask.from_kv_blocks and _transpose_ordered.
    """
    blocks = length // BLOCK
    documents = tape.new("cumsum", (length,), INT64, False)
    ends = [tape.new("clone", (blocks,), INT64, False) for _ in range(2 if blocks > 1 else 0)]  # of one: views
    read = [documents]
    for _ in range(4):
        read.append(tape.new("sum", (blocks,), INT32, False))
        read.append(tape.new("to", (blocks, blocks), INT32, False))
    return read, ends


def flex_attention(q: Tensor, k: Tensor, v: Tensor, mask: list[Tensor]) -> Tensor:
    """`flex_attention` as its own kernel, [B, a, S, d]: new, in the memory layout of q, and the logsumexp in fp32.

    Saves `q`: the scores are made again from q and k.
    Saves `k`: the scores are made again from q and k.
    Saves `v`: the gradient of the probabilities is the incoming one times v.
    Saves `documents`: within a block tokens are told apart by them.
    Saves `kv_num`: how many partial blocks each row of the mask has.
    Saves `kv_indices`: which they are.
    Saves `full_kv_num`: how many full blocks each row has.
    Saves `full_kv_indices`: which they are.
    Saves `q_num`: how many partial blocks each column has, by which dk and dv are computed.
    Saves `q_indices`: which they are.
    Saves `full_q_num`: how many full blocks each column has.
    Saves `full_q_indices`: which they are.
    Saves `out`: the row sums of the softmax's gradient are those of the incoming one times the output.
    Saves `lse`: it turns the scores back into probabilities.
    Backward: those row sums and an fp32 copy of them, dq, dk and dv.
    Source: torch/_inductor/kernel/flex_attention.py of 2.6, flex_attention and flex_attention_backward.
    """
    tape = q.tape
    batch, heads, length, width = q.shape
    rows = (batch, heads, length)
    work = batch * heads * length * length * width  # as if every block were there

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(10 * work, 2 * work, width)
        sums = tape.new("sum", rows, grad.dtype, grad.batched)
        _delta = tape.new("to", rows, FP32, grad.batched)
        del sums
        return tuple(tape.like("flex_attention_backward", x) for x in saved[:3])

    documents, kv_num, kv_indices, full_kv_num, full_kv_indices, q_num, q_indices, full_q_num, full_q_indices = mask
    blocks = (kv_num, kv_indices, full_kv_num, full_kv_indices, q_num, q_indices, full_q_num, full_q_indices)
    node = tape.record("flex_attention", (q, k, v), backward, (q, k, v, documents, *blocks))
    tape.work(4 * work, 0, width)
    out = tape.new("flex_attention", q.shape, q.dtype, q.batched, dense_like(q.shape, q.strides), node)
    lse = tape.new("flex_attention", rows, FP32, q.batched)
    tape.save(node, out, lse)
    return out


def is_whole(length: int) -> bool:
    """Whether a sequence is made of whole blocks of the mask."""
    return length >= BLOCK and length % BLOCK == 0
