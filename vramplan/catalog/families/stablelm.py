"""StableLM (models/stablelm/configuration_stablelm.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import FLAG, RATIO, SHARE, ModelType, rotary_parameters
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS

_LEFT = ("sliding_window", "output_bias", "mlp_bias")
_DEFAULTS: dict[str, Any] = {key: value for key, value in DEFAULTS.items() if key not in _LEFT}

TYPES = {
    "stablelm": ModelType(
        config="StableLmConfig",
        family="stablelm",
        tasks=("lm", "cls"),
        defaults={
            **_DEFAULTS,
            "vocabulary_size": 50304,
            "hidden_size": 2560,
            "intermediate_size": 6912,
            "key_value_heads": 32,
            "max_positions": 4096,
            "hidden_dropout": 0.0,
            "parallel_residual": False,
            "qk_norm": False,
            "partial_rotary_factor": 0.25,
        },
        fixed={
            **{key: value for key, value in FIXED.items() if key != "hidden_dropout"},
            "output_bias": False,
            "mlp_bias": False,
            "sliding_window": None,
        },
        keys={
            **{key: value for key, value in KEYS.items() if key != "head_dim"},
            "use_qkv_bias": ("qkv_bias", FLAG),
            "use_parallel_residual": ("parallel_residual", FLAG),
            "qk_layernorm": ("qk_norm", FLAG),
            "hidden_dropout": ("hidden_dropout", RATIO),
            "partial_rotary_factor": ("partial_rotary_factor", SHARE),
        },
        adjust=rotary_parameters,
        grouped=True,
    ),
}
