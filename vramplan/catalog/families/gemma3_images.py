"""Gemma 3 with images (models/gemma3/configuration_gemma3.py, Gemma3Config): one configuration for SigLIP and one for
the text inside of one."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from vramplan.catalog.config_classes import FLAG, Keys, ModelType, tower
from vramplan.catalog.families import gemma3
from vramplan.catalog.families.clip import VISION_KEYS, read_inside
from vramplan.catalog.fields import Fields, shown
from vramplan.values.model import ModelShape

TEXT = gemma3.TYPES["gemma3_text"]
TEXT_KEYS: Keys = {key: one for key, one in TEXT.keys.items() if key != "tie_word_embeddings"}
TOKENS, IMAGE_SIZE, PATCH_SIZE = 256, 896, 14


def _gemma3_images(fields: Fields, values: dict[str, Any]) -> None:
    inside = read_inside(fields, "text_config", TEXT_KEYS, values)
    if inside is not None:
        for key in TEXT.refused:
            if inside.boolean(key):
                inside.refuse(key, "true is not modelled")
        assert TEXT.adjust is not None
        TEXT.adjust(inside, values)
        values.pop("logit_softcap", None)  # which the code beside images does not look at
    inside = read_inside(fields, "vision_config", VISION_KEYS, values)
    if inside is not None:
        found = inside.text("model_type")
        if found not in {None, "siglip_vision_model"}:
            inside.refuse(
                "model_type", f"{shown(found)} is not modelled inside of gemma3 (modelled: siglip_vision_model)"
            )
        if inside.boolean("vision_use_head") is not False:
            inside.refuse("vision_use_head", "a head that pools the patches is not modelled", hint="set it to false")
    tokens = fields.integer("mm_tokens_per_image", minimum=1) or TOKENS
    edge = values.get("image_size", IMAGE_SIZE) // values.get("patch_size", PATCH_SIZE)
    values["vision_merge"] = max(1, edge // isqrt(tokens))


def _written(shape: ModelShape) -> dict[str, Any]:
    special = {"image_token_index": shape.vocabulary_size - 1, "boi_token_index": 1, "eoi_token_index": 2}
    assert TEXT.written is not None
    vision = {**tower("siglip_vision_model", shape, VISION_KEYS), "vision_use_head": False}
    text = {**tower("gemma3_text", shape, TEXT_KEYS), **TEXT.written(shape)}
    return {"text_config": text, "vision_config": vision, "mm_tokens_per_image": shape.image_tokens, **special}


def contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What makes no network."""
    edge = values["image_size"] // values["patch_size"]
    if edge % values["vision_merge"]:
        message = f"squares of {values['vision_merge']} do not cover the {edge} patches of an edge"
        return [("vision_merge", message)]
    return []


TYPES = {
    "gemma3": ModelType(
        config="Gemma3Config",
        family="gemma3_images",
        tasks=("lm",),
        written=_written,
        defaults={
            "image_size": IMAGE_SIZE,
            "patch_size": PATCH_SIZE,
            "channels": 3,
            "vision_merge": 4,
            "vision_layers": 27,
            "vision_hidden_size": 1152,
            "vision_attention_heads": 16,
            "vision_intermediate_size": 4304,
            "vision_activation": "gelu_pytorch_tanh",
            "vision_attention_dropout": 0.0,
            **{key: one for key, one in TEXT.defaults.items() if key != "logit_softcap"},
        },
        fixed={**TEXT.fixed, "logit_softcap": False},
        keys={"tie_word_embeddings": ("tied_embeddings", FLAG)},
        adjust=_gemma3_images,
        contradictions=contradictions,
        grouped=True,
        own_head_size=True,
    ),
}
