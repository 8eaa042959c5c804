"""LLaVA-NeXT (models/llava_next/configuration_llava_next.py): LLaVA with tiles, and a Llama, a Mistral or a Qwen2."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from vramplan.catalog.config_classes import tower
from vramplan.catalog.families import llava
from vramplan.catalog.families.among_text import read_text, text_keys, without_windows
from vramplan.catalog.families.clip import vision_tower
from vramplan.catalog.families.llama import DEFAULTS
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

LLAVA = llava.TYPES["llava"]
TEXTS = ("llama", "mistral", "qwen2")  # which text is read where nothing says it is the first
TILES = 5  # image_grid_pinpoints: of 672 by 672 pixels, and the whole image before them


def _llava_next(fields: Fields, values: dict[str, Any]) -> None:
    llava.read_images(fields, values, "llava_next")
    values["text_type"], text = read_text(fields, values, TEXTS, "llava_next", TEXT_FIELDS)
    without_windows(text or fields, values)
    if fields.given("image_grid_pinpoints"):
        values["vision_tiles"] = _tiles(fields, values.get("image_size") or LLAVA.defaults["image_size"])


def _tiles(fields: Fields, edge: int) -> int | None:
    """The tiles of the picture that has the most tokens, which has to be a square."""
    grids = fields.value("image_grid_pinpoints")
    if not isinstance(grids, list) or not grids or not all(_is_size(one) for one in grids):
        fields.problem("image_grid_pinpoints", "expected a list of heights and widths", hint="[[672, 672]]")
        return None
    sizes: list[tuple[int, int]] = [(one[0] // edge, one[1] // edge) for one in grids]
    height, width = max(sizes, key=lambda one: one[0] * one[1])
    if height != width or not height:
        fields.refuse("image_grid_pinpoints", "only lists whose largest picture is a square are modelled")
        return None
    return 1 + height * width


def _is_size(one: Any) -> bool:
    return isinstance(one, list) and len(one) == 2 and all(type(edge) is int for edge in one)


def _written(shape: ModelShape) -> dict[str, Any]:
    text = shape.text_type or TEXTS[0]
    edge = (shape.image_size or 0) * isqrt((shape.vision_tiles or 1) - 1)
    return {
        "text_config": {**tower(text, shape, text_keys(text)), "sliding_window": None},
        "vision_config": vision_tower(shape),
        "image_token_index": shape.vocabulary_size - 1,
        "image_grid_pinpoints": [[edge, edge]],
    }


def contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What makes no network."""
    text, tiles = values["text_type"], values["vision_tiles"]
    if text not in TEXTS:
        return [("text_type", f"{text} is not modelled inside of llava_next (modelled: {', '.join(TEXTS)})")]
    if tiles < 2 or isqrt(tiles - 1) ** 2 != tiles - 1:
        return [("vision_tiles", f"{tiles} are not the whole image and a square of tiles, as 5 or 10 are")]
    return []


def biases_of_text(fields: Mapping[str, Any]) -> bool:
    """Whether queries, keys and values have biases where nothing says it: those of a Qwen2."""
    return fields.get("text_type") == "qwen2"


TYPES = {
    "llava_next": LLAVA._replace(
        config="LlavaNextConfig",
        family="llava_next",
        written=_written,
        defaults={**LLAVA.defaults, "vision_tiles": TILES, "text_type": TEXTS[0], "qkv_bias": biases_of_text},
        fixed={**LLAVA.fixed, "vision_newline": True},
        adjust=_llava_next,
        contradictions=contradictions,
    ),
}
TEXT_FIELDS = (frozenset(DEFAULTS) | {"head_size"}) - {"tied_embeddings", "rope_scaling"}
