"""PaliGemma (models/paligemma/configuration_paligemma.py): one configuration for SigLIP and one for a Gemma or, of
PaliGemma 2, a Gemma 2 inside of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import FLAG, MODEL_TYPES, ModelType, tower
from vramplan.catalog.families import gemma, gemma2
from vramplan.catalog.families.among_text import only, read_text, text_keys
from vramplan.catalog.families.clip import VISION_KEYS, read_inside
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

TEXT = gemma.TYPES["gemma"]
TEXTS = ("gemma", "gemma2")  # which text is read where nothing says it is the first
OF_GEMMA2 = ("sliding_window", "attention_softcap", "logit_softcap")
WIDTH = 2048
ALONE = ("rope_scaling",)  # of a Gemma beside images not modelled


def _paligemma(fields: Fields, values: dict[str, Any]) -> None:
    vision = read_inside(fields, "vision_config", VISION_KEYS, values)
    if vision is not None:
        only(vision, "model_type", ("siglip_vision_model",), "paligemma")
        if vision.boolean("vision_use_head"):
            vision.refuse("vision_use_head", "a head that pools the patches is not modelled", hint="set it to false")
    values["text_type"], text = read_text(fields, values, TEXTS, "paligemma", TEXT_FIELDS)
    if text is not None and text.boolean("use_bidirectional_attention") is False:
        text.refuse("use_bidirectional_attention", "false is not modelled")
    projected, width = fields.integer("projection_dim", minimum=1) or WIDTH, values.get("hidden_size", WIDTH)
    if projected != width:
        fields.refuse("projection_dim", f"{projected} is not the width of the text, {width}, whose tokens they become")


def _written(shape: ModelShape) -> dict[str, Any]:
    text = shape.text_type or TEXTS[0]
    written = MODEL_TYPES[text].written
    vision = {**tower("siglip_vision_model", shape, VISION_KEYS), "vision_use_head": False}
    bounds = {} if written is None else {**written(shape), "sliding_window": shape.sliding_window}
    return {
        "text_config": {**tower(text, shape, text_keys(text)), **bounds},
        "vision_config": vision,
        "projection_dim": shape.hidden_size,
        "image_token_index": shape.vocabulary_size - 1,
    }


def window_of_text(fields: Mapping[str, Any]) -> Any:
    """The tokens that every second block of a Gemma 2 sees."""
    return gemma2.TYPES["gemma2"].defaults["sliding_window"] if fields.get("text_type") == TEXTS[1] else None


def bound_of_text(fields: Mapping[str, Any]) -> bool:
    """Whether scores and logits have a bound: those of a Gemma 2."""
    return fields.get("text_type") == TEXTS[1]


def contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the text has no code for."""
    text = values["text_type"]
    if text not in TEXTS:
        return [("text_type", f"{text} is not modelled inside of paligemma (modelled: {', '.join(TEXTS)})")]
    if text == TEXTS[1]:
        return []
    return [(key, f"a {text} has none, a {TEXTS[1]} has") for key in OF_GEMMA2 if values[key]]


TYPES = {
    "paligemma": ModelType(
        config="PaliGemmaConfig",
        family="paligemma",
        tasks=("lm",),
        written=_written,
        defaults={
            "image_size": 224,
            "patch_size": 14,
            "channels": 3,
            "vision_layers": 27,
            "vision_hidden_size": 1152,
            "vision_attention_heads": 16,
            "vision_intermediate_size": 4096,
            "vision_activation": "gelu_pytorch_tanh",
            "vision_attention_dropout": 0.0,
            "text_type": TEXTS[0],
            **{key: one for key, one in TEXT.defaults.items() if key not in ALONE},
            "vocabulary_size": 257152,
            "hidden_size": WIDTH,
            "layers": 18,
            "attention_heads": 8,
            "key_value_heads": 1,
            "intermediate_size": 16384,
            "sliding_window": window_of_text,
            "attention_softcap": bound_of_text,
            "logit_softcap": bound_of_text,
        },
        fixed={
            **{key: one for key, one in TEXT.fixed.items() if key not in OF_GEMMA2},
            "vision_merge": 1,
            "rope_scaling": None,
        },
        keys={"tie_word_embeddings": ("tied_embeddings", FLAG)},
        adjust=_paligemma,
        contradictions=contradictions,
        grouped=True,
        own_head_size=True,
    ),
}
TEXT_FIELDS = frozenset(gemma2.TYPES["gemma2"].defaults) - {"tied_embeddings", *ALONE}
