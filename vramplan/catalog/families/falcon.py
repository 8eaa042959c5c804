"""Falcon (models/falcon/configuration_falcon.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, RATIO, TEXT, ModelType, Peft, four_times
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape


def _is_new(fields: Mapping[str, Any]) -> bool:
    """Several key-value heads, and fewer than heads, are what only the new architecture has."""
    return fields.get("key_value_heads") not in (None, 1, fields["attention_heads"])


def _groups(fields: Mapping[str, Any]) -> Any:
    return fields["attention_heads"] if fields.get("new_decoder_architecture") else 1


def _norms(fields: Mapping[str, Any]) -> int:
    return 2 if fields.get("new_decoder_architecture") else 1


def _all_biases(fields: Mapping[str, Any]) -> Any:
    return fields["qkv_bias"]


def _falcon(fields: Fields, values: dict[str, Any]) -> None:
    new = fields.boolean("new_decoder_architecture") or False
    heads = values.get("attention_heads", 71)
    if fields.boolean("alibi"):
        values["positions"] = "alibi"
    if new:
        values["key_value_heads"] = fields.integer("num_kv_heads", minimum=1) or heads
    else:
        single = fields.boolean("multi_query") is not False
        values["key_value_heads"] = 1 if single else heads
        if heads == 1 and not single:
            fields.refuse("multi_query", "false is not modelled with a single head")


def _contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    new, groups, heads = values["new_decoder_architecture"], values["key_value_heads"], values["attention_heads"]
    if values["positions"] not in ("rope", "alibi"):
        found.append(("positions", f"{values['positions']} is not modelled (modelled: rope, alibi)"))
    if not new and groups not in (1, heads):
        found.append(("key_value_heads", f"{groups} needs new_decoder_architecture: without it it is 1 or {heads}"))
    if new and not values["parallel_residual"]:
        found.append(("parallel_residual", "false contradicts new_decoder_architecture"))
    if values["parallel_norms"] not in ((1, 2) if new else (1,)):
        most = "1 or 2" if new else "1 without new_decoder_architecture"
        found.append(("parallel_norms", f"{values['parallel_norms']} is not modelled (it is {most})"))
    return found


def _written(shape: ModelShape) -> dict[str, Any]:
    new = shape.new_decoder_architecture
    groups = {"num_kv_heads": shape.key_value_heads} if new else {"multi_query": shape.key_value_heads == 1}
    return {"alibi": shape.positions == "alibi", "new_decoder_architecture": new, **groups}


TYPES = {
    "falcon": ModelType(
        config="FalconConfig",
        family="falcon",
        tasks=("lm", "cls"),
        written=_written,
        peft=Peft(
            norms=("input_layernorm", "post_attention_layernorm", "ln_f"),
            of_kind={"adalora": ()},
            lora=("query_key_value",),
            ia3=("query_key_value", "dense_4h_to_h"),
            ia3_feedforward=("dense_4h_to_h",),
            fused="query_key_value",
        ),
        defaults={
            "vocabulary_size": 65024,
            "hidden_size": 4544,
            "layers": 32,
            "attention_heads": 71,
            "new_decoder_architecture": _is_new,
            "key_value_heads": _groups,
            "intermediate_size": four_times,
            "activation": "gelu",
            "qkv_bias": False,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "max_positions": 2048,
            "tied_embeddings": True,
            "positions": "rope",
            "rope_scaling": None,
            "parallel_residual": True,
            "parallel_norms": _norms,
        },
        fixed={
            "gated_mlp": False,
            "output_bias": _all_biases,  # one setting, bias, for all linear layers
            "mlp_bias": _all_biases,
            "token_types": 0,
            "embedding_dropout": 0.0,
            "sliding_window": None,
        },
        keys={
            "num_hidden_layers": ("layers", COUNT),
            "hidden_size": ("hidden_size", COUNT),
            "n_embed": ("hidden_size", COUNT),
            "num_attention_heads": ("attention_heads", COUNT),
            "ffn_hidden_size": ("intermediate_size", COUNT),
            "vocab_size": ("vocabulary_size", COUNT),
            "max_position_embeddings": ("max_positions", COUNT),
            "tie_word_embeddings": ("tied_embeddings", FLAG),
            "activation": ("activation", TEXT),
            "attention_dropout": ("attention_dropout", RATIO),
            "hidden_dropout": ("hidden_dropout", RATIO),
            "bias": ("qkv_bias", FLAG),
            "new_decoder_architecture": ("new_decoder_architecture", FLAG),
            "parallel_attn": ("parallel_residual", FLAG),
            "num_ln_in_parallel_attn": ("parallel_norms", COUNT),
        },
        adjust=_falcon,
        contradictions=_contradictions,
        grouped=True,
    ),
}
