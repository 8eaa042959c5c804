"""Ministral 3 for text (models/ministral3/configuration_ministral3.py)."""

from __future__ import annotations

from vramplan.catalog.config_classes import COUNT, ModelType
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS

TYPES = {
    "ministral3": ModelType(
        config="Ministral3Config",
        family="ministral3",
        tasks=("lm", "cls"),
        defaults={
            **{key: value for key, value in DEFAULTS.items() if not key.endswith("_bias") and key != "rope_scaling"},
            "vocabulary_size": 131072,
            "intermediate_size": 14336,
            "layers": 34,
            "key_value_heads": 8,
            "head_size": 128,
            "max_positions": 262144,
        },
        fixed={**FIXED, "qkv_bias": False, "output_bias": False, "mlp_bias": False, "scaled_queries": True},
        keys={**KEYS, "sliding_window": ("sliding_window", COUNT)},
        grouped=True,
        own_head_size=True,
    ),
}
