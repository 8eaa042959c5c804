"""LLaVA-OneVision (models/llava_onevision/configuration_llava_onevision.py): LLaVA-NeXT with a SigLIP and a Qwen2."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isqrt
from typing import Any

from vramplan.catalog.config_classes import ModelType, tower
from vramplan.catalog.families import llava_next
from vramplan.catalog.families.among_text import only, read_text, text_keys, without_windows
from vramplan.catalog.families.clip import VISION_KEYS, read_inside
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

NEXT: ModelType = llava_next.TYPES["llava_next"]
TEXTS = ("qwen2",)
MOST = 9  # vision_aspect_ratio: what a picture of more tiles has more of is interpolated


def _llava_onevision(fields: Fields, values: dict[str, Any]) -> None:
    vision = read_inside(fields, "vision_config", VISION_KEYS, values)
    if vision is not None:
        only(vision, "model_type", ("siglip_vision_model",), "llava_onevision")
        if vision.boolean("vision_use_head"):
            vision.refuse("vision_use_head", "a head that pools the patches is not modelled", hint="set it to false")
    _, text = read_text(fields, values, TEXTS, "llava_onevision", llava_next.TEXT_FIELDS)
    without_windows(text or fields, values)
    for key, known in (("projector_hidden_act", "gelu"), ("vision_feature_select_strategy", "full")):
        only(fields, key, (known,), "llava_onevision")
    if fields.given("vision_feature_layer") and fields.value("vision_feature_layer") != -1:
        fields.refuse("vision_feature_layer", "only -1 is modelled, what the vision encoder gives")
    if fields.boolean("multimodal_projector_bias") is False:
        fields.refuse("multimodal_projector_bias", "false is not modelled")
    if fields.given("vision_aspect_ratio"):
        values["vision_tiles"] = _tiles(fields)


def _tiles(fields: Fields) -> int | None:
    """The tiles of the largest picture that is not made smaller, and the whole image."""
    said = re.fullmatch(r"anyres_max_(\d+)", fields.text("vision_aspect_ratio") or "")
    most = int(said[1]) if said else 0
    if not most or isqrt(most) ** 2 != most:
        fields.refuse("vision_aspect_ratio", "only anyres_max_N of a square number N is modelled")
        return None
    return 1 + most


def _written(shape: ModelShape) -> dict[str, Any]:
    tiles = (shape.vision_tiles or 1) - 1
    edge = (shape.image_size or 0) * isqrt(tiles)
    return {
        "text_config": {**tower("qwen2", shape, text_keys("qwen2")), "sliding_window": None},
        "vision_config": {**tower("siglip_vision_model", shape, VISION_KEYS), "vision_use_head": False},
        "image_token_index": shape.vocabulary_size - 1,
        "image_grid_pinpoints": [[edge, edge]],
        "vision_aspect_ratio": f"anyres_max_{tiles}",
    }


def contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What makes no network."""
    return llava_next.contradictions({**values, "text_type": TEXTS[0]})


OWN = ("text_type", "qkv_bias", "output_bias", "mlp_bias")  # those of a Qwen2
TYPES = {
    "llava_onevision": NEXT._replace(
        config="LlavaOnevisionConfig",
        family="llava_onevision",
        written=_written,
        defaults={
            **{key: one for key, one in NEXT.defaults.items() if key not in OWN},
            "image_size": 384,
            "vision_layers": 26,
            "vision_hidden_size": 1152,
            "vision_attention_heads": 16,
            "vision_intermediate_size": 4304,
            "vision_activation": "gelu_pytorch_tanh",
            "vision_tiles": 1 + MOST,
            "vocabulary_size": 151936,
            "intermediate_size": 22016,
            "key_value_heads": 32,
            "max_positions": 32768,
        },
        fixed={**NEXT.fixed, "qkv_bias": True, "output_bias": False, "mlp_bias": False, "vision_merge": 1},
        adjust=_llava_onevision,
        contradictions=contradictions,
    ),
}
