"""EXAONE 4 (models/exaone4/configuration_exaone4.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, ModelType
from vramplan.catalog.families.gemma3 import FULL, pattern_of, without_window
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

PATTERN = "sliding_window_pattern"
_DEFAULTS: dict[str, Any] = {key: value for key, value in DEFAULTS.items() if not key.endswith("_bias")}


def _exaone4(fields: Fields, values: dict[str, Any]) -> None:
    if fields.present("sliding_window") and not fields.given("sliding_window"):
        values["sliding_window"] = None  # every block sees everything, whatever the pattern says
        return
    if fields.given(PATTERN):
        said = fields.value(PATTERN)
        every = len(said) if isinstance(said, str) else said
        if type(every) is not int or every < 1 or (isinstance(said, str) and said != "L" * (every - 1) + "G"):
            fields.refuse(PATTERN, "only a number, or L with one G at the end, is modelled")
            return
        values[PATTERN] = every
    pattern_of(fields, values)


def _written(shape: ModelShape) -> dict[str, Any]:
    if shape.sliding_window is None:  # the class divides by the pattern, which is 0 then, unless it is given the kinds
        return {"layer_types": [FULL] * shape.layers}
    return {PATTERN: shape.sliding_window_pattern}


TYPES = {
    "exaone4": ModelType(
        config="Exaone4Config",
        family="exaone4",
        tasks=("lm", "cls"),
        written=_written,
        defaults={
            **_DEFAULTS,
            "vocabulary_size": 102400,
            "intermediate_size": 16384,
            "key_value_heads": 32,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
        },
        fixed={
            **FIXED,
            "qk_norm": True,
            "qkv_bias": False,
            "output_bias": False,
            "mlp_bias": False,
            "unrotated_layers": without_window,
        },
        keys={**KEYS, "sliding_window": ("sliding_window", COUNT)},
        adjust=_exaone4,
        grouped=True,
        own_head_size=True,
    ),
}
