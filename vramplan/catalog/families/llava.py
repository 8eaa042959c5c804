"""LLaVA (models/llava/configuration_llava.py): a vision and a text configuration inside of one."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import FLAG, ModelType, tower
from vramplan.catalog.families.among_text import only
from vramplan.catalog.families.clip import VISION_KEYS, read_inside, vision_tower
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

TEXT_KEYS = {key: one for key, one in KEYS.items() if key != "tie_word_embeddings"}  # which the whole model's says
TEXT_KEYS |= {"attention_bias": ("qkv_bias", FLAG), "mlp_bias": ("mlp_bias", FLAG)}


def _llava(fields: Fields, values: dict[str, Any]) -> None:
    read_llama(fields, values, "llava")
    read_images(fields, values, "llava")


def read_llama(fields: Fields, values: dict[str, Any], of: str) -> None:
    """The text, which is a Llama."""
    text = read_inside(fields, "text_config", TEXT_KEYS, values)
    if text is not None:
        only(text, "model_type", ("llama",), of)
    values["output_bias"] = values.get("qkv_bias")  # attention_bias: of all four projections


def read_images(fields: Fields, values: dict[str, Any], of: str) -> None:
    """The vision encoder, and what of it becomes tokens."""
    vision = read_inside(fields, "vision_config", VISION_KEYS, values)
    if vision is not None:
        only(vision, "model_type", ("clip_vision_model",), of)
    for key, known in (("projector_hidden_act", "gelu"), ("vision_feature_select_strategy", "default")):
        only(fields, key, (known,), of)
    if fields.given("vision_feature_layer") and fields.value("vision_feature_layer") != -2:
        fields.refuse("vision_feature_layer", "only -2 is modelled, the hidden state before the last block")
    if fields.boolean("multimodal_projector_bias") is False:
        fields.refuse("multimodal_projector_bias", "false is not modelled")


TEXT_ALONE = ("sliding_window", "sliding_window_start", "rope_scaling")  # of a Llama beside images not modelled


def _written(shape: ModelShape) -> dict[str, Any]:
    towers = {"text_config": tower("llama", shape, TEXT_KEYS), "vision_config": vision_tower(shape)}
    return {**towers, "image_token_index": shape.vocabulary_size - 1}


TYPES = {
    "llava": ModelType(
        config="LlavaConfig",
        family="llava",
        tasks=("lm",),
        written=_written,
        defaults={
            "image_size": 336,
            "patch_size": 14,
            "channels": 3,
            "vision_layers": 24,
            "vision_hidden_size": 1024,
            "vision_attention_heads": 16,
            "vision_intermediate_size": 4096,
            "vision_activation": "quick_gelu",
            "vision_attention_dropout": 0.0,
            **{key: value for key, value in DEFAULTS.items() if key not in TEXT_ALONE},
        },
        fixed={**FIXED, "sliding_window": None, "rope_scaling": None},
        keys={"tie_word_embeddings": ("tied_embeddings", FLAG)},
        adjust=_llava,
        grouped=True,
        own_head_size=True,
    ),
}
