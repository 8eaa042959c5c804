"""MPNet (models/mpnet/configuration_mpnet.py): BERT's keys without token types."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import Peft
from vramplan.catalog.families.bert import TYPES as BERT
from vramplan.catalog.fields import Fields

_BERT = BERT["bert"]
BUCKETS = 32
NOT_HERE = ("tied_embeddings", "token_types")


def _mpnet(fields: Fields, values: dict[str, Any]) -> None:
    if fields.boolean("tie_word_embeddings") is False:
        fields.refuse("tie_word_embeddings", "false is not modelled")
    found = fields.integer("relative_attention_num_buckets", minimum=1)
    if found not in {None, BUCKETS}:
        fields.refuse("relative_attention_num_buckets", f"{found} is not modelled (modelled: {BUCKETS})")


TYPES = {
    "mpnet": _BERT._replace(
        config="MPNetConfig",
        family="mpnet",
        peft=Peft(),
        defaults={
            **{key: one for key, one in _BERT.defaults.items() if key not in NOT_HERE},
            "vocabulary_size": 30527,
        },
        fixed={**_BERT.fixed, "tied_embeddings": True, "token_types": 0},
        keys={key: one for key, one in _BERT.keys.items() if one[0] not in NOT_HERE},
        adjust=_mpnet,
    ),
}
