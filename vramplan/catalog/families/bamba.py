"""Bamba (models/bamba/configuration_bamba.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import FLAG, ModelType
from vramplan.catalog.families.granitemoehybrid import SPACE_DEFAULTS, SPACE_KEYS, space_size, wide_heads
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS, all_projections
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

LAYERS, HEADS, HIDDEN = 32, 128, 4096


def _bamba(fields: Fields, values: dict[str, Any]) -> None:
    all_projections(fields, values)
    space_size(fields, values, HEADS, HIDDEN)
    values["state_space.output_bias"] = values.get("state_space.input_bias")
    attended = fields.value("attn_layer_indices") if fields.given("attn_layer_indices") else []
    if not isinstance(attended, list) or not all(type(one) is int for one in attended):
        fields.problem("attn_layer_indices", "expected a list of block numbers, from 0")
        return
    layers = values.get("layers") or LAYERS
    values["state_space.layers"] = tuple(i for i in range(layers) if i not in attended)
    if fields.number("z_loss_coefficient", minimum=0):
        fields.refuse("z_loss_coefficient", "a loss beside that of the tokens is not modelled", hint="set it to 0")


def _written(shape: ModelShape) -> dict[str, Any]:
    space = shape.state_space
    assert space is not None
    return {
        "attn_layer_indices": [i for i in range(shape.layers) if i not in space.layers],
        "mamba_d_head": space.head_size,
        "mamba_expand": space.values // shape.hidden_size,
    }


TYPES = {
    "bamba": ModelType(
        config="BambaConfig",
        family="bamba",
        tasks=("lm",),
        written=_written,
        defaults={
            **{key: value for key, value in DEFAULTS.items() if key != "sliding_window"},
            **SPACE_DEFAULTS,
            "vocabulary_size": 128000,
            "intermediate_size": 14336,
            "key_value_heads": 8,
            "max_positions": 262144,
        },
        fixed={
            **FIXED,
            "sliding_window": None,
            "partial_rotary_factor": 0.5,
            "state_space.norm": "gate-first",
        },
        keys={
            **KEYS,
            **SPACE_KEYS,
            "attention_bias": ("qkv_bias", FLAG),
            "mlp_bias": ("mlp_bias", FLAG),
        },
        adjust=_bamba,
        grouped=True,
        own_head_size=True,
        contradictions=wide_heads,
    ),
}
