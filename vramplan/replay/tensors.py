"""Data-less tensors: a shape, strides, a data type and a storage whose birth and death are recorded.

Sizes are affine in the micro-batch: a storage either scales with it or does not, so its size is the pair
(fixed bytes, bytes per sample). Shapes are concrete numbers at a *representative* batch (2 stands for every batch
above 1; 1 has its own replay, since dimensions of size 1 make strided views free), which lets views, copies and layouts
follow PyTorch's own stride rules instead of a list of special cases.

Lifetimes are CPython's reference counts: a storage dies when the last tensor that shares it dies, exactly as
`c10::StorageImpl` does, and its death is an entry of the recorded list. See docs/engine.md for why, and for the guards.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from vramplan.values.allocator import MIN_BLOCK_BYTES

if TYPE_CHECKING:
    from vramplan.replay.recorder import Tape

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


class Storage:
    """Memory with a birth and a death. Dying writes `~index` into the list of events."""

    __slots__ = ("events", "index")

    def __init__(self, events: list[int], index: int) -> None:
        self.events = events
        self.index = index
        events.append(index)

    def __del__(self) -> None:
        self.events.append(~self.index)


class Tensor:
    """A view of a storage. `node` is what receives its gradient; None means that it needs none.

    `strides` is None for a contiguous tensor. `storage` is None for tensors that outlive the iteration (weights,
    inputs, buffers): they are counted once, as states. `batched` says that the number of elements scales with the
    micro-batch, or with its square (SQUARED).
    """

    __slots__ = ("batched", "dtype", "node", "output_index", "shape", "storage", "strides", "tape")

    def __init__(
        self,
        tape: Tape,
        storage: Storage | None,
        shape: Shape,
        dtype: DType,
        batched: int,
        strides: Shape | None = None,
        node: Any = None,
        output_index: int = 0,
    ) -> None:
        self.tape = tape
        self.storage = storage
        self.shape = shape
        self.dtype = dtype
        self.batched = batched
        self.strides = strides
        self.node = node
        self.output_index = output_index

    def alias(self, shape: Shape, strides: Shape | None, node: Any, output_index: int = 0) -> Tensor:
        """Another view of the same storage."""
        return Tensor(self.tape, self.storage, shape, self.dtype, self.batched, strides, node, output_index)


class Parameter(Tensor):
    """A weight. It is its own gradient accumulator, as `AccumulateGrad` is of a leaf.

    `copies` is how many identical parameters of identical blocks this one stands for, `path` the repeated units that
    make it so. `part` is the part of the model that it belongs to, from the outer to the inner: `("vision_encoder",)`.
    """

    __slots__ = (
        *("copies", "grad", "grad_bytes", "idle", "in_linear", "is_table", "name"),
        *("part", "parts", "path", "pending", "quantized", "waiting"),
    )

    def __init__(self, tape: Tape, name: str, shape: Shape, dtype: DType, copies: int, trainable: bool) -> None:
        super().__init__(tape, None, shape, dtype, False)
        self.name = name
        self.copies = copies
        self.path = tape.path
        self.part = tape.part
        self.parts = 1  # devices that have a part of the weight each, as this one has
        self.idle = False  # trainable, and no gradient reaches it
        self.in_linear = False  # the weight of a linear layer
        self.is_table = False  # an embedding: rows are looked up in it
        self.quantized: tuple[int, ...] = ()  # bytes of each tensor of a quantized weight, in place of its own
        self.node = self if trainable else None
        self.grad: Tensor | None = None  # made in this backward pass; resident gradients are states
        self.grad_bytes = 0  # of the storage that it would be in, where that is known: it may be a view of a larger one
        self.pending = 0  # edges of the graph that will still bring a gradient
        self.waiting: Tensor | None = None  # the sum of those that came, while others are pending

    @property
    def elements(self) -> int:
        """Number of elements of one copy."""
        return prod(self.shape)

    @property
    def stored_bytes(self) -> int:
        """Bytes of one copy on the device, each of its tensors in allocator blocks."""
        sizes = self.quantized or (self.elements * self.dtype.itemsize,)
        return sum(round_up(size, ALLOCATOR_BLOCK_BYTES) for size in sizes)


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
