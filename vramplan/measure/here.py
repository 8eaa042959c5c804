"""The GPU and the libraries that a measured or traced job runs with."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any

import torch
import transformers

from vramplan.errors import UsageError
from vramplan.measure import steps
from vramplan.measure.allocator import said
from vramplan.measure.network import HEADS
from vramplan.values.job import ResolvedJob

on_gpu, without_data = steps.on_gpu, steps.without_data


def get_ready() -> None:
    """Import what most jobs need: the classes of models are imported when they are named."""
    for name in HEADS.values():
        assert hasattr(transformers, f"AutoModelFor{name}")


def gpu(job: ResolvedJob) -> dict[str, Any]:
    """The GPU at hand."""
    if not torch.cuda.is_available():
        raise UsageError("PyTorch finds no GPU", key="measure", hint="--trace needs none")
    seen = torch.cuda.get_device_properties(0)
    capability = f"{seen.major}.{seen.minor}"
    if job.gpu.compute_capability not in (None, capability):
        asked = f"{job.gpu.name} has compute capability {job.gpu.compute_capability}"
        said = f"{asked}, and the GPU at hand ({seen.name}) has {capability}"
        raise UsageError(said, key="gpu", hint="local, or leave it out")
    return {
        "gpu": seen.name,
        "compute_capability": capability,
        "total_bytes": seen.total_memory,
        "cuda": torch.version.cuda or torch.version.hip,
    }


def environment(job: ResolvedJob) -> dict[str, Any]:
    """What it runs with."""
    settings = said(os.environ)
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": None if job.adapter is None else version("peft"),
        "platform": platform.platform(terse=True),
        "allocator_settings": None if settings is None else settings[1],
    }
