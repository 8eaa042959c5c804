"""Liger's kernels beside its loss: which of those that a job asks for run in its model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.losses.loss import RESIDENT
from vramplan.replay.models.liger import GLU, patch_of

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.model import ModelShape

KEY, OWN = "liger_kernels", "the model's own code is counted"


def liger_of(resolver: Resolver, model: ModelShape, reference: str | None) -> tuple[str, ...]:
    """The kernels that run, of those that the job asks for; a warning says of the others why they do not.

    Liger itself leaves a type that it does not know as it is.
    """
    raw, fields = resolver.raw, resolver.fields
    asked = raw.liger_kernels
    patch = patch_of(model)
    if model.engine is not None:
        fields.refuse(KEY, f"Liger replaces no modules of {model.code}", hint="leave it out, or --runtime transformers")
        return ()
    if patch is None:
        resolver.warnings.append(f"{KEY} changes nothing: Liger replaces no modules of {model.transformers_model_type}")
        return ()
    if model.task != "lm" and patch.generates:
        message = f"Liger takes a {model.transformers_model_type} for a language model, and stops at another head"
        fields.refuse(KEY, message, hint="leave it out")
    obstacle = _obstacle(resolver, reference)
    if obstacle is not None:
        resolver.warnings.append(f"{KEY} is not modelled {obstacle}: {OWN}")
        return ()
    if patch.stops:
        message = f"liger-kernel 0.8.5 stops at a {model.transformers_model_type} of Transformers 5.23"
        resolver.warnings.append(f"{KEY}: {message}, where a class that it asks for is gone; an older one runs")
    lacking = ", ".join(word for word in asked if word not in patch.kernels)
    if lacking:
        resolver.warnings.append(f"{KEY} {lacking} of {model.transformers_model_type}: {OWN}, as {patch.why}")
    if GLU in asked and GLU in patch.kernels and model.activation != patch.activation:
        message = f"{GLU} would compute {patch.activation}, and the activation of {model.name} is {model.activation}"
        fields.refuse(KEY, message, hint="leave it out")
    return tuple(word for word in asked if word in patch.kernels)


def _obstacle(resolver: Resolver, reference: str | None) -> str | None:
    """What else of a job no kernel was followed into."""
    if resolver.raw.compile:
        return "in a compiled model"
    if resolver.raw.split is not None:
        return "over devices that share a layer or a sequence"
    return "beside a reference model" if reference == RESIDENT else None
