"""InternVL (models/internvl/configuration_internvl.py): one configuration for its vision encoder and one for a Llama, a
Qwen2 or a Qwen3 inside of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, RATIO, TEXT, Keys, ModelType, tower
from vramplan.catalog.families.among_text import (
    WINDOW_FIELDS,
    only,
    read_text,
    rope_scaling_of,
    text_keys,
    tied_of_text,
    uncovered,
    without_windows,
)
from vramplan.catalog.families.clip import read_inside
from vramplan.catalog.families.llama import DEFAULTS, FIXED
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

TEXTS = ("qwen2", "qwen3", "llama")  # which text is read where nothing says it is the first
VISION_KEYS: Keys = {
    "num_hidden_layers": ("vision_layers", COUNT),
    "hidden_size": ("vision_hidden_size", COUNT),
    "num_attention_heads": ("vision_attention_heads", COUNT),
    "intermediate_size": ("vision_intermediate_size", COUNT),
    "hidden_act": ("vision_activation", TEXT),
    "attention_dropout": ("vision_attention_dropout", RATIO),
    "attention_bias": ("vision_qkv_bias", FLAG),
    "num_channels": ("channels", COUNT),
}
TILES = 13  # models/got_ocr2/image_processing_got_ocr2.py: `max_patches` of 12, and the whole image beside them


def _internvl(fields: Fields, values: dict[str, Any]) -> None:
    vision = read_inside(fields, "vision_config", VISION_KEYS, values)
    if vision is not None:
        _vision(vision, values)
    values["text_type"], text = read_text(fields, values, TEXTS, "internvl", TEXT_FIELDS)
    if text is not None:
        tied_of_text(fields, text, values)
        values["rope_scaling"] = rope_scaling_of(text, values["text_type"])
    without_windows(text or fields, values)
    only(fields, "projector_hidden_act", ("gelu",), "internvl")
    only(fields, "vision_feature_select_strategy", ("default",), "internvl")
    if fields.given("vision_feature_layer") and fields.value("vision_feature_layer") != -1:
        fields.refuse("vision_feature_layer", "only -1 is modelled, what the last block gives")
    ratio = fields.number("downsample_ratio", minimum=0, maximum=1) if fields.given("downsample_ratio") else None
    if ratio:
        values["vision_merge"] = int(1 / ratio)


def _vision(fields: Fields, values: dict[str, Any]) -> None:
    """What of the vision encoder is not a key alone: both edges of an image and of a patch, which are alike."""
    only(fields, "model_type", ("internvl_vision",), "internvl")
    only(fields, "norm_type", ("layer_norm",), "internvl")
    for key, field in (("image_size", "image_size"), ("patch_size", "patch_size")):
        if fields.given(key):
            values[field] = _edge(fields, key)
    for key, known in (("use_qk_norm", False), ("use_mask_token", False), ("use_mean_pooling", True)):
        if fields.boolean(key) is not None and fields.boolean(key) is not known:
            fields.refuse(key, f"{str(not known).lower()} is not modelled")
    if fields.boolean("use_absolute_position_embeddings") is False:
        fields.refuse("use_absolute_position_embeddings", "false is not modelled")
    for key in ("hidden_dropout_prob", "projection_dropout"):
        if fields.number(key, minimum=0, below=1):
            fields.refuse(key, "dropout of the hidden states of images is not modelled", hint="set it to 0")


def _edge(fields: Fields, key: str) -> int | None:
    if not isinstance(fields.value(key), list):
        return fields.integer(key, minimum=1)
    edges = fields.integers(key) or ()
    if len(set(edges)) == 1:
        return edges[0]
    fields.refuse(key, "only squares are modelled")
    return None


def _written(shape: ModelShape) -> dict[str, Any]:
    text = shape.text_type or TEXTS[0]
    edges = {"image_size": [shape.image_size] * 2, "patch_size": [shape.patch_size] * 2}
    return {
        "text_config": tower(text, shape, text_keys(text)),
        "vision_config": {**tower("internvl_vision", shape, VISION_KEYS), **edges},
        "downsample_ratio": 1 / (shape.vision_merge or 1),
        "image_token_id": shape.vocabulary_size - 1,
    }


def contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What makes no network."""
    text = values["text_type"]
    if text not in TEXTS:
        return [("text_type", f"{text} is not modelled inside of internvl (modelled: {', '.join(TEXTS)})")]
    return uncovered(values)


def norms_of_text(fields: Mapping[str, Any]) -> bool:
    """Whether queries and keys are normalised: those of a Qwen3."""
    return fields.get("text_type") == "qwen3"


def biases_of_text(fields: Mapping[str, Any]) -> bool:
    """Whether queries, keys and values have biases where nothing says it: those of a Qwen2."""
    return fields.get("text_type") in (None, "qwen2")


TYPES = {
    "internvl": ModelType(
        config="InternVLConfig",
        family="internvl",
        tasks=("lm",),
        written=_written,
        defaults={
            "image_size": 448,
            "patch_size": 14,
            "channels": 3,
            "vision_layers": 24,
            "vision_hidden_size": 1024,
            "vision_attention_heads": 16,
            "vision_intermediate_size": 4096,
            "vision_activation": "gelu",
            "vision_attention_dropout": 0.0,
            "vision_qkv_bias": False,
            "vision_merge": 2,
            "vision_tiles": TILES,
            "text_type": TEXTS[0],
            **{key: one for key, one in DEFAULTS.items() if key not in WINDOW_FIELDS},
            "vocabulary_size": 151936,
            "intermediate_size": 22016,
            "key_value_heads": 32,
            "max_positions": 32768,
            "qkv_bias": biases_of_text,
            "tied_embeddings": True,
        },
        fixed={**FIXED, "sliding_window": None, "qk_norm": norms_of_text},
        keys={"tie_word_embeddings": ("tied_embeddings", FLAG)},
        adjust=_internvl,
        contradictions=contradictions,
        grouped=True,
        own_head_size=True,
    ),
}
TEXT_FIELDS = (frozenset(DEFAULTS) | {"head_size"}) - {"tied_embeddings", "rope_scaling", *WINDOW_FIELDS}
