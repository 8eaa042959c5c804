"""K-EXAONE (models/exaone_moe/configuration_exaone_moe.py): EXAONE 4's keys, and those of experts."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.config_classes import COUNT, FLAG
from vramplan.catalog.experts import all_shared
from vramplan.catalog.families.deepseek import DENSE, SPARSE, dense_or_sparse, first_dense, groups
from vramplan.catalog.families.exaone4 import TYPES as EXAONE4
from vramplan.catalog.families.mixtral import EXPERT_KEYS, router_losses
from vramplan.catalog.fields import Fields
from vramplan.values.model import ModelShape

_EXAONE4 = EXAONE4["exaone4"]
DENSE_LAYERS, LAYERS = 1, 32


def _exaone_moe(fields: Fields, values: dict[str, Any]) -> None:
    assert _EXAONE4.adjust is not None
    if fields.present("sliding_window") and not fields.given("sliding_window"):
        fields.refuse("sliding_window", "null is not modelled (its class takes a number alone)")
        return
    _EXAONE4.adjust(fields, values)
    router_losses(fields, values)
    groups(fields, values)
    if fields.given("mlp_layer_types"):
        dense_or_sparse(fields, values, LAYERS)
    else:
        first_dense(fields, values, DENSE_LAYERS, LAYERS)


def _written(shape: ModelShape) -> dict[str, Any]:
    experts = shape.experts
    assert experts is not None
    assert _EXAONE4.written is not None
    return {
        **_EXAONE4.written(shape),
        "mlp_layer_types": [DENSE if i in experts.dense_layers else SPARSE for i in range(shape.layers)],
        "n_group": experts.groups,
        "topk_group": experts.active_groups,
    }


TYPES = {
    "exaone_moe": _EXAONE4._replace(
        config="ExaoneMoeConfig",
        family="exaone_moe",
        tasks=("lm",),
        written=_written,
        defaults={
            **_EXAONE4.defaults,
            "experts.count": 64,
            "experts.active": 8,
            "experts.shared": 1,
            "experts.intermediate_size": 1024,
            "experts.normalized": True,
            "experts.dense_layers": (0,),
            "experts.groups": 1,
            "experts.active_groups": 1,
        },
        fixed={**_EXAONE4.fixed, "experts.shared_intermediate_size": all_shared},
        keys={
            **_EXAONE4.keys,
            **EXPERT_KEYS,
            "num_shared_experts": ("experts.shared", COUNT),
            "moe_intermediate_size": ("experts.intermediate_size", COUNT),
            "norm_topk_prob": ("experts.normalized", FLAG),
        },
        adjust=_exaone_moe,
    ),
}
