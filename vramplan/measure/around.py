"""What is around a forward pass: its element type, a cast of what it returns, and where what it saves goes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from vramplan.values.job import ResolvedJob


def dtype_of(job: ResolvedJob) -> Any:
    """The 16-bit element type of the precision; None of fp32."""
    return {"fp16": torch.float16, "bf16": torch.bfloat16}.get(job.precision.rpartition("-")[2])


def saved_on_host(job: ResolvedJob) -> contextlib.AbstractContextManager[Any]:
    """What forward saves goes to pinned memory of the host, where the job says so."""
    host: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if job.offload_activations:
        host = torch.autograd.graph.save_on_cpu(pin_memory=True)
    return host


def as_it_was(model: Any) -> Any:
    """The model that FSDP1 is around, or the model: Accelerate prepares it before that."""
    return getattr(model, "_fsdp_wrapped_module", model)


def widened(inner: Callable[..., Any], around: contextlib.AbstractContextManager[Any]) -> Callable[..., Any]:
    """The forward pass as Accelerate puts it in the place of the model's own, within hooks such as those of FSDP.

    Source: accelerate 1.15, Accelerator.prepare_model and ConvertOutputsToFp32 (utils/operations.py).
    """

    def run(*given: Any, **named: Any) -> Any:
        with around:
            out = inner(*given, **named)
        return type(out)({key: _wide(value) for key, value in out.items()})

    return run


def _wide(value: Any) -> Any:
    if type(value) is tuple:
        return tuple(_wide(one) for one in value)
    return value.float() if hasattr(value, "float") else value
