"""Gemma 3n for text (models/gemma3n/configuration_gemma3n.py, Gemma3nTextConfig)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import BOUND, COUNT, ModelType
from vramplan.catalog.families.gemma import FIXED, attention_bias
from vramplan.catalog.families.gemma2 import KEYS
from vramplan.catalog.families.gemma3 import FULL, SLIDING, pattern_of
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

LAYERS, PATTERN, SPARSE, SPARSITY = 35, 5, 10, 0.95


def usual_sparse(fields: Mapping[str, Any]) -> int:
    """How many blocks are sparse where nothing says it."""
    return SPARSE if fields["layers"] > SPARSE else 0


def _gemma3n(fields: Fields, values: dict[str, Any]) -> None:
    attention_bias(fields, values)
    if fields.present("final_logit_softcapping"):
        values["logit_softcap"] = fields.number("final_logit_softcapping") is not None
    if fields.present("sliding_window") and not fields.given("sliding_window"):
        fields.refuse("sliding_window", "null is not modelled (most blocks have a window)")
    pattern_of(fields, values)
    _width(fields, values)
    _sparsity(fields, values, values.get("layers") or LAYERS)
    values["key_value_sharing_layers"] = (
        fields.integer("num_kv_shared_layers", minimum=0) if fields.given("num_kv_shared_layers") else 15
    )
    if fields.integer("altup_active_idx", minimum=0):
        fields.refuse("altup_active_idx", "only 0 is modelled")
    if fields.present("altup_coef_clip") and not fields.given("altup_coef_clip"):
        fields.refuse("altup_coef_clip", "null is not modelled")
    if fields.given("altup_correct_scale") and not fields.boolean("altup_correct_scale"):
        fields.refuse("altup_correct_scale", "false is not modelled")


def _width(fields: Fields, values: dict[str, Any]) -> None:
    """`intermediate_size`: one for all blocks, or a list that says it for each."""
    given = fields.value("intermediate_size") if fields.given("intermediate_size") else None
    if not isinstance(given, list):
        values["intermediate_size"] = fields.integer("intermediate_size", minimum=1) if given is not None else None
        return
    if len({*map(str, given)}) != 1 or type(given[0]) is not int:
        fields.refuse("intermediate_size", "feed-forward layers of different widths are not modelled")
        return
    values["intermediate_size"] = given[0]


def _sparsity(fields: Fields, values: dict[str, Any], layers: int) -> None:
    """`activation_sparsity_pattern`: the first so many blocks are sparse."""
    pattern = fields.value("activation_sparsity_pattern") if fields.given("activation_sparsity_pattern") else None
    if pattern is None:
        return
    if not isinstance(pattern, list) or len(pattern) != layers:
        fields.problem("activation_sparsity_pattern", f"expected a number for each of {layers} blocks")
        return
    sparse = [bool(one) for one in pattern]
    if sparse != sorted(sparse, reverse=True):
        fields.refuse("activation_sparsity_pattern", "only the first blocks as sparse ones are modelled")
        return
    values["alternating.sparse_layers"] = sum(sparse)


def _written(shape: ModelShape) -> dict[str, Any]:
    assert shape.alternating is not None
    sparse, pattern = shape.alternating.sparse_layers, shape.sliding_window_pattern or PATTERN
    return {
        "final_logit_softcapping": BOUND if shape.logit_softcap else None,
        "intermediate_size": shape.intermediate_size,
        "num_kv_shared_layers": shape.key_value_sharing_layers,
        "layer_types": [SLIDING if (i + 1) % pattern else FULL for i in range(shape.layers)],
        "activation_sparsity_pattern": [SPARSITY if i < sparse else 0.0 for i in range(shape.layers)],
    }


def _contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    layers, sharing, pattern = values["layers"], values["key_value_sharing_layers"], values["sliding_window_pattern"]
    full = [(i + 1) % pattern == 0 for i in range(layers)]
    if sharing and (sharing >= layers or {*full[: layers - sharing]} != {*full}):
        message = f"{sharing} of {layers} blocks leave no block of each kind whose keys and values they could take"
        found.append(("key_value_sharing_layers", message))
    if values["alternating.sparse_layers"] > layers:
        found.append(("alternating.sparse_layers", f"{values['alternating.sparse_layers']} of {layers} blocks"))
    if values["alternating.states"] is not None and values["alternating.states"] < 2:
        found.append(("alternating.states", "one hidden state is not modelled"))
    return found


TYPES = {
    "gemma3n_text": ModelType(
        config="Gemma3nTextConfig",
        family="gemma3n",
        tasks=("lm",),
        written=_written,
        defaults={
            "vocabulary_size": 262400,
            "hidden_size": 2048,
            "layers": LAYERS,
            "attention_heads": 8,
            "key_value_heads": 2,
            "head_size": 256,
            "intermediate_size": 16384,
            "activation": "gelu_pytorch_tanh",
            "qkv_bias": False,
            "output_bias": False,
            "attention_dropout": 0.0,
            "max_positions": 32768,
            "tied_embeddings": True,
            "sliding_window": 512,
            "sliding_window_pattern": PATTERN,
            "logit_softcap": True,
            "layer_input_size": 256,
            "layer_input_vocabulary_size": 262144,
            "key_value_sharing_layers": 15,
            "alternating.states": 4,
            "alternating.laurel_rank": 64,
            "alternating.sparse_layers": usual_sparse,
        },
        fixed={**FIXED, "qk_norm": True},
        keys={
            **{key: one for key, one in KEYS.items() if key != "intermediate_size"},
            "sliding_window": ("sliding_window", COUNT),
            "hidden_size_per_layer_input": ("layer_input_size", COUNT),
            "vocab_size_per_layer_input": ("layer_input_vocabulary_size", COUNT),
            "altup_num_inputs": ("alternating.states", COUNT),
            "laurel_rank": ("alternating.laurel_rank", COUNT),
        },
        adjust=_gemma3n,
        contradictions=_contradictions,
        grouped=True,
        own_head_size=True,
    ),
}
