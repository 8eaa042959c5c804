"""RoBERTa (models/roberta/configuration_roberta.py), XLM-RoBERTa (models/xlm_roberta/configuration_xlm_roberta.py),
CamemBERT (models/camembert/configuration_camembert.py) and Data2Vec for text
(models/data2vec/configuration_data2vec_text.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import ModelType, Peft
from vramplan.catalog.families.bert import TYPES as BERT
from vramplan.catalog.fields import Fields, shown

_BERT = BERT["bert"]


def _roberta(fields: Fields, values: dict[str, Any]) -> None:
    position = fields.text("position_embedding_type")
    if position not in {None, "absolute"}:
        fields.refuse("position_embedding_type", f"{shown(position)} is not modelled (modelled: absolute)")
    if fields.boolean("tie_word_embeddings") is False:
        fields.refuse("tie_word_embeddings", "false is not modelled")
    own, hidden = fields.number("classifier_dropout", minimum=0, below=1), values.get("hidden_dropout")
    if own is not None and (own > 0) != ((0.1 if hidden is None else hidden) > 0):
        message = f"{own} is not modelled (the classification head has a dropout if the blocks have one)"
        fields.refuse("classifier_dropout", message)


def _type(config: str, vocabulary_size: int) -> ModelType:
    return _BERT._replace(
        config=config,
        family="roberta",
        defaults={
            **{key: value for key, value in _BERT.defaults.items() if key != "tied_embeddings"},
            "vocabulary_size": vocabulary_size,
        },
        fixed={**_BERT.fixed, "tied_embeddings": True},
        keys={key: value for key, value in _BERT.keys.items() if value[0] != "tied_embeddings"},
        adjust=_roberta,
    )


TYPES = {
    "roberta": _type("RobertaConfig", 50265)._replace(
        peft=_BERT.peft._replace(of_kind={"adalora": ("query", "key", "value", "dense")})
    ),
    "xlm-roberta": _type("XLMRobertaConfig", 30522)._replace(
        peft=Peft(of_kind={"adalora": ()}, lora=("query", "value"))
    ),
    "camembert": _type("CamembertConfig", 30522)._replace(peft=Peft()),
    "data2vec-text": _type("Data2VecTextConfig", 30522)._replace(peft=Peft()),
}
