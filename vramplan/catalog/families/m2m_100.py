"""M2M100 and NLLB-200 (models/m2m_100/configuration_m2m_100.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.families.bart import RELATIVE, decoder_keys, stacks_alike
from vramplan.values.model import ModelShape


def _written(shape: ModelShape) -> dict[str, Any]:
    return {**decoder_keys(shape), "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}


TYPES = {
    "m2m_100": RELATIVE._replace(
        config="M2M100Config",
        family="m2m_100",
        written=_written,
        defaults={
            **RELATIVE.defaults,
            "vocabulary_size": 128112,
            "activation": "relu",
            "attention_dropout": 0.1,
        },
        fixed={**RELATIVE.fixed, "positions": "sinusoidal"},
        adjust=stacks_alike(16, 4096, layerdrop=0.05),
    ),
}
