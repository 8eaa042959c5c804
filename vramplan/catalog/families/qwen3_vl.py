"""Qwen3-VL (models/qwen3_vl/configuration_qwen3_vl.py): as Qwen2.5-VL without windows, with learned positions of the
patches, and with vision blocks whose results go into the first blocks of the text (DeepStack)."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from vramplan.catalog.config_classes import BLOCKS, COUNT, FLAG, Keys, ModelType
from vramplan.catalog.families import qwen2_vl
from vramplan.catalog.families.mixtral import EXPERT_KEYS, router_losses
from vramplan.catalog.families.qwen2_vl import BESIDE_IMAGES, IMAGE_SIZE, TEXT_DEFAULTS, Parts
from vramplan.catalog.families.qwen_moe import dense_layers
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

TEXT_KEYS: Keys = {
    **qwen2_vl.TEXT_KEYS,
    "head_dim": ("head_size", COUNT),
    "attention_bias": ("qkv_bias", FLAG),
}
VISION_KEYS: Keys = {
    **{key: one for key, one in qwen2_vl.VISION_KEYS.items() if key != "embed_dim"},
    "hidden_size": ("vision_hidden_size", COUNT),
    "intermediate_size": ("vision_intermediate_size", COUNT),
    "num_position_embeddings": ("vision_positions", COUNT),
    "deepstack_visual_indexes": ("vision_deepstack_layers", BLOCKS),
}
MOE_TEXT_KEYS: Keys = {
    **TEXT_KEYS,
    **EXPERT_KEYS,
    "num_local_experts": ("experts.count", COUNT),
    "moe_intermediate_size": ("experts.intermediate_size", COUNT),
}
PARTS = Parts("qwen3_vl", TEXT_KEYS, VISION_KEYS, "out_hidden_size")
MOE_PARTS = Parts("qwen3_vl_moe", MOE_TEXT_KEYS, VISION_KEYS, "out_hidden_size")


def _qwen3_vl(fields: Fields, values: dict[str, Any]) -> None:
    PARTS.read(fields, values)
    values["output_bias"] = values.get("qkv_bias")  # attention_bias: of all four projections


def _qwen3_vl_moe(fields: Fields, values: dict[str, Any]) -> None:
    MOE_PARTS.read(fields, values)
    values["output_bias"] = values.get("qkv_bias")
    text = fields.fields("text_config") or fields
    router_losses(text, values)
    dense_layers(text, values, MOE_LAYERS)


MOE_LAYERS = 24  # where nobody says how many


def _written_moe(shape: ModelShape) -> dict[str, Any]:
    assert shape.experts is not None
    written = MOE_PARTS.written(shape, deepstack_visual_indexes=list(shape.vision_deepstack_layers))
    dense = list(shape.experts.dense_layers)
    written["text_config"] |= {"mlp_only_layers": dense, "decoder_sparse_step": 1}
    return written


def _written(shape: ModelShape) -> dict[str, Any]:
    return PARTS.written(shape, deepstack_visual_indexes=list(shape.vision_deepstack_layers))


def contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What makes no network, or one that is not modelled."""
    found = qwen2_vl.quarters(values)
    blocks = values["vision_deepstack_layers"]
    if max(blocks, default=0) >= values["vision_layers"]:
        found.append(("vision_deepstack_layers", f"there is no block {blocks[-1]} of {values['vision_layers']}"))
    elif len(blocks) > values["layers"]:
        found.append(("vision_deepstack_layers", f"{len(blocks)} for {values['layers']} blocks of text"))
    positions = values["vision_positions"]
    if isqrt(positions) ** 2 != positions:
        found.append(("vision_positions", f"{positions} are no square"))
    return found


def three_of(fields: Mapping[str, Any]) -> tuple[int, ...]:
    """The vision blocks whose results the text gets where nothing says which."""
    found = tuple(i for i in (8, 16, 24) if i < fields["vision_layers"])
    return found[: fields["layers"]]


VISION_DEFAULTS = {
    "image_size": IMAGE_SIZE,
    "patch_size": 16,
    "channels": 3,
    "vision_merge": 2,
    "vision_frames": 2,
    "vision_positions": 2304,
    "vision_layers": 27,
    "vision_hidden_size": 1152,
    "vision_attention_heads": 16,
    "vision_intermediate_size": 4304,
    "vision_activation": "gelu_pytorch_tanh",
}

FIXED = {
    **{key: one for key, one in BESIDE_IMAGES.items() if key not in ("qkv_bias", "output_bias")},
    "qk_norm": True,
}
TYPES = {
    "qwen3_vl": ModelType(
        config="Qwen3VLConfig",
        family="qwen3_vl",
        tasks=("lm",),
        written=_written,
        defaults={
            **VISION_DEFAULTS,
            **TEXT_DEFAULTS,
            "vocabulary_size": 151936,
            "hidden_size": 4096,
            "intermediate_size": 22016,
            "layers": 32,
            "attention_heads": 32,
            "key_value_heads": 32,
            "head_size": 128,
            "max_positions": 128000,
            "qkv_bias": False,
            "output_bias": False,
            "vision_deepstack_layers": three_of,
        },
        fixed=FIXED,
        keys={"tie_word_embeddings": ("tied_embeddings", FLAG)},
        adjust=_qwen3_vl,
        contradictions=contradictions,
        grouped=True,
        own_head_size=True,
    ),
    "qwen3_vl_moe": ModelType(
        config="Qwen3VLMoeConfig",
        family="qwen3_vl",
        tasks=("lm",),
        written=_written_moe,
        defaults={
            **VISION_DEFAULTS,
            **TEXT_DEFAULTS,
            "vocabulary_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "layers": MOE_LAYERS,
            "attention_heads": 16,
            "key_value_heads": 16,
            "max_positions": 128000,
            "qkv_bias": False,
            "output_bias": False,
            "vision_deepstack_layers": three_of,
            "experts.count": 60,
            "experts.active": 4,
            "experts.intermediate_size": 1408,
            "experts.dense_layers": (),
        },
        fixed={**FIXED, "experts.shared": 0, "experts.normalized": True},
        keys={"tie_word_embeddings": ("tied_embeddings", FLAG)},
        adjust=_qwen3_vl_moe,
        contradictions=contradictions,
        grouped=True,
        own_head_size=True,
    ),
}
