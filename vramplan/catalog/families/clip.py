"""CLIP (models/clip/configuration_clip.py): a text and a vision configuration inside of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import COUNT, RATIO, TEXT, ModelType, same_heads, tower
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

TEXT_KEYS = {
    "num_hidden_layers": ("layers", COUNT),
    "hidden_size": ("hidden_size", COUNT),
    "num_attention_heads": ("attention_heads", COUNT),
    "intermediate_size": ("intermediate_size", COUNT),
    "vocab_size": ("vocabulary_size", COUNT),
    "max_position_embeddings": ("max_positions", COUNT),
    "hidden_act": ("activation", TEXT),
    "attention_dropout": ("attention_dropout", RATIO),
}
VISION_KEYS = {
    "num_hidden_layers": ("vision_layers", COUNT),
    "hidden_size": ("vision_hidden_size", COUNT),
    "num_attention_heads": ("vision_attention_heads", COUNT),
    "intermediate_size": ("vision_intermediate_size", COUNT),
    "hidden_act": ("vision_activation", TEXT),
    "attention_dropout": ("vision_attention_dropout", RATIO),
    "image_size": ("image_size", COUNT),
    "patch_size": ("patch_size", COUNT),
    "num_channels": ("channels", COUNT),
}


def read_inside(fields: Fields, key: str, keys: Mapping[str, tuple[str, str]], values: dict[str, Any]) -> Fields | None:
    """Read a configuration that stands inside of another."""
    inside = fields.fields(key)
    if inside is not None:
        read_all(inside, keys, values)
    return inside


def read_all(fields: Fields, keys: Mapping[str, tuple[str, str]], values: dict[str, Any]) -> None:
    """Read these keys where they are given."""
    from vramplan.catalog.hf_config import read_value  # it imports this package

    for name, (field, kind) in keys.items():
        if fields.given(name):
            values[field] = read_value(fields, name, kind)


def _clip(fields: Fields, values: dict[str, Any]) -> None:
    """Older files have the whole configuration once more under another name, which wins (CLIPConfig.__post_init__)."""
    for key, keys in (("text_config", TEXT_KEYS), ("vision_config", VISION_KEYS)):
        older = f"{key}_dict"
        read_inside(fields, older if fields.given(older) else key, keys, values)


def _written(shape: ModelShape) -> dict[str, Any]:
    return {"text_config": tower("clip_text_model", shape, TEXT_KEYS), "vision_config": vision_tower(shape)}


def vision_tower(shape: ModelShape) -> dict[str, Any]:
    """The configuration inside of one that says what reads the images."""
    return tower("clip_vision_model", shape, VISION_KEYS)


TYPES = {
    "clip": ModelType(
        config="CLIPConfig",
        family="clip",
        tasks=("contrastive",),
        written=_written,
        defaults={
            "image_size": 224,
            "patch_size": 32,
            "channels": 3,
            "vision_layers": 12,
            "vision_hidden_size": 768,
            "vision_attention_heads": 12,
            "vision_intermediate_size": 3072,
            "vision_activation": "quick_gelu",
            "vision_attention_dropout": 0.0,
            "projection_size": 512,
            "vocabulary_size": 49408,
            "hidden_size": 512,
            "layers": 12,
            "attention_heads": 8,
            "key_value_heads": same_heads,
            "intermediate_size": 2048,
            "activation": "quick_gelu",
            "attention_dropout": 0.0,
            "max_positions": 77,
        },
        fixed={
            "positions": "learned",
            "tied_embeddings": False,
            "gated_mlp": False,
            "qkv_bias": True,
            "output_bias": True,
            "mlp_bias": True,
            "token_types": 0,
            "embedding_dropout": 0.0,
            "hidden_dropout": 0.0,
            "sliding_window": None,
        },
        keys={"projection_dim": ("projection_size", COUNT)},
        adjust=_clip,
    ),
}
