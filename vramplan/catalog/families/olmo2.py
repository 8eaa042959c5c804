"""OLMo 2 and OLMo 3 (models/olmo2/configuration_olmo2.py, models/olmo3/configuration_olmo3.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, Keys, ModelType, qkv_bias
from vramplan.catalog.families.gemma3 import pattern_of
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS
from vramplan.catalog.fields import Fields

_FIXED = {**FIXED, "qk_norm": True, "mlp_bias": False, "output_bias": qkv_bias}
_DEFAULTS: dict[str, Any] = {
    **{key: value for key, value in DEFAULTS.items() if key not in ("output_bias", "mlp_bias", "sliding_window")},
    "vocabulary_size": 50304,
}
_KEYS: Keys = {**KEYS, "attention_bias": ("qkv_bias", FLAG)}


def _olmo3(fields: Fields, values: dict[str, Any]) -> None:
    if fields.present("sliding_window") and not fields.given("sliding_window"):
        fields.refuse("sliding_window", "null is not modelled (most blocks have a window)")
    pattern_of(fields, values)


TYPES = {
    "olmo2": ModelType(
        config="Olmo2Config",
        family="olmo2",
        tasks=("lm", "cls"),
        defaults=_DEFAULTS,
        fixed={**_FIXED, "sliding_window": None},
        keys=_KEYS,
        grouped=True,
        own_head_size=True,
    ),
    "olmo3": ModelType(
        config="Olmo3Config",
        family="olmo2",
        tasks=("lm", "cls"),
        defaults={
            **{key: value for key, value in _DEFAULTS.items() if key != "rope_scaling"},
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
        },
        fixed=_FIXED,
        keys={**_KEYS, "sliding_window": ("sliding_window", COUNT)},
        adjust=_olmo3,
        grouped=True,
        own_head_size=True,
    ),
}
