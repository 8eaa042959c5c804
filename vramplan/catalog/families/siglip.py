"""SigLIP (models/siglip/configuration_siglip.py): a text and a vision configuration inside of one."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, hidden_size, tower
from vramplan.catalog.families import clip
from vramplan.catalog.families.clip import VISION_KEYS, read_inside
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

CLIP = clip.TYPES["clip"]
TEXT_KEYS = {**clip.TEXT_KEYS, "projection_size": ("projection_size", COUNT)}


def _siglip(fields: Fields, values: dict[str, Any]) -> None:
    read_inside(fields, "text_config", TEXT_KEYS, values)
    inside = read_inside(fields, "vision_config", VISION_KEYS, values)
    if inside is not None and inside.boolean("vision_use_head") is False:
        inside.refuse("vision_use_head", "false is not modelled beside a text or a classifier", hint="set it to true")


def _written(shape: ModelShape) -> dict[str, Any]:
    return {
        "text_config": tower("siglip_text_model", shape, TEXT_KEYS),
        "vision_config": tower("siglip_vision_model", shape, VISION_KEYS),
    }


TYPES = {
    "siglip": CLIP._replace(
        config="SiglipConfig",
        family="siglip",
        tasks=("contrastive", "image"),
        defaults={
            **{key: one for key, one in CLIP.defaults.items() if key != "projection_size"},
            "patch_size": 16,
            "vision_activation": "gelu_pytorch_tanh",
            "vocabulary_size": 32000,
            "hidden_size": 768,
            "attention_heads": 12,
            "intermediate_size": 3072,
            "activation": "gelu_pytorch_tanh",
            "max_positions": 64,
            "projection_size": hidden_size,
        },
        keys={},
        adjust=_siglip,
        written=_written,
    ),
}
