"""Axolotl's fused LoRA in a real model, as Axolotl puts it there before and after PEFT."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from vramplan.replay.models.lora_kernels import EVERY
from vramplan.values.job import ResolvedJob

CALLBACKS = "axolotl.utils.callbacks"
REPLACED: list[tuple[Any, Any]] = []
"""Classes of attentions whose forward pass was rewritten, and what they had before."""


def fused(job: ResolvedJob, model: Any) -> Any:
    """The model with the job's functions in the place of PEFT's layers.

    Source: axolotl 0.19.0, loaders/patch_manager.py: the class of the attention is rewritten before the model is made,
    and each layer gets its functions afterwards.
    """
    if job.adapter is None or not job.adapter.kernels:
        return model
    module = _patches()
    asked = SimpleNamespace(**{f"lora_{word}_kernel": word in job.adapter.kernels for word in EVERY})
    asked.lora_embedding_kernel = asked.use_scattermoe = asked.use_sonicmoe = False
    attention = _attention_of(module, model)
    if all(one is not attention for one, _ in REPLACED):  # a copy of the model beside it has the same class
        REPLACED.append((attention, attention.forward))
    with patch.object(module, "get_attention_cls_from_config", lambda _: attention):
        module.patch_self_attn_lora(asked)
    with patch.object(module, "PeftModelForCausalLM", type(model)):
        return module.apply_lora_kernel_patches(model, asked)


def _attention_of(module: Any, model: Any) -> Any:
    """The class that Axolotl looks up for a checkpoint of this configuration."""
    found = SimpleNamespace(from_pretrained=lambda _: model.config)
    with patch.object(module, "AutoConfig", found):
        return module.get_attention_cls_from_config({"base_model": ""})


def without_callbacks() -> None:
    """Let Axolotl's modules be imported without the callbacks of its trainer, which import much else."""
    if CALLBACKS not in sys.modules:
        package = ModuleType(CALLBACKS)
        package.__path__ = [f"{path}/callbacks" for path in import_module("axolotl.utils").__path__]
        sys.modules[CALLBACKS] = package


def _patches() -> Any:
    without_callbacks()
    return import_module("axolotl.monkeypatch.lora_kernels")


@contextlib.contextmanager
def for_one_job() -> Iterator[None]:
    """Classes of Transformers get their own forward pass back afterwards."""
    try:
        yield
    finally:
        for attention, forward in REPLACED:
            attention.forward = forward
            del attention._original_forward
        REPLACED.clear()


def without_kernels(job: ResolvedJob, stack: contextlib.ExitStack, nothing: Callable[..., Any]) -> None:
    """Weights in 4 bits are given back by kernels that write into what is there."""
    if job.adapter is None or not job.adapter.kernels or job.quantization is None:
        return
    module = import_module("axolotl.kernels.quantize")
    for name in ("cdequantize_blockwise_fp32", "get_ptr", "_stream"):
        stack.enter_context(patch.object(module, name, nothing))
    kernels = dict.fromkeys(module._NF4_DEQUANT_KERNELS, nothing)
    stack.enter_context(patch.dict(module._NF4_DEQUANT_KERNELS, kernels))
