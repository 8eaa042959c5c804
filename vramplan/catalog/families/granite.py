"""Granite 3 (models/granite/configuration_granite.py): Llama's keys, and numbers that nothing here depends on."""

from __future__ import annotations

from vramplan.catalog.config_classes import FLAG, ModelType
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS, all_projections

TYPES = {
    "granite": ModelType(
        config="GraniteConfig",
        family="granite",
        tasks=("lm",),
        defaults={key: value for key, value in DEFAULTS.items() if key != "sliding_window"},
        fixed={**FIXED, "sliding_window": None},
        keys={**KEYS, "attention_bias": ("qkv_bias", FLAG), "mlp_bias": ("mlp_bias", FLAG)},
        adjust=all_projections,
        grouped=True,
        own_head_size=True,
        rotary_given_since=(4, 45),
    ),
}
