"""mBART (models/mbart/configuration_mbart.py)."""

from __future__ import annotations

from vramplan.catalog.families.bart import RELATIVE

TYPES = {"mbart": RELATIVE._replace(config="MBartConfig", family="mbart")}
