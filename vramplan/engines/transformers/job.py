"""A job under the Trainer of Transformers, with the preference training of TRL over it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from vramplan.job import on_demand
from vramplan.job.behaviour import JobBehaviour
from vramplan.options.words import OF_TRANSFORMERS

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.machine import Gpu
    from vramplan.values.model import ModelShape


class TransformersJob(JobBehaviour):
    """What the Trainer does that a plain loop does not."""

    has_preference_training = True
    distils = ("jsd", "forward-kl", "reverse-kl")  # trl 1.16.0, experimental/gkd/gkd_trainer.py, by its beta
    distils_over_logits = True
    distils_from_file = ("forward-kl", "reverse-kl", "jsd")  # axolotl 0.19.0, integrations/kd, by kd_beta
    implementations = MappingProxyType({"adafactor": OF_TRANSFORMERS})  # trainer_optimizer.py, _get_adafactor
    scales_fp16 = True  # accelerate, accelerator.py, Accelerator.__init__ (mixed_precision fp16)
    has_float8_of_fsdp = True  # accelerate, utils/ao.py
    shards_hold_experts = True  # axolotl, integrations/expert_parallel; LLaMA-Factory v1, dist_config.ep_size
    wraps_one_device = True  # accelerate, accelerator.py, prepare_model
    offloads_by_zero = True  # the Trainer alone has no way to keep states there
    sizes_buckets_by_width = True  # integrations/deepspeed.py, HfTrainerDeepSpeedConfig
    splits = ("tensor", "context")  # accelerate's ParallelismConfig, AutoTP, Ulysses
    projects_linear_only = projects_in_backward_alone = True  # trainer_optimizer.py, _setup_low_rank_optimizer

    def check_sharded_float8(
        self, resolver: Resolver, model: ModelShape, gpu: Gpu | None, sequence_length: int
    ) -> None:
        """Accelerate converts layers by torchao before FSDP shards them (utils/ao.py, convert_model_to_fp8_ao)."""
        resolver.assumptions += on_demand.check_float8(resolver.fields, resolver.raw, model, gpu, sequence_length)

    def no_sync(self, resolver: Resolver) -> tuple[bool, str]:
        """It accumulates under `no_sync`."""
        return True, "Trainer accumulates under no_sync"


BEHAVIOUR = TransformersJob()
