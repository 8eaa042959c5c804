"""Data types, and how the elements of a tensor lie in its storage: PyTorch's own rules for strides of views and copies.

Source: c10/core/Contiguity.h; ATen/TensorUtils.cpp; ATen/TensorIterator.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from vramplan.tuples import NamedTuple
from vramplan.values.allocator import MIN_BLOCK_BYTES

ALLOCATOR_BLOCK_BYTES = MIN_BLOCK_BYTES  # what storages are rounded up to

Shape = tuple[int, ...]


class DType(NamedTuple):
    """A data type: its name and the bytes of one element."""

    name: str
    itemsize: int


FP32, FP16, BF16 = DType("float32", 4), DType("float16", 2), DType("bfloat16", 2)
INT64, INT32 = DType("int64", 8), DType("int32", 4)
FP64 = DType("float64", 8)
BOOL, BYTE = DType("bool", 1), DType("uint8", 1)


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `number`."""
    return -(-number // multiple) * multiple


SQUARED = 2  # `batched` of a tensor of every sample against every other


class UnevenRows(int):
    """`batched` of a tensor that has rows of all samples, and not equally many of each: how many at a micro-batch."""

    here: int  # at the representative micro-batch
    at: Callable[[int], int]

    def __new__(cls, here: int, at: Callable[[int], int]) -> UnevenRows:
        """It counts as one that grows with the micro-batch."""
        found = super().__new__(cls, 1)
        found.here, found.at = here, at
        return found


@lru_cache(maxsize=4096)
def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides, in elements."""
    strides, step = [0] * len(shape), 1
    for i in range(len(shape) - 1, -1, -1):
        strides[i] = step
        step *= shape[i]
    return tuple(strides)


@lru_cache(maxsize=4096)
def normalised(shape: Shape, strides: Shape | None) -> Shape | None:
    """None if these strides are contiguous (dimensions of size 1 do not matter), else the strides.

    Source: c10/core/Contiguity.h, _compute_contiguous.
    """
    if strides is None:
        return None
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            if stride != expected:
                return strides
            expected *= size
    return None


@lru_cache(maxsize=4096)
def dense_like(shape: Shape, strides: Shape | None) -> Shape | None:
    """Strides of a new tensor in the dimension order of another (`torch.empty_like`, outputs of TensorIterator)."""
    if strides is None:
        return None
    order = sorted(range(len(shape)), key=lambda i: (-strides[i] if shape[i] != 1 else 0, i))
    # a broadcast dimension (stride 0) has no place in the order: TensorIterator falls back to the logical one
    if any(strides[i] == 0 and shape[i] != 1 for i in range(len(shape))):
        return None
    result, step = [0] * len(shape), 1
    ones = [i for i in range(len(shape)) if shape[i] == 1]
    for i in [*ones, *[i for i in order if shape[i] != 1]][::-1]:
        result[i] = step
        step *= shape[i]
    return normalised(shape, tuple(result))


@lru_cache(maxsize=4096)
def view_strides(shape: Shape, strides: Shape | None, new_shape: Shape) -> tuple[bool, Shape | None]:
    """Whether a tensor can be seen as `new_shape` without a copy, and the strides of that view.

    Source: ATen/TensorUtils.cpp, computeStride_impl.
    """
    if strides is None:
        return True, None
    old = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    if not old:
        return True, None
    result = [0] * len(new_shape)
    view_d = len(new_shape) - 1
    chunk_base = old[-1][1]
    chunk, covered = 1, 1
    for i in range(len(old) - 1, -1, -1):
        chunk *= old[i][0]
        if i == 0 or old[i - 1][1] != chunk * chunk_base:
            while view_d >= 0 and (covered < chunk or new_shape[view_d] == 1):
                result[view_d] = covered * chunk_base
                covered *= new_shape[view_d]
                view_d -= 1
            if covered != chunk:
                return False, None
            if i > 0:
                chunk_base = old[i - 1][1]
                chunk, covered = 1, 1
    if view_d != -1:
        return False, None
    return True, normalised(new_shape, tuple(result))


IMAGES = 4  # dimensions: samples, channels, height, width


def has_channels_last(shape: Shape, strides: Shape | None) -> bool:
    """Whether the second dimension of four lies innermost, then the last and the third.

    Source: c10/core/MemoryFormat.h, is_channels_last_strides_2d_s4.
    """
    if len(shape) != IMAGES or strides is None:
        return False
    least = 0
    for dim in (1, 3, 2, 0):
        if strides[dim] < least or (dim == 0 and least == strides[1]):
            return False
        least = strides[dim] * shape[dim]
    return True


def channels_last(shape: Shape) -> Shape | None:
    """Strides of images whose channels lie innermost.

    Source: c10/core/MemoryFormat.h, get_channels_last_strides_2d.
    """
    _, channels, height, width = shape
    return normalised(shape, (channels * height * width, 1, width * channels, channels))
