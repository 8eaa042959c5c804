"""Marian, of which the translators of OPUS-MT are (models/marian/configuration_marian.py)."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.families.bart import RELATIVE, stacks_alike
from vramplan.catalog.fields import Fields

_alike = stacks_alike(16, 4096)


def _marian(fields: Fields, values: dict[str, Any]) -> None:
    _alike(fields, values)
    if fields.boolean("share_encoder_decoder_embeddings") is False:
        fields.refuse("share_encoder_decoder_embeddings", "false is not modelled")
    own, shared = fields.integer("decoder_vocab_size", minimum=1), values.get("vocabulary_size")
    if own is not None and shared is not None and own != shared:
        fields.refuse("decoder_vocab_size", f"{own} beside a vocabulary of {shared} is not modelled")


TYPES = {
    "marian": RELATIVE._replace(
        config="MarianConfig",
        family="marian",
        defaults={**RELATIVE.defaults, "vocabulary_size": 58101},
        fixed={**RELATIVE.fixed, "positions": "sinusoidal"},
        adjust=_marian,
    ),
}
