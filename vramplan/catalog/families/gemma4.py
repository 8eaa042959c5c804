"""Gemma 4 for text (models/gemma4/configuration_gemma4.py, Gemma4TextConfig)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import BOUND, COUNT, FLAG, ModelType
from vramplan.catalog.families.gemma import FIXED, attention_bias
from vramplan.catalog.families.gemma2 import KEYS
from vramplan.catalog.families.gemma3 import FULL, SLIDING
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

LAYERS, PATTERN, FULL_HEAD = 30, 6, 512
OF_EXPERTS = ("experts.count", "experts.active", "experts.intermediate_size")


def kinds(layers: int, pattern: int) -> list[str]:
    """The kinds of so many blocks: every so many see everything, and the last one."""
    return [SLIDING if (i + 1) % pattern and i + 1 < layers else FULL for i in range(layers)]


def _gemma4(fields: Fields, values: dict[str, Any]) -> None:
    attention_bias(fields, values)
    if fields.present("final_logit_softcapping"):
        values["logit_softcap"] = fields.number("final_logit_softcapping") is not None
    if fields.present("sliding_window") and not fields.given("sliding_window"):
        fields.refuse("sliding_window", "null is not modelled (most blocks have a window)")
    seen = fields.text("use_bidirectional_attention") if fields.given("use_bidirectional_attention") else None
    if seen == "all":
        fields.refuse("use_bidirectional_attention", "all is not modelled (each token sees those after it)")
    _kinds(fields, values)
    if not values.get("keys_as_values"):
        values.pop("full_key_value_heads", None)  # which the class takes with attention_k_eq_v alone
    _overrides(fields, values)
    if not fields.boolean("enable_moe_block"):
        for key in OF_EXPERTS:
            values.pop(key, None)
    _optional(fields, values)


def _overrides(fields: Fields, values: dict[str, Any]) -> None:
    """What newer files say block by block, in the place of keys of all blocks that see everything."""
    inside = fields.fields("per_layer_config") if fields.given("per_layer_config") else None
    if inside is None:
        return
    layers, pattern = values.get("layers", LAYERS), values.get("sliding_window_pattern", PATTERN)
    full = {str(i) for i, one in enumerate(kinds(layers, pattern)) if one == FULL}
    found = set()
    for name in inside.names:
        one = inside.fields(name)
        if one is not None:
            found.add((one.integer("head_dim"), one.integer("num_key_value_heads")))
    if {*inside.names} != full or len(found) != 1:
        fields.refuse("per_layer_config", f"only equal entries of the blocks with {FULL} are modelled")
        return
    ((size, heads),) = found
    values["full_head_size"] = size or values.get("head_size")
    values["full_key_value_heads"] = heads


def _optional(fields: Fields, values: dict[str, Any]) -> None:
    """Inputs for each layer and sharing, of which 0 means none."""
    size = fields.integer("hidden_size_per_layer_input", minimum=0)
    if size is not None:
        values["layer_input_size"] = size or None
    values["key_value_sharing_layers"] = fields.integer("num_kv_shared_layers", minimum=0) or 0


def _kinds(fields: Fields, values: dict[str, Any]) -> None:
    """The kinds of the blocks one by one, the last of which the class makes one that sees everything."""
    types = fields.texts("layer_types") if fields.given("layer_types") else None
    if not types:
        return
    types[-1] = FULL
    every = types.index(FULL) + 1
    if types != kinds(len(types), every):
        fields.refuse("layer_types", f"only every n-th block as {FULL} is modelled, the others as {SLIDING}")
    elif len(types) != values.get("layers", LAYERS):
        fields.refuse("layer_types", f"{len(types)} entries for {values.get('layers', LAYERS)} blocks")
    values["sliding_window_pattern"] = every


def _written(shape: ModelShape) -> dict[str, Any]:
    pattern = shape.sliding_window_pattern or PATTERN
    return {
        "final_logit_softcapping": BOUND if shape.logit_softcap else None,
        "layer_types": kinds(shape.layers, pattern),
        "enable_moe_block": shape.experts is not None,
        "hidden_size_per_layer_input": shape.layer_input_size or 0,
        "num_kv_shared_layers": shape.key_value_sharing_layers,
    }


def contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What makes no network."""
    found = []
    heads, groups = values["attention_heads"], values["full_key_value_heads"]
    if groups is not None and heads % groups:
        message = f"{heads} attention heads cannot share {groups} key-value heads evenly"
        found.append(("full_key_value_heads", message))
    if values["full_head_size"] % 2:
        message = f"rotary positions need an even head size, not {values['full_head_size']}"
        found.append(("full_head_size", message))
    layers, sharing = values["layers"], values["key_value_sharing_layers"]
    types = kinds(layers, values["sliding_window_pattern"])
    if sharing and (sharing >= layers or {*types[:-sharing]} != {*types}):
        message = f"{sharing} of {layers} blocks leave no block of each kind whose keys and values they could take"
        found.append(("key_value_sharing_layers", message))
    if sharing and values["layer_input_size"] is None:
        message = (
            "Transformers 5.23 ends with an error where blocks share keys and values and have no inputs of their own"
        )
        found.append(("key_value_sharing_layers", message))
    if values["experts.count"] is not None and values["experts.intermediate_size"] is None:
        message = "required key is missing: the configuration class has no default"
        found.append(("experts.intermediate_size", message))
    return found


TYPES = {
    "gemma4_text": ModelType(
        config="Gemma4TextConfig",
        family="gemma4",
        tasks=("lm",),
        written=_written,
        defaults={
            "vocabulary_size": 262144,
            "hidden_size": 2304,
            "layers": LAYERS,
            "attention_heads": 8,
            "key_value_heads": 4,
            "head_size": 256,
            "full_head_size": FULL_HEAD,
            "full_key_value_heads": None,
            "intermediate_size": 9216,
            "activation": "gelu_pytorch_tanh",
            "qkv_bias": False,
            "output_bias": False,
            "attention_dropout": 0.0,
            "max_positions": 131072,
            "tied_embeddings": True,
            "sliding_window": 512,
            "sliding_window_pattern": PATTERN,
            "logit_softcap": False,
            "keys_as_values": False,
            "layer_input_size": 256,
            "layer_input_vocabulary_size": 262144,
            "key_value_sharing_layers": 0,
            "wide_sharing_layers": False,
            "experts.count": None,
            "experts.active": None,
            "experts.intermediate_size": None,
        },
        fixed={
            **FIXED,
            "qk_norm": True,
            "experts.shared": 0,
            "experts.normalized": True,
            "experts.dense_layers": (),
        },
        keys={
            **KEYS,
            "sliding_window": ("sliding_window", COUNT),
            "global_head_dim": ("full_head_size", COUNT),
            "num_global_key_value_heads": ("full_key_value_heads", COUNT),
            "attention_k_eq_v": ("keys_as_values", FLAG),
            "vocab_size_per_layer_input": ("layer_input_vocabulary_size", COUNT),
            "use_double_wide_mlp": ("wide_sharing_layers", FLAG),
            "num_experts": ("experts.count", COUNT),
            "top_k_experts": ("experts.active", COUNT),
            "moe_intermediate_size": ("experts.intermediate_size", COUNT),
        },
        adjust=_gemma4,
        contradictions=contradictions,
        grouped=True,
        own_head_size=True,
    ),
}
