"""Data-less tensors: a shape, strides, a data type and a storage whose birth and death are recorded.

Sizes are affine in the micro-batch: a storage either scales with it or does not, so its size is the pair
(fixed bytes, bytes per sample). Shapes are concrete numbers at a *representative* batch (2 stands for every batch
above 1; 1 has its own replay, since dimensions of size 1 make strided views free), which lets views, copies and layouts
follow PyTorch's own stride rules instead of a list of special cases.

Lifetimes are CPython's reference counts: a storage dies when the last tensor that shares it dies, exactly as
`c10::StorageImpl` does, and its death is an entry of the recorded list. See docs/engine.md for why, and for the guards.
"""

from __future__ import annotations

from vramplan.replay.layouts import (
    ALLOCATOR_BLOCK_BYTES,
    BF16,
    BOOL,
    BYTE,
    FP16,
    FP32,
    FP64,
    INT32,
    INT64,
    SQUARED,
    DType,
    Shape,
    UnevenRows,
    contiguous_strides,
    dense_like,
    normalised,
    round_up,
    view_strides,
)
from vramplan.replay.recorder import Parameter, Storage, Tensor, reshape_gradient

__all__ = (
    "ALLOCATOR_BLOCK_BYTES",
    "BF16",
    "BOOL",
    "BYTE",
    "FP16",
    "FP32",
    "FP64",
    "INT32",
    "INT64",
    "SQUARED",
    "DType",
    "Parameter",
    "Shape",
    "Storage",
    "Tensor",
    "UnevenRows",
    "contiguous_strides",
    "dense_like",
    "normalised",
    "reshape_gradient",
    "round_up",
    "view_strides",
)
