"""Granite 3 with experts (models/granitemoe/configuration_granitemoe.py): Granite's keys and Mixtral's."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, Peft, intermediate_size
from vramplan.catalog.families.granite import TYPES as GRANITE
from vramplan.catalog.families.llama import all_projections
from vramplan.catalog.families.mixtral import EXPERT_KEYS, router_losses
from vramplan.catalog.fields import Fields

_GRANITE = GRANITE["granite"]


def _granitemoe(fields: Fields, values: dict[str, Any]) -> None:
    router_losses(fields, values)
    all_projections(fields, values)


TYPES = {
    "granitemoe": _GRANITE._replace(
        config="GraniteMoeConfig",
        family="granitemoe",
        peft=Peft(),
        defaults={
            **{key: one for key, one in _GRANITE.defaults.items() if key != "mlp_bias"},
            "experts.count": 8,
            "experts.active": 2,
        },
        fixed={
            **_GRANITE.fixed,
            "mlp_bias": False,
            "experts.shared": 0,
            "experts.intermediate_size": intermediate_size,
            "experts.normalized": True,  # a softmax of the chosen ones alone
            "experts.dense_layers": (),
        },
        keys={
            **{key: one for key, one in _GRANITE.keys.items() if key != "mlp_bias"},
            "num_experts_per_tok": EXPERT_KEYS["num_experts_per_tok"],
            "num_local_experts": ("experts.count", COUNT),
        },
        adjust=_granitemoe,
    ),
}
