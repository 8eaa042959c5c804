"""Arcee (models/arcee/configuration_arcee.py): Llama's keys, for feed-forward layers without a gate."""

from __future__ import annotations

from vramplan.catalog.config_classes import FLAG, ModelType
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS, all_projections

TYPES = {
    "arcee": ModelType(
        config="ArceeConfig",
        family="arcee",
        tasks=("lm", "cls"),
        defaults={
            **{key: value for key, value in DEFAULTS.items() if key != "sliding_window"},
            "hidden_size": 2560,
            "intermediate_size": 18432,
            "max_positions": 4096,
            "activation": "relu2",
        },
        fixed={**FIXED, "gated_mlp": False, "sliding_window": None},
        keys={**KEYS, "attention_bias": ("qkv_bias", FLAG), "mlp_bias": ("mlp_bias", FLAG)},
        adjust=all_projections,
        grouped=True,
        own_head_size=True,
    ),
}
