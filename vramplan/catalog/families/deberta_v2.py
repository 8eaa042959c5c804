"""DeBERTa v2 and v3 (models/deberta_v2/configuration_deberta_v2.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import ModelType, Peft
from vramplan.catalog.families.bert import TYPES as BERT
from vramplan.catalog.fields import Fields, shown
from vramplan.values.model import ModelShape

_BERT = BERT["bert"]
HIDDEN, DROPOUT = 1536, 0.1
BOTH = ("c2p", "p2c")


def _deberta(fields: Fields, values: dict[str, Any]) -> None:
    _needed(fields)
    if fields.given("type_vocab_size"):
        values["token_types"] = fields.integer("type_vocab_size", minimum=0)
    if fields.given("position_buckets"):
        values["position_span"] = fields.integer("position_buckets", minimum=1)
    else:
        message = "is missing: relative positions without buckets are not modelled"
        fields.refuse("position_buckets", message, hint="256, as in every published model")
    hidden = values.get("hidden_size") or HIDDEN
    for key in ("embedding_size", "pooler_hidden_size"):
        if fields.given(key) and fields.integer(key, minimum=1) != hidden:
            fields.refuse(key, f"{fields.value(key)} is not modelled (modelled: as hidden_size, {hidden})")
    if fields.given("attention_head_size"):
        own = fields.integer("attention_head_size", minimum=1)
        if own is not None and own * (values.get("attention_heads") or 24) != hidden:
            fields.refuse("attention_head_size", f"{own} is not modelled (modelled: hidden_size / num_attention_heads)")
    if fields.number("pooler_dropout", minimum=0, below=1):
        fields.refuse("pooler_dropout", "dropout before the pooler is not modelled", hint="0, as in published models")
    own_dropout, blocks = fields.number("cls_dropout", minimum=0, below=1), values.get("hidden_dropout")
    if own_dropout is not None and (own_dropout > 0) != ((DROPOUT if blocks is None else blocks) > 0):
        message = f"{own_dropout} is not modelled (the classification head has a dropout if the blocks have one)"
        fields.refuse("cls_dropout", message)


def _needed(fields: Fields) -> None:
    """What every published model has, and the class by itself has not."""
    for key in ("relative_attention", "share_att_key"):
        if fields.boolean(key) is not True:
            fields.refuse(key, "false, or missing, is not modelled (modelled: true, as in every published model)")
    kinds = fields.value("pos_att_type") if fields.given("pos_att_type") else ()
    words = kinds.lower().split("|") if isinstance(kinds, str) else kinds if isinstance(kinds, list) else ()
    if {str(one).strip() for one in words} != {*BOTH}:
        fields.refuse("pos_att_type", f"{shown(str(kinds))} is not modelled (modelled: {' and '.join(BOTH)})")
    norm = fields.text("norm_rel_ebd") if fields.given("norm_rel_ebd") else "none"
    if norm is not None and norm.strip().lower() != "layer_norm":
        fields.refuse("norm_rel_ebd", f"{shown(norm)} is not modelled (modelled: layer_norm)")
    if fields.boolean("position_biased_input") is not False:
        message = "true, or missing, is not modelled (modelled: false, no positions in the embeddings)"
        fields.refuse("position_biased_input", message)
    if fields.boolean("legacy") is False:
        fields.refuse("legacy", "false is not modelled (a head whose product is not that of a linear layer)")
    act = fields.text("pooler_hidden_act") if fields.given("pooler_hidden_act") else "gelu"
    if act not in {None, "gelu"}:
        fields.refuse("pooler_hidden_act", f"{shown(str(act))} is not modelled (modelled: gelu)")
    if fields.given("conv_kernel_size") and fields.integer("conv_kernel_size", minimum=0):
        fields.refuse("conv_kernel_size", "the convolution after the first block is not modelled", hint="0 for none")


def _written(shape: ModelShape) -> dict[str, Any]:
    return {
        "relative_attention": True,
        "share_att_key": True,
        "pos_att_type": list(BOTH),
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "position_buckets": shape.position_span,
        "type_vocab_size": shape.token_types,
    }


TYPES = {
    "deberta-v2": ModelType(
        config="DebertaV2Config",
        family="deberta_v2",
        tasks=_BERT.tasks,
        peft=Peft(
            of_kind={"adalora": ("query_proj", "key_proj", "value_proj", "dense")},
            lora=("query_proj", "value_proj"),
            ia3=("key_proj", "value_proj", "output.dense"),
            ia3_feedforward=("output.dense",),
        ),
        defaults={
            **_BERT.defaults,
            "vocabulary_size": 128100,
            "hidden_size": HIDDEN,
            "layers": 24,
            "attention_heads": 24,
            "intermediate_size": 6144,
            "token_types": 0,
            "position_span": 256,
        },
        fixed={**_BERT.fixed, "positions": "relative"},
        keys={key: one for key, one in _BERT.keys.items() if key != "type_vocab_size"},
        adjust=_deberta,
        written=_written,
    ),
}
