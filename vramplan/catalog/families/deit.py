"""DeiT (models/deit/configuration_deit.py): ViT's keys, and a position more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.catalog.families import vit

_VIT = vit.TYPES["vit"]


def patches_and_two_tokens(fields: Mapping[str, Any]) -> Any:
    """Positions of the patches of an image, of the class token and of that of distillation."""
    return vit.patches_and_class(fields) + 1


TYPES = {
    "deit": _VIT._replace(
        config="DeiTConfig",
        family="deit",
        fixed={**vit.FIXED, "max_positions": patches_and_two_tokens},
    ),
}
