"""DINOv2 with registers (models/dinov2_with_registers/configuration_dinov2_with_registers.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.families import dinov2
from vramplan.catalog.fields import Fields
from vramplan.replay.models.dinov2_with_registers import REGISTERS

_DINOV2 = dinov2.TYPES["dinov2"]


def _with_registers(fields: Fields, values: dict[str, Any]) -> None:
    dinov2.read_dinov2(fields, values)
    found = fields.integer("num_register_tokens", minimum=0)
    if found not in {None, REGISTERS}:
        fields.refuse("num_register_tokens", f"{found} is not modelled (modelled: {REGISTERS})")


TYPES = {
    "dinov2_with_registers": _DINOV2._replace(
        config="Dinov2WithRegistersConfig",
        family="dinov2_with_registers",
        defaults={**_DINOV2.defaults, "patch_size": 16},
        adjust=_with_registers,
    ),
}
