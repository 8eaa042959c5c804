"""BERT (models/bert/configuration_bert.py), and ERNIE without task ids (models/ernie/configuration_ernie.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, RATIO, TEXT, ModelType, Peft, hidden_dropout, same_heads
from vramplan.catalog.fields import Fields, shown


def _absolute_positions(fields: Fields, values: dict[str, Any]) -> None:
    position = fields.text("position_embedding_type")
    if position not in {None, "absolute"}:
        fields.refuse("position_embedding_type", f"{shown(position)} is not modelled (modelled: absolute)")


def _ernie(fields: Fields, values: dict[str, Any]) -> None:
    _absolute_positions(fields, values)
    if fields.boolean("use_task_id"):
        fields.refuse("use_task_id", "true is not modelled (a table of task types beside those of the tokens)")
    own, hidden = fields.number("classifier_dropout", minimum=0, below=1), values.get("hidden_dropout")
    if own is not None and (own > 0) != ((0.1 if hidden is None else hidden) > 0):
        message = f"{own} is not modelled (the classification head has a dropout if the blocks have one)"
        fields.refuse("classifier_dropout", message)


_BERT = ModelType(
    config="BertConfig",
    family="bert",
    tasks=("mlm", "cls"),
    peft=Peft(lora=("query", "value"), ia3=("key", "value", "output.dense"), ia3_feedforward=("output.dense",)),
    defaults={
        "vocabulary_size": 30522,
        "hidden_size": 768,
        "layers": 12,
        "attention_heads": 12,
        "key_value_heads": same_heads,
        "intermediate_size": 3072,
        "activation": "gelu",
        "hidden_dropout": 0.1,
        "embedding_dropout": hidden_dropout,  # one setting, hidden_dropout_prob, for both
        "attention_dropout": 0.1,
        "max_positions": 512,
        "token_types": 2,
        "tied_embeddings": True,
        "sliding_window": None,
    },
    fixed={
        "gated_mlp": False,
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "positions": "learned",
    },
    keys={
        "num_hidden_layers": ("layers", COUNT),
        "hidden_size": ("hidden_size", COUNT),
        "num_attention_heads": ("attention_heads", COUNT),
        "intermediate_size": ("intermediate_size", COUNT),
        "vocab_size": ("vocabulary_size", COUNT),
        "max_position_embeddings": ("max_positions", COUNT),
        "type_vocab_size": ("token_types", COUNT),
        "tie_word_embeddings": ("tied_embeddings", FLAG),
        "hidden_act": ("activation", TEXT),
        "attention_probs_dropout_prob": ("attention_dropout", RATIO),
        "hidden_dropout_prob": ("hidden_dropout", RATIO),
    },
    refused=("is_decoder", "add_cross_attention"),
    adjust=_absolute_positions,
)

TYPES = {
    "bert": _BERT,
    "ernie": _BERT._replace(config="ErnieConfig", peft=Peft(), adjust=_ernie),
}
