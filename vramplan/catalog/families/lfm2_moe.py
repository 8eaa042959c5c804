"""LFM2 with experts (models/lfm2_moe/configuration_lfm2_moe.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, Keys, ModelType
from vramplan.catalog.families.lfm2 import CONVOLUTION, FULL, mixers
from vramplan.catalog.families.lfm2 import TYPES as PLAIN
from vramplan.catalog.families.mixtral import EXPERT_KEYS, router_losses
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

LAYERS, DENSE = 32, 2
LFM2 = PLAIN["lfm2"]
KEYS: Keys = {
    **LFM2.keys,
    **EXPERT_KEYS,
    "moe_intermediate_size": ("experts.intermediate_size", COUNT),
    "norm_topk_prob": ("experts.normalized", FLAG),
}


def _lfm2_moe(fields: Fields, values: dict[str, Any]) -> None:
    if fields.given("tie_embedding"):
        values["tied_embeddings"] = fields.boolean("tie_embedding")
    router_losses(fields, values)
    layers = values.get("layers") or LAYERS
    mixers(fields, values, layers)
    given = fields.integer("num_dense_layers", minimum=0) if fields.given("num_dense_layers") else DENSE
    values["experts.dense_layers"] = tuple(range(min(given or 0, layers)))
    if fields.given("use_expert_bias") and not fields.boolean("use_expert_bias"):
        fields.refuse("use_expert_bias", "false is not modelled: experts are chosen with a bias")


def _written(shape: ModelShape) -> dict[str, Any]:
    convolution, experts = shape.short_convolution, shape.experts
    assert convolution is not None
    assert experts is not None
    return {
        "layer_types": [CONVOLUTION if i in convolution.layers else FULL for i in range(shape.layers)],
        "num_dense_layers": len(experts.dense_layers),
    }


TYPES = {
    "lfm2_moe": ModelType(
        config="Lfm2MoeConfig",
        family="lfm2_moe",
        tasks=("lm",),
        written=_written,
        defaults={
            **LFM2.defaults,
            "hidden_size": 2048,
            "intermediate_size": 7168,
            "experts.count": 32,
            "experts.active": 4,
            "experts.intermediate_size": 1792,
            "experts.normalized": True,
            "experts.dense_layers": (0, 1),
        },
        fixed={**LFM2.fixed, "experts.shared": 0},
        keys=KEYS,
        adjust=_lfm2_moe,
        grouped=True,
        own_head_size=True,
    ),
}
