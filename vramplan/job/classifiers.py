"""Classification of sequences by a causal model: what its head does not go with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.catalog.config_classes import MODEL_TYPES

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.model import ModelShape

CAUSAL = "lm"


def check_classifier(resolver: Resolver, model: ModelShape) -> None:
    """Refuse what was not traced with the head of a causal model, and say what its code needs."""
    if MODEL_TYPES[model.transformers_model_type].tasks[0] != CAUSAL:
        return
    raw, fields = resolver.raw, resolver.fields
    for key, given in (("adapter", raw.adapter), ("frozen", raw.frozen)):
        if given:
            message = f"a classification head over {model.code} is not modelled with it"
            fields.refuse(key, message, hint="leave it out")
    why = "its code takes several sequences only if a token is there that pads them"
    resolver.assume("pad_token_id", "set", why)
