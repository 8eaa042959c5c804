"""What LitGPT makes of a job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vramplan.catalog.fields import shown
from vramplan.job.behaviour import JobBehaviour
from vramplan.values.model import OldCode

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.machine import Runtime
    from vramplan.values.model import ModelShape


KEY = "litgpt_version"
RELEASE = re.compile(r"v?(\d{1,2})\.(\d{1,2})\.(\d{1,2})", re.ASCII)
OLDEST = (0, 4, 0)  # of which attention, norms and the loss are those that were read
TOLD = {
    "buffered_places": "the places of LoRA's parts are not copied",
    "half_norms": "norms multiply by their weight in 16 bits",
    "mixed_projections": "queries, keys and values are copied out of groups of heads",
}


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

    def note_release(self, resolver: Resolver, model: ModelShape, runtime: Runtime, release: str) -> None:
        """Norms, and how queries, keys and values lie."""
        match = RELEASE.fullmatch(release.strip())
        if match is None:
            message = f"{shown(release)} is no release of LitGPT"
            resolver.fields.problem(KEY, message, hint='three numbers, as in "0.4.5"')
            return
        found = tuple(int(one) for one in match.groups())
        if found < OLDEST:
            hint = f"{'.'.join(map(str, OLDEST))} or later; or leave it out"
            resolver.fields.refuse(KEY, f"{release} is not modelled", hint=hint)
            return
        if model.engine is None:
            message = f"{release} says nothing of {model.name}, which runs with the operators of Transformers"
            resolver.fields.refuse(KEY, message, hint="leave it out")
            return
        old = OldCode(
            half_norms=found < runtime.wide_norms_since and model.published_family == "llama",
            buffered_places=found < runtime.copied_places_since,
            mixed_projections=found < runtime.projections_apart_since,
        )
        resolver.old_code = old
        told = [words for name, words in TOLD.items() if getattr(old, name)]
        resolver.assume(KEY, release, "; ".join(told) or "today's code, as far as it is modelled")

    def check_own_code(self, resolver: Resolver, own: str, model: ModelShape, runtime: Runtime) -> None:
        """Its loss is made of the logits of all tokens but the last, and needs one at least.

        Source: litgpt 0.5.13, finetune/lora.py and pretrain.py, fit.
        """
        super().check_own_code(resolver, own, model, runtime)
        if resolver.raw.sequence_length == 1:
            resolver.fields.refuse("sequence_length", "1 leaves no token to predict", hint="use 2 or more")


BEHAVIOUR = LitGPTJob()
