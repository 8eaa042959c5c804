"""What is free on a card that others use too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.catalog.gpu_profile import asks_for_local
from vramplan.units import format_gib

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.machine import Gpu


def check_free(resolver: Resolver, gpu: Gpu) -> None:
    """Settle `gpu_free: now`, and refuse more than the card has."""
    raw, fields = resolver.raw, resolver.fields
    if raw.gpu_free_now:
        if not isinstance(raw.gpu, str) or not asks_for_local(raw.gpu):
            message = f"now asks the GPU of this machine, and the job is for {gpu.name}"
            fields.refuse("gpu_free", message, hint="--gpu local, or give the size that its nvidia-smi shows")
            return
        if gpu.free_bytes is None:
            message = f"the tool does not say how much of {gpu.name} is free"
            fields.refuse("gpu_free", message, hint="give it, as in --gpu-free '19 GiB'")
            return
        raw.gpu_free_bytes = min(gpu.free_bytes, gpu.capacity_bytes)  # an idle card: what the framework sees
        if raw.gpu_free_bytes == 0:
            fields.refuse("gpu_free", f"nothing of {gpu.name} is free now", hint="leave it out for the whole card")
            return
        resolver.assume("gpu_free", format_gib(raw.gpu_free_bytes), "what is free now")
    elif raw.gpu_free_bytes is not None and raw.gpu_free_bytes > gpu.capacity_bytes:
        more = f"{format_gib(raw.gpu_free_bytes)} is more than the {format_gib(gpu.capacity_bytes)} of {gpu.name}"
        fields.refuse("gpu_free", more, hint="leave it out for the whole card; or name the card that has it")
