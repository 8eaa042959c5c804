"""Quantization-aware training with torchao: the fake quantizers that a job means, in a model."""

from __future__ import annotations

from typing import Any

from vramplan.values.job import FakeQuantization, ResolvedJob


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
    from torchao.quantization.qat import IntxFakeQuantizeConfig

    of_a_row: dict[str, Any] = {"granularity": "per_channel"}
    return IntxFakeQuantizeConfig(
        {"int4": torch.int4, "int8": torch.int8}[qat.weights],
        **(of_a_row if qat.group_size is None else {"group_size": qat.group_size}),
        is_symmetric=True,
        zero_point_precision=torch.float32 if qat.zero_points == "fp32" else torch.int32,
    )


def _activations(qat: FakeQuantization) -> Any:
    import torch
    from torchao.quantization.qat import IntxFakeQuantizeConfig

    if qat.activations is None:
        return None
    return IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
