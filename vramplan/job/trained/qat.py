"""What a job means by quantization-aware training, and what it does not go with."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

from vramplan.job.behaviour import under
from vramplan.replay.models.capable import has_conv1d, no_fake_quantization, no_rounded_tables
from vramplan.replay.operators.fake_blocks import MX_BLOCK, NVFP4_BLOCK
from vramplan.replay.techniques.float8 import reaches
from vramplan.replay.techniques.trained import names_of
from vramplan.values.job import Adapter, FakeQuantization
from vramplan.values.machine import Gpu
from vramplan.values.model import ModelShape

if TYPE_CHECKING:
    from vramplan.job.evidence.cells import Cells
    from vramplan.job.resolver import Resolver

GROUP = 32  # of torchao's Int8DynamicActivationIntxWeightConfig, and of Axolotl
MULTIPLES = {"int4-tinygemm": 128, "nvfp4": 32}
"""Of the inputs: inner_k_tiles of 8 (torchao, _check_linear_int4_k); 16 bytes of two numbers (torch._scaled_mm)."""

BLACKWELL = (10, 0)  # compute capability
OUTPUTS = {"nvfp4": 16}  # of which outputs are multiples (PyTorch, aten/src/ATen/native/cuda/ScaledBlas.cpp)
ROWS = ("fp8",)  # formats whose scales are each of a whole row
BLOCKS = {"mxfp4": MX_BLOCK, "nvfp4": NVFP4_BLOCK}
"""Formats in which a layer multiplies, each with its one size of groups; inputs are rounded as weights are."""

LEAVE = "leave one of the two out"


def qat_of(
    resolver: Resolver, model: ModelShape | None, cells: Cells, adapter: Adapter | None, gpu: Gpu | None
) -> FakeQuantization | None:
    """The settings with their defaults; None where something is refused."""
    raw, fields, precision = resolver.raw, resolver.fields, cells.precision
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
    activations = _activations(resolver, weights)
    if weights in BLOCKS:
        _check_blocks(resolver, weights, cells)
    asked = FakeQuantization(weights, activations, group, bool(raw.qat_embedding))
    qat = engine.fake_quantization(resolver, model, asked)
    if qat.group_size is not None and not qat.skips:
        _check_widths(resolver, model, qat)
    if qat.weights in OUTPUTS:
        _check_outputs(resolver, model, qat.weights)
        _check_gpu(resolver, gpu, qat.weights)
    _tell(resolver, model, qat)
    return qat


def _group(resolver: Resolver, weights: str) -> int | None:
    given = resolver.raw.qat_group_size
    if weights in ROWS:
        if given is not None:
            resolver.fields.refuse("qat", f"{weights} has a scale for each row", hint="leave qat.group_size out")
        return None
    own = BLOCKS.get(weights, GROUP)
    if weights in BLOCKS and given not in (None, own):
        message = f"{weights} has a scale for {own} numbers"
        resolver.fields.refuse("qat", message, hint=f"qat.group_size: {own}, or leave it out")
    if given is None:
        resolver.assume("qat.group_size", own, "torchao's own")
    return given or own


def _activations(resolver: Resolver, weights: str) -> str | None:
    """The format of the inputs, which a layer that multiplies in 4 bits has of its weights."""
    given = resolver.raw.qat_activations
    if weights in BLOCKS and given is None:
        resolver.assume("qat.activations", weights, f"torchao multiplies {weights} by {weights}")
        return weights
    if given != weights and (weights in BLOCKS or given in BLOCKS):
        message = f"torchao has no layer of {weights} weights with {given} inputs"
        resolver.fields.refuse("qat", message, hint=f"qat.activations: {weights}" if weights in BLOCKS else LEAVE)
    return given


def _check_blocks(resolver: Resolver, weights: str, cells: Cells) -> None:
    """Where torchao's function stops.

    Source: torchao 0.18.0, prototype/qat/mx.py and nvfp4.py; prototype/mx_formats/mx_tensor.py, to_mx.
    """
    raw, fields, precision = resolver.raw, resolver.fields, cells.precision
    if raw.qat_embedding:
        message = f"torchao has no table of embeddings that rounds to {weights}"
        fields.refuse("qat", message, hint="leave qat.embedding out")
    if precision.endswith("fp16"):
        message = f"torchao rounds fp32 and bf16 to {weights}, and no fp16"
        fields.refuse("qat", message, hint="precision: pure-bf16")
    elif weights == "mxfp4" and precision.startswith("amp-") and not cells.half_weights:
        message = "torchao stops where autocast makes the product of an input in fp32 one in 16 bits"
        fields.refuse("qat", message, hint="precision: pure-bf16")


def _check_widths(resolver: Resolver, model: ModelShape, qat: FakeQuantization) -> None:
    """torchao raises an error for a layer whose rows are no multiple of the groups."""
    assert qat.group_size is not None
    names = names_of(model)
    widths = {*names.inputs, model.hidden_size, *(names.tables if qat.embedding else ())}
    multiple = MULTIPLES.get(qat.weights, 1)
    odd = sorted(width for width in widths if width % lcm(qat.group_size, multiple))
    if odd:
        row = f"the {odd[0]} numbers of a row of {model.name}"
        message = f"groups of {qat.group_size} do not divide {row}"
        hint = next((f"qat.group_size: {size}" for size in (128, 64, 32, 16, 8) if _divides(size, widths)), "qat: fp8")
        if odd[0] % qat.group_size == 0:
            message = f"{row} are no multiple of {multiple}, which products in {qat.weights} need"
            hint = "qat: fp8"
        resolver.fields.refuse("qat", message, hint=hint)


def _check_outputs(resolver: Resolver, model: ModelShape, weights: str) -> None:
    """PyTorch raises an error for a product whose columns are no multiple."""
    unit = OUTPUTS[weights]
    widths = {*names_of(model).widths, *((model.vocabulary_size,) if model.task == "lm" else ())}
    odd = sorted(width for width in widths if width % unit)
    if odd:
        message = f"a layer of {model.name} has {odd[0]} outputs, and products in {weights} need multiples of {unit}"
        resolver.fields.refuse("qat", message, hint="qat: mxfp4")


def _check_gpu(resolver: Resolver, gpu: Gpu | None, weights: str) -> None:
    """PyTorch multiplies in fp4 on Blackwell and later alone (aten/src/ATen/native/cuda/ScaledBlas.cpp)."""
    if gpu is None:
        return
    able = reaches(gpu, BLACKWELL)
    if able is None:
        resolver.assume(f"gpu.{weights}", True, f"unknown for {gpu.name}, which counts as able")
    elif not able:
        what = gpu.compute_capability or gpu.architecture
        message = f"{gpu.name} ({what}) multiplies no {weights}, which needs compute capability {BLACKWELL[0]}.0"
        resolver.fields.refuse("qat", message, hint="qat: mxfp4, which torchao emulates; or --gpu b200")


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
