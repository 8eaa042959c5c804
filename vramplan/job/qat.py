"""What a job means by quantization-aware training, and what it does not go with."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

from vramplan.job.behaviour import under
from vramplan.replay.models.capable import has_conv1d, no_fake_quantization, no_rounded_tables
from vramplan.replay.techniques.trained import names_of
from vramplan.values.job import Adapter, FakeQuantization
from vramplan.values.model import ModelShape

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver

GROUP = 32  # of torchao's Int8DynamicActivationIntxWeightConfig, and of Axolotl
MULTIPLES = {"int4-tinygemm": 128}  # of inputs: inner_k_tiles of 8 (torchao, _check_linear_int4_k)
ROWS = ("fp8",)  # formats whose scales are each of a whole row
LEAVE = "leave one of the two out"


def qat_of(
    resolver: Resolver, model: ModelShape | None, precision: str, adapter: Adapter | None
) -> FakeQuantization | None:
    """The settings with their defaults; None where something is refused."""
    raw, fields = resolver.raw, resolver.fields
    weights = raw.qat_weights
    if weights is None or model is None:
        return None
    if raw.quantization is not None:
        message = f"qat rounds the weights of linear layers, which {raw.quantization} has stored in few bits already"
        fields.refuse("qat", message, hint=LEAVE)
    if precision.endswith("fp8"):
        fields.refuse("qat", f"{precision} and qat each replace the linear layers", hint=LEAVE)
    if adapter is not None and adapter.kernels:
        message = f"Axolotl's functions of {', '.join(adapter.kernels)} multiply weights that are not rounded"
        fields.refuse("qat", message, hint="leave adapter.kernels out")
    engine = under(resolver.runtime)
    if model.engine is not None and not engine.rounds_own_code:
        message = f"no code of {model.code} is known that rounds the weights of its layers in forward"
        fields.refuse("qat", message, hint="leave it out; or another --runtime")
    reason = no_fake_quantization(model.family)
    if reason is not None:
        message = f"torchao's layers cannot stand for those of {model.code}, {reason}"
        fields.refuse("qat", message, hint="leave it out")
    reason = no_rounded_tables(model.family)
    if raw.qat_embedding and reason is not None:
        message = f"torchao's tables cannot stand for those of {model.code}, {reason}"
        fields.refuse("qat", message, hint="leave qat.embedding out")
    group = _group(resolver, weights)
    asked = FakeQuantization(weights, raw.qat_activations, group, bool(raw.qat_embedding))
    qat = engine.fake_quantization(resolver, model, asked)
    if qat.group_size is not None and not qat.skips:
        _check_widths(resolver, model, qat)
    _tell(resolver, model, qat)
    return qat


def _group(resolver: Resolver, weights: str) -> int | None:
    given = resolver.raw.qat_group_size
    if weights in ROWS:
        if given is not None:
            resolver.fields.refuse("qat", f"{weights} has a scale for each row", hint="leave qat.group_size out")
        return None
    if given is None:
        resolver.assume("qat.group_size", GROUP, "torchao's own")
    return given or GROUP


def _check_widths(resolver: Resolver, model: ModelShape, qat: FakeQuantization) -> None:
    """torchao raises an error for a layer whose rows are no multiple of the groups."""
    assert qat.group_size is not None
    names = names_of(model)
    widths = {*names.inputs, model.hidden_size, *(names.tables if qat.embedding else ())}
    unit = lcm(qat.group_size, MULTIPLES.get(qat.weights, 1))
    odd = sorted(width for width in widths if width % unit)
    if odd:
        message = f"groups of {qat.group_size} do not divide the {odd[0]} numbers of a row of {model.name}"
        hint = next((f"qat.group_size: {size}" for size in (128, 64, 32, 16, 8) if _divides(size, widths)), "qat: fp8")
        resolver.fields.refuse("qat", message, hint=hint)


def _divides(size: int, widths: set[int]) -> bool:
    return all(width % size == 0 for width in widths)


def _tell(resolver: Resolver, model: ModelShape, qat: FakeQuantization) -> None:
    """What is rounded and what is not."""
    what = "those with an adapter" if qat.adapted_only else "the head among them"
    basis = f"torchao's FakeQuantizedLinear in the place of linear layers, {what}"
    if has_conv1d(model.family):
        basis = f"{basis}; Conv1D is none of them"
    if model.experts is not None:
        basis = f"{basis}; stacked weights of experts are none"
    resolver.assume("qat", qat.weights, basis)
