"""Short convolutions: which code runs them is told, and what that code does not do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver

BY_PYTORCH = "by PyTorch's own convolution, as where causal-conv1d is not installed; its kernel allocates less"
NOT_APART = (
    "packed sequences are not kept apart in the blocks with a convolution: PyTorch's own sees the last tokens of the "
    "sequence before"
)


def tell_short(resolver: Resolver, kernel: int) -> None:
    """Say which code is modelled, and what it does with packed sequences.

    Source: transformers 5.23, integrations/hub_kernels.py, use_kernel_func_from_hub_with_fallback;
    models/lfm2/modeling_lfm2.py, Lfm2ShortConv.forward.
    """
    resolver.assume("model.short_convolution", f"of {kernel} tokens", BY_PYTORCH)
    if resolver.raw.packing:
        resolver.warnings.append(NOT_APART)
