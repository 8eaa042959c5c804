"""PaliGemma (models/paligemma/configuration_paligemma.py): one configuration for SigLIP and one for a Gemma inside of
one."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import FLAG, Keys, ModelType, tower
from vramplan.catalog.families import gemma
from vramplan.catalog.families.clip import VISION_KEYS, read_inside
from vramplan.catalog.fields import Fields, shown
from vramplan.values.model import ModelShape

TEXT = gemma.TYPES["gemma"]
TEXT_KEYS: Keys = {key: one for key, one in TEXT.keys.items() if key != "tie_word_embeddings"}
WIDTH = 2048
ALONE = ("rope_scaling",)  # of a Gemma beside images not modelled


def _paligemma(fields: Fields, values: dict[str, Any]) -> None:
    for key, keys, known in (
        ("vision_config", VISION_KEYS, "siglip_vision_model"),
        ("text_config", TEXT_KEYS, "gemma"),
    ):
        inside = read_inside(fields, key, keys, values)
        found = None if inside is None else inside.text("model_type")
        if inside is not None and found not in {None, known}:
            inside.refuse("model_type", f"{shown(found)} is not modelled inside of paligemma (modelled: {known})")
    gemma.attention_bias(fields, values)
    vision, text = fields.fields("vision_config"), fields.fields("text_config")
    if vision is not None and vision.boolean("vision_use_head"):
        vision.refuse("vision_use_head", "a head that pools the patches is not modelled", hint="set it to false")
    if text is not None and text.boolean("use_bidirectional_attention") is False:
        text.refuse("use_bidirectional_attention", "false is not modelled")
    projected, width = fields.integer("projection_dim", minimum=1) or WIDTH, values.get("hidden_size", WIDTH)
    if projected != width:
        fields.refuse("projection_dim", f"{projected} is not the width of the text, {width}, whose tokens they become")


def _written(shape: ModelShape) -> dict[str, Any]:
    vision = {**tower("siglip_vision_model", shape, VISION_KEYS), "vision_use_head": False}
    return {
        "text_config": tower("gemma", shape, TEXT_KEYS),
        "vision_config": vision,
        "projection_dim": shape.hidden_size,
        "image_token_index": shape.vocabulary_size - 1,
    }


TYPES = {
    "paligemma": ModelType(
        config="PaliGemmaConfig",
        family="paligemma",
        tasks=("lm",),
        written=_written,
        defaults={
            "image_size": 224,
            "patch_size": 14,
            "channels": 3,
            "vision_layers": 27,
            "vision_hidden_size": 1152,
            "vision_attention_heads": 16,
            "vision_intermediate_size": 4096,
            "vision_activation": "gelu_pytorch_tanh",
            "vision_attention_dropout": 0.0,
            **{key: one for key, one in TEXT.defaults.items() if key not in ALONE},
            "vocabulary_size": 257152,
            "hidden_size": WIDTH,
            "layers": 18,
            "attention_heads": 8,
            "key_value_heads": 1,
            "intermediate_size": 16384,
        },
        fixed={**TEXT.fixed, "vision_merge": 1, "rope_scaling": None},
        keys={"tie_word_embeddings": ("tied_embeddings", FLAG)},
        adjust=_paligemma,
        grouped=True,
        own_head_size=True,
    ),
}
