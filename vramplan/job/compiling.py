"""What `compile: true` can be computed with: only what has been compared with compiled graphs."""

from __future__ import annotations

from vramplan.catalog.fields import Fields
from vramplan.job.read import RawJob
from vramplan.replay.models import compiled_graphs, compiles_blocks
from vramplan.values.job import Adapter, Assumption
from vramplan.values.model import ModelShape

CHECKPOINTINGS = ("none", "full", "sqrt", "every:", "layers:")  # of whole blocks


def check_compile(
    fields: Fields,
    raw: RawJob,
    model: ModelShape | None,
    attention: str,
    loss: str,
    in_backward: bool,
    adapter: Adapter | None,
) -> list[Assumption]:
    """Refuse what a compiled step has not been traced with; the stated basis of the rest is returned.

    Beside an adapter nothing is checkpointed: where the job leaves that open, it is pinned here.
    """
    key = "compile"
    if model is not None and compiles_blocks(model.family):
        return []  # engines/torchtitan/job.py
    if model is not None and compiled_graphs(model.family) is None:
        fields.refuse(key, f"true is not modelled for {model.code}", hint="leave it out")
        return []
    if model is not None and model.task == "cls":
        fields.refuse(key, "true is not modelled for the task cls", hint="leave it out")
    if attention == "eager":
        message = "true is not modelled with attention eager, which a compiler rewrites into fused attention"
        fields.refuse(key, message, hint="attention sdpa, flash or efficient")
    if loss != "standard":
        fields.refuse(key, f"true is not modelled with the loss {loss}", hint="loss standard")
    assumptions = [Assumption(key, True, "Inductor's graphs by stated rules; the range is wider")]
    checkpointing = raw.activation_checkpointing
    if adapter is not None and checkpointing is None:
        raw.activation_checkpointing = "none"
        basis = "a compiled adapter is modelled with every activation stored"
        assumptions.append(Assumption("activation_checkpointing", "none", basis))
    elif adapter is not None and checkpointing != "none":
        message = f"{checkpointing} is not modelled for a compiled model with an adapter"
        fields.refuse("activation_checkpointing", message, hint="use none")
    elif checkpointing is not None and not checkpointing.startswith(CHECKPOINTINGS):
        message = f"true is not modelled with activation_checkpointing {checkpointing}"
        fields.refuse(key, message, hint="none, sqrt, full, every:K or a list of segments")
    if in_backward:
        message = "true hands out all gradients at the end of backward, and optimizer_in_backward needs them one by one"
        fields.refuse(key, message, hint="leave one of the two out")
    return assumptions
