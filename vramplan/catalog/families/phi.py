"""Phi-1, Phi-1.5 and Phi-2 (models/phi/configuration_phi.py)."""

from __future__ import annotations

from vramplan.catalog.config_classes import (
    COUNT,
    FLAG,
    RATIO,
    SHARE,
    TEXT,
    ModelType,
    Peft,
    rotary_parameters,
    same_heads,
)

TYPES = {
    "phi": ModelType(
        config="PhiConfig",
        family="phi",
        tasks=("lm", "cls"),
        peft=Peft(
            of_kind={"adalora": (), "vera": ("q_proj", "v_proj")},
            lora=("q_proj", "v_proj", "fc1", "fc2"),
            ia3=("q_proj", "v_proj", "fc2"),
            ia3_feedforward=("fc2",),
        ),
        defaults={
            "vocabulary_size": 51200,
            "hidden_size": 2048,
            "layers": 24,
            "attention_heads": 32,
            "key_value_heads": same_heads,
            "intermediate_size": 8192,
            "activation": "gelu_new",
            "embedding_dropout": 0.0,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "max_positions": 2048,
            "tied_embeddings": False,
            "partial_rotary_factor": 0.5,
            "rope_scaling": None,
        },
        fixed={
            "positions": "rope",
            "gated_mlp": False,
            "qkv_bias": True,
            "output_bias": True,
            "mlp_bias": True,
            "token_types": 0,
            "sliding_window": None,
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
            "embd_pdrop": ("embedding_dropout", RATIO),
            "attention_dropout": ("attention_dropout", RATIO),
            "resid_pdrop": ("hidden_dropout", RATIO),
            "partial_rotary_factor": ("partial_rotary_factor", SHARE),
        },
        refused=("qk_layernorm",),
        adjust=rotary_parameters,
        grouped=True,
        own_head_size=True,
    ),
}
