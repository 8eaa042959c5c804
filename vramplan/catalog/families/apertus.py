"""Apertus (models/apertus/configuration_apertus.py): Llama's keys, for feed-forward layers of xIELU."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import FLAG, ModelType
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS, all_projections
from vramplan.catalog.fields import Fields

XIELU = "xielu"


def _apertus(fields: Fields, values: dict[str, Any]) -> None:
    all_projections(fields, values)
    if fields.given("hidden_act") and fields.text("hidden_act") != XIELU:
        fields.refuse("hidden_act", f"only {XIELU} is modelled for apertus")


TYPES = {
    "apertus": ModelType(
        config="ApertusConfig",
        family="apertus",
        tasks=("lm",),
        defaults={
            **{
                key: value for key, value in DEFAULTS.items() if key not in ("sliding_window", "activation", "mlp_bias")
            },
            "vocabulary_size": 131072,
            "intermediate_size": 14336,
            "max_positions": 65536,
        },
        fixed={
            **FIXED,
            "activation": XIELU,
            "gated_mlp": False,
            "mlp_bias": False,
            "qk_norm": True,
            "sliding_window": None,
        },
        keys={
            **{key: value for key, value in KEYS.items() if key != "hidden_act"},
            "attention_bias": ("qkv_bias", FLAG),
        },
        adjust=_apertus,
        grouped=True,
        own_head_size=True,
    ),
}
