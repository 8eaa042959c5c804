"""Gemma 3 for text (models/gemma3/configuration_gemma3.py, Gemma3TextConfig)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import BOUND, COUNT, ModelType
from vramplan.catalog.families.gemma import FIXED, attention_bias
from vramplan.catalog.families.gemma2 import KEYS, PEFT
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

FULL, SLIDING = "full_attention", "sliding_attention"


def _gemma3(fields: Fields, values: dict[str, Any]) -> None:
    attention_bias(fields, values)
    if fields.present("final_logit_softcapping"):
        values["logit_softcap"] = fields.number("final_logit_softcapping") is not None
    if fields.present("sliding_window") and not fields.given("sliding_window"):
        fields.refuse("sliding_window", "null is not modelled (most blocks have a window)")
    pattern_of(fields, values)


def pattern_of(fields: Fields, values: dict[str, Any]) -> None:
    """The kinds of the blocks one by one: every so many see everything."""
    types = fields.texts("layer_types") if fields.given("layer_types") else None
    if types is None:
        return
    every = types.index(FULL) + 1 if FULL in types else len(types) + 1
    if types != [SLIDING if (i + 1) % every else FULL for i in range(len(types))]:
        fields.refuse("layer_types", f"only every n-th block as {FULL} is modelled, the others as {SLIDING}")
    elif len(types) != values.get("layers", len(types)):
        fields.refuse("layer_types", f"{len(types)} entries for {values['layers']} blocks")
    values["sliding_window_pattern"] = every


def without_window(fields: Mapping[str, Any]) -> tuple[int, ...]:
    """The blocks that see everything, of models whose others have a window."""
    every = fields["sliding_window_pattern"]
    return () if fields["sliding_window"] is None else tuple(range(every - 1, fields["layers"], every))


def _written(shape: ModelShape) -> dict[str, Any]:
    return {"final_logit_softcapping": BOUND if shape.logit_softcap else None}


TYPES = {
    "gemma3_text": ModelType(
        config="Gemma3TextConfig",
        family="gemma3",
        tasks=("lm", "cls"),
        written=_written,
        peft=PEFT,
        defaults={
            "vocabulary_size": 262208,
            "hidden_size": 2304,
            "layers": 26,
            "attention_heads": 8,
            "key_value_heads": 4,
            "head_size": 256,
            "intermediate_size": 9216,
            "activation": "gelu_pytorch_tanh",
            "qkv_bias": False,
            "output_bias": False,
            "attention_dropout": 0.0,
            "max_positions": 131072,
            "tied_embeddings": True,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
            "logit_softcap": False,
        },
        fixed={**FIXED, "qk_norm": True},
        keys={
            **KEYS,
            "sliding_window": ("sliding_window", COUNT),
            "sliding_window_pattern": ("sliding_window_pattern", COUNT),
        },
        refused=("use_bidirectional_attention",),
        adjust=_gemma3,
        grouped=True,
        own_head_size=True,
    ),
}
