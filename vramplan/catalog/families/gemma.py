"""Gemma 1 (models/gemma/configuration_gemma.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import FLAG, ModelType, Peft
from vramplan.catalog.families.llama import KEYS as LLAMA_KEYS
from vramplan.catalog.fields import Fields

KEYS = {**LLAMA_KEYS, "attention_bias": ("qkv_bias", FLAG)}
FIXED = {
    "positions": "rope",
    "gated_mlp": True,
    "mlp_bias": False,
    "token_types": 0,
    "embedding_dropout": 0.0,
    "hidden_dropout": 0.0,
}


def attention_bias(fields: Fields, values: dict[str, Any]) -> None:
    """One switch for the biases of all four projections."""
    values["output_bias"] = values.get("qkv_bias")


TYPES = {
    "gemma": ModelType(
        config="GemmaConfig",
        family="gemma",
        tasks=("lm", "cls"),
        peft=Peft(
            norms=("input_layernorm", "post_attention_layernorm", "norm"),
            lora=("q_proj", "v_proj"),
            ia3=("q_proj", "v_proj", "down_proj"),
            ia3_feedforward=("down_proj",),
        ),
        defaults={
            "vocabulary_size": 256000,
            "hidden_size": 3072,
            "layers": 28,
            "attention_heads": 16,
            "key_value_heads": 16,
            "head_size": 256,
            "intermediate_size": 24576,
            "activation": "gelu_pytorch_tanh",
            "qkv_bias": False,
            "output_bias": False,
            "attention_dropout": 0.0,
            "max_positions": 8192,
            "tied_embeddings": True,
            "rope_scaling": None,
        },
        fixed={**FIXED, "sliding_window": None},
        keys=KEYS,
        refused=("use_bidirectional_attention",),
        adjust=attention_bias,
        grouped=True,
        own_head_size=True,
    ),
}
