"""The adapter of a job, put on by PEFT."""

from __future__ import annotations

from typing import Any

from vramplan.engines import imported
from vramplan.replay.techniques.adapters import ALL_LINEAR
from vramplan.values.job import Adapter, ResolvedJob

FP32 = "fp32"
HALVES = {"fp16": "float16", "bf16": "bfloat16"}


def adapted(job: ResolvedJob, model: Any) -> Any:
    """The model with the job's adapter: frozen, but for the adapter and the modules to save.

    The model is in its own dtype already: PEFT gives an adapter that of the layer beside it, or makes it fp32.
    Source: peft 0.21.2, mapping_func.py, get_peft_model; tuners/tuners_utils.py, cast_adapter_dtype.
    """
    if job.adapter is None:
        return model
    import peft
    import torch

    dtype = job.adapter.dtype
    if job.adapter.virtual_tokens:
        made = imported("vramplan.measure.virtual_tokens:prompted")(job, model)
    else:
        made = peft.get_peft_model(model, _config(job.adapter), autocast_adapter_dtype=dtype == FP32)
    if dtype == FP32:
        return made
    _cast(made, getattr(torch, HALVES[dtype]))  # what PEFT does, but not beside layers without storages
    return made


def _cast(model: Any, dtype: Any) -> None:
    """What is trained in an element type, and nothing else: TRL casts adapters over weights of few bits alone.

    New parameters, as those without data cannot be given other data.
    Source: trl 1.16.0, trainer/dpo_trainer.py, DPOTrainer.__init__.
    """
    import torch

    for module in model.modules():
        for name, one in module.named_parameters(recurse=False):
            if one.requires_grad and one.dtype is not dtype:
                module.register_parameter(name, torch.nn.Parameter(one.detach().to(dtype)))


def _config(adapter: Adapter) -> Any:
    import peft

    targets = ALL_LINEAR if ALL_LINEAR in adapter.targets else list(adapter.targets)
    given: dict[str, Any] = {"target_modules": targets, "modules_to_save": list(adapter.modules_to_save) or None}
    if adapter.kind == "ia3":
        return peft.IA3Config(**given, feedforward_modules=list(adapter.feedforward_targets))
    if adapter.kind == "oft":
        return peft.OFTConfig(**given, oft_block_size=adapter.rank)
    if adapter.alpha is not None:
        given["lora_alpha"] = adapter.alpha
    return peft.LoraConfig(**given, r=adapter.rank, lora_dropout=adapter.dropout, use_dora=adapter.kind == "dora")
