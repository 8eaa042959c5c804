"""Idefics3 and SmolVLM (models/idefics3/configuration_idefics3.py, smolvlm/configuration_smolvlm.py): one configuration
for a vision encoder and one for a Llama inside of one."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, ModelType, tower
from vramplan.catalog.families import llava
from vramplan.catalog.families.among_text import only, uncovered
from vramplan.catalog.families.clip import VISION_KEYS, read_inside
from vramplan.catalog.families.llava import TEXT_KEYS, read_llama
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

LLAVA = llava.TYPES["llava"]
VISION_TYPES = ("idefics3_vision", "smolvlm_vision", "idefics3", "smolvlm")  # the last two: of files of older releases
OWN = {"image_size": 224, "patch_size": 32}
"""What the class says, of which it makes no tokens: squares of 2 do not cover the 7 patches of an edge."""

TILES = 17  # image_processing_idefics3.py: the longest edge is that of 4 tiles, and the whole image beside a square


def _images(fields: Fields, values: dict[str, Any]) -> None:
    """Both parts; what the file leaves out of the images' sizes is what the class says."""
    read_llama(fields, values, "idefics3")
    vision = read_inside(fields, "vision_config", VISION_KEYS, values)
    if vision is not None:
        only(vision, "model_type", VISION_TYPES, "idefics3")
    for key, size in OWN.items():
        values.setdefault(key, size)


def _written(shape: ModelShape) -> dict[str, Any]:
    return {
        "text_config": tower("llama", shape, TEXT_KEYS),
        "vision_config": tower(f"{shape.transformers_model_type}_vision", shape, VISION_KEYS),
        "image_token_id": shape.vocabulary_size - 1,
    }


TYPES: dict[str, ModelType] = {
    "idefics3": LLAVA._replace(
        config="Idefics3Config",
        family="idefics3",
        written=_written,
        defaults={
            **LLAVA.defaults,
            "image_size": 364,  # of HuggingFaceM4/Idefics3-8B-Llama3, with the next one
            "patch_size": 14,
            "vision_layers": 12,
            "vision_hidden_size": 1152,
            "vision_attention_heads": 16,
            "vision_intermediate_size": 3072,
            "vision_activation": "gelu_pytorch_tanh",
            "vision_merge": 2,
            "vision_tiles": TILES,
        },
        keys={**LLAVA.keys, "scale_factor": ("vision_merge", COUNT)},
        adjust=_images,
        contradictions=uncovered,
    ),
}
