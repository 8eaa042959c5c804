"""How runs of the Trainer are planned."""

from __future__ import annotations

from types import MappingProxyType

from vramplan.planner.behaviour import PlannerBehaviour
from vramplan.replay.models.modules import DISTILLED, LABEL_SMOOTHER, TILED_DIVERGENCE, TOP_TOKENS


class TrainerPlanner(PlannerBehaviour):
    """The Trainer smooths labels outside of the model.

    Source: transformers 5.23, trainer_pt_utils.py, LabelSmoother.
    """

    smoothed_loss = LABEL_SMOOTHER
    taught_in_tiles = TILED_DIVERGENCE  # trl 1.16.0, trainer/distillation_trainer.py
    taught_from_file = TOP_TOKENS  # axolotl 0.19.0, integrations/kd/trainer.py
    taught_loss = DISTILLED  # trl 1.16.0, experimental/gkd/gkd_trainer.py
    # Accelerator.free_memory, which Trainer._inner_training_loop calls, empties the cache
    loads_by_transformers = MappingProxyType({"empties": True})


BEHAVIOUR = TrainerPlanner()
