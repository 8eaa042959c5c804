"""DeepSeek-V2, DeepSeek-V3 and GLM-4.7-Flash (models/<type>/configuration_<type>.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, Keys, ModelType, same_heads
from vramplan.catalog.experts import all_shared, query_size
from vramplan.catalog.families.llama import FIXED, KEYS
from vramplan.catalog.families.mixtral import EXPERT_KEYS, router_losses
from vramplan.catalog.fields import Fields, shown
from vramplan.values.model import ModelShape

DENSE, SPARSE, LITE_LAYERS = "dense", "sparse", 47
KEYS_OF_LATENTS: Keys = {
    **{key: value for key, value in KEYS.items() if key != "head_dim"},
    **EXPERT_KEYS,
    "attention_bias": ("qkv_bias", FLAG),
    "n_routed_experts": ("experts.count", COUNT),
    "n_shared_experts": ("experts.shared", COUNT),
    "moe_intermediate_size": ("experts.intermediate_size", COUNT),
    "q_lora_rank": ("latent_attention.query_rank", COUNT),
    "kv_lora_rank": ("latent_attention.key_value_rank", COUNT),
    "qk_nope_head_dim": ("latent_attention.plain_size", COUNT),
    "qk_rope_head_dim": ("latent_attention.rotary_size", COUNT),
    "v_head_dim": ("latent_attention.value_size", COUNT),
}
DEFAULTS: dict[str, Any] = {
    "activation": "silu",
    "tied_embeddings": False,
    "qkv_bias": False,
    "output_bias": False,
    "attention_dropout": 0.0,
    "latent_attention.query_rank": 1536,
    "latent_attention.key_value_rank": 512,
    "latent_attention.plain_size": 128,
    "latent_attention.rotary_size": 64,
    "latent_attention.value_size": 128,
}
FIXED_SIZES: dict[str, Any] = {
    **FIXED,
    "head_size": query_size,
    "sliding_window": None,
    "experts.shared_intermediate_size": all_shared,
}


def first_dense(fields: Fields, values: dict[str, Any], dense: int, layers: int) -> None:
    """The first blocks are dense; `dense` and `layers` are those of the class, where the file says nothing."""
    if fields.given("first_k_dense_replace"):
        dense = fields.integer("first_k_dense_replace", minimum=0) or 0
    values["experts.dense_layers"] = tuple(range(min(dense, values.get("layers") or layers)))


def of_latents(fields: Fields, values: dict[str, Any]) -> None:
    """What all of them say: one key is the bias of three projections, and queries may have no latent."""
    router_losses(fields, values)
    values["output_bias"] = values.get("qkv_bias")
    if fields.present("q_lora_rank") and not fields.given("q_lora_rank"):
        values["latent_attention.query_rank"] = None


def _deepseek(fields: Fields, values: dict[str, Any], dense: int, layers: int) -> None:
    """What both of DeepSeek say: the first blocks are dense."""
    of_latents(fields, values)
    first_dense(fields, values, dense, layers)
    if (fields.integer("pretraining_tp") or 1) > 1:
        fields.refuse("pretraining_tp", "sliced projections are not modelled", hint="set it to 1: it trains the same")
    if (fields.integer("moe_layer_freq") or 1) > 1:
        fields.refuse("moe_layer_freq", "is not known to the code of Transformers")


def groups(fields: Fields, values: dict[str, Any]) -> None:
    """Experts are chosen within so many groups of them, of which each token sees so many."""
    for key, field in (("n_group", "groups"), ("topk_group", "active_groups")):
        if fields.given(key):
            values[f"experts.{field}"] = fields.integer(key)


def _v3(fields: Fields, values: dict[str, Any]) -> None:
    _deepseek(fields, values, 3, 61)
    groups(fields, values)
    if fields.given("rope_interleave"):
        values["latent_attention.interleaved"] = fields.boolean("rope_interleave")


def _v2(fields: Fields, values: dict[str, Any]) -> None:
    _deepseek(fields, values, 0, 32)
    method = fields.text("topk_method") or "greedy"
    if method == "group_limited_greedy":
        groups(fields, values)
    elif method != "greedy":
        fields.refuse("topk_method", f"{shown(method)} is not modelled (modelled: greedy, group_limited_greedy)")


def dense_or_sparse(fields: Fields, values: dict[str, Any], layers: int) -> None:
    """`mlp_layer_types`: the blocks without experts by their names; the first where nothing says which.

    `layers` are those of the class.
    """
    count = values.get("layers") or layers
    types = fields.texts("mlp_layer_types") if fields.given("mlp_layer_types") else None
    if types is None:
        values["experts.dense_layers"] = (0,)
        return
    if len(types) != count or not {*types} <= {DENSE, SPARSE}:
        fields.problem("mlp_layer_types", f"expected {DENSE} or {SPARSE} for each of {count} blocks")
        return
    values["experts.dense_layers"] = tuple(i for i, one in enumerate(types) if one == DENSE)


def _lite(fields: Fields, values: dict[str, Any]) -> None:
    of_latents(fields, values)
    groups(fields, values)
    dense_or_sparse(fields, values, LITE_LAYERS)
    if fields.given("rope_interleave"):
        values["latent_attention.interleaved"] = fields.boolean("rope_interleave")


def _written_lite(shape: ModelShape) -> dict[str, Any]:
    assert shape.experts is not None
    assert shape.latent_attention is not None
    dense, written = shape.experts.dense_layers, _written(shape)
    del written["first_k_dense_replace"]
    return {
        **written,
        "rope_interleave": shape.latent_attention.interleaved,
        "mlp_layer_types": [DENSE if i in dense else SPARSE for i in range(shape.layers)],
    }


def _written(shape: ModelShape) -> dict[str, Any]:
    assert shape.experts is not None
    assert shape.latent_attention is not None
    experts = shape.experts
    return {
        "first_k_dense_replace": len(experts.dense_layers),
        "q_lora_rank": shape.latent_attention.query_rank,
        "n_group": experts.groups,
        "topk_group": experts.active_groups,
    }


def _written_v2(shape: ModelShape) -> dict[str, Any]:
    assert shape.experts is not None
    return {**_written(shape), "topk_method": "greedy" if shape.experts.groups is None else "group_limited_greedy"}


def written_v3(shape: ModelShape) -> dict[str, Any]:
    """Keys of `config.json` that no field of its own has."""
    assert shape.latent_attention is not None
    return {**_written(shape), "rope_interleave": shape.latent_attention.interleaved}


TYPES = {
    "deepseek_v3": ModelType(
        config="DeepseekV3Config",
        family="deepseek",
        tasks=("lm", "cls"),
        written=written_v3,
        defaults={
            **DEFAULTS,
            "vocabulary_size": 129280,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "layers": 61,
            "attention_heads": 128,
            "key_value_heads": same_heads,
            "max_positions": 4096,
            "experts.count": 256,
            "experts.active": 8,
            "experts.shared": 1,
            "experts.intermediate_size": 2048,
            "experts.normalized": True,
            "experts.dense_layers": (0, 1, 2),
            "experts.groups": 8,
            "experts.active_groups": 4,
            "latent_attention.interleaved": True,
        },
        fixed={**FIXED_SIZES, "mlp_bias": False},
        keys={**KEYS_OF_LATENTS, "norm_topk_prob": ("experts.normalized", FLAG)},
        adjust=_v3,
        own_head_size=True,
    ),
    "deepseek_v2": ModelType(
        config="DeepseekV2Config",
        family="deepseek",
        tasks=("lm", "cls"),
        written=_written_v2,
        defaults={
            **DEFAULTS,
            "vocabulary_size": 102400,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "layers": 32,
            "attention_heads": 32,
            "key_value_heads": same_heads,
            "max_positions": 2048,
            "mlp_bias": False,
            "experts.count": 64,
            "experts.active": None,
            "experts.shared": 2,
            "experts.intermediate_size": 1407,
            "experts.dense_layers": (),
            "experts.groups": None,
            "experts.active_groups": None,
        },
        fixed={**FIXED_SIZES, "experts.normalized": False, "latent_attention.interleaved": True},
        keys={**KEYS_OF_LATENTS, "mlp_bias": ("mlp_bias", FLAG)},
        adjust=_v2,
        own_head_size=True,
    ),
    "glm4_moe_lite": ModelType(
        config="Glm4MoeLiteConfig",
        family="deepseek",
        tasks=("lm",),
        written=_written_lite,
        defaults={
            **DEFAULTS,
            "vocabulary_size": 154880,
            "hidden_size": 2048,
            "intermediate_size": 10240,
            "layers": LITE_LAYERS,
            "attention_heads": 20,
            "key_value_heads": same_heads,
            "max_positions": 202752,
            "experts.count": 64,
            "experts.active": 4,
            "experts.shared": 1,
            "experts.intermediate_size": 1536,
            "experts.normalized": True,
            "experts.dense_layers": (0,),
            "experts.groups": 1,
            "experts.active_groups": 1,
            "latent_attention.query_rank": 768,
            "latent_attention.plain_size": 192,
            "latent_attention.value_size": 256,
            "latent_attention.interleaved": True,
        },
        fixed={**FIXED_SIZES, "mlp_bias": False},
        keys={**KEYS_OF_LATENTS, "norm_topk_prob": ("experts.normalized", FLAG)},
        adjust=_lite,
        own_head_size=True,
    ),
}
