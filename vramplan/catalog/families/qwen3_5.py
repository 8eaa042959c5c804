"""Qwen3.5 with images (models/qwen3_5 and qwen3_5_moe, configuration_<type>.py): as Qwen3-VL without DeepStack, with a
Qwen3.5 for the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isqrt
from typing import Any

from vramplan.catalog.config_classes import FLAG, Keys, ModelType, tower
from vramplan.catalog.families import qwen2_vl, qwen3_next, qwen3_vl
from vramplan.catalog.families.clip import read_inside
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

DENSE, MOE = "qwen3_5_text", "qwen3_5_moe_text"
VISION_KEYS: Keys = {key: one for key, one in qwen3_vl.VISION_KEYS.items() if key != "deepstack_visual_indexes"}


def _reader(of_text: str) -> Callable[[Fields, dict[str, Any]], None]:
    """Reads the two configurations inside of one; that of the text is one of Qwen3.5's own."""
    kind = qwen3_next.TYPES[of_text]
    assert kind.adjust is not None
    adjust = kind.adjust

    def read(fields: Fields, values: dict[str, Any]) -> None:
        text = read_inside(fields, "text_config", kind.keys, values)
        if text is not None:
            adjust(text, values)
        vision = read_inside(fields, "vision_config", VISION_KEYS, values)
        if vision is not None and vision.given("out_hidden_size"):
            said, width = vision.integer("out_hidden_size"), values.get("hidden_size")
            if said is not None and width is not None and said != width:
                vision.refuse("out_hidden_size", f"tokens of {said} elements in a text of {width} make no network")

    return read


def _writer(of_text: str) -> Callable[[ModelShape], dict[str, Any]]:
    """Writes them as `config.json` has them."""
    kind = qwen3_next.TYPES[of_text]

    def write(shape: ModelShape) -> dict[str, Any]:
        half = int(shape.head_size * shape.partial_rotary_factor) // 2
        side = half // 3
        text = {**tower(of_text, shape, kind.keys), **qwen3_next.written(shape)}
        text["rope_parameters"] |= {"mrope_section": [half - 2 * side, side, side]}
        vision = tower(of_text.replace("text", "vision"), shape, VISION_KEYS)
        return {
            "text_config": text,
            "vision_config": {**vision, "out_hidden_size": shape.hidden_size},
            "image_token_id": shape.vocabulary_size - 1,
            "video_token_id": shape.vocabulary_size - 2,
        }

    return write


def contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What makes no network."""
    found = qwen2_vl.quarters(values)
    positions = values["vision_positions"]
    if isqrt(positions) ** 2 != positions:
        found.append(("vision_positions", f"{positions} are no square"))
    return found


def _with_images(config: str, of_text: str) -> ModelType:
    kind = qwen3_next.TYPES[of_text]
    return ModelType(
        config=config,
        family="qwen3_5",
        tasks=("lm",),
        written=_writer(of_text),
        defaults={**qwen3_vl.VISION_DEFAULTS, **kind.defaults},
        fixed={**kind.fixed, "vision_attention_dropout": 0.0},
        keys={"tie_word_embeddings": ("tied_embeddings", FLAG)},
        adjust=_reader(of_text),
        contradictions=contradictions,
        grouped=True,
        own_head_size=True,
    )


TYPES = {
    "qwen3_5": _with_images("Qwen3_5Config", DENSE),
    "qwen3_5_moe": _with_images("Qwen3_5MoeConfig", MOE),
}
