"""ELECTRA (models/electra/configuration_electra.py): BERT's keys, and a width of its own for the embeddings."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, Peft
from vramplan.catalog.families.bert import TYPES as BERT
from vramplan.catalog.fields import Fields, shown

_BERT = BERT["bert"]


def _electra(fields: Fields, values: dict[str, Any]) -> None:
    position = fields.text("position_embedding_type")
    if position not in {None, "absolute"}:
        fields.refuse("position_embedding_type", f"{shown(position)} is not modelled (modelled: absolute)")
    own, hidden = fields.number("classifier_dropout", minimum=0, below=1), values.get("hidden_dropout")
    if own is not None and (own > 0) != ((0.1 if hidden is None else hidden) > 0):
        message = f"{own} is not modelled (the classification head has a dropout if the blocks have one)"
        fields.refuse("classifier_dropout", message)


TYPES = {
    "electra": _BERT._replace(
        config="ElectraConfig",
        family="electra",
        peft=Peft(of_kind={"adalora": ()}, lora=("query", "value")),
        defaults={
            **_BERT.defaults,
            "hidden_size": 256,
            "attention_heads": 4,
            "intermediate_size": 1024,
            "embedding_size": 128,
        },
        keys={**_BERT.keys, "embedding_size": ("embedding_size", COUNT)},
        adjust=_electra,
    ),
}
