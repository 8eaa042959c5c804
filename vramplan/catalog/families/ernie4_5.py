"""ERNIE 4.5 (models/ernie4_5/configuration_ernie4_5.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import FLAG, ModelType, qkv_bias
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS

_LEFT = ("sliding_window", "output_bias", "mlp_bias", "attention_dropout")
_DEFAULTS: dict[str, Any] = {key: value for key, value in DEFAULTS.items() if key not in _LEFT}

TYPES = {
    "ernie4_5": ModelType(
        config="Ernie4_5Config",
        family="ernie4_5",
        tasks=("lm",),
        defaults={
            **_DEFAULTS,
            "vocabulary_size": 103424,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "layers": 18,
            "attention_heads": 16,
            "key_value_heads": 2,
            "head_size": 128,
            "max_positions": 131072,
            "tied_embeddings": True,
        },
        fixed={
            **FIXED,
            "output_bias": qkv_bias,
            "mlp_bias": qkv_bias,
            "attention_dropout": 0.0,
            "sliding_window": None,
        },
        keys={
            **{key: value for key, value in KEYS.items() if key != "attention_dropout"},
            "use_bias": ("qkv_bias", FLAG),
        },
        grouped=True,
        own_head_size=True,
    ),
}
