"""Nomic BERT (models/nomic_bert/configuration_nomic_bert.py): BERT's keys, and those of the code beside its weights."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, Peft
from vramplan.catalog.families.bert import TYPES as BERT
from vramplan.catalog.fields import Fields, shown

_BERT = BERT["bert"]
DROPOUT = 0.0
FORMER = {
    "n_embd": "hidden_size",
    "n_layer": "layers",
    "n_head": "attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_positions",
}
"""Names of the code that lies with the weights (nomic-ai/nomic-bert-2048, configuration_hf_nomic_bert.py)."""


def _nomic_bert(fields: Fields, values: dict[str, Any]) -> None:
    for key, field in FORMER.items():
        if values.get(field) is None and fields.given(key):
            values[field] = fields.integer(key, minimum=1)
    if fields.boolean("prenorm"):
        fields.refuse("prenorm", "true is not modelled (blocks that normalise before their layers)")
    share = fields.number("rotary_emb_fraction", minimum=0) if fields.given("rotary_emb_fraction") else 1
    if share != 1:
        fields.refuse("rotary_emb_fraction", f"{share} is not modelled (modelled: 1)")
    act = fields.text("activation_function") if fields.given("activation_function") else "swiglu"
    if act != "swiglu":
        fields.refuse("activation_function", f"{shown(str(act))} is not modelled (modelled: swiglu)")
    if fields.given("moe_every_n_layers") and fields.integer("moe_every_n_layers", minimum=0):
        fields.refuse("moe_every_n_layers", "experts in some blocks are not modelled")
    if fields.boolean("tie_word_embeddings") is False:
        fields.refuse("tie_word_embeddings", "false is not modelled")
    own, hidden = fields.number("classifier_dropout", minimum=0, below=1), values.get("hidden_dropout")
    if own is not None and (own > 0) != ((DROPOUT if hidden is None else hidden) > 0):
        message = f"{own} is not modelled (the classification head has a dropout if the blocks have one)"
        fields.refuse("classifier_dropout", message)


TYPES = {
    "nomic_bert": _BERT._replace(
        config="NomicBertConfig",
        family="nomic_bert",
        peft=Peft(),
        defaults={
            **{key: one for key, one in _BERT.defaults.items() if key != "tied_embeddings"},
            "vocabulary_size": 30528,
            "activation": "silu",
            "hidden_dropout": DROPOUT,
            "attention_dropout": DROPOUT,
            "max_positions": 2048,
        },
        fixed={
            "gated_mlp": True,
            "qkv_bias": False,
            "output_bias": False,
            "mlp_bias": False,
            "positions": "rope",
            "tied_embeddings": True,
        },
        keys={
            **{key: one for key, one in _BERT.keys.items() if key != "tie_word_embeddings"},
            "num_hidden_layers": ("layers", COUNT),
        },
        adjust=_nomic_bert,
    ),
}
