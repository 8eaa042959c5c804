"""What a trace on tensors without data does not see of itself: the choice of an attention kernel, and scratch space.

A PyTorch without CUDA cannot choose an attention kernel and has no kernel that allocates, so the job's kernel is called
by name, and the scratch space of the four kernels that need some is computed as their sources do it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.nn import functional

from vramplan.measure import sounds
from vramplan.measure.known import true_of
from vramplan.replay.operators.attention import LARGEST_FLASH_HEAD
from vramplan.replay.optimizers.galore import LARGEST_BATCHED_SIDE
from vramplan.replay.recorder import rounded
from vramplan.replay.tensors import round_up

FLASH_ROWS, FLASH_WIDTH = 128, 32  # tiles of mha_bwd
EFFICIENT_ROWS = 64  # a block of queries of the CUTLASS backward kernel
ROWS_OF_MASKS = 8  # elements to whose multiples rows of a mask are padded
NORM_CHUNK = 65536  # elements that one block of threads reduces (MultiTensorApply.cuh, kChunkSize)
SORTED_INDICES = 3072  # more of them are sorted first


def flash_backward(_: Any, query: Any, key: Any, *__: Any) -> int:
    """Bytes: dq in fp32, the row sums, and under grouped queries dk and dv per query head.

    Source: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd.
    """
    batch, heads, length, width = query.shape
    rows = round_up(length, FLASH_ROWS)
    scratch = rounded(batch * rows * heads * round_up(width, FLASH_WIDTH) * 4) + rounded(batch * heads * rows * 4)
    if key.shape[1] != heads:
        scratch += 2 * rounded(batch * key.shape[2] * heads * width * query.element_size())
    return scratch


def efficient_backward(_: Any, query: Any, *__: Any) -> int:
    """Bytes: dq in fp32, and delta.

    Source: aten/src/ATen/native/transformers/cuda/attention_backward.cu.
    """
    batch, heads, length, width = query.shape
    return rounded(batch * heads * round_up(length, EFFICIENT_ROWS) * width * 4) + rounded(batch * heads * length * 4)


def embedding_backward(grad: Any, indices: Any, rows: int, *_: Any) -> int:
    """Bytes: a gradient that is not contiguous is copied; above 3072 indices they are sorted, and parts of segments are
    summed in fp32.

    Source: aten/src/ATen/native/cuda/Embedding.cu, embedding_dense_backward_cuda, and EmbeddingBackwardKernel.cu.
    """
    copied = 0 if grad.is_contiguous() else rounded(grad.numel() * grad.element_size())
    count = indices.numel()
    if count <= SORTED_INDICES:
        return copied
    segments = min(count, rows)
    partial = count // 10 + segments
    scratch = rounded(partial * grad.shape[-1] * 4) + rounded(8 * partial)
    return copied + scratch + 3 * rounded(8 * count) + 2 * rounded(8 * segments)


def foreach_norm(tensors: Any, *_: Any, **__: Any) -> int:
    """Bytes: a partial sum in fp32 for each chunk of elements, for every tensor as many as for the largest.

    Source: aten/src/ATen/native/cuda/ForeachReduceOp.cu, foreach_tensor_norm_cuda.
    """
    chunks: int = max(-(-one.numel() // NORM_CHUNK) for one in tensors)
    return len(tensors) * chunks * 4


def masked_places(_: Any, indices: Any) -> int:
    """Bytes: where a mask is true, an int64 number for each dimension of each place.

    Source: aten/src/ATen/native/IndexingUtils.h, expandTensors.
    """
    mask = indices[0]
    if mask is None or mask.dtype is not torch.bool:
        return 0
    places: int = true_of(mask) * mask.dim()
    return places * 8


def sum_of_truths(x: Any, *_: Any, **__: Any) -> int:
    """Bytes: truth values that are counted along a dimension are whole numbers first.

    Source: aten/src/ATen/native/ReduceOpsUtils.h, make_reduction_from_out_ty and make_reduction.
    """
    return 8 * int(x.numel()) if x.dtype is torch.bool else 0


def of_layer_norm(_: Any, x: Any, *given: Any) -> tuple[Any, Any, Any]:
    """The gradients of a layer norm, which are contiguous however the incoming one lies; those that are asked for.

    Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu, layer_norm_backward_cuda.
    """
    *_, weight, bias, wanted = given
    both = zip((x, weight, bias), wanted, strict=True)
    of_x, of_weight, of_bias = (one.new_empty(one.shape) if asked else None for one, asked in both)
    return of_x, of_weight, of_bias


def rolled_once(x: Any, shifts: Any, dims: Any = ()) -> int:
    """Bytes: what is rolled along several dimensions is rolled along one after the other.

    Source: aten/src/ATen/native/TensorTransformations.h, roll_common.
    """
    return int(x.numel() * x.element_size()) if len(dims) > 1 else 0


def layout_of_convolution(x: Any, weight: Any, _: Any) -> Any:
    """The layout of the results of a convolution, which a PyTorch without cuDNN would not take over from its input.

    Source: aten/src/ATen/native/ConvUtils.h, cudnn_conv_suggest_memory_format.
    """
    images = 4  # dimensions
    last = torch.channels_last
    if weight.dim() != images or torch.float64 in (x.dtype, weight.dtype):
        return torch.contiguous_format
    return last if last in map(suggest_memory_format, (x, weight)) else torch.contiguous_format


def scratch_rules() -> dict[Any, Callable[..., int]]:
    """The operators with scratch space."""
    aten = torch.ops.aten
    return {
        aten._scaled_dot_product_flash_attention_backward.default: flash_backward,
        aten._scaled_dot_product_efficient_attention_backward.default: efficient_backward,
        aten.embedding_dense_backward.default: embedding_backward,
        aten._foreach_norm.Scalar: foreach_norm,
        aten.index.Tensor: masked_places,
        aten.sum.dim_IntList: sum_of_truths,
        aten.roll.default: rolled_once,
        aten._linalg_svd.default: copied_matrix,
        aten.im2col.default: copied_image,
        aten.col2im.default: copied_image,
        aten.upsample_bicubic2d_backward.default: copied_image,
        aten.native_layer_norm.default: lambda x, *_: copied_rows(x),
        aten.native_layer_norm_backward.default: lambda grad, x, *_: copied_rows(grad) + copied_rows(x),
        aten.convolution.default: copied_channels,
        aten.convolution_backward.default: lambda _, x, weight, *__: copied_channels(x, weight),
        **sounds.scratch_rules(),
    }


def copied_rows(x: Any) -> int:
    """Bytes: what a layer norm is given is copied, unless it is contiguous.

    Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu, layer_norm_cuda and LayerNormBackwardKernelImpl.
    """
    copied: int = 0 if x.is_contiguous() else rounded(x.numel() * x.element_size())
    return copied


def copied_channels(x: Any, weight: Any, *_: Any) -> int:
    """Bytes: channels of one dimension that do not lie one after the other are copied before a convolution.

    Source: aten/src/ATen/native/Convolution.cpp, _convolution and convolution_backward, "Expand 1d -> 2d".
    """
    one_dimension = 3  # of samples, channels and places
    if weight.dim() != one_dimension or x.is_contiguous():
        return 0
    copied: int = x.numel() * x.element_size()
    return copied


def unfolded(x: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """`F.unfold` of images [B, C, h, w], which is a kernel of its own and no indexing.

    Source: aten/src/ATen/native/cuda/Im2Col.cu.
    """
    places = 1
    for i in range(2):
        reach = x.shape[2 + i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1
        places *= reach // stride[i] + 1
    return x.new_empty(x.shape[0], x.shape[1] * kernel[0] * kernel[1], places)


def folded(x: Any, size: Any, kernel: Any, *_: Any) -> Any:
    """The gradient of what was unfolded.

    Source: aten/src/ATen/native/cuda/Col2Im.cu.
    """
    return x.new_empty(x.shape[0], x.shape[1] // (kernel[0] * kernel[1]), *size)


def copied_image(x: Any, *_: Any) -> int:
    """Bytes: what is unfolded or folded, or the gradient of what was made larger, is copied unless it is contiguous.

    Source: aten/src/ATen/native/cuda/Im2Col.cu, im2col_out_cuda_template; Col2Im.cu, col2im_out_cuda_template;
    UpSampleBicubic2d.cu, upsample_bicubic2d_backward_out_cuda_template.
    """
    copied: int = 0 if x.is_contiguous() else x.numel() * x.element_size()
    return copied


def padded(x: Any, amounts: Any, value: float = 0) -> Any:
    """`F.pad`; where nothing is added it is a copy that lies as x does, of tensors with data.

    Source: aten/src/ATen/native/PadNd.cpp, constant_pad_nd.
    """
    if any(amount > 0 for amount in amounts):
        return torch.ops.aten.constant_pad_nd.default(x, amounts, value)
    for i, amount in enumerate(amounts):
        dim = x.dim() - 1 - i // 2
        start, end = (-amount, x.shape[dim]) if i % 2 == 0 else (0, x.shape[dim] + amount)
        x = x.narrow(dim, start, end - start)
    return x.clone()


def copied_matrix(matrix: Any, *_: Any) -> int:
    """What a singular value decomposition has beside its results: a copy, and whether it converged.

    Of a matrix up to 32 x 32 that is not square the longer factor is whole first.
    Source: aten/src/ATen/native/cuda/linalg/BatchLinearAlgebraLib.cpp, svd_cusolver and svd_cusolver_gesvdjBatched.
    """
    rows, columns = matrix.shape[-2:]
    longest, itemsize = max(rows, columns), matrix.element_size()
    whole = longest * longest if longest <= LARGEST_BATCHED_SIDE and rows != columns else 0
    return rounded(matrix.numel() * itemsize) + rounded(1) + rounded(whole * itemsize)


def fused_on_cuda() -> Any:
    """Operators that CUDA has a kernel for and PyTorch without it takes apart: one result each.

    Source: aten/src/ATen/native/native_functions.yaml. The registrations last as long as what is returned.
    """
    library = torch.library.Library("aten", "IMPL")
    for name in ("silu_backward", "mish_backward"):
        library.impl(name, lambda grad, x: torch.empty_like(x), "CUDA")
    library.impl("_fused_rms_norm", normed, "CUDA")
    library.impl("_fused_rms_norm_backward", of_normed, "CUDA")
    return library


def normed(x: Any, shape: Any, weight: Any = None, eps: Any = None) -> Any:
    """What `nn.RMSNorm` makes of x on CUDA: a result, and 1 / rms of each row in fp32.

    Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu, _fused_rms_norm_cuda.
    """
    rows = (*x.shape[: -len(shape)], *(1 for _ in shape))
    return torch.empty_like(x), x.new_empty(rows, dtype=torch.float32)


def of_normed(gradient: Any, x: Any, shape: Any, rstd: Any, weight: Any, wanted: Any) -> Any:
    """The gradients of x and of the weight, as far as they are wanted."""
    both = zip((x, weight), wanted, strict=True)
    return tuple(torch.empty_like(one) if want and one is not None else None for one, want in both)


def _numbers(mask: Any, dtype: Any) -> Any:
    """A mask of truth values as numbers that are added to the scores.

    Source: aten/src/ATen/native/transformers/attention.cpp, convert_boolean_attn_mask.
    """
    if mask.dtype is not torch.bool:
        return mask
    infinity = torch.scalar_tensor(float("-inf"), dtype=dtype, device=mask.device)
    zero = torch.scalar_tensor(0.0, dtype=dtype, device=mask.device)
    return torch.where(mask, zero, infinity)


def _aligned(mask: Any) -> Any:
    """A mask whose rows begin at multiples of eight, as the efficient kernel wants them: else a copy with longer rows.

    Source: aten/src/ATen/native/transformers/attention.cpp, preprocess_mask, aligned_tensor and pad_bias.
    """
    if mask.stride(-1) == 1 and all(stride % ROWS_OF_MASKS == 0 for stride in mask.stride()[:-1]):
        return mask
    length = mask.shape[-1]
    return functional.pad(mask, (0, ROWS_OF_MASKS - length % ROWS_OF_MASKS))[..., :length]


def attention_by(kernel: str) -> Callable[..., Any]:
    """`F.scaled_dot_product_attention` as it is on CUDA when it takes this kernel: flash, efficient, math or sdpa.

    `sdpa` is PyTorch's choice where flash cannot run: the efficient kernel, or plain operators for grouped queries.

    Source: aten/src/ATen/native/transformers/attention.cpp, scaled_dot_product_attention: heads that are no multiple of
    eight are padded for flash, and the efficient kernel knows no grouped queries and wants a whole bias. It gives the
    logarithms of sums where a gradient will ask for them (should_compute_logsumexp). Heads that are too large for flash
    are those of another kernel.
    """
    aten = torch.ops.aten

    def attend(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if torch.is_autocast_enabled("cuda"):  # the operator is on autocast's list
            half = torch.get_autocast_dtype("cuda")
            given = (query, key, value, attn_mask)
            query, key, value, attn_mask = (
                one.to(half) if one is not None and one.dtype == torch.float32 else one for one in given
            )
        width = query.shape[-1]
        chosen = kernel
        if chosen == "flash" and width > LARGEST_FLASH_HEAD and key.shape[1] == query.shape[1]:
            chosen = "efficient"
        elif chosen == "sdpa":
            chosen = "math" if key.shape[1] != query.shape[1] else "efficient"
        scale = 1 / sqrt(width) if scale is None else scale
        with torch.autocast("cuda", enabled=False):
            if chosen == "math":  # an operator of others, each of which is counted
                if attn_mask is not None:
                    attn_mask = _numbers(attn_mask, query.dtype)
                plain = (query, key, value, attn_mask, dropout_p, is_causal, None)
                return aten._scaled_dot_product_attention_math(*plain, scale=scale, enable_gqa=enable_gqa)[0]
            if chosen == "flash" and query.element_size() == 2 and attn_mask is None:
                missing = -width % 8
                if missing:
                    query, key, value = (functional.pad(one, (0, missing)) for one in (query, key, value))
                flash = aten._scaled_dot_product_flash_attention
                out = flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
                return out[..., :width] if missing else out
            if key.shape[1] != query.shape[1]:
                groups = query.shape[1] // key.shape[1]
                key, value = (one.repeat_interleave(groups, 1) for one in (key, value))
            if attn_mask is not None:
                attn_mask = _aligned(_numbers(attn_mask, query.dtype)).expand(*query.shape[:3], key.shape[2])
            sums = torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value))
            efficient = aten._scaled_dot_product_efficient_attention
            return efficient(query, key, value, attn_mask, sums, dropout_p, is_causal, scale=scale)[0]

    return attend
