"""Liger's kernels beside its loss: of which models and with what else they are modelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.losses import RESIDENT
from vramplan.replay.models.liger import GLU, PATCHES, patch_of

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.model import ModelShape

KEY, LEAVE = "liger_kernels", "leave it out"


def check_liger(resolver: Resolver, model: ModelShape, reference: str | None) -> None:
    """Refuse kernels that Liger does not put into the model, and what they were never run with."""
    raw, fields = resolver.raw, resolver.fields
    patch = patch_of(model)
    if patch is None:
        message = f"Liger replaces no modules of {model.code}"
        fields.refuse(KEY, message, hint=f"{LEAVE}; it knows {', '.join(PATCHES)}")
        return
    lacking = [word for word in raw.liger_kernels if word not in patch.kernels]
    if lacking:
        message = f"{', '.join(lacking)} is not modelled for {model.transformers_model_type}: {patch.why}"
        fields.refuse(KEY, message, hint=f"use {', '.join(patch.kernels)}")
    elif GLU in raw.liger_kernels and model.activation != patch.activation:
        message = f"{GLU} would compute {patch.activation}, and the activation of {model.name} is {model.activation}"
        others = ", ".join(one for one in patch.kernels if one != GLU)
        fields.refuse(KEY, message, hint=f"use {others}")
    if model.task != "lm" and patch.generates:
        message = f"Liger takes a {model.transformers_model_type} for a language model, and stops at another head"
        fields.refuse(KEY, message, hint=LEAVE)
    if raw.compile:
        fields.refuse(KEY, "a compiled model with Liger's kernels is not modelled", hint=LEAVE)
    if raw.split is not None:
        fields.refuse(KEY, "Liger's kernels over devices that share a layer are not modelled", hint=LEAVE)
    if reference == RESIDENT:
        message = "which of two models Liger's kernels are put into is not modelled"
        fields.refuse(KEY, message, hint="dpo_reference: adapter-off or precomputed")
