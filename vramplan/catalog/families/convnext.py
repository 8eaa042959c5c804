"""ConvNeXt (models/convnext/configuration_convnext.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT
from vramplan.catalog.families import resnet
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

RESNET = resnet.TYPES["resnet"]
OFTEN = 0.1  # a share that is written
DEPTHS = (3, 3, 9, 3)


def read_paths(fields: Fields, values: dict[str, Any]) -> None:
    """Whether what blocks add is left out at random: how often does not matter."""
    rate = fields.number("drop_path_rate", minimum=0, below=1) if fields.given("drop_path_rate") else None
    if rate is not None:
        values["drops_paths"] = rate > 0


def written_paths(shape: ModelShape) -> dict[str, Any]:
    """How often they are left out, as `config.json` says it."""
    return {"drop_path_rate": OFTEN if shape.drops_paths else 0.0}


def _written(shape: ModelShape) -> dict[str, Any]:
    return {**written_paths(shape), "num_stages": len(shape.depths or ())}


def _convnext(fields: Fields, values: dict[str, Any]) -> None:
    read_paths(fields, values)
    depths = values.get("depths") or DEPTHS
    stages = fields.integer("num_stages", minimum=1) if fields.given("num_stages") else None
    if stages is not None and stages != len(depths):
        fields.refuse("num_stages", f"{stages} stages have no {len(depths)} depths")
    scale = fields.number("layer_scale_init_value") if fields.given("layer_scale_init_value") else None
    if scale is not None and scale <= 0:
        fields.refuse("layer_scale_init_value", "layers without a factor for each channel are not modelled")


TYPES = {
    "convnext": RESNET._replace(
        config="ConvNextConfig",
        family="convnext",
        defaults={
            "depths": DEPTHS,
            "widths": (96, 192, 384, 768),
            "channels": 3,
            "activation": "gelu",
            "image_size": 224,
            "patch_size": 4,
            "drops_paths": False,
        },
        fixed={**RESNET.fixed, "qkv_bias": False, "mlp_bias": True},
        keys={
            **{key: RESNET.keys[key] for key in ("depths", "hidden_sizes", "num_channels", "hidden_act")},
            "image_size": ("image_size", COUNT),
            "patch_size": ("patch_size", COUNT),
        },
        adjust=_convnext,
        written=_written,
    ),
}
