"""A job under the Trainer of Transformers, with the preference training of TRL over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.behaviour import JobBehaviour

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver


class TransformersJob(JobBehaviour):
    """What the Trainer does that a plain loop does not."""

    has_preference_training = True
    smooths_outside = True  # trainer_pt_utils.py, LabelSmoother
    sizes_buckets_by_width = True  # integrations/deepspeed.py, HfTrainerDeepSpeedConfig
    splits = ("tensor", "context")  # accelerate's ParallelismConfig, AutoTP, Ulysses
    projects_linear_only = True  # trainer_optimizer.py, _setup_low_rank_optimizer

    def no_sync(self, resolver: Resolver) -> tuple[bool, str]:
        """It accumulates under `no_sync`."""
        return True, "Trainer accumulates under no_sync"


BEHAVIOUR = TransformersJob()
