"""What `compile: true` can be computed with: only what has been compared with compiled graphs."""

from __future__ import annotations

from vramplan.catalog.fields import Fields
from vramplan.job.given.read import RawJob
from vramplan.replay.models.parts import compiles_blocks
from vramplan.values.job import Adapter, Assumption
from vramplan.values.model import ModelShape

CHECKPOINTINGS = ("none", "full", "sqrt", "every:", "layers:")  # of whole blocks


def check_compile(
    fields: Fields,
    raw: RawJob,
    model: ModelShape | None,
    in_backward: bool,
    adapter: Adapter | None,
) -> list[Assumption]:
    """Refuse what a compiled step cannot run with; the stated basis of the rest is returned.

    What was never traced is told by `never_traced.py`. Where a job with an adapter leaves checkpoints open, none is
    pinned here, which is what was traced.
    """
    key = "compile"
    if model is not None and compiles_blocks(model.family):
        return []  # engines/torchtitan/job.py
    assumptions = [Assumption(key, True, "Inductor's graphs by stated rules; the range is wider")]
    checkpointing = raw.activation_checkpointing
    if adapter is not None and checkpointing is None:
        raw.activation_checkpointing = "none"
        basis = "a compiled adapter is modelled with every activation stored"
        assumptions.append(Assumption("activation_checkpointing", "none", basis))
    elif checkpointing is not None and not checkpointing.startswith(CHECKPOINTINGS):
        message = f"true is not modelled with activation_checkpointing {checkpointing}"
        fields.refuse(key, message, hint="none, sqrt, full, every:K or a list of segments")
    if in_backward:
        message = "true hands out all gradients at the end of backward, and optimizer_in_backward needs them one by one"
        fields.refuse(key, message, hint="leave one of the two out")
    return assumptions
