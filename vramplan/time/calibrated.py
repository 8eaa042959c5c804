"""Which jobs have published rates of their kind: their program, on their generation of GPU, at their precision."""

from __future__ import annotations

from vramplan.values.job import Job

CLASSES: frozenset[tuple[str, str]] = frozenset(
    {
        ("megatron", "ampere"),
        ("llm-foundry", "ampere"),
        ("llm-foundry", "hopper"),
        ("torchtitan", "ampere"),
        ("torchtitan", "hopper"),
        ("fms-fsdp", "ampere"),
        ("fms-fsdp", "hopper"),
    }
)
"""Programs and generations of GPUs."""


def is_calibrated(job: Job) -> bool:
    """Whether the constants were fitted to rates of jobs like this one."""
    half = job.precision.endswith(("bf16", "fp16"))
    whole = job.adapter is None and not job.frozen and not job.offload and not job.offload_activations
    return half and whole and (job.runtime.engine, job.gpu.architecture or "") in CLASSES
