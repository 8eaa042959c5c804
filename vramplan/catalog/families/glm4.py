"""GLM-4-0414 (models/glm4/configuration_glm4.py)."""

from __future__ import annotations

from vramplan.catalog.config_classes import ModelType, rotary_parameters
from vramplan.catalog.families.glm import DEFAULTS, FIXED, KEYS

TYPES = {
    "glm4": ModelType(
        config="Glm4Config",
        family="glm4",
        tasks=("lm", "cls"),
        defaults=DEFAULTS,
        fixed=FIXED,
        keys=KEYS,
        adjust=rotary_parameters,
        grouped=True,
        own_head_size=True,
    ),
}
