"""A job under fms-fsdp: its models are compiled block by block under FSDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.behaviour import COMPILED, JobBehaviour
from vramplan.values.parallel import FSDP, is_fsdp

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.machine import Runtime
    from vramplan.values.model import ModelShape


class FmsJob(JobBehaviour):
    """The loss is outside of what is compiled."""

    compiled_basis = COMPILED

    def check_own_code(self, resolver: Resolver, own: str, model: ModelShape, runtime: Runtime) -> None:
        """Refuse compiled blocks without FSDP."""
        super().check_own_code(resolver, own, model, runtime)
        raw = resolver.raw
        if raw.compile and (raw.data_parallel_size == 1 or not is_fsdp(raw.sharding or FSDP)):
            message = f"true is modelled for {runtime.name} under FSDP, which cuts the graph at each block"
            resolver.fields.refuse("compile", message, hint="--gpus 8 --sharding fsdp")


BEHAVIOUR = FmsJob()
