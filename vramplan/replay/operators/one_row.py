"""Operator rules of images whose patches stand behind each other in one row that attention takes as a whole.

N = B P are the patches of all images of a micro-batch, H the hidden size. A mask keeps the images apart, so that it and
the scores grow with the square of the micro-batch. Some code takes the images one after the other all the same: what
it makes of each is one storage here.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.operators.masked_attention import ALIGNMENT
from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved, Tape, rounded
from vramplan.replay.tensors import FP32, INT64, SQUARED, DType, Tensor

INTEGER = rounded(INT64.itemsize)


RowMask = tuple[Tensor, Tensor]
"""The mask [1, 1, N, N] of a row: numbers that are added to the scores.

The memory-efficient kernel takes it as it is and keeps it where its rows begin at multiples of 8 elements, else each
block makes a wider copy and keeps that. Which of both it is depends on the micro-batch, so the mask is two tensors, one
of which is empty at every micro-batch: what kernels keep, and what they copy.
Source: transformers 5.23, models/pixtral/modeling_pixtral.py, generate_block_attention_mask;
aten/src/ATen/native/transformers/attention.cpp, preprocess_mask and pad_bias.
"""


def row_mask(tape: Tape, patches: int, dtype: DType, operator: str = "full") -> RowMask:
    """The mask of images of so many patches each."""
    return _sized(tape, operator, patches, dtype, _aligned), _sized(tape, operator, patches, dtype, _unaligned)


def whole(mask: RowMask) -> Tensor:
    """The mask as one tensor, where no kernel asks how its rows begin."""
    return mask[0]


def for_operators(mask: RowMask) -> RowMask:
    """The mask as plain operators add it: in the dtype that autocast casts to."""
    tape, patches = mask[0].tape, mask[0].shape[-1] // mask[0].tape.batch
    if tape.autocast is not None and mask[0].dtype is FP32:
        return row_mask(tape, patches, tape.autocast, "to")
    return mask


def for_kernel(mask: RowMask) -> tuple[Tensor, Tensor]:
    """What the memory-efficient kernel keeps of it: itself, and the wider copy; one of both is empty."""
    mask = for_operators(mask)
    tape, patches = mask[0].tape, mask[0].shape[-1] // mask[0].tape.batch
    return mask[0], _sized(tape, "constant_pad_nd", patches, mask[0].dtype, _padded)


def _sized(tape: Tape, operator: str, patches: int, dtype: DType, elements: Callable[[int], int]) -> Tensor:
    n = patches * tape.batch
    made = tape.new(operator, (1, 1, n, n), dtype, SQUARED)
    assert made.storage is not None

    def size(batch: int) -> int:
        return rounded(elements(patches * batch) * dtype.itemsize)

    tape.resize(made.storage.index, size(tape.batch) if tape.direct else 0, 0, size, is_affine=False)
    return made


def _aligned(n: int) -> int:
    """Elements of a mask [n, n] that is taken as it is; 0 where it is not."""
    return 0 if n % ALIGNMENT else n * n


def _unaligned(n: int) -> int:
    """Elements of a mask [n, n] that is copied before; 0 where it is not."""
    return n * n if n % ALIGNMENT else 0


def _padded(n: int) -> int:
    """Elements of the wider copy of a mask [n, n]; 0 where it needs none."""
    return n * (n + ALIGNMENT - n % ALIGNMENT) if n % ALIGNMENT else 0


def rows_of_images(x: Tensor) -> Tensor:
    """`torch.cat([image.flatten(1).T for image in x])` of x [B, H, h, w]: the patches of all images in one row, new.

    Backward: 1 new, the gradients of the images stacked.
    Source: tools/autograd/derivatives.yaml, unbind.int and cat; torch/csrc/autograd/FunctionsManual.cpp,
    unbind_backward.
    """
    whole = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("stack", whole, grad.dtype, True),)

    node = x.tape.record("cat", (x,), backward)
    batch, width, height, columns = whole
    return x.tape.new("cat", (batch * height * columns, width), x.dtype, True, None, node)


def split_images(x: Tensor) -> Tensor:
    """`x.split(sizes)` of a row [N, H] by images: views, nothing new.

    Backward: 1 new, the gradients of all images concatenated.
    Source: tools/autograd/derivatives.yaml, split_with_sizes; torch/csrc/autograd/FunctionsManual.cpp,
    split_with_sizes_backward.
    """
    whole = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("cat", whole, grad.dtype, True),)

    return x.alias(whole, None, x.tape.record("split_with_sizes", (x,), backward))


def squares_of_each(x: Tensor, size: int) -> Tensor:
    """`F.unfold` of each image of a row [N, H] by itself: squares of `size` by `size` patches as rows, new for each.

    While it runs there is a copy of its image, whose channels come last.
    Backward: for each image its gradient, new, and a copy of what comes in; the images one after the other.
    Source: tools/autograd/derivatives.yaml, im2col; aten/src/ATen/native/cuda/Im2Col.cu, im2col_out_cuda_template;
    aten/src/ATen/native/cuda/Col2Im.cu, col2im_out_cuda_template.
    """
    tape, (rows, width), dtype, whole = x.tape, x.shape, x.dtype, x.shape
    image = rows // tape.batch * width * dtype.itemsize
    squares = rows // tape.batch // size**2
    copied = rows > tape.batch and width > 1

    def backward(grad: Tensor, saved: Saved) -> Grads:
        gradients = for_each(grad.tape, "col2im", whole, grad.dtype, image // dtype.itemsize * grad.dtype.itemsize)
        if squares > 1:
            _copy(grad.tape, "col2im", image // dtype.itemsize * grad.dtype.itemsize)
        return (gradients,)

    node = tape.record("im2col", (x,), backward)
    out = for_each(tape, "im2col", (rows // size**2, width * size**2), dtype, image)
    out.node = node
    if copied:
        _copy(tape, "im2col", image)
    return out


def join_images(x: Tensor) -> Tensor:
    """`torch.cat` of what each image gave by itself: new.

    Backward: nothing new; each image gets a view of the gradient.
    Source: tools/autograd/derivatives.yaml, cat.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad,)

    return x.tape.new("cat", x.shape, x.dtype, True, None, x.tape.record("cat", (x,), backward))


def for_each(
    tape: Tape, operator: str, shape: tuple[int, ...], dtype: DType, each_bytes: int, several: int = 1
) -> Tensor:
    """A tensor of so many bytes for each image, or `several` for each sample, seen as one of the shape of all: new.

    Source: transformers 5.23, models/mistral3/modeling_mistral3.py, Mistral3PatchMerger.forward;
    models/pixtral/modeling_pixtral.py, PixtralVisionModel.forward.
    """
    made = tape.new(operator, shape, dtype, True)
    assert made.storage is not None
    each = several * rounded(each_bytes)
    tape.resize(made.storage.index, *((each * tape.batch, 0) if tape.direct else (0, each)))
    return made


def integers_of_each(tape: Tape, operator: str, count: int) -> Tensor:
    """So many whole numbers on the device for each image, each a tensor of its own."""
    return for_each(tape, operator, (tape.batch, count), INT64, INTEGER * count)


def _copy(tape: Tape, operator: str, size_bytes: int) -> None:
    tape.workspace(operator, lambda _: rounded(size_bytes), 0)
