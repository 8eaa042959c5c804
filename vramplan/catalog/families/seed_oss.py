"""Seed-OSS (models/seed_oss/configuration_seed_oss.py): Llama's keys, and a dropout of the residuals."""

from __future__ import annotations

from vramplan.catalog.config_classes import FLAG, RATIO, ModelType
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS

TYPES = {
    "seed_oss": ModelType(
        config="SeedOssConfig",
        family="seed_oss",
        tasks=("lm", "cls"),
        defaults={
            **{key: value for key, value in DEFAULTS.items() if key != "sliding_window"},
            "vocabulary_size": 155136,
            "intermediate_size": 27648,
            "layers": 64,
            "attention_heads": 80,
            "key_value_heads": 8,
            "head_size": 128,
            "max_positions": 524288,
            "qkv_bias": True,
            "attention_dropout": 0.1,
            "hidden_dropout": 0.1,
        },
        fixed={**{key: value for key, value in FIXED.items() if key != "hidden_dropout"}, "sliding_window": None},
        keys={
            **KEYS,
            "attention_bias": ("qkv_bias", FLAG),
            "attention_out_bias": ("output_bias", FLAG),
            "mlp_bias": ("mlp_bias", FLAG),
            "residual_dropout": ("hidden_dropout", RATIO),
        },
        grouped=True,
        own_head_size=True,
    ),
}
