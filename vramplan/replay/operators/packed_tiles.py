"""Operator rules of LLaVA-NeXT: the tiles of each image are put together to one picture, image by image.

T tiles of P patches each are T P rows of H elements for each image, of which the first tile is the whole image.
"""

from __future__ import annotations

from math import isqrt

from vramplan.replay.operators.one_row import for_each
from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved, rounded
from vramplan.replay.tensors import Parameter, Tensor


def pack_tiles(x: Tensor, newline: Parameter, tiles: int) -> Tensor:
    """The rows of each image's tiles [B T, P, H]: the first tile, then the rows of the picture that the others are,
    each with the vector `newline` at its end; new for each image.

    While an image is put together there are the rows of its picture, channels first, beside the rows of all images.
    Backward: for each image a zero-filled tensor of its tiles with the gradient of the picture in its place, new, and
    one with that of the first tile, which is added to it and goes; the images one after the other.
    Source: transformers 5.23, models/llava_next/modeling_llava_next.py, pack_image_features;
    tools/autograd/derivatives.yaml, cat, select.int and slice.Tensor.
    """
    tape, dtype, whole = x.tape, x.dtype, x.shape
    _, patches, width = whole
    edge = isqrt(patches) * isqrt(tiles - 1)
    picture = edge * (edge + 1) * width
    rows = patches + edge * (edge + 1)
    of_tiles = tiles * patches * width
    need_x = x.node is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        of_newline = None if newline.node is None else tape.new("sum", newline.shape, newline.dtype, False)
        if not need_x:
            return (None, of_newline)
        size_bytes = of_tiles * grad.dtype.itemsize
        gradient = for_each(tape, "slice_backward", whole, grad.dtype, size_bytes)
        tape.workspace("select_backward", lambda _: rounded(size_bytes), 0)
        return (gradient, of_newline)

    node = tape.record("cat", (x, newline), backward)
    out = for_each(tape, "cat", (tape.batch * rows, width), dtype, rows * width * dtype.itemsize)
    out.node = node
    tape.workspace("cat", lambda _: rounded(picture * dtype.itemsize), 0)
    return out
