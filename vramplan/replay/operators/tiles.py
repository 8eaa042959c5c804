"""Operator rules of images that are cut into tiles, and of a text that looks at them through a mask.

B is the micro-batch, T the tiles of an image, P the rows of a tile, S the sequence. Masks need no gradient.
"""

from __future__ import annotations

from vramplan.replay.operators.views import Grads, autocast_half
from vramplan.replay.recorder import Saved, Tape
from vramplan.replay.tensors import BOOL, FP32, INT64, DType, Tensor


def pad_rows(x: Tensor, amount: int) -> Tensor:
    """`F.pad(x, (0, 0, 0, amount))`: rows of zeros behind the others, new; a copy where there are none to add.

    Backward: 1 new, a copy of the part that was not padded.
    Source: tools/autograd/derivatives.yaml, constant_pad_nd; aten/src/ATen/native/PadNd.cpp.
    """
    before = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("constant_pad_nd_backward", before, grad.dtype, grad.batched),)

    node = x.tape.record("constant_pad_nd", (x,), backward)
    shape = (*before[:-2], before[-2] + amount, before[-1])
    return x.tape.new("constant_pad_nd", shape, x.dtype, x.batched, None, node)


def tile_mask(tape: Tape, tiles: int, rows: int, dtype: DType) -> Tensor:
    """Numbers [B, 1, T P, T P] that keep tiles without an image and rows of padding apart: new, an outer product.

    Source: transformers 5.23, models/mllama/modeling_mllama.py, _prepare_aspect_ratio_attention_mask.
    """
    batch, whole = tape.batch, tiles * rows
    mask = tape.new("to", (batch, tiles, 1, 1), dtype, True)
    mask = tape.new("repeat", (batch, tiles, rows, 1), dtype, True)
    mask = tape.new("rsub", (batch, whole, 1), dtype, True)
    half = autocast_half(mask)
    product = tape.new("bmm", (batch, whole, whole), half.dtype, True)
    del half
    mask = tape.new("mul", (batch, whole, whole), product.dtype, True)
    return mask.alias((batch, 1, whole, whole), None, None)


def cross_mask(tape: Tape, length: int, tiles: int, rows: int, dtype: DType) -> tuple[Tensor, Tensor]:
    """Which rows of the images each token sees: numbers [B, 1, S, T P], and whether it sees any, [B, 1, S, 1].

    Source: transformers 5.23, models/mllama/modeling_mllama.py, _prepare_cross_attention_mask.
    """
    wide = (tape.batch, 1, length, tiles * rows)
    repeated = tape.new("clone", wide, INT64, True)
    inverted = tape.new("rsub", wide, FP32, True)
    if dtype is not FP32:
        inverted = tape.new("to", wide, dtype, True)
    chosen = tape.new("to", wide, BOOL, True)
    mask = tape.new("masked_fill", wide, dtype, True)
    del chosen, repeated
    kept = tape.new("ne", wide, BOOL, True)
    some = tape.new("any", wide[:-1], BOOL, True)
    del kept
    seen = tape.new("to", wide[:-1], dtype, True)
    del some, inverted
    return mask, seen.alias((*wide[:-1], 1), None, None)
