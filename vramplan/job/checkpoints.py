"""What reentrant checkpoints and activations on the host do not go with."""

from __future__ import annotations

from vramplan.catalog.fields import Fields
from vramplan.models import TRACED_BEYOND, holds_outputs
from vramplan.spec import ModelShape


def check_reentrant(fields: Fields, model: ModelShape, strategy: str | None) -> None:
    """Refuse reentrant checkpoints that keep results, and those of blocks that return more than their hidden state."""
    key = "checkpoint_reentrant"
    if strategy in ("selective", "selective-op"):
        message = f"true contradicts {strategy}: a reentrant checkpoint keeps nothing but its input"
        fields.refuse(key, message, hint="leave one of the two out")
    elif model.family not in TRACED_BEYOND:
        fields.refuse(key, f"true is not modelled for {model.family}", hint="leave it out")
    elif holds_outputs(model.family):
        message = f"true is not modelled for {model.family}, whose blocks return their attention weights too"
        fields.refuse(key, message, hint="leave it out")


def check_offload(fields: Fields, model: ModelShape) -> None:
    """Refuse activations on the host for families that nobody traced with them."""
    if model.family not in TRACED_BEYOND:
        fields.refuse("offload", f"activations are not modelled for {model.family}", hint="leave it out")
