"""StarCoder2 (models/starcoder2/configuration_starcoder2.py)."""

from __future__ import annotations

from vramplan.catalog.config_classes import COUNT, FLAG, RATIO, ModelType, qkv_bias
from vramplan.catalog.families.llama import KEYS

TYPES = {
    "starcoder2": ModelType(
        config="Starcoder2Config",
        family="starcoder2",
        tasks=("lm", "cls"),
        defaults={
            "vocabulary_size": 49152,
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "layers": 30,
            "attention_heads": 24,
            "key_value_heads": 2,
            "max_positions": 4096,
            "activation": "gelu_pytorch_tanh",
            "tied_embeddings": True,
            "qkv_bias": True,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "embedding_dropout": 0.0,
            "sliding_window": None,
            "rope_scaling": None,
        },
        fixed={
            "positions": "rope",
            "gated_mlp": False,
            "token_types": 0,
            "output_bias": qkv_bias,
            "mlp_bias": qkv_bias,
        },
        keys={
            **KEYS,
            "use_bias": ("qkv_bias", FLAG),
            "residual_dropout": ("hidden_dropout", RATIO),
            "embedding_dropout": ("embedding_dropout", RATIO),
            "sliding_window": ("sliding_window", COUNT),
        },
        grouped=True,
        own_head_size=True,
    ),
}
