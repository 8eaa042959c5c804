"""The model of a LitGPT file whose sizes stand in it, `model_config`.

Source: Lightning-AI/litgpt 0.5.13 (26857050), litgpt/config.py (Config: its keys, defaults and `__post_init__`),
litgpt/model.py (GptNeoxMLP, LLaMAMLP, LLaMAMoE).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.configs.sheet import Meaning, Sheet
from vramplan.configs.table import names

CONFIG = "model_config"

UNDERSTOOD = names(
    """
    model_config model_config.name model_config.n_layer model_config.n_embd model_config.n_head
    model_config.n_query_groups model_config.head_size model_config.intermediate_size model_config.vocab_size
    model_config.padded_vocab_size model_config.padding_multiple model_config.block_size model_config.mlp_class_name
    model_config.norm_class_name model_config.n_expert model_config.n_expert_per_token
    model_config.moe_intermediate_size model_config.first_k_dense_replace model_config.n_shared_expert
    model_config.norm_qk model_config.latent_attention model_config.attn_bias model_config.parallel_residual
    model_config.rotary_percentage model_config.bias
    """
)
WITHOUT_EFFECT = names(
    """
    model_config.hf_config model_config.hf_config.* model_config.norm_eps model_config.rope_base
    model_config.rope_condense_ratio model_config.rope_adjustments* model_config.rope_local_base_freq
    model_config.rope_indices model_config.rope_interleave model_config.gelu_approximate
    model_config.attention_scores_scalar model_config.norm_topk_prob model_config.routed_scaling_factor
    model_config.norm_qk_type
    """
)
UNMODELLED = {
    "model_config.sliding_window*": "windows of attention",
    "model_config.scale_embeddings": "the embedding is multiplied by a number",
    "model_config.shared_attention_norm": "one norm before attention and MLP",
    "model_config.lm_head_bias": "a bias of the head",
    "model_config.post_attention_norm": "a norm behind attention",
    "model_config.post_mlp_norm": "a norm behind the MLP",
    "model_config.norm_1": "which norms a block has",
    "model_config.norm_2": "which norms a block has",
    "model_config.attention_logit_softcapping": "a bound of the scores of attention",
    "model_config.final_logit_softcapping": "a bound of the logits",
    "model_config.n_expert_groups": "how experts are chosen",
    "model_config.n_topk_groups": "how experts are chosen",
    "model_config.n_topk_scores_per_group": "how experts are chosen",
}
DEFAULTS: Mapping[str, Any] = {
    "n_layer": 16,
    "n_embd": 4096,
    "n_head": 32,
    "vocab_size": 50254,
    "padding_multiple": 512,
    "block_size": 4096,
    "rotary_percentage": 0.25,
    "parallel_residual": True,
    "bias": True,
    "mlp_class_name": "GptNeoxMLP",
    "norm_class_name": "LayerNorm",
}

COUNTS = names(
    """
    n_layer n_embd n_head n_query_groups head_size intermediate_size vocab_size padded_vocab_size padding_multiple
    block_size n_expert n_expert_per_token moe_intermediate_size first_k_dense_replace n_shared_expert
    """
)
"""Keys whose value is a whole number."""

PLAIN, GATED, EXPERTS = "GptNeoxMLP", "LLaMAMLP", "LLaMAMoE"


def say(sheet: Sheet, meaning: Meaning, name: str | None) -> int | None:
    """Say the model of `model_config`, and answer the positions that it has."""
    parts = sorted(key.removeprefix(f"{CONFIG}.") for key in UNDERSTOOD)
    read = {part: sheet.count if part in COUNTS else sheet.get for part in parts}
    given = {part: value for part, of in read.items() if (value := of(f"{CONFIG}.{part}")) is not None}
    sheet.get(CONFIG)
    sizes = {**DEFAULTS, **given}
    positions: int = sizes["block_size"]
    kind, latent = str(sizes["mlp_class_name"]).rpartition(".")[2], bool(given.get("latent_attention"))
    if latent or given.get("n_shared_expert") or kind not in (PLAIN, GATED, EXPERTS):
        key = "latent_attention" if latent else "n_shared_expert" if given.get("n_shared_expert") else "mlp_class_name"
        meaning.ask(
            "model", f"{CONFIG}.{key} {given.get(key)} is no part of a model with sizes of its own (--model NAME)"
        )
        return positions
    heads, width = sizes["n_head"], sizes["n_embd"]
    inner = sizes.get("intermediate_size") or (4 * width if kind == PLAIN else None)
    if inner is None:
        sheet.problem(CONFIG, f"{kind} needs intermediate_size", f"name {CONFIG}.intermediate_size")
        return None
    several = sizes["padding_multiple"] or 1
    shape: dict[str, Any] = {
        "name": sizes.get("name") or name or CONFIG,
        "family": "neox" if kind == PLAIN else "llama",
        "layers": sizes["n_layer"],
        "hidden_size": width,
        "attention_heads": heads,
        "intermediate_size": inner,
        "vocabulary_size": sizes.get("padded_vocab_size") or -(-sizes["vocab_size"] // several) * several,
        "max_positions": positions,
        "tied_embeddings": bool(sheet.flag("train.tie_embeddings")),
    }
    head = sizes.get("head_size")
    if head and head * heads != width:
        shape["head_size"] = head
    if kind == PLAIN:
        of_neox = {"rotary_percentage": "partial_rotary_factor", "parallel_residual": "parallel_residual"}
        shape |= {ours: given[key] for key, ours in of_neox.items() if key in given and given[key] != DEFAULTS[key]}
        if given.get("n_query_groups") not in (None, heads):
            meaning.lack(f"{CONFIG}.n_query_groups", "queries share keys and values, and each is counted with its own")
    else:
        shape["key_value_heads"] = sizes.get("n_query_groups") or heads
        if given.get("attn_bias"):
            shape["qkv_bias"] = True
        if given.get("norm_qk"):
            shape |= {"transformers_model_type": "qwen3", "qk_norm": True}
        if sizes["bias"] and given.get("bias") is None:
            meaning.lack(f"{CONFIG}.bias", "layers have biases where nothing says otherwise, and none are counted")
    if kind == EXPERTS:
        _experts(given, shape)
    meaning.say("model", shape, CONFIG)
    return positions


def _experts(given: Mapping[str, Any], shape: dict[str, Any]) -> None:
    """The experts of LLaMAMoE, whose blocks are those of Qwen3 or Mixtral."""
    dense = list(range(min(given.get("first_k_dense_replace", 0), shape["layers"])))
    own = given.get("moe_intermediate_size") or shape["intermediate_size"]
    found: dict[str, Any] = {
        "count": given.get("n_expert", 0),
        "active": given.get("n_expert_per_token", 0),
    }
    if shape.get("qk_norm") or dense or own != shape["intermediate_size"]:
        shape |= {"family": "qwen_moe", "transformers_model_type": "qwen3_moe"}
        found |= {"intermediate_size": own, "normalized": True, "dense_layers": dense}
    else:
        shape["family"] = "mixtral"
    shape["experts"] = found
