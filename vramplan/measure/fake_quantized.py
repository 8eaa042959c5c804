"""Quantization-aware training with torchao: the fake quantizers that a job means, in a model."""

from __future__ import annotations

from typing import Any

from vramplan.values.job import FakeQuantization, ResolvedJob

MSLK = {"int4-mslk": "bfloat16", "int4-mslk-fp8": "float8_e4m3fn"}
"""Rounding to int4 as MSLK's kernels have it, by the element type of the inputs beside them."""


def converted(job: ResolvedJob, model: Any) -> Any:
    """The model with torchao's layers in the places of its own, the head among them."""
    if job.qat is None:
        return model
    import torch
    from torchao.quantization import quantize_
    from torchao.quantization.qat import QATConfig

    weights = _weights(job.qat)
    quantize_(model, QATConfig(activation_config=_activations(job.qat), weight_config=weights))
    if job.qat.embedding:
        tables = QATConfig(weight_config=weights)
        quantize_(model, tables, filter_fn=lambda module, _: isinstance(module, torch.nn.Embedding))
    return model


def _weights(qat: FakeQuantization) -> Any:
    import torch
    from torchao.quantization.qat import Float8FakeQuantizeConfig, IntxFakeQuantizeConfig
    from torchao.quantization.qat.fake_quantize_config import Int4WeightFakeQuantizeConfig

    if qat.weights == "fp8":
        return Float8FakeQuantizeConfig(torch.float8_e4m3fn)
    if qat.weights in MSLK:
        return Int4WeightFakeQuantizeConfig(qat.group_size, getattr(torch, MSLK[qat.weights]))
    of_a_row: dict[str, Any] = {"granularity": "per_channel"}
    return IntxFakeQuantizeConfig(
        {"int4": torch.int4, "int8": torch.int8}[qat.weights],
        **(of_a_row if qat.group_size is None else {"group_size": qat.group_size}),
        is_symmetric=True,
        zero_point_precision=torch.float32 if qat.zero_points == "fp32" else torch.int32,
    )


def _activations(qat: FakeQuantization) -> Any:
    import torch
    from torchao.quantization.qat import Float8FakeQuantizeConfig, IntxFakeQuantizeConfig

    if qat.activations is None:
        return None
    if qat.activations == "fp8":
        return Float8FakeQuantizeConfig(torch.float8_e4m3fn)
    return IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
