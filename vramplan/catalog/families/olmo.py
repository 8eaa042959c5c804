"""OLMo 1 (models/olmo/configuration_olmo.py): Llama's keys, and a bound of queries, keys and values."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import BOUND, FLAG, ModelType
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS, all_projections
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape


def _olmo(fields: Fields, values: dict[str, Any]) -> None:
    all_projections(fields, values)
    if fields.present("clip_qkv"):
        values["clipped_qkv"] = fields.number("clip_qkv") is not None


def _written(shape: ModelShape) -> dict[str, Any]:
    return {"clip_qkv": BOUND if shape.clipped_qkv else None}


TYPES = {
    "olmo": ModelType(
        config="OlmoConfig",
        family="olmo",
        tasks=("lm", "cls"),
        written=_written,
        defaults={
            **{key: value for key, value in DEFAULTS.items() if key not in ("sliding_window", "mlp_bias")},
            "vocabulary_size": 50304,
            "clipped_qkv": False,
        },
        fixed={**FIXED, "mlp_bias": False, "sliding_window": None},
        keys={**KEYS, "attention_bias": ("qkv_bias", FLAG)},
        adjust=_olmo,
        grouped=True,
        own_head_size=True,
    ),
}
