"""Attention that is linear in the sequence: which code runs it is told, and what that code cannot do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver

BY_PYTORCH = (
    "by PyTorch's own operators, as where flash-linear-attention and causal-conv1d are not installed; their kernels "
    "keep less for backward"
)
NEEDS_LESS = (
    "linear attention runs by PyTorch's own operators here; where flash-linear-attention is installed a step needs "
    "less memory and time, which is not modelled"
)
NOT_APART = (
    "attention flash with packing is computed as asked, but without flash-linear-attention Transformers ends with an "
    "error here: its own operators cannot keep packed sequences apart in the blocks with linear attention"
)


def tell_linear(resolver: Resolver, attention: str) -> None:
    """Say which code is modelled, and what ends with an error in it.

    Source: transformers 5.23, integrations/hub_kernels.py, use_kernel_func_from_hub_with_fallback.
    """
    resolver.assume("model.linear_attention", "chunks of 64 tokens", BY_PYTORCH)
    resolver.warnings.append(NEEDS_LESS)
    if resolver.raw.packing and attention == "flash":
        resolver.warnings.append(NOT_APART)
