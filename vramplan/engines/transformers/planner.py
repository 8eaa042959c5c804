"""How runs of the Trainer are planned."""

from __future__ import annotations

from vramplan.planner.behaviour import PlannerBehaviour
from vramplan.replay.models.modules import LABEL_SMOOTHER


class TrainerPlanner(PlannerBehaviour):
    """The Trainer smooths labels outside of the model, and accumulates without synchronisation under FSDP.

    Source: transformers 5.23, trainer_pt_utils.py, LabelSmoother; accelerate, accelerator.py, no_sync.
    """

    smoothed_loss = LABEL_SMOOTHER
    fsdp_without_sync = True


BEHAVIOUR = TrainerPlanner()
