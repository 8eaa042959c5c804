"""Mixtral (models/mixtral/configuration_mixtral.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, Keys, ModelType, Peft, intermediate_size
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS
from vramplan.catalog.fields import Fields

EXPERT_KEYS: Keys = {
    "num_experts": ("experts.count", COUNT),  # also the name of MixtralConfig (its attribute_map)
    "num_experts_per_tok": ("experts.active", COUNT),
}


def router_losses(fields: Fields, values: dict[str, Any]) -> None:
    """What makes the routing part of the loss, or noisy."""
    if fields.boolean("output_router_logits"):
        message = "true is not modelled (the load-balancing loss of the router)"
        fields.refuse("output_router_logits", message, hint="set it to false: it adds a few bytes for each token")


def routing(fields: Fields, values: dict[str, Any]) -> None:
    """What changes how tokens find their experts."""
    router_losses(fields, values)
    if fields.number("router_jitter_noise", minimum=0):
        fields.refuse("router_jitter_noise", "noise on the routed states is not modelled", hint="set it to 0")


TYPES = {
    "mixtral": ModelType(
        config="MixtralConfig",
        family="mixtral",
        tasks=("lm", "cls"),
        peft=Peft(of_kind={"adalora": ()}, lora=("q_proj", "v_proj")),
        defaults={
            **{key: value for key, value in DEFAULTS.items() if not key.endswith("_bias")},
            "intermediate_size": 14336,
            "key_value_heads": 8,
            "max_positions": 4096 * 32,
            "experts.count": 8,
            "experts.active": 2,
        },
        fixed={
            **FIXED,
            "qkv_bias": False,
            "output_bias": False,
            "mlp_bias": False,
            "experts.shared": 0,
            "experts.intermediate_size": intermediate_size,
            "experts.normalized": True,
            "experts.dense_layers": (),
        },
        keys={
            **KEYS,
            **EXPERT_KEYS,
            "num_local_experts": ("experts.count", COUNT),
            "sliding_window": ("sliding_window", COUNT),
        },
        adjust=routing,
        grouped=True,
        own_head_size=True,
    ),
}
