"""ViT (models/vit/configuration_vit.py) and ViT-MSN (models/vit_msn/configuration_vit_msn.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, RATIO, TEXT, ModelType, hidden_dropout, same_heads


def patches_and_class(fields: Mapping[str, Any]) -> Any:
    """Positions of the patches of an image, in rows and columns, and one of the class token."""
    side = fields["image_size"] // max(1, fields["patch_size"])  # what is out of range is refused later
    return side * side + 1


FIXED: dict[str, Any] = {
    "vocabulary_size": 0,
    "max_positions": patches_and_class,
    "positions": "learned",
    "tied_embeddings": False,
    "gated_mlp": False,
    "output_bias": True,
    "mlp_bias": True,
    "token_types": 0,
    "sliding_window": None,
}
"""What every ViT has."""

TYPES = {
    "vit": ModelType(
        config="ViTConfig",
        family="vit",
        tasks=("image",),
        defaults={
            "image_size": 224,
            "patch_size": 16,
            "channels": 3,
            "hidden_size": 768,
            "layers": 12,
            "attention_heads": 12,
            "key_value_heads": same_heads,
            "intermediate_size": 3072,
            "activation": "gelu",
            "qkv_bias": True,
            "hidden_dropout": 0.0,
            "embedding_dropout": hidden_dropout,  # one setting, hidden_dropout_prob, for both
            "attention_dropout": 0.0,
        },
        fixed=FIXED,
        keys={
            "image_size": ("image_size", COUNT),
            "patch_size": ("patch_size", COUNT),
            "num_channels": ("channels", COUNT),
            "num_hidden_layers": ("layers", COUNT),
            "hidden_size": ("hidden_size", COUNT),
            "num_attention_heads": ("attention_heads", COUNT),
            "intermediate_size": ("intermediate_size", COUNT),
            "hidden_act": ("activation", TEXT),
            "qkv_bias": ("qkv_bias", FLAG),
            "attention_probs_dropout_prob": ("attention_dropout", RATIO),
            "hidden_dropout_prob": ("hidden_dropout", RATIO),
        },
        classes=1000,  # ImageNet's, which everybody trains on; the class itself has 2
    ),
}
TYPES["vit_msn"] = TYPES["vit"]._replace(config="ViTMSNConfig")
