"""Operators that CUDA has for operands of one element type alone, which tensors without data do not ask for.

Without this a trace would give figures of a job that ends with an error on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

aten = torch.ops.aten

ALIKE: Mapping[Any, tuple[int, ...]] = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (0, 1, 2),
    aten.baddbmm.default: (0, 1, 2),
    aten.convolution.default: (0, 1, 2),
    aten._scaled_dot_product_flash_attention.default: (0, 1, 2),
    aten._scaled_dot_product_efficient_attention.default: (0, 1, 2, 3),
}
"""Which operands of an operator have to have one element type.

Source: aten/src/ATen/native/cuda/Blas.cpp, addmm_out_cuda_impl and bmm_out_cuda_impl; native/cudnn/ConvShared.cpp,
cudnn_convolution_forward; native/transformers/attention.cpp, validate_sdpa_input.
"""


def check(operator: Any, operands: Sequence[Any]) -> None:
    """Raise TypeError where operands of several element types come in."""
    which = ALIKE.get(operator)
    if which is None:
        return
    given = [operands[one] for one in which if one < len(operands) and operands[one] is not None]
    found = sorted({str(one.dtype).removeprefix("torch.") for one in given})
    if len(found) > 1:
        raise TypeError(f"{operator} has no kernel for operands of {' and '.join(found)}")
