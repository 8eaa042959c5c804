"""ESM-2 (models/esm/configuration_esm.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, RATIO, ModelType, same_heads
from vramplan.catalog.fields import Fields, shown
from vramplan.values.model import ModelShape


def _esm(fields: Fields, values: dict[str, Any]) -> None:
    position = fields.text("position_embedding_type")
    if position != "rotary":
        fields.refuse("position_embedding_type", f"{shown(position or 'absolute')} is not modelled (modelled: rotary)")
    if not fields.boolean("token_dropout"):
        fields.refuse("token_dropout", "false is not modelled (modelled: true, as in every published model)")


def _written(shape: ModelShape) -> dict[str, Any]:
    return {"position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": 2, "pad_token_id": 1}


TYPES = {
    "esm": ModelType(
        config="EsmConfig",
        family="esm",
        tasks=("mlm", "cls"),
        defaults={
            "vocabulary_size": 33,  # of the checkpoints; the class says none
            "hidden_size": 768,
            "layers": 12,
            "attention_heads": 12,
            "key_value_heads": same_heads,
            "intermediate_size": 3072,
            "hidden_dropout": 0.1,
            "attention_dropout": 0.1,
            "max_positions": 1026,
            "tied_embeddings": True,
        },
        fixed={
            "activation": "gelu",  # a function of its own, whatever hidden_act says
            "embedding_dropout": 0.0,
            "gated_mlp": False,
            "qkv_bias": True,
            "output_bias": True,
            "mlp_bias": True,
            "positions": "rope",
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
            "attention_probs_dropout_prob": ("attention_dropout", RATIO),
            "hidden_dropout_prob": ("hidden_dropout", RATIO),
        },
        refused=("is_decoder", "add_cross_attention", "emb_layer_norm_before", "is_folding_model"),
        adjust=_esm,
        written=_written,
    ),
}
