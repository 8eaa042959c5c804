"""Whose forward pass is replayed, where a runtime does not train the models of Transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.models import stands_for
from vramplan.spec import ModelShape, Runtime

if TYPE_CHECKING:
    from vramplan.job.resolve import Resolver

OWN_CODE: dict[str, dict[str, str]] = {
    "megatron": dict.fromkeys(("gpt2", "llama", "bloom"), "megatron"),
    "torchtitan": {"llama": "titan"},
}
"""For each `model_code` of a runtime profile the families that it has code for, and the file of vramplan/models."""

BINDING: tuple[str, ...] = ("megatron",)
"""Of them those that never run the models of Transformers."""


def in_its_own_code(resolver: Resolver, model: ModelShape, runtime: Runtime) -> ModelShape:
    """The model in the code of its runtime, where that is written down; else as Transformers computes it."""
    code = runtime.model_code
    families = OWN_CODE.get(code, {})
    own = families.get(model.family)
    if own is not None and stands_for(own, model):
        return model._replace(family=own, published_family=model.family)
    if code in BINDING:
        message = f"{model.family} is not modelled as {runtime.name} computes it"
        known = ", ".join(families)
        resolver.fields.refuse("model", message, hint=f"modelled: {known}; or another --runtime")
        return model
    why = f"the operators of Transformers: {runtime.name}'s own code of {model.family} is not modelled"
    resolver.assume("model.code", "transformers", why)
    return model
