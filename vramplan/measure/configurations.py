"""The keys of `config.json` for what a shape says in another way than one key for one field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.families.clip import TEXT_KEYS, VISION_KEYS
from vramplan.catalog.families.llava import TEXT_KEYS as LLAVA_TEXT_KEYS
from vramplan.values.model import ModelShape

BOUND = 30.0  # of logits and scores: whether there is one matters, not which
TOWERS = {
    "clip": (("text_config", TEXT_KEYS, "clip_text_model"), ("vision_config", VISION_KEYS, "clip_vision_model")),
    "llava": (("text_config", LLAVA_TEXT_KEYS, "llama"), ("vision_config", VISION_KEYS, "clip_vision_model")),
}
"""Configurations inside of one: their key, the keys in them, and the model type that they are of."""


def field_of(shape: ModelShape, field: str) -> Any:
    """A field of a shape; one with a dot is of its experts or of its latent attention."""
    group, dot, name = field.partition(".")
    if not dot:
        return getattr(shape, field)
    inside = getattr(shape, group)
    return getattr(inside, {"count": "routed"}.get(name, name), None)


def more_keys(shape: ModelShape) -> dict[str, Any]:
    """What the model type's own keys do not say."""
    name = shape.transformers_model_type
    own = {
        "t5": _t5,
        "bart": _bart,
        "falcon": _falcon,
        "gemma2": _softcaps,
        "gemma3_text": _softcaps,
        "qwen2_moe": _qwen_moe,
        "qwen3_moe": _qwen_moe,
        "deepseek_v2": _deepseek,
        "deepseek_v3": _deepseek,
    }
    found = own[name](shape) if name in own else {}
    for key, keys, kind in TOWERS.get(name, ()):
        found[key] = {"model_type": kind, **_inside(shape, keys)}
    if name == "llava":
        found["image_token_index"] = shape.vocabulary_size - 1
    return found


def _inside(shape: ModelShape, keys: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    values = {key: getattr(shape, field) for key, (field, _) in keys.items()}
    return {key: value for key, value in values.items() if value is not None}


def _t5(shape: ModelShape) -> dict[str, Any]:
    gated, activation = shape.gated_mlp, shape.activation
    word = "gated-gelu" if gated and activation == "gelu_new" else f"{'gated-' * gated}{activation}"
    return {"feed_forward_proj": word, "decoder_start_token_id": 0, "pad_token_id": 0}


def _bart(shape: ModelShape) -> dict[str, Any]:
    return {"decoder_attention_heads": shape.attention_heads, "decoder_ffn_dim": shape.intermediate_size}


def _falcon(shape: ModelShape) -> dict[str, Any]:
    new = shape.new_decoder_architecture
    groups = {"num_kv_heads": shape.key_value_heads} if new else {"multi_query": shape.key_value_heads == 1}
    return {"alibi": shape.positions == "alibi", "new_decoder_architecture": new, **groups}


def _softcaps(shape: ModelShape) -> dict[str, Any]:
    found = {"final_logit_softcapping": BOUND if shape.logit_softcap else None}
    if shape.transformers_model_type == "gemma2":
        found["attn_logit_softcapping"] = BOUND if shape.attention_softcap else None
    return found


def _qwen_moe(shape: ModelShape) -> dict[str, Any]:
    assert shape.experts is not None
    return {"mlp_only_layers": list(shape.experts.dense_layers), "decoder_sparse_step": 1}


def _deepseek(shape: ModelShape) -> dict[str, Any]:
    assert shape.experts is not None
    assert shape.latent_attention is not None
    experts = shape.experts
    found: dict[str, Any] = {
        "first_k_dense_replace": len(experts.dense_layers),
        "q_lora_rank": shape.latent_attention.query_rank,
        "n_group": experts.groups,
        "topk_group": experts.active_groups,
    }
    if shape.transformers_model_type == "deepseek_v2":
        return {**found, "topk_method": "greedy" if experts.groups is None else "group_limited_greedy"}
    return {**found, "rope_interleave": shape.latent_attention.interleaved}
