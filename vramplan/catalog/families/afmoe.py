"""AFMoE, which is Trinity (models/afmoe/configuration_afmoe.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, Keys, ModelType, same_heads
from vramplan.catalog.experts import all_shared
from vramplan.catalog.families.gemma3 import pattern_of, without_window
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS, all_projections
from vramplan.catalog.families.mixtral import EXPERT_KEYS, router_losses
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

DENSE, LAYERS = 1, 32
_KEYS: Keys = {
    **KEYS,
    **EXPERT_KEYS,
    "attention_bias": ("qkv_bias", FLAG),
    "num_shared_experts": ("experts.shared", COUNT),
    "moe_intermediate_size": ("experts.intermediate_size", COUNT),
    "sliding_window": ("sliding_window", COUNT),
    "global_attn_every_n_layers": ("sliding_window_pattern", COUNT),
    "mup_enabled": ("scaled_embeddings", FLAG),
}


def _afmoe(fields: Fields, values: dict[str, Any]) -> None:
    all_projections(fields, values)
    router_losses(fields, values)
    pattern_of(fields, values)
    if fields.present("sliding_window") and not fields.given("sliding_window"):
        fields.refuse("sliding_window", "null is not modelled (most blocks have a window)")
    dense = fields.integer("num_dense_layers", minimum=0) if fields.given("num_dense_layers") else DENSE
    values["experts.dense_layers"] = tuple(range(min(dense or 0, values.get("layers") or LAYERS)))


def _written(shape: ModelShape) -> dict[str, Any]:
    assert shape.experts is not None
    return {"num_dense_layers": len(shape.experts.dense_layers)}


TYPES = {
    "afmoe": ModelType(
        config="AfmoeConfig",
        family="afmoe",
        tasks=("lm",),
        written=_written,
        defaults={
            **{key: one for key, one in DEFAULTS.items() if key not in ("mlp_bias", "rope_scaling")},
            "vocabulary_size": 200192,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "layers": LAYERS,
            "attention_heads": 16,
            "key_value_heads": same_heads,
            "head_size": 128,
            "max_positions": 16384,
            "sliding_window": 1024,
            "sliding_window_pattern": 4,
            "scaled_embeddings": False,
            "experts.count": 64,
            "experts.active": 6,
            "experts.shared": 2,
            "experts.intermediate_size": 1408,
            "experts.dense_layers": (0,),
        },
        fixed={
            **FIXED,
            "mlp_bias": False,
            "qk_norm": True,
            "unrotated_layers": without_window,
            "experts.shared_intermediate_size": all_shared,
            "experts.normalized": True,
        },
        keys=_KEYS,
        adjust=_afmoe,
        grouped=True,
        own_head_size=True,
    ),
}
