"""Llama 4 for text (models/llama4/configuration_llama4.py, Llama4TextConfig)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, ModelType, qkv_bias
from vramplan.catalog.families.llama import FIXED, KEYS, every_fourth, unrotated_of
from vramplan.catalog.families.mixtral import EXPERT_KEYS, router_losses
from vramplan.catalog.fields import Fields

LAYERS, CHUNK = 48, 8192


def expert_size(fields: Mapping[str, Any]) -> Any:
    """The shared expert is as wide as a routed one."""
    return fields["experts.intermediate_size"]


def _llama4(fields: Fields, values: dict[str, Any]) -> None:
    router_losses(fields, values)
    if fields.number("router_jitter_noise", minimum=0):
        fields.refuse("router_jitter_noise", "noise on the routed states is not modelled", hint="set it to 0")
    if fields.given("attn_temperature_tuning") and not fields.boolean("attn_temperature_tuning"):
        fields.refuse("attn_temperature_tuning", "false is not modelled")
    layers = values.get("layers") or LAYERS
    unrotated_of(fields, values, layers)
    plain = values.get("unrotated_layers")
    if plain is not None:
        every = plain[0] + 1 if plain else layers + 1
        values["sliding_window_pattern"] = every
        if plain != tuple(range(every - 1, layers, every)):
            fields.refuse("no_rope_layers", "only every n-th block without rotary positions is modelled")
    if fields.present("attention_chunk_size") and not fields.given("attention_chunk_size"):
        fields.refuse("attention_chunk_size", "null is not modelled (most blocks see chunks)")
    listed = fields.value("moe_layers") if fields.given("moe_layers") else None
    step = fields.integer("interleave_moe_layer_step", minimum=1) or 1
    if listed is None:
        listed = range(step - 1, layers, step)
    if not isinstance(listed, (list, range)) or not all(type(one) is int for one in listed):
        fields.problem("moe_layers", "expected a list of block numbers, from 0")
        return
    sparse = set(listed)
    values["experts.dense_layers"] = tuple(i for i in range(layers) if i not in sparse)


TYPES = {
    "llama4_text": ModelType(
        config="Llama4TextConfig",
        family="llama4",
        tasks=("lm",),
        defaults={
            "vocabulary_size": 202048,
            "hidden_size": 5120,
            "intermediate_size": 16384,
            "layers": LAYERS,
            "attention_heads": 40,
            "key_value_heads": 8,
            "head_size": 128,
            "max_positions": 4096 * 32,
            "activation": "silu",
            "tied_embeddings": False,
            "qkv_bias": False,
            "attention_dropout": 0.0,
            "qk_norm": True,
            "unrotated_layers": every_fourth,
            "sliding_window": CHUNK,  # attention_chunk_size: blocks with rotary positions see their own chunk alone
            "sliding_window_pattern": 4,
            "experts.count": 16,
            "experts.active": 1,
            "experts.intermediate_size": 8192,
            "experts.dense_layers": (),
        },
        fixed={
            **FIXED,
            "output_bias": qkv_bias,
            "mlp_bias": False,
            "experts.shared": 1,
            "experts.shared_intermediate_size": expert_size,
            "experts.normalized": False,
        },
        keys={
            **{key: value for key, value in KEYS.items() if key != "intermediate_size"},
            **EXPERT_KEYS,
            "num_local_experts": ("experts.count", COUNT),
            "intermediate_size": ("experts.intermediate_size", COUNT),
            "intermediate_size_mlp": ("intermediate_size", COUNT),
            "attention_bias": ("qkv_bias", FLAG),
            "use_qk_norm": ("qk_norm", FLAG),
            "attention_chunk_size": ("sliding_window", COUNT),
        },
        adjust=_llama4,
        grouped=True,
        own_head_size=True,
    ),
}
