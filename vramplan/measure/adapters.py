"""The adapter of a job, put on by PEFT."""

from __future__ import annotations

import contextlib
from importlib import import_module
from typing import Any
from unittest.mock import patch

from vramplan.engines import imported
from vramplan.replay.techniques.adapters import ALL_LINEAR
from vramplan.values.job import Adapter, ResolvedJob

FP32 = "fp32"
OF_LORA = {"rank": "r", "alpha": "lora_alpha", "dropout": "lora_dropout"}
LYCORIS = {"rank": "r", "alpha": "alpha"}
CONFIGURATIONS: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "lora": ("LoraConfig", OF_LORA, {"use_dora": False}),
    "dora": ("LoraConfig", OF_LORA, {"use_dora": True}),
    "ia3": ("IA3Config", {"feedforward_targets": "feedforward_modules"}, {}),
    "oft": ("OFTConfig", {"rank": "oft_block_size"}, {}),
    "adalora": ("AdaLoraConfig", {**OF_LORA, "rank": "init_r"}, {"total_step": 1000}),
    "vera": ("VeraConfig", {"rank": "r", "dropout": "vera_dropout"}, {}),
    "loha": ("LoHaConfig", LYCORIS, {}),
    "lokr": ("LoKrConfig", {**LYCORIS, "decompose_factor": "decompose_factor"}, {}),
    "boft": ("BOFTConfig", {"rank": "boft_block_size"}, {}),
    "hra": ("HRAConfig", {"rank": "r"}, {}),
    "fourierft": ("FourierFTConfig", {"frequencies": "n_frequency"}, {}),
    "randlora": ("RandLoraConfig", {"rank": "r", "alpha": "randlora_alpha", "dropout": "randlora_dropout"}, {}),
    "ln-tuning": ("LNTuningConfig", {}, {}),
    "trainable-tokens": ("TrainableTokensConfig", {}, {}),
    "miss": ("MissConfig", {"rank": "r", "dropout": "miss_dropout"}, {}),
}
"""Of each kind the class of PEFT's configuration, what the keys of an adapter are there, and what else is given."""

HALVES = {"fp16": "float16", "bf16": "bfloat16"}


def adapted(job: ResolvedJob, model: Any) -> Any:
    """The model with the job's adapter: frozen, but for the adapter and the modules to save.

    The model is in its own dtype already: PEFT gives an adapter that of the layer beside it, or makes it fp32.
    Source: peft 0.21.2, mapping_func.py, get_peft_model; tuners/tuners_utils.py, cast_adapter_dtype.
    """
    if job.adapter is None:
        return model
    import torch

    dtype = job.adapter.dtype
    if job.adapter.virtual_tokens:
        made = imported("vramplan.measure.virtual_tokens:prompted")(job, model)
    else:
        made = _over_layers(job.adapter, model)
    _registered_once(made)
    if dtype == FP32:
        return made
    _cast(made, getattr(torch, HALVES[dtype]))  # what PEFT does, but not beside layers without storages
    return made


def _over_layers(adapter: Adapter, model: Any) -> Any:
    with contextlib.ExitStack() as stack:
        if adapter.kind == "boft":
            _without_numbers(import_module("torch"), stack)
        return import_module("peft").get_peft_model(
            model, _config(adapter), autocast_adapter_dtype=adapter.dtype == FP32
        )


def _registered_once(model: Any) -> None:
    """What trained tokens of a tied head have in common with those of the table, registered with the table alone.

    A model is moved module by module, and each weight once.
    """
    for module in model.modules():
        if getattr(module, "_tied_adapter", None):
            for name in ("trainable_tokens_delta", "trainable_tokens_original"):
                module.__dict__[name] = module._modules.pop(name)


def _without_numbers(torch: Any, stack: contextlib.ExitStack) -> None:
    """BOFT's permutations without their numbers, which it would look at one by one, and its path without an extension.

    Source: peft 0.21.2, tuners/boft/layer.py, get_fbd_cuda and BOFTLayer.perm2mat.
    """
    layer = import_module("peft.tuners.boft.layer")
    stack.enter_context(patch.object(layer, "get_fbd_cuda", lambda: None))
    if torch.get_default_device().type == "meta":
        stack.enter_context(patch.object(layer.BOFTLayer, "perm2mat", lambda _, given: torch.zeros(2 * (len(given),))))


def _cast(model: Any, dtype: Any) -> None:
    """What is trained in an element type, and what an adapter has beside it; nothing else.

    TRL casts adapters over weights of few bits alone.

    New parameters, as those without data cannot be given other data.
    Source: trl 1.16.0, trainer/dpo_trainer.py, DPOTrainer.__init__.
    """
    import torch

    for module in model.modules():
        for name, one in module.named_parameters(recurse=False):
            if (one.requires_grad or isinstance(module, torch.nn.ParameterDict)) and one.dtype is not dtype:
                cast = torch.nn.Parameter(one.detach().to(dtype), requires_grad=one.requires_grad)
                module.register_parameter(name, cast)


def _config(adapter: Adapter) -> Any:
    import peft

    name, arguments, fixed = CONFIGURATIONS[adapter.kind]
    targets = ALL_LINEAR if ALL_LINEAR in adapter.targets else list(adapter.targets)
    given: dict[str, Any] = {"target_modules": targets, "modules_to_save": list(adapter.modules_to_save) or None}
    if adapter.trainable_tokens:
        key = "token_indices" if adapter.kind == "trainable-tokens" else "trainable_token_indices"
        given[key] = list(range(adapter.trainable_tokens))
    if adapter.kind == "trainable-tokens":
        del given["target_modules"], given["modules_to_save"]
    if adapter.bias != "none":
        given["bias"] = adapter.bias if adapter.bias == "all" else f"{adapter.kind}_only"  # it looks at the end alone
    for key, argument in arguments.items():
        value = getattr(adapter, key)
        if value is not None:
            given[argument] = list(value) if isinstance(value, tuple) else value
    return getattr(peft, name)(**given, **fixed)
