"""Classification of sequences by a causal model: what its head needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.catalog.config_classes import MODEL_TYPES

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.model import ModelShape

CAUSAL = "lm"


def check_classifier(resolver: Resolver, model: ModelShape) -> None:
    """Say what the code of a causal model with that head needs."""
    if MODEL_TYPES[model.transformers_model_type].tasks[0] != CAUSAL:
        return
    why = "its code takes several sequences only if a token is there that pads them"
    resolver.assume("pad_token_id", "set", why)
