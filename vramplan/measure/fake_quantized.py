"""Quantization-aware training with torchao: the fake quantizers that a job means, in a model."""

from __future__ import annotations

from typing import Any

import torch

from vramplan.engines import imported
from vramplan.measure.network import tie
from vramplan.values.job import FakeQuantization, ResolvedJob

QAT = "torchao.quantization.qat"
INTEGERS, FLOATS = f"{QAT}:IntxFakeQuantizeConfig", f"{QAT}:Float8FakeQuantizeConfig"
MSLK = {"int4-mslk": torch.bfloat16, "int4-mslk-fp8": torch.float8_e4m3fn}
"""Rounding to int4 as MSLK's kernels have it, by the element type of the inputs beside them."""

BLOCKS: dict[str, tuple[str, dict[str, Any]]] = {
    "mxfp4": ("torchao.prototype.qat:MXFakeQuantizeConfig", {"dtype": torch.float4_e2m1fn_x2}),
    "nvfp4": ("torchao.prototype.qat:NVFP4FakeQuantizeConfig", {}),
}
"""Formats in which a layer multiplies: the configuration of its inputs, and its arguments."""

SWIZZLED = {"nvfp4": {"use_swizzled_scales": True}}
"""What else that of its weights is given (torchao, _infer_fake_quantize_configs)."""

WIDTHS = {"int4": torch.int4, "int8": torch.int8}


def converted(job: ResolvedJob, model: Any) -> Any:
    """The model with torchao's layers in the places of its own, the head among them."""
    if job.qat is None:
        return model
    quantize, config = imported("torchao.quantization:quantize_"), imported(f"{QAT}:QATConfig")
    weights = _weights(job.qat)
    quantize(model, config(activation_config=_activations(job.qat), weight_config=weights))
    if job.qat.embedding:
        quantize(model, config(weight_config=weights), filter_fn=_is_table)
    tie(job, model)  # new layers on the device meta have new weights
    return model


def _is_table(module: Any, _: str) -> bool:
    return isinstance(module, torch.nn.Embedding)


def _weights(qat: FakeQuantization) -> Any:
    if qat.weights in BLOCKS:
        name, given = BLOCKS[qat.weights]
        return imported(name)(**given, **SWIZZLED.get(qat.weights, {}))
    if qat.weights == "fp8":
        return imported(FLOATS)(torch.float8_e4m3fn)
    if qat.weights in MSLK:
        config = imported(f"{QAT}.fake_quantize_config:Int4WeightFakeQuantizeConfig")
        return config(qat.group_size, MSLK[qat.weights])
    zero_points = torch.float32 if qat.zero_points == "fp32" else torch.int32
    groups = {"group_size": qat.group_size, "is_symmetric": True, "zero_point_precision": zero_points}
    return imported(INTEGERS)(WIDTHS[qat.weights], **groups)


def _activations(qat: FakeQuantization) -> Any:
    if qat.activations is None:
        return None
    if qat.activations in BLOCKS:
        name, given = BLOCKS[qat.activations]
        return imported(name)(**given)
    if qat.activations == "fp8":
        return imported(FLOATS)(torch.float8_e4m3fn)
    return imported(INTEGERS)(torch.int8, "per_token", is_symmetric=False)
