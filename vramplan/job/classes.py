"""Which models have a classification head that is modelled."""

from __future__ import annotations

from vramplan.catalog.config_classes import MODEL_TYPES, type_of


def classifies(name: object) -> bool:
    """Whether a model type, or the first type of a family, has a classification head that is modelled."""
    if not isinstance(name, str) or name not in MODEL_TYPES:
        try:
            name = type_of(str(name))
        except StopIteration:
            return False
    return "cls" in MODEL_TYPES[name].tasks
