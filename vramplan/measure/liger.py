"""Liger's kernels in the modules of a real model, as the Trainer of Transformers has them put there."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib import import_module
from inspect import signature
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from vramplan.replay.models.liger import GLU, NORM, PATCHES, ROPE
from vramplan.replay.operators.liger import MULTIPROCESSORS
from vramplan.values.job import ResolvedJob

KERNELS = {
    "rms_norm": (
        *("_rms_norm_forward_kernel", "_rms_norm_backward_kernel"),
        *("_block_rms_norm_forward_kernel", "_block_rms_norm_backward_kernel"),
    ),
    "swiglu": ("_swiglu_forward_kernel", "_swiglu_backward_kernel"),
    "geglu": ("_geglu_tanh_forward_kernel", "_geglu_tanh_backward_kernel"),
    "layer_norm": ("_layer_norm_forward_kernel", "_layer_norm_backward_kernel"),
    "rope": ("_triton_rope",),
}
"""Triton's, by the file of liger_kernel/ops: each writes into its arguments."""

OUTPUTS = (
    "LigerQwen3VLCausalLMOutputWithPast",
    "LigerQwen2VLCausalLMOutputWithPast",
    "LigerQwen2_5_VLCausalLMOutputWithPast",
)
MODULES = "transformers.models."
BEFORE: dict[Any, dict[str, Any]] = {}
"""What the modules of models had before something in them was replaced."""


def replaced(job: ResolvedJob, model: Any) -> Any:
    """The model with the job's kernels in its modules."""
    if not job.liger_kernels:
        return model
    for name, module in list(sys.modules.items()):
        if name.startswith(MODULES) and module not in BEFORE:
            BEFORE[module] = dict(vars(module))
    patches = import_module("liger_kernel.transformers.monkey_patch").MODEL_TYPE_TO_APPLY_LIGER_FN
    _name_outputs()
    asked, kind = job.liger_kernels, job.model.transformers_model_type
    gated = "swiglu" if PATCHES[kind].activation == "silu" else "geglu"
    words = {"rope": ROPE in asked, "rms_norm": NORM in asked, gated: GLU in asked}
    if "layer_norm" in signature(patches[kind]).parameters:
        words["layer_norm"] = NORM in asked
    patches[kind](**words, fused_linear_cross_entropy=False, model=model)
    return model


def _name_outputs() -> None:
    """The classes of outputs that liger-kernel 0.8.5 asks Transformers for, and that 5.23 has under another name.

    They are those of its loss, which is not put there; without them it stops.
    """
    outputs = import_module("liger_kernel.transformers.model.output_classes")
    for name in OUTPUTS:
        if not hasattr(outputs, name):
            setattr(outputs, name, outputs.LigerCausalLMOutputWithPast)


@contextlib.contextmanager
def for_one_job() -> Iterator[None]:
    """What is replaced in the modules of Transformers is put back afterwards."""
    try:
        yield
    finally:
        for module, known in BEFORE.items():
            for key, value in known.items():
                if getattr(module, key, value) is not value:
                    setattr(module, key, value)
        BEFORE.clear()


def without_kernels(job: ResolvedJob, stack: contextlib.ExitStack, kernel: Any) -> None:
    """Triton's kernels are not run, and the GPU has as many multiprocessors as are counted."""
    if not job.liger_kernels:
        return

    for file, names in KERNELS.items():
        import_module(f"liger_kernel.ops.{file}")
        module = sys.modules[f"liger_kernel.ops.{file}"]
        for name in names:
            stack.enter_context(patch.object(module, name, kernel))
    device = SimpleNamespace(multi_processor_count=MULTIPROCESSORS)
    stack.enter_context(patch.object(torch.cuda, "get_device_properties", lambda *_: device))
    stack.enter_context(patch.object(torch.cuda, "device", contextlib.nullcontext))
