"""Llama 3.2 Vision (models/mllama/configuration_mllama.py): one configuration for the encoders of the images and one
for the text inside of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import BLOCKS, COUNT, RATIO, TEXT, Keys, ModelType, tower
from vramplan.catalog.families import llama
from vramplan.catalog.families.clip import read_inside
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

VISION_KEYS: Keys = {
    "num_hidden_layers": ("vision_layers", COUNT),
    "num_global_layers": ("vision_global_layers", COUNT),
    "hidden_size": ("vision_hidden_size", COUNT),
    "attention_heads": ("vision_attention_heads", COUNT),
    "intermediate_size": ("vision_intermediate_size", COUNT),
    "hidden_act": ("vision_activation", TEXT),
    "image_size": ("image_size", COUNT),
    "patch_size": ("patch_size", COUNT),
    "num_channels": ("channels", COUNT),
    "max_num_tiles": ("vision_tiles", COUNT),
    "intermediate_layers_indices": ("vision_tapped_layers", BLOCKS),
}
NOT_READ = ("head_dim", "tie_word_embeddings", "attention_dropout")
TEXT_KEYS: Keys = {
    **{key: one for key, one in llama.KEYS.items() if key not in NOT_READ},
    "dropout": ("attention_dropout", RATIO),
    "cross_attention_layers": ("cross_attention_layers", BLOCKS),
}
TAPPED, CROSS = (3, 7, 15, 23, 30), tuple(range(3, 40, 5))
TILES = 4


def ratios_of(tiles: int) -> list[list[int]]:
    """The shapes that an image of at most so many tiles can have, each with embeddings of its own.

    Source: transformers 5.23, models/mllama/image_processing_mllama.py, get_all_supported_aspect_ratios.
    """
    return [[width, height] for width in range(1, tiles + 1) for height in range(1, tiles // width + 1)]


def _mllama(fields: Fields, values: dict[str, Any]) -> None:
    read_inside(fields, "text_config", TEXT_KEYS, values)
    vision = read_inside(fields, "vision_config", VISION_KEYS, values)
    if vision is None:
        return
    tiles = values.get("vision_tiles", TILES)
    shapes = vision.value("supported_aspect_ratios") if vision.given("supported_aspect_ratios") else None
    if shapes is not None and (not isinstance(shapes, list) or len(shapes) != len(ratios_of(tiles))):
        message = f"only the {len(ratios_of(tiles))} shapes that {tiles} tiles can have are modelled"
        vision.refuse("supported_aspect_ratios", message)
    width = vision.integer("vision_output_dim", minimum=1) if vision.given("vision_output_dim") else None
    parts = 1 + len(values.get("vision_tapped_layers", TAPPED))
    made = parts * values.get("vision_hidden_size", WIDTH)
    if width is not None and width != made:
        message = f"{width} elements in place of the {made} of {parts} hidden states make no network"
        vision.refuse("vision_output_dim", message)


def _written(shape: ModelShape) -> dict[str, Any]:
    assert shape.vision_hidden_size is not None
    assert shape.vision_tiles is not None
    vision = {
        **tower("mllama_vision_model", shape, VISION_KEYS),
        "intermediate_layers_indices": list(shape.vision_tapped_layers),
        "vision_output_dim": shape.vision_hidden_size * (1 + len(shape.vision_tapped_layers)),
        "supported_aspect_ratios": ratios_of(shape.vision_tiles),
    }
    cross = list(shape.cross_attention_layers)
    text = {**tower("mllama_text_model", shape, TEXT_KEYS), "cross_attention_layers": cross, "pad_token_id": 0}
    return {"text_config": text, "vision_config": vision, "image_token_index": shape.vocabulary_size}


def contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What makes no network, or one that is not modelled."""
    found = []
    for key, of, layers in (
        ("vision_tapped_layers", "vision_layers", values["vision_layers"]),
        ("cross_attention_layers", "layers", values["layers"]),
    ):
        blocks = values[key]
        if not blocks:
            found.append((key, "none of them is not modelled: the text then gets nothing of it"))
        elif max(blocks) >= layers:
            found.append((key, f"there is no block {max(blocks)} of {of} {layers}"))
    return found


def tapped(fields: Mapping[str, Any]) -> tuple[int, ...]:
    """The vision blocks whose results the text gets too where nothing says which."""
    return tuple(i for i in TAPPED if i < fields["vision_layers"]) or (fields["vision_layers"] - 1,)


def looking(fields: Mapping[str, Any]) -> tuple[int, ...]:
    """The text blocks that look at the images where nothing says which."""
    return tuple(i for i in CROSS if i < fields["layers"]) or (fields["layers"] - 1,)


WIDTH = 1280
TYPES = {
    "mllama": ModelType(
        config="MllamaConfig",
        family="mllama",
        tasks=("lm",),
        written=_written,
        defaults={
            "image_size": 448,
            "patch_size": 14,
            "channels": 3,
            "vision_layers": 32,
            "vision_global_layers": 8,
            "vision_hidden_size": WIDTH,
            "vision_attention_heads": 16,
            "vision_intermediate_size": 5120,
            "vision_activation": "gelu",
            "vision_tiles": TILES,
            "vision_tapped_layers": tapped,
            "vocabulary_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "layers": 40,
            "attention_heads": 32,
            "key_value_heads": 8,
            "max_positions": 131072,
            "activation": "silu",
            "attention_dropout": 0.0,
            "cross_attention_layers": looking,
        },
        fixed={
            **llama.FIXED,
            **dict.fromkeys(("tied_embeddings", "qkv_bias", "output_bias", "mlp_bias"), False),
            "sliding_window": None,
        },
        keys={},
        adjust=_mllama,
        contradictions=contradictions,
        grouped=True,
    ),
}
