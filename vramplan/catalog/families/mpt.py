"""MPT (models/mpt/configuration_mpt.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, ModelType, Peft, four_times, same_heads
from vramplan.catalog.fields import Fields, shown
from vramplan.values.model import ModelShape

POSITIONS = ("alibi", "learned")  # of Transformers, and of llm-foundry


def _attention_dropout(fields: Any) -> Any:
    return fields["attention_dropout"]


def _is_learned(fields: Any) -> bool:
    """Whether positions are weights, as in llm-foundry's own configurations, which have biases too."""
    return bool(fields["positions"] == "learned")


def _contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    if values["positions"] != "learned" and values["intermediate_size"] != 4 * values["hidden_size"]:
        message = f"{values['intermediate_size']} is not modelled (a mpt model has {4 * values['hidden_size']})"
        found.append(("intermediate_size", message))  # whatever expansion_ratio says; llm-foundry's own code heeds it
    if values["positions"] in POSITIONS:
        return found
    return [*found, ("positions", f"{values['positions']} is not modelled (a mpt model has alibi, or learned ones)")]


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


def _written(shape: ModelShape) -> dict[str, Any]:
    return {"attn_config": {"attn_pdrop": shape.attention_dropout}} if shape.attention_dropout else {}


TYPES = {
    "mpt": ModelType(
        config="MptConfig",
        family="mpt",
        tasks=("lm", "cls"),
        peft=Peft(of_kind={"adalora": ()}, lora=("Wqkv",), fused="Wqkv"),
        defaults={
            "vocabulary_size": 50368,
            "hidden_size": 2048,
            "layers": 24,
            "attention_heads": 16,
            "key_value_heads": same_heads,
            "attention_dropout": 0.0,
            "intermediate_size": four_times,
            "max_positions": 2048,
            "positions": "alibi",
            "tied_embeddings": True,
        },
        fixed={
            "activation": "gelu",
            "gated_mlp": False,
            "qkv_bias": _is_learned,
            "output_bias": _is_learned,
            "mlp_bias": _is_learned,
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
        written=_written,
        contradictions=_contradictions,
    ),
}
