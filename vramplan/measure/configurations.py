"""The keys of `config.json` for what a shape says in another way than one key for one field."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import MODEL_TYPES
from vramplan.values.model import ModelShape


def field_of(shape: ModelShape, field: str) -> Any:
    """A field of a shape; one with a dot is of its experts or of its latent attention."""
    group, dot, name = field.partition(".")
    if not dot:
        return getattr(shape, field)
    inside = getattr(shape, group)
    return getattr(inside, {"count": "routed"}.get(name, name), None)


def more_keys(shape: ModelShape) -> dict[str, Any]:
    """What the model type's own keys do not say."""
    written = MODEL_TYPES[shape.transformers_model_type].written
    return {} if written is None else written(shape)
