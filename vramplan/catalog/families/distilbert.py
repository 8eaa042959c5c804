"""DistilBERT (models/distilbert/configuration_distilbert.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, RATIO, TEXT, ModelType
from vramplan.catalog.families.bert import TYPES as BERT
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

_BERT = BERT["bert"]
CLASSIFIER = "seq_classif_dropout"


def _classifier_dropout(fields: Fields, values: dict[str, Any]) -> None:
    own, hidden = fields.number(CLASSIFIER, minimum=0, below=1), values.get("hidden_dropout")
    if own is not None and (own > 0) != ((0.1 if hidden is None else hidden) > 0):
        message = f"{own} is not modelled (the classification head has a dropout if the blocks have one)"
        fields.refuse(CLASSIFIER, message)


def _written(shape: ModelShape) -> dict[str, Any]:
    return {CLASSIFIER: shape.hidden_dropout}


TYPES = {
    "distilbert": ModelType(
        config="DistilBertConfig",
        family="distilbert",
        tasks=_BERT.tasks,
        defaults={
            **_BERT.defaults,
            "layers": 6,
            "token_types": 0,
        },
        fixed=_BERT.fixed,
        keys={
            "n_layers": ("layers", COUNT),
            "dim": ("hidden_size", COUNT),
            "n_heads": ("attention_heads", COUNT),
            "hidden_dim": ("intermediate_size", COUNT),
            "vocab_size": ("vocabulary_size", COUNT),
            "max_position_embeddings": ("max_positions", COUNT),
            "tie_word_embeddings": ("tied_embeddings", FLAG),
            "activation": ("activation", TEXT),
            "attention_dropout": ("attention_dropout", RATIO),
            "dropout": ("hidden_dropout", RATIO),
        },
        adjust=_classifier_dropout,
        written=_written,
    ),
}
