"""Mistral 3 (models/mistral3/configuration_mistral3.py): one configuration for Pixtral's vision encoder and one for a
Mistral or a Ministral 3 inside of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import FLAG, Keys, ModelType, tower
from vramplan.catalog.families.among_text import only, read_text, text_keys, tied_of_text
from vramplan.catalog.families.clip import VISION_KEYS as CLIP_KEYS
from vramplan.catalog.families.clip import read_inside
from vramplan.catalog.families.llama import DEFAULTS, FIXED
from vramplan.catalog.families.qwen2_vl import IMAGE_SIZE, quarters
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

TEXTS = ("mistral", "ministral3")  # which text is read where nothing says it is the first
VISION_KEYS: Keys = {key: one for key, one in CLIP_KEYS.items() if key != "image_size"}
"""Without the largest size of an image, which is the processor's: the encoder takes any."""
OF_PIXTRAL: Mapping[str, Any] = {
    "patch_size": 16,
    "channels": 3,
    "vision_layers": 24,
    "vision_hidden_size": 1024,
    "vision_attention_heads": 16,
    "vision_intermediate_size": 4096,
    "vision_activation": "gelu",
    "vision_attention_dropout": 0.0,
}
"""The defaults of PixtralVisionConfig; where there is no configuration of the images, that of Mistral 3 says others."""


def _mistral3(fields: Fields, values: dict[str, Any]) -> None:
    _read_text(fields, values)
    vision = read_inside(fields, "vision_config", VISION_KEYS, values)
    if vision is not None:
        values.update({key: one for key, one in OF_PIXTRAL.items() if key not in values})
        only(vision, "model_type", ("pixtral",), "mistral3")
    only(fields, "projector_hidden_act", ("gelu",), "mistral3")
    merge = fields.integer("spatial_merge_size", minimum=1) if fields.given("spatial_merge_size") else None
    if merge is not None:
        values["vision_merge"] = merge
    if fields.given("vision_feature_layer") and fields.value("vision_feature_layer") != -1:
        fields.refuse("vision_feature_layer", "only -1 is modelled, what the last block gives")
    if fields.boolean("multimodal_projector_bias"):
        fields.refuse("multimodal_projector_bias", "true is not modelled")


def _read_text(fields: Fields, values: dict[str, Any]) -> None:
    text, inside = read_text(fields, values, TEXTS, "mistral3", TEXT_FIELDS)
    values["scaled_queries"] = text == TEXTS[1]
    if inside is None:
        return
    tied_of_text(fields, inside, values)
    if "head_size" not in values and values.get("attention_heads"):
        values["head_size"] = values["hidden_size"] // values["attention_heads"]


def _written(shape: ModelShape) -> dict[str, Any]:
    text = TEXTS[shape.scaled_queries]
    special = {"image_token_index": shape.vocabulary_size - 1, "spatial_merge_size": shape.vision_merge}
    window = {"sliding_window": shape.sliding_window}  # null is a value of its own
    return {
        "text_config": {**tower(text, shape, text_keys(text)), **window},
        "vision_config": tower("pixtral", shape, VISION_KEYS),
        **special,
    }


TEXT_DEFAULTS: dict[str, Any] = {
    "vocabulary_size": 131072,
    "hidden_size": 5120,
    "intermediate_size": 32768,
    "layers": 40,
    "attention_heads": 32,
    "key_value_heads": 8,
    "head_size": 128,
    "max_positions": 131072,
    "sliding_window": None,
    **{key: DEFAULTS[key] for key in ("activation", "attention_dropout")},
}
TEXT_FIELDS = frozenset(TEXT_DEFAULTS)

TYPES = {
    "mistral3": ModelType(
        config="Mistral3Config",
        family="mistral3",
        tasks=("lm",),
        written=_written,
        defaults={
            "image_size": IMAGE_SIZE,
            **OF_PIXTRAL,
            "patch_size": 14,
            "vision_merge": 2,
            "scaled_queries": False,
            **TEXT_DEFAULTS,
            "tied_embeddings": True,
        },
        fixed={
            **FIXED,
            **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), False),
            "vision_rotary": True,
        },
        keys={"tie_word_embeddings": ("tied_embeddings", FLAG)},
        adjust=_mistral3,
        contradictions=quarters,
        grouped=True,
        own_head_size=True,
    ),
}
