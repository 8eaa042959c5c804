"""Whether autocast is around the model that a job trains."""

from __future__ import annotations

from vramplan.engines import engine_of
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import is_fsdp

HALVES = ("fsdp-bf16", "fsdp-fp16")


def is_in_autocast(job: ResolvedJob) -> bool:
    """Whether the forward pass of the model that trains runs under `torch.autocast`."""
    return job.precision.startswith("amp-") or is_cast_beside_policy(job)


def is_cast_beside_policy(job: ResolvedJob) -> bool:
    """Whether it does so with weights that FSDP1 gathers in 16 bits.

    Accelerate puts autocast around the forward method of a model before it is wrapped by FSDP1, and not for FSDP2.
    Source: accelerate 1.15.0, accelerator.py, prepare_model (native_amp) and _prepare_fsdp2.
    """
    flat = job.sharding is not None and is_fsdp(job.sharding.kind) and job.sharding.version == 1
    return flat and job.precision in HALVES and engine_of(job.runtime.engine).casts_beside_policy
