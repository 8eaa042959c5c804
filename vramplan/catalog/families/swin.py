"""Swin (models/swin/configuration_swin.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import COUNT, COUNTS, FLAG, RATIO, TEXT, ModelType, hidden_dropout, same_heads
from vramplan.catalog.families.convnext import read_paths, written_paths
from vramplan.catalog.fields import Fields
from vramplan.engines import imported
from vramplan.values.model import ModelShape

RATIO_OF_MLP, WINDOW, PATCH = 4, 7, 4


def _swin(fields: Fields, values: dict[str, Any]) -> None:
    read_paths(fields, values)
    depths = values.get("depths") or DEPTHS
    if fields.given("embed_dim"):
        width = fields.integer("embed_dim", minimum=1) or 0
        values["widths"] = tuple(width * 2**i for i in range(len(depths)))
    elif "depths" in values:
        values["widths"] = tuple(WIDTHS[0] * 2**i for i in range(len(depths)))
    if fields.given("num_heads"):
        values["attention_heads"] = _heads(fields, len(depths))
    patch = values.get("patch_size") or PATCH
    window = fields.integer("window_size", minimum=1) if fields.given("window_size") else WINDOW
    values["vision_window"] = (window or WINDOW) * patch
    ratio = fields.number("mlp_ratio", minimum=0) if fields.given("mlp_ratio") else None
    if ratio is not None:
        values["intermediate_size"] = int(ratio * (values.get("widths") or WIDTHS)[-1])
    if fields.boolean("use_absolute_embeddings"):
        fields.refuse("use_absolute_embeddings", "true is not modelled")


def _heads(fields: Fields, stages: int) -> int | None:
    """Those of the first stage, which double with the width."""
    heads = fields.integers("num_heads") or ()
    if len(heads) == stages and list(heads) == [heads[0] * 2**i for i in range(stages)]:
        return heads[0]
    fields.refuse("num_heads", "only heads that double from stage to stage are modelled")
    return None


def _written(shape: ModelShape) -> dict[str, Any]:
    widths, patch = shape.widths or WIDTHS, shape.patch_size or PATCH
    return {
        **written_paths(shape),
        "embed_dim": widths[0],
        "num_heads": [shape.attention_heads * 2**i for i in range(len(widths))],
        "window_size": (shape.vision_window or 0) // patch,
        "mlp_ratio": shape.intermediate_size / shape.hidden_size,
    }


def _layers(fields: Mapping[str, Any]) -> Any:
    return sum(fields["depths"])


def _width(fields: Mapping[str, Any]) -> Any:
    return fields["widths"][-1]


def mlp_of_last(fields: Mapping[str, Any]) -> Any:
    """That of the last stage: four times as wide."""
    return RATIO_OF_MLP * fields["widths"][-1]


def head_of_first(fields: Mapping[str, Any]) -> Any:
    """Elements of a head, which all stages have alike."""
    return fields["widths"][0] // fields["attention_heads"]


def contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What makes no network."""
    widths, patch, heads = values["widths"], values["patch_size"], values["attention_heads"]
    if list(widths) != [widths[0] * 2**i for i in range(len(widths))]:
        return [("widths", "each stage is twice as wide as the one before")]
    if widths[0] % heads:
        return [("attention_heads", f"{widths[0]} is not a multiple of the {heads} heads of the first stage")]
    if values["vision_window"] % patch:
        return [("vision_window", f"windows of {values['vision_window']} pixels are no patches of {patch}")]
    size, window = values["image_size"], values["vision_window"] // patch
    edge = imported("vramplan.replay.models.swin:last_edge")(size, patch, len(widths))
    if edge < window:
        return [("image_size", f"{size} pixels leave {edge} patches in the last stage, whose windows have {window}")]
    return []


DEPTHS, WIDTHS = (2, 2, 6, 2), (96, 192, 384, 768)
TYPES = {
    "swin": ModelType(
        config="SwinConfig",
        family="swin",
        tasks=("image",),
        defaults={
            "depths": DEPTHS,
            "widths": WIDTHS,
            "attention_heads": 3,
            "vision_window": WINDOW * PATCH,
            "channels": 3,
            "activation": "gelu",
            "image_size": 224,
            "patch_size": PATCH,
            "drops_paths": True,
            "qkv_bias": True,
            "intermediate_size": mlp_of_last,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
        },
        fixed={
            "layers": _layers,
            "hidden_size": _width,
            "key_value_heads": same_heads,
            "head_size": head_of_first,
            "vocabulary_size": 0,
            "max_positions": 0,
            "tied_embeddings": False,
            "positions": "relative",
            "gated_mlp": False,
            "output_bias": True,
            "mlp_bias": True,
            "token_types": 0,
            "embedding_dropout": hidden_dropout,
            "sliding_window": None,
        },
        keys={
            "depths": ("depths", COUNTS),
            "num_channels": ("channels", COUNT),
            "image_size": ("image_size", COUNT),
            "patch_size": ("patch_size", COUNT),
            "hidden_act": ("activation", TEXT),
            "qkv_bias": ("qkv_bias", FLAG),
            "attention_probs_dropout_prob": ("attention_dropout", RATIO),
            "hidden_dropout_prob": ("hidden_dropout", RATIO),
        },
        adjust=_swin,
        written=_written,
        contradictions=contradictions,
        own_head_size=True,
        classes=1000,
    ),
}
