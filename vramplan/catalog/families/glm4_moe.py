"""GLM-4.5 (models/glm4_moe/configuration_glm4_moe.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, Keys, ModelType, rotary_parameters
from vramplan.catalog.experts import all_shared
from vramplan.catalog.families import glm
from vramplan.catalog.families.deepseek import first_dense, groups
from vramplan.catalog.families.mixtral import EXPERT_KEYS, router_losses
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

KEYS: Keys = {
    **glm.KEYS,
    **EXPERT_KEYS,
    "n_routed_experts": ("experts.count", COUNT),
    "n_shared_experts": ("experts.shared", COUNT),
    "moe_intermediate_size": ("experts.intermediate_size", COUNT),
    "norm_topk_prob": ("experts.normalized", FLAG),
    "use_qk_norm": ("qk_norm", FLAG),
}
DENSE, LAYERS, WIDTH, HEADS = 1, 46, 4096, 96


def _glm4_moe(fields: Fields, values: dict[str, Any]) -> None:
    rotary_parameters(fields, values)
    router_losses(fields, values)
    first_dense(fields, values, DENSE, LAYERS)
    groups(fields, values)
    width, heads = values.get("hidden_size") or WIDTH, values.get("attention_heads") or HEADS
    if not fields.given("head_dim") and width % heads == 0:
        values["head_size"] = width // heads


def _written(shape: ModelShape) -> dict[str, Any]:
    experts = shape.experts
    assert experts is not None
    return {
        "first_k_dense_replace": len(experts.dense_layers),
        "n_group": experts.groups,
        "topk_group": experts.active_groups,
    }


TYPES = {
    "glm4_moe": ModelType(
        config="Glm4MoeConfig",
        family="glm4_moe",
        tasks=("lm",),
        written=_written,
        defaults={
            **glm.DEFAULTS,  # the class has no size of heads, and none that its other defaults allow
            "intermediate_size": 10944,
            "layers": LAYERS,
            "attention_heads": HEADS,
            "key_value_heads": 8,
            "qkv_bias": False,
            "qk_norm": False,
            "experts.count": 128,
            "experts.active": 8,
            "experts.shared": 1,
            "experts.intermediate_size": 1408,
            "experts.normalized": True,
            "experts.dense_layers": (0,),
            "experts.groups": 1,
            "experts.active_groups": 1,
        },
        fixed={**glm.FIXED, "experts.shared_intermediate_size": all_shared},
        keys=KEYS,
        adjust=_glm4_moe,
        grouped=True,
        own_head_size=True,
    ),
}
