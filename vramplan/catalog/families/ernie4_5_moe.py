"""ERNIE 4.5 with experts (models/ernie4_5_moe/configuration_ernie4_5_moe.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import COUNT, ModelType
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS
from vramplan.catalog.families.mixtral import EXPERT_KEYS, router_losses
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

LAYERS, LAST, FIRST_WITH_EXPERTS = 28, -1, 1
_LEFT = ("sliding_window", "qkv_bias", "output_bias", "mlp_bias", "attention_dropout")


def _shared(fields: Mapping[str, Any]) -> Any:
    """The width of all shared experts together; None where there is none."""
    return fields["experts.shared"] * fields["experts.intermediate_size"] or None


def _ernie(fields: Fields, values: dict[str, Any]) -> None:
    """Which blocks have experts: every so many of those between two, both included."""
    router_losses(fields, values)
    layers = values.get("layers") or LAYERS
    start = fields.integer("moe_layer_start_index", minimum=0) if fields.given("moe_layer_start_index") else None
    end = fields.integer("moe_layer_end_index", minimum=LAST) if fields.given("moe_layer_end_index") else None
    every = fields.integer("moe_layer_interval", minimum=1) if fields.given("moe_layer_interval") else None
    first = FIRST_WITH_EXPERTS if start is None else start
    last = layers - 1 if end in (None, LAST) else end
    assert last is not None
    sparse = {i for i in range(first, last + 1) if (i + 1) % (every or 1) == 0}
    values["experts.dense_layers"] = tuple(i for i in range(layers) if i not in sparse)


def _written(shape: ModelShape) -> dict[str, Any]:
    """The keys that say which blocks have experts, of those that they can say."""
    assert shape.experts is not None
    sparse = [i for i in range(shape.layers) if i not in shape.experts.dense_layers]
    if not sparse:
        return {"moe_layer_start_index": shape.layers}
    every = sparse[1] - sparse[0] if len(sparse) > 1 else 1
    return {
        "moe_layer_start_index": sparse[0],
        "moe_layer_end_index": sparse[-1],
        "moe_layer_interval": every,
    }


TYPES = {
    "ernie4_5_moe": ModelType(
        config="Ernie4_5_MoeConfig",
        family="ernie4_5_moe",
        tasks=("lm",),
        written=_written,
        defaults={
            **{key: value for key, value in DEFAULTS.items() if key not in _LEFT},
            "vocabulary_size": 103424,
            "hidden_size": 2560,
            "intermediate_size": 12288,
            "layers": LAYERS,
            "attention_heads": 20,
            "key_value_heads": 4,
            "max_positions": 131072,
            "tied_embeddings": True,
            "experts.count": 64,
            "experts.active": 6,
            "experts.shared": 2,
            "experts.intermediate_size": 1536,
            "experts.dense_layers": (0,),
        },
        fixed={
            **FIXED,
            "qkv_bias": False,
            "output_bias": False,
            "mlp_bias": False,
            "attention_dropout": 0.0,
            "sliding_window": None,
            "experts.normalized": True,
            "experts.shared_intermediate_size": _shared,
        },
        keys={
            **{key: value for key, value in KEYS.items() if key != "attention_dropout"},
            **EXPERT_KEYS,
            "moe_num_experts": ("experts.count", COUNT),
            "moe_k": ("experts.active", COUNT),
            "moe_num_shared_experts": ("experts.shared", COUNT),
            "moe_intermediate_size": ("experts.intermediate_size", COUNT),
        },
        refused=("use_bias",),  # one of the head too
        adjust=_ernie,
        grouped=True,
        own_head_size=True,
    ),
}
