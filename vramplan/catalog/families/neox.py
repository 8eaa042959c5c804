"""GPT-NeoX (models/gpt_neox/configuration_gpt_neox.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import (
    COUNT,
    FLAG,
    RATIO,
    SHARE,
    TEXT,
    ModelType,
    Peft,
    hidden_dropout,
    rotary_parameters,
    same_heads,
)
from vramplan.catalog.fields import Fields


def _gpt_neox(fields: Fields, values: dict[str, Any]) -> None:
    rotary_parameters(fields, values)
    values["output_bias"] = values.get("qkv_bias")  # attention_bias: of both projections


TYPES = {
    "gpt_neox": ModelType(
        config="GPTNeoXConfig",
        family="neox",
        tasks=("lm", "cls"),
        peft=Peft(
            lora=("query_key_value",),
            ia3=("query_key_value", "dense_4h_to_h"),
            ia3_feedforward=("dense_4h_to_h",),
            fused="query_key_value",
        ),
        defaults={
            "vocabulary_size": 50432,
            "hidden_size": 6144,
            "layers": 44,
            "attention_heads": 64,
            "key_value_heads": same_heads,
            "intermediate_size": 24576,
            "activation": "gelu",
            "qkv_bias": True,
            "output_bias": True,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "embedding_dropout": hidden_dropout,  # one setting, hidden_dropout, for both
            "max_positions": 2048,
            "tied_embeddings": False,
            "partial_rotary_factor": 0.25,  # rotary_pct
            "parallel_residual": True,
            "rope_scaling": None,
        },
        fixed={
            "positions": "rope",
            "gated_mlp": False,
            "mlp_bias": True,
            "token_types": 0,
            "sliding_window": None,
        },
        keys={
            "num_hidden_layers": ("layers", COUNT),
            "hidden_size": ("hidden_size", COUNT),
            "num_attention_heads": ("attention_heads", COUNT),
            "intermediate_size": ("intermediate_size", COUNT),
            "vocab_size": ("vocabulary_size", COUNT),
            "max_position_embeddings": ("max_positions", COUNT),
            "tie_word_embeddings": ("tied_embeddings", FLAG),
            "hidden_act": ("activation", TEXT),
            "attention_bias": ("qkv_bias", FLAG),
            "attention_dropout": ("attention_dropout", RATIO),
            "hidden_dropout": ("hidden_dropout", RATIO),
            "rotary_pct": ("partial_rotary_factor", SHARE),
            "use_parallel_residual": ("parallel_residual", FLAG),
        },
        adjust=_gpt_neox,
    ),
}
