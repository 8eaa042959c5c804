"""DBRX (models/dbrx/configuration_dbrx.py), whose keys of attention and of experts are in mappings of their own."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import BOUND, COUNT, RATIO, ModelType, Peft, intermediate_size
from vramplan.catalog.families.mixtral import router_losses
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

ATTENTION, EXPERTS = "attn_config", "ffn_config"


def _dbrx(fields: Fields, values: dict[str, Any]) -> None:
    router_losses(fields, values)
    attention, experts = (fields.fields(key) if fields.given(key) else None for key in (ATTENTION, EXPERTS))
    if attention is not None:
        _attention(attention, values)
    if experts is not None:
        _experts(experts, values)
    needed = ("clip_qkv", "rope_theta")
    missing = needed if attention is None else tuple(key for key in needed if not attention.given(key))
    if missing:
        message = f"{' and '.join(missing)} missing: DbrxAttention ends with an error without"
        fields.refuse(ATTENTION, message, hint="clip_qkv: 8, rope_theta: 500000, as in databricks/dbrx-base")


def _attention(inside: Fields, values: dict[str, Any]) -> None:
    if inside.given("kv_n_heads"):
        values["key_value_heads"] = inside.integer("kv_n_heads", minimum=1)
    if inside.given("attn_pdrop"):
        values["attention_dropout"] = inside.number("attn_pdrop", minimum=0, below=1)
    inside.number("clip_qkv")


def _experts(inside: Fields, values: dict[str, Any]) -> None:
    counts = {
        "ffn_hidden_size": "intermediate_size",
        "moe_num_experts": "experts.count",
        "moe_top_k": "experts.active",
    }
    for key, field in counts.items():
        if inside.given(key):
            values[field] = inside.integer(key, minimum=1)
    if inside.given("ffn_act_fn"):
        function = inside.fields("ffn_act_fn")
        if function is not None and function.given("name"):
            values["activation"] = function.text("name")
    if inside.given("moe_jitter_eps"):
        values["experts.noisy"] = inside.number("moe_jitter_eps", minimum=0) is not None
    power = inside.number("moe_normalize_expert_weights") if inside.present("moe_normalize_expert_weights") else 1
    if power != 1:
        message = f"{power} is not modelled (modelled: 1, a sum of the weights)"
        inside.refuse("moe_normalize_expert_weights", message)


def _written(shape: ModelShape) -> dict[str, Any]:
    assert shape.experts is not None
    return {
        ATTENTION: {
            "kv_n_heads": shape.key_value_heads,
            "attn_pdrop": shape.attention_dropout,
            "clip_qkv": BOUND,
            "rope_theta": 500000,
        },
        EXPERTS: {
            "ffn_hidden_size": shape.intermediate_size,
            "ffn_act_fn": {"name": shape.activation},
            "moe_num_experts": shape.experts.routed,
            "moe_top_k": shape.experts.active,
            "moe_jitter_eps": 0.01 if shape.experts.noisy else None,
        },
    }


TYPES = {
    "dbrx": ModelType(
        config="DbrxConfig",
        family="dbrx",
        tasks=("lm",),
        peft=Peft(fused="Wqkv"),
        defaults={
            "vocabulary_size": 32000,
            "hidden_size": 2048,
            "layers": 24,
            "attention_heads": 16,
            "key_value_heads": 1,
            "intermediate_size": 3584,
            "max_positions": 2048,
            "activation": "silu",
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "rope_scaling": None,
            "experts.count": 4,
            "experts.active": 1,
            "experts.noisy": False,
        },
        fixed={
            "positions": "rope",
            "gated_mlp": True,
            "tied_embeddings": False,
            "qkv_bias": False,
            "output_bias": False,
            "mlp_bias": False,
            "token_types": 0,
            "embedding_dropout": 0.0,  # `emb_pdrop` is read by nothing
            "sliding_window": None,
            "clipped_qkv": True,
            "experts.shared": 0,
            "experts.intermediate_size": intermediate_size,
            "experts.normalized": True,
            "experts.dense_layers": (),
        },
        keys={
            "n_layers": ("layers", COUNT),
            "d_model": ("hidden_size", COUNT),
            "n_heads": ("attention_heads", COUNT),
            "vocab_size": ("vocabulary_size", COUNT),
            "max_seq_len": ("max_positions", COUNT),
            "resid_pdrop": ("hidden_dropout", RATIO),
            # the names of the other classes are accepted by DbrxConfig too (its attribute_map)
            "num_hidden_layers": ("layers", COUNT),
            "hidden_size": ("hidden_size", COUNT),
            "num_attention_heads": ("attention_heads", COUNT),
            "max_position_embeddings": ("max_positions", COUNT),
        },
        adjust=_dbrx,
        written=_written,
        grouped=True,
    ),
}
