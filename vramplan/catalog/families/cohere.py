"""Command R and Aya (models/cohere/configuration_cohere.py, models/cohere2/configuration_cohere2.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, ModelType
from vramplan.catalog.families.gemma3 import pattern_of, without_window
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS, all_projections
from vramplan.catalog.fields import Fields

_DEFAULTS: dict[str, Any] = {
    **{key: value for key, value in DEFAULTS.items() if key not in ("sliding_window", "mlp_bias")},
    "vocabulary_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "layers": 40,
    "attention_heads": 64,
    "max_positions": 8192,
    "tied_embeddings": True,
}
_KEYS = {
    **{key: value for key, value in KEYS.items() if key != "head_dim"},
    "attention_bias": ("qkv_bias", FLAG),
}


def _cohere2(fields: Fields, values: dict[str, Any]) -> None:
    all_projections(fields, values)
    if fields.present("sliding_window") and not fields.given("sliding_window"):
        fields.refuse("sliding_window", "null is not modelled (most blocks have a window)")
    pattern_of(fields, values)


TYPES = {
    "cohere2": ModelType(
        config="Cohere2Config",
        family="cohere",
        tasks=("lm",),
        defaults={**_DEFAULTS, "sliding_window": 4096, "sliding_window_pattern": 4},
        fixed={**FIXED, "mlp_bias": False, "unrotated_layers": without_window},
        keys={
            **_KEYS,
            "sliding_window": ("sliding_window", COUNT),
            "sliding_window_pattern": ("sliding_window_pattern", COUNT),
        },
        adjust=_cohere2,
        grouped=True,
    ),
    "cohere": ModelType(
        config="CohereConfig",
        family="cohere",
        tasks=("lm",),
        defaults={**_DEFAULTS, "qk_norm": False},
        fixed={**FIXED, "mlp_bias": False, "sliding_window": None},
        keys={**_KEYS, "use_qk_norm": ("qk_norm", FLAG)},
        adjust=all_projections,
        grouped=True,
        rotary_given_since=(4, 45),
    ),
}
