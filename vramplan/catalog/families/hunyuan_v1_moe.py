"""Hunyuan with experts, as Hunyuan-A13B (models/hunyuan_v1_moe/configuration_hunyuan_v1_moe.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, ModelType, intermediate_size
from vramplan.catalog.families.hunyuan_v1_dense import PLAIN, hunyuan
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS
from vramplan.catalog.families.mixtral import router_losses
from vramplan.catalog.fields import Fields
from vramplan.catalog.hf_config import read_value
from vramplan.values.model import ModelShape

ONE_FOR_ALL = {"num_experts": "experts.count", "moe_topk": "experts.active"}
"""Keys that are a number, or a list with one for each block."""


def _hunyuan_moe(fields: Fields, values: dict[str, Any]) -> None:
    hunyuan(fields, values)
    router_losses(fields, values)
    for key, field in ONE_FOR_ALL.items():
        if not fields.given(key):
            continue
        value = fields.value(key)
        if not isinstance(value, list):
            values[field] = read_value(fields, key, COUNT)
        elif len({*map(str, value)}) == 1 and type(value[0]) is int:
            values[field] = value[0]
        else:
            fields.refuse(key, "blocks with different numbers are not modelled")


def _written(shape: ModelShape) -> dict[str, Any]:
    assert shape.experts is not None
    return {"num_experts": shape.experts.routed, "moe_topk": shape.experts.active}


TYPES = {
    "hunyuan_v1_moe": ModelType(
        config="HunYuanMoEV1Config",
        family="hunyuan_v1_moe",
        tasks=("lm", "cls"),
        written=_written,
        defaults={
            **{key: value for key, value in DEFAULTS.items() if key not in ("sliding_window", "mlp_bias")},
            "vocabulary_size": 290943,
            "experts.count": 1,
            "experts.active": 1,
        },
        fixed={
            **FIXED,
            "mlp_bias": False,
            "qk_norm": True,
            "sliding_window": None,
            "experts.shared": 1,
            "experts.intermediate_size": intermediate_size,
            "experts.shared_intermediate_size": intermediate_size,
            "experts.normalized": True,
            "experts.dense_layers": (),
        },
        keys={**KEYS, "attention_bias": ("qkv_bias", FLAG)},
        adjust=_hunyuan_moe,
        grouped=True,
        own_head_size=True,
        scalings={"dynamic": PLAIN},
    ),
}
