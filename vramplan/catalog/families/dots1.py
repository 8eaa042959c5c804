"""dots.llm1 (models/dots1/configuration_dots1.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG, Keys, ModelType
from vramplan.catalog.families.deepseek import first_dense, groups
from vramplan.catalog.families.gemma3 import SLIDING
from vramplan.catalog.families.llama import DEFAULTS, FIXED, KEYS, all_projections
from vramplan.catalog.families.mixtral import EXPERT_KEYS, router_losses
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

DENSE, LAYERS = 0, 62
_KEYS: Keys = {
    **KEYS,
    **EXPERT_KEYS,
    "attention_bias": ("qkv_bias", FLAG),
    "n_routed_experts": ("experts.count", COUNT),
    "n_shared_experts": ("experts.shared", COUNT),
    "moe_intermediate_size": ("experts.intermediate_size", COUNT),
    "norm_topk_prob": ("experts.normalized", FLAG),
}


def _dots1(fields: Fields, values: dict[str, Any]) -> None:
    all_projections(fields, values)
    router_losses(fields, values)
    first_dense(fields, values, DENSE, LAYERS)
    groups(fields, values)
    if fields.given("layer_types"):
        if SLIDING in (fields.texts("layer_types") or ()):
            fields.refuse("layer_types", f"{SLIDING} is not modelled (no published model has blocks with a window)")
    elif fields.given("max_window_layers") and fields.given("sliding_window"):
        start = fields.integer("max_window_layers", minimum=0)
        if start is not None and start < (values.get("layers") or LAYERS):
            message = f"{start} is not modelled (blocks from it on would have a window)"
            fields.refuse("max_window_layers", message, hint="set sliding_window to null")


def contradictions(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Experts that its class has no default for, and without which it makes no network."""
    message = "required key is missing: the configuration class has no default"
    return [(key, message) for key in ("experts.count", "experts.shared") if values[key] is None]


def _shared(fields: Mapping[str, Any]) -> Any:
    """The width of all shared experts together; None where nothing says how many, which is refused."""
    shared = fields["experts.shared"]
    return None if shared is None else shared * fields["experts.intermediate_size"]


def _written(shape: ModelShape) -> dict[str, Any]:
    experts = shape.experts
    assert experts is not None
    return {
        "first_k_dense_replace": len(experts.dense_layers),
        "n_group": experts.groups,
        "topk_group": experts.active_groups,
    }


TYPES = {
    "dots1": ModelType(
        config="Dots1Config",
        family="dots1",
        tasks=("lm",),
        written=_written,
        defaults={
            **{key: one for key, one in DEFAULTS.items() if key not in ("mlp_bias", "sliding_window")},
            "vocabulary_size": 152064,
            "hidden_size": 4608,
            "intermediate_size": 10944,
            "layers": LAYERS,
            "key_value_heads": 32,
            "experts.count": None,
            "experts.active": None,
            "experts.shared": None,
            "experts.intermediate_size": 1408,
            "experts.normalized": False,
            "experts.dense_layers": (),
            "experts.groups": 1,
            "experts.active_groups": 1,
        },
        fixed={
            **FIXED,
            "mlp_bias": False,
            "qk_norm": True,
            "sliding_window": None,
            "experts.shared_intermediate_size": _shared,
        },
        keys=_KEYS,
        adjust=_dots1,
        contradictions=contradictions,
        grouped=True,
        own_head_size=True,
    ),
}
