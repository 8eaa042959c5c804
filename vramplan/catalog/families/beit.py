"""BEiT (models/beit/configuration_beit.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.families.convnext import OFTEN, read_paths, written_paths
from vramplan.catalog.families.vit import FIXED
from vramplan.catalog.families.vit import TYPES as VIT
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

UNKNOWN = (
    ("use_absolute_position_embeddings", False),
    ("use_shared_relative_position_bias", False),  # one bias for all blocks, as in pre-training
    ("use_mask_token", False),
    ("use_mean_pooling", True),
)


def _beit(fields: Fields, values: dict[str, Any]) -> None:
    read_paths(fields, values)
    for key, known in UNKNOWN:
        if fields.boolean(key) is not None and fields.boolean(key) is not known:
            fields.refuse(key, f"{str(not known).lower()} is not modelled", hint=f"set it to {str(known).lower()}")
    if fields.boolean("use_relative_position_bias") is not None:
        values["positions"] = "relative" if fields.boolean("use_relative_position_bias") else "none"
    scale = fields.number("layer_scale_init_value") if fields.given("layer_scale_init_value") else None
    if scale is not None and scale <= 0:
        fields.refuse("layer_scale_init_value", "blocks without a factor for each element are not modelled")


def _written(shape: ModelShape) -> dict[str, Any]:
    relative = shape.positions == "relative"
    return {**written_paths(shape), "use_relative_position_bias": relative, "layer_scale_init_value": OFTEN}


TYPES = {
    "beit": VIT["vit"]._replace(
        config="BeitConfig",
        family="beit",
        defaults={
            **{key: one for key, one in VIT["vit"].defaults.items() if key != "qkv_bias"},
            "positions": "none",
            "drops_paths": True,
        },
        fixed={**{key: one for key, one in FIXED.items() if key != "positions"}, "qkv_bias": True},
        keys={key: one for key, one in VIT["vit"].keys.items() if key != "qkv_bias"},
        adjust=_beit,
        written=_written,
    ),
}
