"""Phi-3 (models/phi3/configuration_phi3.py)."""

from __future__ import annotations

from vramplan.catalog.config_classes import COUNT, FLAG, RATIO, SHARE, TEXT, ModelType, rotary_parameters, same_heads

TYPES = {
    "phi3": ModelType(
        config="Phi3Config",
        family="phi3",
        tasks=("lm", "cls"),
        scalings={"su": "longrope", "yarn": "longrope"},  # Phi3Config
        defaults={
            "vocabulary_size": 32064,
            "hidden_size": 3072,
            "layers": 32,
            "attention_heads": 32,
            "key_value_heads": same_heads,
            "intermediate_size": 8192,
            "activation": "silu",
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "max_positions": 4096,
            "tied_embeddings": False,
            "sliding_window": None,
            "partial_rotary_factor": 1.0,
            "rope_scaling": None,
        },
        fixed={
            "positions": "rope",
            "gated_mlp": True,
            "qkv_bias": False,
            "output_bias": False,
            "mlp_bias": False,
            "token_types": 0,
            "embedding_dropout": 0.0,  # embd_pdrop is in the configuration and nowhere in the model
        },
        keys={
            "num_hidden_layers": ("layers", COUNT),
            "hidden_size": ("hidden_size", COUNT),
            "num_attention_heads": ("attention_heads", COUNT),
            "num_key_value_heads": ("key_value_heads", COUNT),
            "head_dim": ("head_size", COUNT),
            "intermediate_size": ("intermediate_size", COUNT),
            "vocab_size": ("vocabulary_size", COUNT),
            "max_position_embeddings": ("max_positions", COUNT),
            "tie_word_embeddings": ("tied_embeddings", FLAG),
            "hidden_act": ("activation", TEXT),
            "attention_dropout": ("attention_dropout", RATIO),
            "resid_pdrop": ("hidden_dropout", RATIO),
            "sliding_window": ("sliding_window", COUNT),
            "partial_rotary_factor": ("partial_rotary_factor", SHARE),
        },
        adjust=rotary_parameters,
        grouped=True,
        own_head_size=True,
    ),
}
