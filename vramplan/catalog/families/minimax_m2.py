"""MiniMax-M2 (models/minimax_m2/configuration_minimax_m2.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, ModelType, intermediate_size, rotary_parameters
from vramplan.catalog.families import mixtral
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

HEAD = 128
LEFT = ("sliding_window", "rope_scaling")


def _minimax_m2(fields: Fields, values: dict[str, Any]) -> None:
    mixtral.routing(fields, values)
    rotary_parameters(fields, values)
    turned = fields.integer("rotary_dim", minimum=1) if fields.given("rotary_dim") else None
    if turned is not None:  # of the published checkpoints, which say it so
        values.setdefault("partial_rotary_factor", turned / (values.get("head_size") or HEAD))


def _written(shape: ModelShape) -> dict[str, Any]:
    return {"rotary_dim": int(shape.head_size * shape.partial_rotary_factor)}


TYPES = {
    "minimax_m2": ModelType(
        config="MiniMaxM2Config",
        family="minimax_m2",
        tasks=("lm",),
        written=_written,
        defaults={
            **{key: one for key, one in DEFAULTS.items() if not key.endswith("_bias") and key not in LEFT},
            "vocabulary_size": 200064,
            "hidden_size": 3072,
            "intermediate_size": 1536,
            "layers": 62,
            "attention_heads": 48,
            "key_value_heads": 8,
            "head_size": HEAD,
            "max_positions": 196608,
            "partial_rotary_factor": 1.0,
            "experts.count": 256,
            "experts.active": 8,
        },
        fixed={
            **FIXED,
            "qkv_bias": False,
            "output_bias": False,
            "mlp_bias": False,
            "qk_norm": True,
            "sliding_window": None,
            "experts.shared": 0,
            "experts.intermediate_size": intermediate_size,
            "experts.normalized": True,
            "experts.dense_layers": (),
        },
        keys={**KEYS, **mixtral.EXPERT_KEYS, "num_local_experts": ("experts.count", COUNT)},
        adjust=_minimax_m2,
        grouped=True,
        own_head_size=True,
    ),
}
