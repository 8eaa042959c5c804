"""PEGASUS (models/pegasus/configuration_pegasus.py)."""

from __future__ import annotations

from vramplan.catalog.families.bart import RELATIVE

TYPES = {
    "pegasus": RELATIVE._replace(
        config="PegasusConfig", family="pegasus", fixed={**RELATIVE.fixed, "positions": "sinusoidal"}
    ),
}
