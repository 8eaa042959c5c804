"""torchao on tensors without data: its `convert_to_float8_training` over the models of the first rig.

The layers are those of the answer: all linear ones but the head, if both sizes are multiples of 16. The step is that
over a master copy, as of `mixed-bf16`.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from vramplan.values.job import ResolvedJob

OWN_KEYS = ("precision",)
"""What the loop on one device refuses and this rig has."""

MULTIPLE = 16  # of both sizes of a layer, for torch._scaled_mm


def check(_: ResolvedJob) -> None:
    """What precision fp8 does not go with is refused before."""


def traced(job: ResolvedJob) -> dict[str, int]:
    """Peaks of the phases of one step, in bytes."""
    from vramplan.measure import steps

    cast = steps._cast
    with patch.object(steps, "_cast", lambda job, model: _converted(cast(job, model))):
        phases = steps.without_data(job._replace(precision="mixed-bf16"))["phases"]
    return {name.removesuffix("_bytes"): level for name, level in phases.items()}


def _converted(model: Any) -> Any:
    from torchao.float8 import convert_to_float8_training

    head = model.get_output_embeddings()

    def chosen(module: Any, _: str) -> bool:
        return module is not head and all(size % MULTIPLE == 0 for size in module.weight.shape)

    return convert_to_float8_training(model, module_filter_fn=chosen)
