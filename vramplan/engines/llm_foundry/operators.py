"""Operator rules that llm-foundry's MPT needs beside the others: what flash-attn takes, and how it gets there."""

from __future__ import annotations

from math import prod

from vramplan.replay.operators.attention import FLASH_WIDTH
from vramplan.replay.operators.normalised import layer_norm
from vramplan.replay.operators.views import Grads, to
from vramplan.replay.recorder import Saved, Tape, rounded
from vramplan.replay.tensors import BOOL, FP32, INT32, INT64, Parameter, Tensor, round_up

BLOCK_ROWS = 128  # of the fp32 accumulator, for each sample more than it has: csrc/flash_attn/flash_api.cpp


def low_precision_layer_norm(x: Tensor, weight: Parameter, bias: Parameter | None) -> Tensor:
    """LPLayerNorm: under autocast input, weight and bias are cast first, and `layer_norm` runs in 16 bits.

    Saves `weight`: the copy in 16 bits.
    Saves `bias`: the same.
    Source: llmfoundry/models/layers/norm.py, LPLayerNorm.
    """
    tape, dtype = x.tape, x.tape.autocast
    if dtype is None:
        return layer_norm(x, weight, bias)
    x = to(x, dtype)
    scale = to(weight, dtype)
    shift = None if bias is None else to(bias, dtype)
    tape.autocast = None
    out = layer_norm(x, scale, shift)
    tape.autocast = dtype
    tape.save(out.node, *(one for one in (scale, shift) if one is not None))
    return out


def padding_info(tape: Tape, batch: int, length: int) -> tuple[Tensor, ...]:
    """gen_flash_attn_padding_info: the places of tokens, once for each of queries, keys and values; new, 8 bytes each.

    Source: llmfoundry/models/mpt/modeling_mpt.py; flash_attn/bert_padding.py, unpad_input.
    """
    mask = tape.new("ones", (batch, length), BOOL, True)
    kept: list[Tensor] = []
    for number in range(3):
        hidden = tape.new("empty", (batch, length, 1), FP32, True)
        lengths = tape.new("sum", (batch,), INT32, True)
        indices = tape.new("nonzero", (batch * length,), INT64, True)
        longest = tape.new("max", (), INT32, False)
        del longest
        counts = tape.new("cumsum", (batch,), INT32, True)
        # one more than samples: of what comes to less than a block however large the micro-batch
        ends = tape.new("constant_pad_nd", (batch,), INT32, True)
        del counts
        unpadded = tape.new("gather", (batch * length, 1), FP32, True)
        kept += [indices] if number == 2 else [indices, ends]
        del hidden, lengths, unpadded, indices, ends
    del mask
    return tuple(kept)


def index_first_axis(x: Tensor, indices: Tensor) -> Tensor:
    """`index_first_axis` of x [B * S, H]: new, the rows that are tokens, which without padding are all.

    Saves `indices`: the gradient goes to those rows.
    Backward: 1 new, a zero-filled tensor of the whole, which the gradient is put into.
    Source: flash_attn/bert_padding.py, IndexFirstAxis.
    """
    shape, batched = x.shape, x.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("zeros", shape, grad.dtype, batched),)

    node = x.tape.record("gather", (x,), backward, (indices,))
    return x.tape.new("gather", shape, x.dtype, batched, None, node)


def pad_input(x: Tensor, indices: Tensor) -> Tensor:
    """`pad_input` of x [B * S, H]: new, a zero-filled tensor of the whole with the rows in their places.

    Saves `indices`: the gradient of each row is there.
    Backward: 1 new, the rows of the gradient.
    Source: flash_attn/bert_padding.py, IndexPutFirstAxis.
    """
    shape, batched = x.shape, x.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("index", shape, grad.dtype, batched),)

    node = x.tape.record("index_put", (x,), backward, (indices,))
    return x.tape.new("zeros", shape, x.dtype, batched, None, node)


def flash_attention_of_rows(q: Tensor, k: Tensor, v: Tensor, length: int, ends: tuple[Tensor, Tensor]) -> Tensor:
    """`flash_attn_varlen_func` of [B * S, heads, width]: new; the logsumexp (fp32 per row) and the state of the random
    numbers.

    Saves `q`: the scores are made again from q and k.
    Saves `k`: the scores are made again from q and k.
    Saves `v`: the gradient of the probabilities is the incoming one times v.
    Saves `ends`: where each sequence begins and ends.
    Saves `out`: the row sums of the softmax's gradient are those of the incoming one times the output.
    Saves `lse`: it turns the scores back into probabilities.
    Saves `state`: the dropout mask is drawn again from it.
    Backward: dq, dk, dv; workspace: an fp32 accumulator of dq, and softmax_d.
    Source: flash-attn 2.5, flash_attn/flash_attn_interface.py, FlashAttnVarlenFunc; csrc/flash_attn/flash_api.cpp,
    mha_varlen_fwd and mha_varlen_bwd.
    """
    tape = q.tape
    rows, heads, width = q.shape
    samples = rows // length  # of one sample
    per_sample = samples // tape.batch
    accumulator = (length + BLOCK_ROWS) * heads * round_up(width, FLASH_WIDTH) * FP32.itemsize
    sums = heads * round_up(length, BLOCK_ROWS) * FP32.itemsize

    def workspace_bytes(batch: int) -> int:
        return sum(rounded(per_sample * batch * part) for part in (accumulator, sums))

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        scores = 2 * samples * heads * length * length * width
        tape.work(5 * scores, scores, width)  # five products: scores again, dv, dp, dq, dk
        grads = tuple(tape.like("flash_attention_backward", x) for x in saved[:3])
        tape.workspace("flash_attention_backward", workspace_bytes, per_sample * (accumulator + sums))
        return grads

    node = tape.record("flash_attention", (q, k, v), backward, (q, k, v, *ends))
    tape.work(4 * samples * heads * length * length * width, 0, width)
    out = tape.new("flash_attention", q.shape, q.dtype, q.batched, None, node)
    lse = tape.new("flash_attention", (samples, heads, length), FP32, q.batched)
    state = tape.new("flash_attention", (2,), INT64, False)
    tape.save(node, out, lse, state)
    return out


def fused_cross_entropy(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """flash-attn's `CrossEntropyLoss` over logits [rows, words]: new, a loss and a squared logsumexp of each row, which
    is for the log alone, and the logsumexp.

    Saves `logits`: the probabilities are made again from them.
    Saves `lse`: it turns the logits into probabilities.
    Saves `target`: the places where one is subtracted.
    Backward: zeros as the gradient of what is for the log; 1 new, the gradient of the logits in their element type.
    Source: flash-attn 2.5, flash_attn/losses/cross_entropy.py and ops/triton/cross_entropy.py, CrossEntropyLoss.
    """
    tape, batched = logits.tape, logits.batched
    row = (logits.shape[0],)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        _of_logged = grad.tape.new("zeros", row, FP32, batched)
        return (grad.tape.like("cross_entropy_backward", saved[0]),)

    node = tape.record("cross_entropy", (logits,), backward, (logits,))
    losses = tape.new("cross_entropy", row, FP32, batched, None, node)
    lse = tape.new("cross_entropy", row, FP32, batched)
    tape.save(node, lse, target)
    return losses, tape.new("cross_entropy", row, FP32, batched)


def total(x: Tensor) -> Tensor:
    """`x.sum()`: new, one number, nothing saved.

    Backward: nothing new, a view of the one number.
    Source: tools/autograd/derivatives.yaml, sum.
    """
    shape, batched, size = x.shape, x.batched, prod(x.shape)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        assert size
        wide = grad.alias(shape, (0,) * len(shape), None)
        wide.batched = batched
        return (wide,)

    node = x.tape.record("sum", (x,), backward)
    return x.tape.new("sum", (), x.dtype, False, None, node)
