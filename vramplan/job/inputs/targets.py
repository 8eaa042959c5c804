"""The key `target_length`: tokens of the decoder of an encoder-decoder model."""

from __future__ import annotations

from vramplan.catalog.fields import Fields
from vramplan.replay.models.capable import bounds_positions
from vramplan.values.model import ModelShape


def target_length(given: int | None, model: ModelShape | None, fields: Fields) -> int | None:
    """The length that the job says, None for that of the encoder; what makes no sense is refused at `fields`."""
    if given is None or model is None:
        return given
    key = "target_length"
    if model.decoder_layers is None:
        fields.refuse(key, f"{model.name} has no decoder beside an encoder", hint="sequence_length alone")
    elif model.takes_audio:
        message = f"the encoder of {model.name} takes sounds of {2 * (model.audio_positions or 0)} frames"
        fields.refuse(key, message, hint="sequence_length is that of the decoder")
    else:
        refuse_more(key, given, model, fields)
    return given


def refuse_more(key: str, given: int, model: ModelShape, fields: Fields) -> None:
    """Refuse more tokens than a model has positions, where these are a tensor of so many."""
    if given > model.max_positions and (model.positions == "learned" or bounds_positions(model.family)):
        has = {"learned": "has learned", "alibi": "has a bias for"}.get(model.positions, "has")
        message = f"{given} is more than the {model.max_positions} positions that {model.name} {has}"
        fields.refuse(key, message, hint=f"use at most {model.max_positions}")
