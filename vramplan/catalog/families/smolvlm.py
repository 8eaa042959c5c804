"""SmolVLM (models/smolvlm/configuration_smolvlm.py), whose class is that of Idefics3 under another name."""

from __future__ import annotations

from vramplan.catalog.families import idefics3

TYPES = {"smolvlm": idefics3.TYPES["idefics3"]._replace(config="SmolVLMConfig", family="smolvlm")}
