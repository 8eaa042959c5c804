"""BLOOM (models/bloom/configuration_bloom.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, RATIO, ModelType, Peft, four_times, same_heads
from vramplan.catalog.fields import Fields

UNBOUNDED = 2**31
"""ALiBi has no table of positions, and the configuration no limit."""


def _bloom(fields: Fields, values: dict[str, Any]) -> None:
    if (fields.integer("pretraining_tp") or 1) > 1 and fields.boolean("slow_but_exact"):
        fields.refuse("slow_but_exact", "sliced projections are not modelled", hint="set it to false")


TYPES = {
    "bloom": ModelType(
        config="BloomConfig",
        family="bloom",
        tasks=("lm", "cls"),
        peft=Peft(
            norms=("input_layernorm", "post_attention_layernorm", "ln_f"),
            lora=("query_key_value",),
            ia3=("query_key_value", "mlp.dense_4h_to_h"),
            ia3_feedforward=("mlp.dense_4h_to_h",),
            fused="query_key_value",
        ),
        defaults={
            "vocabulary_size": 250880,
            "hidden_size": 64,
            "layers": 2,
            "attention_heads": 8,
            "key_value_heads": same_heads,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "max_positions": UNBOUNDED,
            "tied_embeddings": True,
        },
        fixed={
            "intermediate_size": four_times,
            "positions": "alibi",
            "activation": "gelu_pytorch_tanh",  # in a function of its own, BloomGelu
            "gated_mlp": False,
            "qkv_bias": True,
            "output_bias": True,
            "mlp_bias": True,
            "token_types": 0,
            "embedding_dropout": 0.0,
            "sliding_window": None,
        },
        keys={
            "n_layer": ("layers", COUNT),
            "num_hidden_layers": ("layers", COUNT),
            "hidden_size": ("hidden_size", COUNT),
            "n_embed": ("hidden_size", COUNT),
            "n_head": ("attention_heads", COUNT),
            "num_attention_heads": ("attention_heads", COUNT),
            "vocab_size": ("vocabulary_size", COUNT),
            "seq_length": ("max_positions", COUNT),
            "tie_word_embeddings": ("tied_embeddings", FLAG),
            "attention_dropout": ("attention_dropout", RATIO),
            "hidden_dropout": ("hidden_dropout", RATIO),
        },
        refused=("apply_residual_connection_post_layernorm",),
        adjust=_bloom,
    ),
}
