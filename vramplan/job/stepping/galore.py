"""What optimizers that project gradients can be computed with, and what their figures take for granted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.behaviour import under
from vramplan.replay.models.capable import has_conv1d
from vramplan.values.job import Assumption

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.machine import Runtime
    from vramplan.values.model import ModelShape


def check_galore(
    resolver: Resolver, optimizer: str, model: ModelShape | None, runtime: Runtime | None
) -> list[Assumption]:
    """Refuse models in which a program finds no layer to project, and devices; the basis of the rest is returned.

    Source: transformers/trainer_optimizer.py, _setup_low_rank_optimizer and _get_galore_optimizer.
    """
    key, fields, raw = "optimizer", resolver.fields, resolver.raw
    if raw.optimizer_in_backward and raw.data_parallel_size > 1 and under(runtime).projects_in_backward_alone:
        message = f"the Trainer steps {optimizer} in backward on one device alone (a layerwise optimizer)"
        fields.refuse("optimizer_in_backward", message, hint="leave it out, or one device")
    if model is not None:
        model_type = model.transformers_model_type
        if not model.attention_heads:  # `attn` and `mlp` name none of its modules
            message = (
                f"a program finds no layer for {optimizer}: {model.name} has no attention and no feed-forward layers"
            )
            fields.refuse(key, message, hint="use adafactor, or adamw-8bit")
        elif has_conv1d(model.family) and under(runtime).projects_linear_only:
            layers = f"those of the model type {model_type} are Conv1D, not nn.Linear"
            message = f"the Trainer finds no layer for {optimizer}: {layers}"
            fields.refuse(key, message, hint="runtime pytorch, whose loop may project any matrix")
    targets = Assumption("optimizer.target_modules", "linear layers of the blocks", "what `attn` and `mlp` stand for")
    if optimizer.startswith("apollo"):
        return [targets, Assumption("optimizer.step", "with new projections", "one in 200 by default")]
    return [
        targets,
        Assumption("optimizer.step", "with decomposition", "one in 200 by default; no other needs more"),
        Assumption("optimizer.workspace", "not counted", "cuSOLVER's, inside a decomposition, is not public"),
    ]
