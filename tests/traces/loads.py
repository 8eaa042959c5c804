"""What a device is asked for while Transformers loads weights of few bits and PEFT wraps them: `python -m
tests.traces.loads` writes the rows of tests/engines/transformers/loaded.json again.

Runs Transformers' own loader, PEFT's own preparation and accelerate's own release of memory on tensors without data. A
checkpoint is tensors of the host, in the order of the model; a parameter of bitsandbytes' class, which would not be a
tensor without data, runs that class's own code on what stands in for it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.traces.told import telling
from vramplan.values.job import ResolvedJob

ROWS = Path(__file__).parents[1] / "engines" / "transformers" / "loaded.json"
CUDA = "cuda"
CLASSES = {"nf4": "Params4bit", "nf4-double": "Params4bit", "int8": "Int8Params"}
GIVEN_BACK = 0  # in the place of a size


def loaded(job: ResolvedJob) -> dict[str, Any]:
    """What is asked for before all else, and then the bytes that are made, and freed as negative ones, in their order.

    0 where free segments go back.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from vramplan.measure import network
    from vramplan.measure.kernels import scratch_rules
    from vramplan.measure.quantized import operators
    from vramplan.measure.stand_ins import Truth, stand_ins

    said: list[int] = []
    half = torch.bfloat16
    with torch.device("meta"):
        model = network.build(job, network.configuration(job)).to(half)
    names = {name: one.shape for name, one in model.named_parameters()}
    quantizer = _quantizer(job, model, half)
    truth = Truth()
    told = telling(said)(CUDA, scratch_rules(), stand_ins(truth), operators(truth))
    with contextlib.ExitStack() as stack:
        for name in ("bitsandbytes.functional", "torch"):
            _patched(import_module(name), said, stack)
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(told)
        checkpoint = {name: torch.empty(shape, dtype=half) for name, shape in names.items()}
        stack.enter_context(patch.object(torch.nn.Module, "to", _moved))
        room = _load(model, checkpoint, quantizer, half, stack, CLASSES[str(job.quantization)])
        del checkpoint
        wrapped = _wrap(job, model)
        events = list(said)
        del wrapped
    return {"room": room, "events": events}


def _patched(module: Any, said: list[int], stack: contextlib.ExitStack) -> None:
    if module.__name__ == "torch":
        stack.enter_context(patch.object(module.Tensor, "data_ptr", lambda _: 0))
        stack.enter_context(patch.object(module.cuda, "empty_cache", lambda: said.append(GIVEN_BACK)))
    else:
        stack.enter_context(patch.dict(module.name2qmap))


def _quantizer(job: ResolvedJob, model: Any, half: Any) -> Any:
    """That of Transformers, which has put bitsandbytes' layers in the places of its own."""
    from transformers import BitsAndBytesConfig
    from transformers.quantizers.auto import AutoHfQuantizer

    how = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": half}
    if job.quantization == "int8":
        config = BitsAndBytesConfig(load_in_8bit=True)
    else:
        config = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_use_double_quant=job.quantization == "nf4-double", **how
        )
    quantizer = AutoHfQuantizer.from_config(config, pre_quantized=False)
    quantizer._process_model_before_weight_loading(model, device_map={"": CUDA})
    return quantizer


def _load(model: Any, checkpoint: Any, quantizer: Any, half: Any, stack: contextlib.ExitStack, kind: str) -> int:
    """Bytes that are asked for first."""
    from transformers import core_model_loading, modeling_utils

    nn = import_module("bitsandbytes.nn")
    plain = getattr(nn, kind)
    order = {name: at for at, name in enumerate(checkpoint)}
    devices = modeling_utils.expand_device_map({"": CUDA}, list(model.state_dict()))
    room = modeling_utils.get_total_byte_count(model, devices, quantizer)[CUDA]
    config = modeling_utils.LoadStateDictConfig(device_map={"": CUDA}, dtype=half, hf_quantizer=quantizer)
    with contextlib.ExitStack() as inner:
        inner.enter_context(patch.object(nn, kind, lambda value, requires_grad, **of: _Standing(plain, value, of)))
        inner.enter_context(patch.object(core_model_loading, "dot_natural_key", lambda name: [order[name]]))
        info, _ = core_model_loading.convert_and_load_state_dict_in_model(model, checkpoint, config)
    if info.conversion_errors or info.missing_keys:
        raise RuntimeError(next(iter(info.conversion_errors.values()), f"{sorted(info.missing_keys)} are missing"))
    quantizer._process_model_after_weight_loading(model)
    return int(room)


class _Standing:
    """A parameter of few bits before it is quantized: `to` runs its class's code."""

    def __init__(self, kind: Any, data: Any, of: dict[str, Any]) -> None:
        self.kind, self.holder = kind, SimpleNamespace(data=data, **of)

    def to(self, device: Any) -> Any:
        import torch

        holder = self.holder
        self.kind._quantize(holder, device)
        weight = torch.nn.Parameter(holder.data, requires_grad=False)
        for name, value in vars(holder).items():
            if name not in ("data", "module"):
                setattr(weight, name, value)
        return weight


def _moved(module: Any, *where: Any, **of: Any) -> Any:
    """A module with its parameters elsewhere: new ones, as those without data cannot be given other data."""
    import torch

    for each in module.modules():
        for name, one in list(each.named_parameters(recurse=False)):
            there = one.detach().to(*where, **of)
            if there.device != one.device or there.dtype != one.dtype:
                each.register_parameter(name, torch.nn.Parameter(there, requires_grad=one.requires_grad))
    return module


def _wrap(job: ResolvedJob, model: Any) -> Any:
    import torch
    from accelerate.utils import release_memory
    from peft import prepare_model_for_kbit_training

    from vramplan.measure.adapters import adapted

    with patch.object(torch.cuda, "is_available", lambda: True):
        if not job.half_weights and not job.precision.startswith("pure-"):
            prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        made = adapted(job, model)
        release_memory()
    return made


def every() -> Iterator[tuple[dict[str, Any], ResolvedJob]]:
    """The rows, and the job of each."""
    from vramplan.job import build_job

    said = json.loads(ROWS.read_text(encoding="utf-8"))
    for row in said["rows"]:
        yield row, build_job(said["job"] | row["job"])


def main() -> None:
    """Write the rows again."""
    from tests.traces.composed import begin

    kept = begin()
    said = json.loads(ROWS.read_text(encoding="utf-8"))
    for row, (_, job) in zip(said["rows"], every(), strict=True):
        row.update(loaded(job))
    del kept
    ROWS.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
