"""ALBERT (models/albert/configuration_albert.py): BERT's keys, and a width of its own for the embeddings."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, Peft
from vramplan.catalog.families.bert import TYPES as BERT
from vramplan.catalog.fields import Fields

_BERT = BERT["bert"]
CLASSIFIER_DROPOUT = 0.1


def _albert(fields: Fields, values: dict[str, Any]) -> None:
    for key in ("num_hidden_groups", "inner_group_num"):
        found = fields.integer(key, minimum=1)
        if found not in {None, 1}:
            fields.refuse(key, f"{found} is not modelled (modelled: 1, one layer that all blocks are)")
    dropout = fields.number("classifier_dropout_prob", minimum=0, below=1)
    if dropout is not None and not dropout:
        fields.refuse("classifier_dropout_prob", f"{dropout} is not modelled (the classification head has a dropout)")


TYPES = {
    "albert": _BERT._replace(
        config="AlbertConfig",
        family="albert",
        peft=Peft(),
        defaults={
            **_BERT.defaults,
            "vocabulary_size": 30000,
            "embedding_size": 128,
            "hidden_size": 4096,
            "attention_heads": 64,
            "intermediate_size": 16384,
            "activation": "gelu_new",
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        },
        keys={**_BERT.keys, "embedding_size": ("embedding_size", COUNT)},
        adjust=_albert,
    ),
}
