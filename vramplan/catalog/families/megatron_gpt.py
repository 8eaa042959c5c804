"""Megatron-LM's GPT where it is none of a published family: any positions, with a gate or without, and experts.

Source: NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), megatron/training/arguments.py (defaults, `validate_args`);
core/models/gpt/gpt_layer_specs.py.
"""

from __future__ import annotations

from vramplan.catalog.config_classes import ModelType, four_times, qkv_bias, same_heads

TYPES = {
    "megatron_gpt": ModelType(
        config="TransformerConfig of Megatron-LM",
        family="megatron_gpt",
        tasks=("lm",),
        defaults={
            "vocabulary_size": 50257,
            "hidden_size": 1024,
            "layers": 24,
            "attention_heads": 16,
            "key_value_heads": same_heads,
            "intermediate_size": four_times,
            "max_positions": 2048,
            "positions": "learned",
            "activation": "gelu",
            "gated_mlp": False,
            "qk_norm": False,
            "tied_embeddings": True,
            "qkv_bias": True,
            "output_bias": qkv_bias,
            "mlp_bias": qkv_bias,
            "embedding_dropout": 0.1,
            "attention_dropout": 0.1,
            "hidden_dropout": 0.1,
            "experts.count": None,
            "experts.active": None,
            "experts.intermediate_size": None,
            "experts.shared": 0,
            "experts.shared_intermediate_size": None,
            "experts.dense_layers": (),
        },
        fixed={"token_types": 0, "sliding_window": None, "experts.normalized": True},
        keys={},
        grouped=True,
        own_head_size=True,
    ),
}
