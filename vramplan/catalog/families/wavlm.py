"""WavLM (models/wavlm/configuration_wavlm.py): Wav2Vec2's keys."""

from __future__ import annotations

from typing import Any

from vramplan.catalog.families.wav2vec2 import TYPES as WAV2VEC2
from vramplan.catalog.fields import Fields

_WAV2VEC2 = WAV2VEC2["wav2vec2"]
PLACES = {"num_buckets": 320, "max_bucket_distance": 800}


def _wavlm(fields: Fields, values: dict[str, Any]) -> None:
    assert _WAV2VEC2.adjust is not None
    _WAV2VEC2.adjust(fields, values)
    for key, known in PLACES.items():
        found = fields.integer(key, minimum=1) if fields.given(key) else known
        if found not in {None, known}:
            fields.refuse(key, f"{found} is not modelled (modelled: {known}, as in every published model)")


TYPES = {
    "wavlm": _WAV2VEC2._replace(config="WavLMConfig", family="wavlm", adjust=_wavlm),
}
