"""OLMoE (models/olmoe/configuration_olmoe.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, ModelType, intermediate_size, qkv_bias
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS
from vramplan.catalog.families.mixtral import EXPERT_KEYS, router_losses
from vramplan.catalog.fields import Fields


def _olmoe(fields: Fields, values: dict[str, Any]) -> None:
    router_losses(fields, values)
    if fields.number("clip_qkv", minimum=0):
        fields.refuse("clip_qkv", "clipped queries, keys and values are not modelled", hint="set it to null")


TYPES = {
    "olmoe": ModelType(
        config="OlmoeConfig",
        family="olmoe",
        tasks=("lm",),
        defaults={
            **{
                key: value
                for key, value in DEFAULTS.items()
                if key not in ("output_bias", "mlp_bias", "sliding_window")
            },
            "vocabulary_size": 50304,
            "hidden_size": 2048,
            "intermediate_size": 2048,
            "layers": 16,
            "attention_heads": 16,
            "max_positions": 4096,
            "experts.count": 64,
            "experts.active": 8,
            "experts.normalized": False,
        },
        fixed={
            **FIXED,
            "qk_norm": True,
            "mlp_bias": False,
            "sliding_window": None,
            "output_bias": qkv_bias,
            "experts.shared": 0,
            "experts.intermediate_size": intermediate_size,
            "experts.dense_layers": (),
        },
        keys={
            **KEYS,
            **EXPERT_KEYS,
            "num_local_experts": ("experts.count", COUNT),
            "norm_topk_prob": ("experts.normalized", FLAG),
            "attention_bias": ("qkv_bias", FLAG),
        },
        adjust=_olmoe,
        grouped=True,
        rotary_given_since=(4, 45),
    ),
}
