"""Qwen3-Next and Qwen3.5 for text (models/qwen3_next, qwen3_5 and qwen3_5_moe, configuration_<type>.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, SHARE, Keys, ModelType, rotary_parameters
from vramplan.catalog.experts import three_of_four
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS
from vramplan.catalog.families.llama4 import expert_size
from vramplan.catalog.families.mixtral import EXPERT_KEYS, router_losses
from vramplan.catalog.families.qwen_moe import dense_layers
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

LINEAR, FULL = "linear_attention", "full_attention"
NEXT_LAYERS, LAYERS, MOE_LAYERS = 48, 32, 40

LINEAR_KEYS: Keys = {
    "linear_num_key_heads": ("linear_attention.key_heads", COUNT),
    "linear_num_value_heads": ("linear_attention.value_heads", COUNT),
    "linear_key_head_dim": ("linear_attention.key_size", COUNT),
    "linear_value_head_dim": ("linear_attention.value_size", COUNT),
    "linear_conv_kernel_dim": ("linear_attention.kernel", COUNT),
}
TEXT_KEYS: Keys = {
    **KEYS,
    **LINEAR_KEYS,
    "attention_bias": ("qkv_bias", FLAG),
    "partial_rotary_factor": ("partial_rotary_factor", SHARE),
}
_EXPERT_KEYS: Keys = {
    **EXPERT_KEYS,
    "moe_intermediate_size": ("experts.intermediate_size", COUNT),
    "shared_expert_intermediate_size": ("experts.shared_intermediate_size", COUNT),
}
LINEAR_DEFAULTS: dict[str, Any] = {
    "linear_attention.key_heads": 16,
    "linear_attention.value_heads": 32,
    "linear_attention.key_size": 128,
    "linear_attention.value_size": 128,
    "linear_attention.kernel": 4,
    "linear_attention.layers": three_of_four,
}
TEXT_DEFAULTS: dict[str, Any] = {
    **{key: value for key, value in DEFAULTS.items() if key not in {"sliding_window", "mlp_bias", "rope_scaling"}},
    **LINEAR_DEFAULTS,
    "attention_heads": 16,
    "head_size": 256,
    "max_positions": 32768,
    "partial_rotary_factor": 0.25,
}
TEXT_FIXED: dict[str, Any] = {**FIXED, "mlp_bias": False, "qk_norm": True, "sliding_window": None, "rope_scaling": None}


def linear_layers(fields: Fields, values: dict[str, Any], layers: int) -> None:
    """The blocks with linear attention: as `layer_types` lists them, or all but every `full_attention_interval`-th."""
    values["output_bias"] = values.get("qkv_bias")  # attention_bias: of all four projections
    rotary_parameters(fields, values)
    layers = values.get("layers") or layers
    types = fields.texts("layer_types") if fields.given("layer_types") else None
    if types is None:
        every = fields.integer("full_attention_interval", minimum=1) or 4
        values["linear_attention.layers"] = tuple(i for i in range(layers) if (i + 1) % every)
        return
    unknown = next((one for one in types if one not in (LINEAR, FULL)), None)
    if unknown is not None:
        fields.refuse("layer_types", f"{unknown} is not modelled (modelled: {LINEAR}, {FULL})")
    elif len(types) != layers:
        fields.refuse("layer_types", f"{len(types)} entries for {layers} blocks")
    values["linear_attention.layers"] = tuple(i for i, one in enumerate(types) if one == LINEAR)


def _next(fields: Fields, values: dict[str, Any]) -> None:
    router_losses(fields, values)
    linear_layers(fields, values, NEXT_LAYERS)
    dense_layers(fields, values, NEXT_LAYERS)


def _dense(fields: Fields, values: dict[str, Any]) -> None:
    linear_layers(fields, values, LAYERS)


def _moe(fields: Fields, values: dict[str, Any]) -> None:
    router_losses(fields, values)
    linear_layers(fields, values, MOE_LAYERS)


def written(shape: ModelShape) -> dict[str, Any]:
    """`layer_types`, the share of each head that turns, and the blocks without experts."""
    assert shape.linear_attention is not None
    linear = set(shape.linear_attention.layers)
    return {
        "layer_types": [LINEAR if i in linear else FULL for i in range(shape.layers)],
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": shape.partial_rotary_factor,
        },
    }


def _written_next(shape: ModelShape) -> dict[str, Any]:
    assert shape.experts is not None
    return {**written(shape), "mlp_only_layers": list(shape.experts.dense_layers), "decoder_sparse_step": 1}


EXPERT_DEFAULTS: dict[str, Any] = {
    "experts.shared_intermediate_size": 512,
    "experts.intermediate_size": 512,
}

TYPES = {
    "qwen3_next": ModelType(
        config="Qwen3NextConfig",
        family="qwen3_next",
        tasks=("lm", "cls"),
        written=_written_next,
        defaults={
            **TEXT_DEFAULTS,
            **EXPERT_DEFAULTS,
            "vocabulary_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "layers": NEXT_LAYERS,
            "key_value_heads": 2,
            "experts.count": 512,
            "experts.active": 10,
            "experts.normalized": True,
            "experts.dense_layers": (),
        },
        fixed={**TEXT_FIXED, "experts.shared": 1},
        keys={**TEXT_KEYS, **_EXPERT_KEYS, "norm_topk_prob": ("experts.normalized", FLAG)},
        adjust=_next,
        grouped=True,
        own_head_size=True,
    ),
    "qwen3_5_text": ModelType(
        config="Qwen3_5TextConfig",
        family="qwen3_next",
        tasks=("lm", "cls"),
        written=written,
        defaults={
            **TEXT_DEFAULTS,
            "vocabulary_size": 248320,
            "intermediate_size": 12288,
            "layers": LAYERS,
            "key_value_heads": 4,
        },
        fixed=TEXT_FIXED,
        keys=TEXT_KEYS,
        adjust=_dense,
        grouped=True,
        own_head_size=True,
    ),
    "qwen3_5_moe_text": ModelType(
        config="Qwen3_5MoeTextConfig",
        family="qwen3_next",
        tasks=("lm",),
        written=written,
        defaults={
            **{key: value for key, value in TEXT_DEFAULTS.items() if key != "intermediate_size"},
            **EXPERT_DEFAULTS,
            "vocabulary_size": 248320,
            "hidden_size": 2048,
            "layers": MOE_LAYERS,
            "key_value_heads": 2,
            "experts.count": 256,
            "experts.active": 8,
        },
        fixed={
            **TEXT_FIXED,
            "intermediate_size": expert_size,
            "experts.shared": 1,
            "experts.normalized": True,
            "experts.dense_layers": (),
        },
        keys={
            **{key: value for key, value in TEXT_KEYS.items() if key != "intermediate_size"},
            **_EXPERT_KEYS,
        },
        adjust=_moe,
        grouped=True,
        own_head_size=True,
    ),
}
