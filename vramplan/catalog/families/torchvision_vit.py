"""torchvision's ViT (torchvision 0.28.0, models/vision_transformer.py), which is no class of Transformers."""

from __future__ import annotations

from vramplan.catalog.config_classes import ModelType, same_heads
from vramplan.catalog.families.vit import FIXED

TYPES = {
    "torchvision_vit": ModelType(
        config="VisionTransformer of torchvision",
        family="torchvision_vit",
        tasks=("image",),
        defaults={
            "image_size": 224,
            "patch_size": 16,
            "hidden_size": 768,
            "layers": 12,
            "attention_heads": 12,
            "intermediate_size": 3072,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        },
        fixed={
            **FIXED,
            "channels": 3,
            "key_value_heads": same_heads,
            "activation": "gelu",
            "embedding_dropout": lambda fields: fields["hidden_dropout"],  # one argument, dropout, for both
            "qkv_bias": True,
        },
        keys={},
        classes=1000,
    ),
}
