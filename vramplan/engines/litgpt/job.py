"""What LitGPT makes of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.behaviour import JobBehaviour

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.machine import Runtime
    from vramplan.values.model import ModelShape


class LitGPTJob(JobBehaviour):
    """A plain loop around LitGPT's own models."""

    def fsdp_version(self, resolver: Resolver) -> tuple[int, str]:
        """Source: litgpt 0.5.13, finetune/full.py and pretrain.py (FSDPStrategy), finetune/lora.py (parallelize_fn)."""
        if self.has_policy(resolver):
            return 1, "FSDPStrategy of finetune/full.py and pretrain.py, with use_orig_params"
        return 2, "parallelize_fn of finetune/lora.py"

    def has_policy(self, resolver: Resolver) -> bool:
        """The strategy of FSDP1 has Fabric's plugin for it, which makes a policy; that of LoRA has autocast alone."""
        raw = resolver.raw
        return raw.adapter is None and raw.fsdp_version != 2

    def check_own_code(self, resolver: Resolver, own: str, model: ModelShape, runtime: Runtime) -> None:
        """Its loss is made of the logits of all tokens but the last, and needs one at least.

        Source: litgpt 0.5.13, finetune/lora.py and pretrain.py, fit.
        """
        super().check_own_code(resolver, own, model, runtime)
        if resolver.raw.sequence_length == 1:
            resolver.fields.refuse("sequence_length", "1 leaves no token to predict", hint="use 2 or more")


BEHAVIOUR = LitGPTJob()
