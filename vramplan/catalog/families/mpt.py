"""MPT (models/mpt/configuration_mpt.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, ModelType, four_times, same_heads
from vramplan.catalog.fields import Fields, shown


def _attention_dropout(fields: Any) -> Any:
    return fields["attention_dropout"]


def _mpt(fields: Fields, values: dict[str, Any]) -> None:
    inside = fields.fields("attn_config")
    if inside is None:
        return
    if inside.given("attn_pdrop"):
        values["attention_dropout"] = inside.number("attn_pdrop", minimum=0, below=1)
    if inside.given("clip_qkv"):
        inside.refuse("clip_qkv", "clipped queries, keys and values are not modelled")
    kind = inside.text("attn_type")
    if kind not in {None, "multihead_attention"}:
        inside.refuse("attn_type", f"{shown(str(kind))} is not modelled (modelled: multihead_attention)")
    for key in ("qk_ln", "prefix_lm"):
        if inside.boolean(key):
            inside.refuse(key, "true is not modelled")
    if inside.boolean("alibi") is False:
        inside.refuse("alibi", "false is not modelled (the code has no other positions)")


TYPES = {
    "mpt": ModelType(
        config="MptConfig",
        family="mpt",
        tasks=("lm", "cls"),
        defaults={
            "vocabulary_size": 50368,
            "hidden_size": 2048,
            "layers": 24,
            "attention_heads": 16,
            "key_value_heads": same_heads,
            "attention_dropout": 0.0,
            "max_positions": 2048,
            "tied_embeddings": True,
        },
        fixed={
            "intermediate_size": four_times,  # whatever expansion_ratio says
            "positions": "alibi",
            "activation": "gelu",
            "gated_mlp": False,
            "qkv_bias": False,
            "output_bias": False,
            "mlp_bias": False,
            "token_types": 0,
            "embedding_dropout": 0.0,
            "hidden_dropout": _attention_dropout,  # one setting, attn_pdrop, for both
            "sliding_window": None,
        },
        keys={
            "n_layers": ("layers", COUNT),
            "d_model": ("hidden_size", COUNT),
            "n_heads": ("attention_heads", COUNT),
            "vocab_size": ("vocabulary_size", COUNT),
            "max_seq_len": ("max_positions", COUNT),
            "tie_word_embeddings": ("tied_embeddings", FLAG),
            # the names of the other classes are accepted by MptConfig too (its attribute_map)
            "num_hidden_layers": ("layers", COUNT),
            "hidden_size": ("hidden_size", COUNT),
            "num_attention_heads": ("attention_heads", COUNT),
        },
        adjust=_mpt,
    ),
}
