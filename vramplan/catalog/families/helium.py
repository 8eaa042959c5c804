"""Helium (models/helium/configuration_helium.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import FLAG, ModelType
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS

_DEFAULTS: dict[str, Any] = {
    key: value for key, value in DEFAULTS.items() if key not in ("sliding_window", "output_bias")
}

TYPES = {
    "helium": ModelType(
        config="HeliumConfig",
        family="helium",
        tasks=("lm", "cls"),
        defaults={
            **_DEFAULTS,
            "vocabulary_size": 48000,
            "hidden_size": 2560,
            "intermediate_size": 7040,
            "layers": 24,
            "attention_heads": 20,
            "key_value_heads": 20,
            "head_size": 128,
            "max_positions": 4096,
        },
        fixed={**FIXED, "output_bias": False, "sliding_window": None},
        keys={**KEYS, "attention_bias": ("qkv_bias", FLAG), "mlp_bias": ("mlp_bias", FLAG)},
        grouped=True,
        own_head_size=True,
    ),
}
