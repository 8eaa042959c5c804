"""Hunyuan's dense models (models/hunyuan_v1_dense/configuration_hunyuan_v1_dense.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import FLAG, ModelType
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS, all_projections
from vramplan.catalog.fields import Fields

PLAIN = "ntk_alpha"  # a larger base, and no other tensors


def hunyuan(fields: Fields, values: dict[str, Any]) -> None:
    """A bias of all four projections of attention, and positions of a larger base."""
    all_projections(fields, values)
    for key in ("rope_parameters", "rope_scaling"):
        inside = fields.fields(key) if fields.given(key) else None
        if inside is None or inside.given("alpha"):
            continue
        if "dynamic" in (inside.text(one) for one in ("type", "rope_type") if inside.given(one)):
            fields.refuse(key, "dynamic without alpha is not modelled")


TYPES = {
    "hunyuan_v1_dense": ModelType(
        config="HunYuanDenseV1Config",
        family="hunyuan_v1_dense",
        tasks=("lm", "cls"),
        defaults={
            **{key: value for key, value in DEFAULTS.items() if key not in ("sliding_window", "mlp_bias")},
            "vocabulary_size": 290943,
        },
        fixed={**FIXED, "mlp_bias": False, "qk_norm": True, "sliding_window": None},
        keys={**KEYS, "attention_bias": ("qkv_bias", FLAG)},
        adjust=hunyuan,
        grouped=True,
        own_head_size=True,
        scalings={"dynamic": PLAIN},
    ),
}
