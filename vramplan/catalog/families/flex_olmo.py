"""FlexOLMo (models/flex_olmo/configuration_flex_olmo.py): OLMoE's keys."""

from __future__ import annotations

from vramplan.catalog.families.mixtral import router_losses
from vramplan.catalog.families.olmoe import TYPES as OLMOE

_OLMOE = OLMOE["olmoe"]

TYPES = {
    "flex_olmo": _OLMOE._replace(
        config="FlexOlmoConfig",
        family="flex_olmo",
        defaults={
            **_OLMOE.defaults,
            "vocabulary_size": 100352,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "layers": 32,
            "attention_heads": 32,
            "max_positions": 4096,
            "experts.count": 7,
            "experts.active": 5,
        },
        adjust=router_losses,
    ),
}
