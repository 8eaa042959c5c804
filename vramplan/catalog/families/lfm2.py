"""LFM2 (models/lfm2/configuration_lfm2.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, ModelType
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

CONVOLUTION, FULL = "conv", "full_attention"
LAYERS, INTERMEDIATE = 32, 12288
PLAIN = ("qkv_bias", "output_bias", "mlp_bias", "attention_dropout", "activation", "sliding_window")
"""What the code has no key for: it has no biases, no dropout, and one activation."""


def _lfm2(fields: Fields, values: dict[str, Any]) -> None:
    if fields.given("tie_embedding"):
        values["tied_embeddings"] = fields.boolean("tie_embedding")
    values["intermediate_size"] = _inner(fields)
    mixers(fields, values, values.get("layers") or LAYERS)


def mixers(fields: Fields, values: dict[str, Any], layers: int) -> None:
    """Which blocks have a convolution: those that are named, or all but those with attention."""
    if fields.given("layer_types"):
        types = fields.texts("layer_types") or []
        unknown = next((one for one in types if one not in (CONVOLUTION, FULL)), None)
        if unknown is not None:
            fields.refuse("layer_types", f"{unknown} is not modelled (modelled: {CONVOLUTION}, {FULL})")
        elif len(types) != layers:
            fields.refuse("layer_types", f"{len(types)} entries for {layers} blocks")
        values["short_convolution.layers"] = tuple(i for i, one in enumerate(types) if one == CONVOLUTION)
    elif fields.given("full_attn_idxs"):
        attended = fields.value("full_attn_idxs")
        if not isinstance(attended, list) or not all(type(one) is int for one in attended):
            fields.problem("full_attn_idxs", "expected a list of block numbers, from 0")
            return
        values["short_convolution.layers"] = tuple(i for i in range(layers) if i not in attended)


def _inner(fields: Fields) -> int:
    """Elements of the feed-forward layer: two thirds of what is written, made larger as three other keys say.

    Source: models/lfm2/modeling_lfm2.py, Lfm2MLP; configuration_lfm2.py, `block_ff_dim` in the place of another key.
    """
    name = "block_ff_dim" if fields.given("block_ff_dim") else "intermediate_size"
    inner = fields.integer(name, minimum=1) if fields.given(name) else None
    inner = inner or INTERMEDIATE
    adjusted = fields.boolean("block_auto_adjust_ff_dim") if fields.given("block_auto_adjust_ff_dim") else True
    if not adjusted:
        return inner
    inner = int(2 * inner / 3)
    if fields.present("block_ffn_dim_multiplier") and not fields.given("block_ffn_dim_multiplier"):
        return inner  # null
    times = fields.number("block_ffn_dim_multiplier", minimum=0) if fields.given("block_ffn_dim_multiplier") else None
    multiple = (fields.integer("block_multiple_of", minimum=1) if fields.given("block_multiple_of") else None) or 256
    inner = int((1.0 if times is None else times) * inner)
    return multiple * ((inner + multiple - 1) // multiple)


def _written(shape: ModelShape) -> dict[str, Any]:
    convolution = shape.short_convolution
    assert convolution is not None
    return {
        "layer_types": [CONVOLUTION if i in convolution.layers else FULL for i in range(shape.layers)],
        "block_auto_adjust_ff_dim": False,
    }


TYPES = {
    "lfm2": ModelType(
        config="Lfm2Config",
        family="lfm2",
        tasks=("lm",),
        written=_written,
        defaults={
            **{key: value for key, value in DEFAULTS.items() if key not in PLAIN},
            "vocabulary_size": 65536,
            "hidden_size": 2560,
            "intermediate_size": 8192,
            "key_value_heads": 8,
            "max_positions": 128000,
            "tied_embeddings": True,
            "short_convolution.kernel": 3,
            "short_convolution.bias": False,
            "short_convolution.layers": (),
        },
        fixed={
            **FIXED,
            "qk_norm": True,
            "qkv_bias": False,
            "output_bias": False,
            "mlp_bias": False,
            "attention_dropout": 0.0,
            "activation": "silu",
            "sliding_window": None,
        },
        keys={
            **{key: one for key, one in KEYS.items() if one[0] not in PLAIN},
            "conv_L_cache": ("short_convolution.kernel", COUNT),
            "conv_bias": ("short_convolution.bias", FLAG),
        },
        adjust=_lfm2,
        grouped=True,
        own_head_size=True,
    ),
}
