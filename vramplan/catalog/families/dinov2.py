"""DINOv2 (models/dinov2/configuration_dinov2.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, RATIO, TEXT, ModelType, same_heads
from vramplan.catalog.families.vit import FIXED
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

RATIO_OF_MLP = 4  # mlp_ratio
GATE_MULTIPLE = 8


def inside_width(hidden_size: int, ratio: int, *, gated: bool) -> int:
    """The width of an MLP; a gated one has two thirds of it, up to the next multiple of 8 (Dinov2SwiGLUFFN)."""
    width = hidden_size * ratio
    return (int(width * 2 / 3) + GATE_MULTIPLE - 1) // GATE_MULTIPLE * GATE_MULTIPLE if gated else width


def mlp_width(fields: Mapping[str, Any]) -> Any:
    """That of the class, which is four times as wide as the model."""
    return inside_width(fields["hidden_size"], RATIO_OF_MLP, gated=fields["gated_mlp"])


def ratio_of(hidden_size: int, intermediate_size: int, *, gated: bool) -> int | None:
    """The ratio that makes this width; None where none does."""
    near = intermediate_size * (3 if gated else 2) // (2 * hidden_size)
    found = (one for one in (near, near + 1) if inside_width(hidden_size, one, gated=gated) == intermediate_size)
    return next(found, None)


def _widths(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    hidden, inside = values["hidden_size"], values["intermediate_size"]
    if ratio_of(hidden, inside, gated=values["gated_mlp"]) is not None:
        return []
    message = f"{inside} follows from no mlp_ratio that is a whole number, and hidden_size {hidden}"
    return [("intermediate_size", message)]


def read_dinov2(fields: Fields, values: dict[str, Any]) -> None:
    """`mlp_ratio` is in the place of the width of the MLP."""
    if fields.number("drop_path_rate", minimum=0, below=1):
        fields.refuse("drop_path_rate", "paths that are dropped are not modelled", hint="set it to 0")
    if fields.boolean("use_mask_token") is False:
        fields.refuse("use_mask_token", "false is not modelled")
    ratio = fields.integer("mlp_ratio", minimum=1)
    hidden = values.get("hidden_size") or TYPES["dinov2"].defaults["hidden_size"]
    if ratio is not None:
        values["intermediate_size"] = inside_width(hidden, ratio, gated=bool(values.get("gated_mlp")))


def _written(shape: ModelShape) -> dict[str, Any]:
    return {"mlp_ratio": ratio_of(shape.hidden_size, shape.intermediate_size, gated=shape.gated_mlp)}


TYPES = {
    "dinov2": ModelType(
        config="Dinov2Config",
        family="dinov2",
        tasks=("image",),
        defaults={
            "image_size": 224,
            "patch_size": 14,
            "channels": 3,
            "hidden_size": 768,
            "layers": 12,
            "attention_heads": 12,
            "key_value_heads": same_heads,
            "gated_mlp": False,
            "intermediate_size": mlp_width,
            "activation": "gelu",
            "qkv_bias": True,
            "embedding_dropout": 0.0,
            "attention_dropout": 0.0,
        },
        fixed={**{key: one for key, one in FIXED.items() if key != "gated_mlp"}, "hidden_dropout": 0.0},
        keys={
            "image_size": ("image_size", COUNT),
            "patch_size": ("patch_size", COUNT),
            "num_channels": ("channels", COUNT),
            "num_hidden_layers": ("layers", COUNT),
            "hidden_size": ("hidden_size", COUNT),
            "num_attention_heads": ("attention_heads", COUNT),
            "use_swiglu_ffn": ("gated_mlp", FLAG),
            "hidden_act": ("activation", TEXT),
            "qkv_bias": ("qkv_bias", FLAG),
            "attention_probs_dropout_prob": ("attention_dropout", RATIO),
            "hidden_dropout_prob": ("embedding_dropout", RATIO),
        },
        adjust=read_dinov2,
        written=_written,
        contradictions=_widths,
        classes=1000,  # as for vit
    ),
}
