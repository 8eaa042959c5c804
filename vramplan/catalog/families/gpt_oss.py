"""gpt-oss (models/gpt_oss/configuration_gpt_oss.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, ModelType, intermediate_size, qkv_bias
from vramplan.catalog.families.gemma3 import pattern_of
from vramplan.catalog.families.llama import FIXED, KEYS
from vramplan.catalog.families.mixtral import EXPERT_KEYS, router_losses
from vramplan.catalog.fields import Fields


def _gpt_oss(fields: Fields, values: dict[str, Any]) -> None:
    router_losses(fields, values)
    if fields.present("sliding_window") and not fields.given("sliding_window"):
        fields.refuse("sliding_window", "null is not modelled (every second block has a window)")
    pattern_of(fields, values)


TYPES = {
    "gpt_oss": ModelType(
        config="GptOssConfig",
        family="gpt_oss",
        tasks=("lm", "cls"),
        defaults={
            "vocabulary_size": 201088,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "layers": 36,
            "attention_heads": 64,
            "key_value_heads": 8,
            "head_size": 64,
            "max_positions": 131072,
            "tied_embeddings": False,
            "qkv_bias": True,
            "attention_dropout": 0.0,
            "sliding_window": 128,
            "sliding_window_pattern": 2,
            "experts.count": 128,
            "experts.active": 4,
        },
        fixed={
            **FIXED,
            "activation": "silu",  # hidden_act is in the configuration and nowhere in the model
            "output_bias": qkv_bias,
            "mlp_bias": True,
            "experts.shared": 0,
            "experts.intermediate_size": intermediate_size,
            "experts.normalized": True,
            "experts.dense_layers": (),
        },
        keys={
            **{key: value for key, value in KEYS.items() if key != "hidden_act"},
            **EXPERT_KEYS,
            "num_local_experts": ("experts.count", COUNT),
            "attention_bias": ("qkv_bias", FLAG),
            "sliding_window": ("sliding_window", COUNT),
        },
        adjust=_gpt_oss,
        grouped=True,
        own_head_size=True,
    ),
}
