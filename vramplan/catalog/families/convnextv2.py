"""ConvNeXt V2 (models/convnextv2/configuration_convnextv2.py)."""

from __future__ import annotations

from vramplan.catalog.families.convnext import TYPES as CONVNEXT

TYPES = {
    "convnextv2": CONVNEXT["convnext"]._replace(config="ConvNextV2Config", family="convnextv2"),
}
