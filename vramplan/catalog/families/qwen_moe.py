"""Qwen1.5-MoE, Qwen2-MoE and Qwen3-MoE (models/qwen2_moe and qwen3_moe, configuration_<type>.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, Keys, ModelType
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS
from vramplan.catalog.families.mixtral import EXPERT_KEYS, router_losses
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

_KEYS: Keys = {
    **KEYS,
    **EXPERT_KEYS,
    "moe_intermediate_size": ("experts.intermediate_size", COUNT),
    "norm_topk_prob": ("experts.normalized", FLAG),
}
_DEFAULTS: dict[str, Any] = {
    **{key: value for key, value in DEFAULTS.items() if key not in {"sliding_window", "mlp_bias"}},
    "vocabulary_size": 151936,
    "hidden_size": 2048,
    "layers": 24,
    "max_positions": 32768,
    "experts.normalized": False,
    "experts.dense_layers": (),
}


def dense_layers(fields: Fields, values: dict[str, Any], layers: int) -> None:
    """mlp_only_layers, and all but every decoder_sparse_step-th block (Qwen2MoeDecoderLayer.__init__)."""
    step = fields.integer("decoder_sparse_step") or 1
    listed = fields.value("mlp_only_layers") if fields.given("mlp_only_layers") else []
    if not isinstance(listed, list) or not all(type(one) is int for one in listed):
        fields.problem("mlp_only_layers", "expected a list of block numbers, from 0")
        return
    layers, named = values.get("layers") or layers, set(listed)
    values["experts.dense_layers"] = tuple(i for i in range(layers) if i in named or (i + 1) % step)


def _windows(fields: Fields) -> None:
    if fields.boolean("use_sliding_window"):
        message = "true is not modelled (windows in some of the blocks)"
        fields.refuse("use_sliding_window", message, hint="set it to false where no sequence reaches the window")


def _qwen2_moe(fields: Fields, values: dict[str, Any]) -> None:
    router_losses(fields, values)
    _windows(fields)
    dense_layers(fields, values, 24)


def _qwen3_moe(fields: Fields, values: dict[str, Any]) -> None:
    values["output_bias"] = values.get("qkv_bias")  # attention_bias: of all four projections
    router_losses(fields, values)
    _windows(fields)
    dense_layers(fields, values, 24)


def _written(shape: ModelShape) -> dict[str, Any]:
    assert shape.experts is not None
    return {"mlp_only_layers": list(shape.experts.dense_layers), "decoder_sparse_step": 1}


TYPES = {
    "qwen2_moe": ModelType(
        config="Qwen2MoeConfig",
        family="qwen_moe",
        tasks=("lm", "cls"),
        written=_written,
        defaults={
            **{key: value for key, value in _DEFAULTS.items() if key != "output_bias"},
            "intermediate_size": 5632,
            "attention_heads": 16,
            "key_value_heads": 16,
            "qkv_bias": True,
            "experts.count": 60,
            "experts.active": 4,
            "experts.intermediate_size": 1408,
            "experts.shared_intermediate_size": 5632,
        },
        fixed={**FIXED, "output_bias": False, "mlp_bias": False, "sliding_window": None, "experts.shared": 1},
        keys={
            **_KEYS,
            "qkv_bias": ("qkv_bias", FLAG),
            "shared_expert_intermediate_size": ("experts.shared_intermediate_size", COUNT),
        },
        adjust=_qwen2_moe,
        grouped=True,
        own_head_size=True,
        rotary_given_since=(4, 45),
    ),
    "qwen3_moe": ModelType(
        config="Qwen3MoeConfig",
        family="qwen_moe",
        tasks=("lm", "cls"),
        written=_written,
        defaults={
            **_DEFAULTS,
            "intermediate_size": 6144,
            "attention_heads": 32,
            "key_value_heads": 4,
            "experts.count": 128,
            "experts.active": 8,
            "experts.intermediate_size": 768,
        },
        fixed={**FIXED, "mlp_bias": False, "qk_norm": True, "sliding_window": None, "experts.shared": 0},
        keys={
            **_KEYS,
            "num_local_experts": ("experts.count", COUNT),
            "attention_bias": ("qkv_bias", FLAG),
        },
        adjust=_qwen3_moe,
        grouped=True,
        own_head_size=True,
    ),
}
