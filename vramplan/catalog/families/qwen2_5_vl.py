"""Qwen2.5-VL (models/qwen2_5_vl/configuration_qwen2_5_vl.py): as Qwen2-VL, with windows in the vision encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import BLOCKS, COUNT, FLAG, Keys, ModelType
from vramplan.catalog.families import qwen2_vl
from vramplan.catalog.families.qwen2_vl import BESIDE_IMAGES, IMAGE_SIZE, TEXT_DEFAULTS, TEXT_KEYS, Parts
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

VISION_KEYS: Keys = {
    **{key: one for key, one in qwen2_vl.VISION_KEYS.items() if key != "embed_dim"},
    "hidden_size": ("vision_hidden_size", COUNT),
    "intermediate_size": ("vision_intermediate_size", COUNT),
    "window_size": ("vision_window", COUNT),
    "fullatt_block_indexes": ("vision_full_layers", BLOCKS),
}


PARTS = Parts("qwen2_5_vl", TEXT_KEYS, VISION_KEYS, "out_hidden_size")


def _qwen2_5_vl(fields: Fields, values: dict[str, Any]) -> None:
    PARTS.read(fields, values)


def _written(shape: ModelShape) -> dict[str, Any]:
    return PARTS.written(shape, fullatt_block_indexes=list(shape.vision_full_layers))


def contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What makes no network."""
    found = qwen2_vl.quarters(values)
    if values["vision_window"] < values["patch_size"] * values["vision_merge"]:
        square = values["patch_size"] * values["vision_merge"]
        found.append(("vision_window", f"{values['vision_window']} pixels are less than a square of {square}"))
    last = max(values["vision_full_layers"] or (), default=0)
    if last >= values["vision_layers"]:
        found.append(("vision_full_layers", f"there is no block {last} of {values['vision_layers']}"))
    return found


def every_eighth(fields: Mapping[str, Any]) -> tuple[int, ...]:
    """The vision blocks that see the whole image where nothing says which."""
    return tuple(i for i in (7, 15, 23, 31) if i < fields["vision_layers"])


TYPES = {
    "qwen2_5_vl": ModelType(
        config="Qwen2_5_VLConfig",
        family="qwen2_5_vl",
        tasks=("lm",),
        written=_written,
        defaults={
            "image_size": IMAGE_SIZE,
            "patch_size": 14,
            "channels": 3,
            "vision_merge": 2,
            "vision_frames": 2,
            "vision_window": 112,
            "vision_layers": 32,
            "vision_full_layers": every_eighth,
            "vision_hidden_size": 3584,
            "vision_attention_heads": 16,
            "vision_intermediate_size": 3420,
            "vision_activation": "silu",
            **TEXT_DEFAULTS,
        },
        fixed=BESIDE_IMAGES,
        keys={"tie_word_embeddings": ("tied_embeddings", FLAG)},
        adjust=_qwen2_5_vl,
        contradictions=contradictions,
        grouped=True,
    ),
}
