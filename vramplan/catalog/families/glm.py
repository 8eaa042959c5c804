"""GLM-4 (models/glm/configuration_glm.py)."""

from __future__ import annotations

from vramplan.catalog.config_classes import FLAG, SHARE, ModelType, rotary_parameters
from vramplan.catalog.families.llama import KEYS as LLAMA_KEYS

DEFAULTS = {
    "vocabulary_size": 151552,
    "hidden_size": 4096,
    "layers": 40,
    "attention_heads": 32,
    "key_value_heads": 2,
    "head_size": 128,
    "intermediate_size": 13696,
    "activation": "silu",
    "qkv_bias": True,
    "attention_dropout": 0.0,
    "max_positions": 131072,
    "tied_embeddings": False,
    "partial_rotary_factor": 0.5,
    "rope_scaling": None,
}
FIXED = {
    "positions": "rope",
    "gated_mlp": True,
    "output_bias": False,
    "mlp_bias": False,
    "token_types": 0,
    "embedding_dropout": 0.0,
    "hidden_dropout": 0.0,
    "sliding_window": None,
}
KEYS = {
    **LLAMA_KEYS,
    "attention_bias": ("qkv_bias", FLAG),
    "partial_rotary_factor": ("partial_rotary_factor", SHARE),
}

TYPES = {
    "glm": ModelType(
        config="GlmConfig",
        family="glm",
        tasks=("lm", "cls"),
        defaults=DEFAULTS,
        fixed=FIXED,
        keys=KEYS,
        adjust=rotary_parameters,
        grouped=True,
        own_head_size=True,
    ),
}
