"""Nemotron 3 and 4, and Minitron (models/nemotron/configuration_nemotron.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import FLAG, SHARE, ModelType, rotary_parameters
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS, all_projections
from vramplan.catalog.fields import Fields


def _nemotron(fields: Fields, values: dict[str, Any]) -> None:
    all_projections(fields, values)
    rotary_parameters(fields, values)


TYPES = {
    "nemotron": ModelType(
        config="NemotronConfig",
        family="nemotron",
        tasks=("lm", "cls"),
        defaults={
            **{key: value for key, value in DEFAULTS.items() if key != "sliding_window"},
            "vocabulary_size": 256000,
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "attention_heads": 48,
            "max_positions": 4096,
            "activation": "relu2",
            "partial_rotary_factor": 0.5,
        },
        fixed={**FIXED, "gated_mlp": False, "sliding_window": None},
        keys={
            **KEYS,
            "attention_bias": ("qkv_bias", FLAG),
            "mlp_bias": ("mlp_bias", FLAG),
            "partial_rotary_factor": ("partial_rotary_factor", SHARE),
        },
        adjust=_nemotron,
        grouped=True,
        own_head_size=True,
    ),
}
