"""Operator rules of tiles that a batch is filled up with: which are none, and where the patches of the others are.

B images have T tiles each, of C channels and h by w pixels.
"""

from __future__ import annotations

from math import prod

from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.tensors import BOOL, FP32, INT64, Shape, Tensor

WIDE = INT64.itemsize


def sum_of_truths(tape: Tape, of: Shape, shape: Shape) -> Tensor:
    """`mask.sum(dim=...)` of truth values: new, of whole numbers; while it runs they are there as whole numbers too.

    Source: aten/src/ATen/native/ReduceOpsUtils.h, make_reduction_from_out_ty and make_reduction.
    """
    each = WIDE * prod(of) // tape.batch
    out = tape.new("sum", shape, INT64, True)
    tape.workspace("sum", lambda samples: rounded(each * samples), each)
    return out


def real_tiles(pixels: Tensor) -> Tensor:
    """`(pixels == 0).sum(dim=(1, 2, 3)) != n` of [B T, C, h, w]: new, whether each tile is more than zeros.

    Source: transformers 5.23, models/idefics3/modeling_idefics3.py, Idefics3Model.get_image_features.
    """
    tape, tiles = pixels.tape, (pixels.shape[0],)
    _zeros = tape.new("eq", pixels.shape, BOOL, True)
    numbers = sum_of_truths(tape, pixels.shape, tiles)
    del _zeros
    real = tape.new("ne", tiles, BOOL, True)
    del numbers
    return real


def taken(x: Tensor) -> Tensor:
    """`x[real]` of all tiles of an input that needs no gradient: new; while it runs the numbers of the tiles are there.

    Source: aten/src/ATen/native/IndexingUtils.h, expandTensors.
    """
    tape = x.tape
    out = tape.like("index", x)
    each = WIDE * x.shape[0] // tape.batch
    tape.workspace("index", lambda samples: rounded(each * samples), each)
    return out


def seen_patches(tape: Tape, tiles: int, edge: int) -> Tensor:
    """Which patches [B T, edge, edge] have a pixel of the image: new; their pixels are counted by views of the mask.

    Source: transformers 5.23, models/idefics3/modeling_idefics3.py, Idefics3Model.get_image_features.
    """
    counted = tape.new("sum", (tiles, edge, edge), INT64, True)
    seen = tape.new("gt", (tiles, edge, edge), BOOL, True)
    del counted
    return seen


def places_of_patches(seen: Tensor, patches: Tensor) -> Tensor:
    """The number [B T, P] of the learned position of each patch: new; all else that is made for it goes.

    Source: transformers 5.23, models/idefics3/modeling_idefics3.py, Idefics3VisionEmbeddings.forward.
    """
    tape, (tiles, edge, _) = seen.tape, seen.shape
    _boundaries = tape.new("arange", (edge,), FP32, False)
    _first = tape.new("full", (tiles, edge * edge), INT64, True)
    _counts = [sum_of_truths(tape, (tiles, edge), (tiles,)) for _ in "hw"]
    _steps = [_inverse(tape, tiles) for _ in "hw"]
    _numbers = [tape.new("arange", (edge,), FP32, False) for _ in "hw"]
    shares = [tape.new("mul", (tiles, edge), FP32, True) for _ in "hw"]
    for i in range(len(shares)):
        shares[i] = tape.new("clamp", (tiles, edge), FP32, True)
    _buckets = [tape.new("bucketize", (tiles, edge), INT64, True) for _ in "hw"]
    rows = tape.new("mul", (tiles, edge, 1), INT64, True)
    _places = tape.new("add", (tiles, edge, edge), INT64, True)
    del rows
    return tape.new("where", (tiles, edge * edge), INT64, True)


def _inverse(tape: Tape, tiles: int) -> Tensor:
    """`1.0 / counts`: the reciprocals, and their product with 1."""
    _reciprocal = tape.new("reciprocal", (tiles,), FP32, True)
    return tape.new("mul", (tiles,), FP32, True)
