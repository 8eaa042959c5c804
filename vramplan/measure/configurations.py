"""The keys of `config.json` for what a shape says in another way than one key for one field."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import MODEL_TYPES
from vramplan.values.model import ModelShape


def more_keys(shape: ModelShape) -> dict[str, Any]:
    """What the model type's own keys do not say."""
    written = MODEL_TYPES[shape.transformers_model_type].written
    return {} if written is None else written(shape)
