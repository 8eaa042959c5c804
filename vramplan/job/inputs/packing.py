"""Packed sequences: which models they are modelled for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.options import words
from vramplan.replay.models.capable import masks_positions

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.model import ModelShape

KEY, HINT = "packing", "leave it out"


def check_packing(resolver: Resolver, model: ModelShape, sequence_length: int) -> None:
    """Refuse packed sequences where the mask that keeps them apart is not modelled."""
    fields = resolver.fields
    if resolver.raw.loss in words.PREFERENCE_LOSSES:
        fields.refuse(KEY, f"true says nothing to {resolver.raw.loss}, whose trainer packs no sequences", hint=HINT)
        return
    if resolver.raw.attention == "flash" and model.task == "lm" and sequence_length > 1:
        return  # by lengths, without a mask
    if model.task != "lm":
        fields.refuse(KEY, f"true means nothing to the task {model.task}", hint=HINT)
    elif not masks_positions(model.family):
        fields.refuse(KEY, f"true says nothing to {model.code}, whose code makes no mask of position ids", hint=HINT)
    elif sequence_length == 1:
        fields.refuse(KEY, "true packs nothing into sequences of 1 token", hint=HINT)
    elif model.rope_scaling is not None:
        fields.refuse(KEY, f"true is not modelled with {model.rope_scaling} positions", hint=HINT)
