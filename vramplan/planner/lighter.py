"""Remedies that are another training: an adapter beside a frozen model, and its weights in few bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramplan.planner.checkpoints import OPTIMAL
from vramplan.replay.techniques.adapters import ALL_LINEAR, CLASSIFIERS
from vramplan.replay.techniques.combinations import NO_ALL_LINEAR, loads_fp32
from vramplan.replay.techniques.evidence import adaptable, quantizable, untraced
from vramplan.values.job import Adapter, Job, trains_all

RANK = 16
QUANTIZATION = "nf4"


def lighter_training(base: Job) -> Iterator[tuple[dict[str, Any], str, Job]]:
    """Single changes that train something else, each with its cost and the job that it makes; only what is modelled."""
    for change, cost, job in _lighter(base):
        if not untraced(job):
            yield change, cost, job


def _lighter(base: Job) -> Iterator[tuple[dict[str, Any], str, Job]]:
    if base.adapter is not None and base.precision.startswith("amp-") and not base.half_weights:
        half = base.precision.rpartition("-")[2]
        cost = "the frozen weights in 16 bits, autocast over them"
        yield {"weight_dtype": half}, cost, base._replace(half_weights=True)
    cls, model_type = base.model.task == "cls", base.model.transformers_model_type
    mixed = base.precision.startswith("mixed-")
    if trains_all(base):
        if base.activation_checkpointing == OPTIMAL:
            return  # it is not modelled with an adapter
        if model_type not in adaptable() or model_type in NO_ALL_LINEAR:
            return
        dtype = base.precision.rpartition("-")[2] if mixed or base.precision.startswith("pure-") else "fp32"
        saved = CLASSIFIERS if cls else ()
        adapter = Adapter("lora", RANK, (ALL_LINEAR,), modules_to_save=saved, dtype=dtype)
        change: dict[str, Any] = {"adapter": {"kind": "lora", "rank": RANK, "targets": [ALL_LINEAR]}}
        cost = "another training: small matrices beside a frozen model"
        amp = base.precision.startswith("amp-")
        if amp:
            change["weight_dtype"] = base.precision.rpartition("-")[2]
            cost += " in 16 bits"
        reference = _with_its_own_reference(base, change)
        yield change, cost, base._replace(adapter=adapter, half_weights=amp, dpo_reference=reference)
    elif base.adapter is not None and base.adapter.kind == "lora" and base.quantization is None:
        if cls or mixed or base.ema or base.adapter.modules_to_save or model_type not in quantizable():
            return
        if loads_fp32(model_type, base.precision, half_weights=base.half_weights):
            return
        cost = "the frozen weights in 4 bits: other results, and slower steps"
        adapter = base.adapter
        if base.loss == "dpo" and any(one.key == "adapter.dtype" for one in base.assumptions):
            if base.precision.endswith("fp16"):
                return  # TRL makes the adapter bf16 then
            adapter = adapter._replace(dtype="bf16")
        change = {"quantization": QUANTIZATION}
        reference = _with_its_own_reference(base, change)
        release = base.runtime.defaults.get("bitsandbytes")
        four_bits = base._replace(quantization=QUANTIZATION, bitsandbytes=release)
        yield change, cost, four_bits._replace(adapter=adapter, dpo_reference=reference)


def _with_its_own_reference(base: Job, change: dict[str, Any]) -> str | None:
    """The reference of preference training: in place of a second model the one that trains, without its adapter."""
    if base.dpo_reference != "model":
        return base.dpo_reference
    change["dpo_reference"] = "adapter-off"
    return "adapter-off"
