"""State spaces: which code runs them is told, and what that code does not do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.model import ModelShape

BY_PYTORCH = (
    "by PyTorch's own operators, as where mamba-ssm and causal-conv1d are not installed; their kernels keep less for "
    "backward: mamba_kernels true counts those"
)
NOT_APART = (
    "packed sequences are not kept apart in the blocks with a state space: a state goes on into the next sequence, as "
    "Transformers hands these blocks no positions"
)
NEEDS_LESS = (
    "state spaces run by PyTorch's own operators here; where mamba-ssm is installed a step needs less memory and time: "
    "--mamba-kernels"
)
COMPOSED = "the kernels of mamba-ssm were composed from their source, and never traced"
UNUSED = "mamba_kernels changes nothing: {} has no block with a state space"


def tell_space(resolver: Resolver, model: ModelShape) -> None:
    """Say which code is modelled, and what it does with packed sequences.

    Source: transformers 5.23, integrations/hub_kernels.py, use_kernel_func_from_hub_with_fallback;
    models/granitemoehybrid/modeling_granitemoehybrid.py, GraniteMoeHybridModel.forward, and those of its kin.
    """
    raw, space = resolver.raw, model.state_space
    if space is None or not space.layers:
        if raw.mamba_kernels:
            resolver.warnings.append(UNUSED.format(model.name))
        return
    if raw.mamba_kernels or model.engine is not None:  # a training program's own code has nothing else
        resolver.warnings.append(COMPOSED)
    else:
        steps = f"chunks of {space.chunk} tokens" if space.step_rank is None else "token by token"
        resolver.assume("model.state_space", steps, BY_PYTORCH)
        resolver.warnings.append(NEEDS_LESS)
    if raw.packing:
        resolver.warnings.append(NOT_APART)
