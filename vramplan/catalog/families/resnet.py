"""ResNet (models/resnet/configuration_resnet.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import COUNT, COUNTS, FLAG, TEXT, ModelType
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape


def _layers(fields: Mapping[str, Any]) -> Any:
    return sum(fields["depths"])


def _width(fields: Mapping[str, Any]) -> Any:
    return fields["widths"][-1]


def _resnet(fields: Fields, values: dict[str, Any]) -> None:
    kind = fields.word("layer_type", ("basic", "bottleneck"))
    if kind is not None:
        values["bottleneck"] = kind == "bottleneck"


def _written(shape: ModelShape) -> dict[str, Any]:
    return {"layer_type": "bottleneck" if shape.bottleneck else "basic"}


TYPES = {
    "resnet": ModelType(
        config="ResNetConfig",
        family="resnet",
        tasks=("image",),
        defaults={
            "depths": (3, 4, 6, 3),
            "widths": (256, 512, 1024, 2048),
            "embedding_size": 64,
            "bottleneck": True,  # layer_type
            "downsample_in_first_stage": False,
            "downsample_in_bottleneck": False,
            "channels": 3,
            "activation": "relu",
            "image_size": None,  # any will do
        },
        fixed={
            "layers": _layers,  # of all stages
            "hidden_size": _width,
            "attention_heads": 0,
            "key_value_heads": 0,
            "head_size": 0,
            "intermediate_size": 0,
            "vocabulary_size": 0,
            "max_positions": 0,
            "tied_embeddings": False,
            "positions": "none",
            "gated_mlp": False,
            "qkv_bias": False,
            "output_bias": False,
            "mlp_bias": False,
            "token_types": 0,
            "embedding_dropout": 0.0,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "sliding_window": None,
        },
        keys={
            "depths": ("depths", COUNTS),
            "hidden_sizes": ("widths", COUNTS),
            "embedding_size": ("embedding_size", COUNT),
            "num_channels": ("channels", COUNT),
            "hidden_act": ("activation", TEXT),
            "downsample_in_first_stage": ("downsample_in_first_stage", FLAG),
            "downsample_in_bottleneck": ("downsample_in_bottleneck", FLAG),
        },
        adjust=_resnet,
        written=_written,
        classes=1000,
    ),
}
