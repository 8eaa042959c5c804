"""What `precision: fp8` can be computed with: only what has been compared with torchao's Float8Linear."""

from __future__ import annotations

from vramplan.catalog.fields import Fields
from vramplan.job.given.read import RawJob
from vramplan.replay.models.capable import no_float8
from vramplan.replay.techniques.float8 import SINCE, runs_float8
from vramplan.values.job import Assumption
from vramplan.values.machine import Gpu
from vramplan.values.model import ModelShape

ROWS = (
    16  # torch._scaled_mm takes inner dimensions that are multiples of it, and the gradient of a weight has rows there
)


def check_float8(
    fields: Fields, raw: RawJob, model: ModelShape | None, gpu: Gpu | None, sequence_length: int
) -> list[Assumption]:
    """Refuse what fp8 cannot be computed with; what is taken for granted is returned."""
    key = "precision"
    if model is not None:
        reason = no_float8(model.family)
        if reason is None and model.task in ("image", "contrastive"):
            reason = f"whose images are seldom a multiple of {ROWS} tokens"
        if reason is not None:
            fields.refuse(key, f"fp8 is not modelled for {model.code}, {reason}", hint="use mixed-bf16")
    checkpointing = raw.activation_checkpointing or ""
    if checkpointing.startswith("selective"):
        message = f"fp8 is not modelled with activation_checkpointing {checkpointing}"
        fields.refuse(key, message, hint="none, sqrt, full, every:K or a list of segments")
    if sequence_length % ROWS:
        message = f"{sequence_length} is no multiple of {ROWS}, which the products in fp8 need"
        fields.refuse("sequence_length", message, hint=f"use {sequence_length // ROWS * ROWS or ROWS}")
    target = raw.target_length
    if target is not None and target % ROWS:
        message = f"{target} is no multiple of {ROWS}, which the products in fp8 need"
        fields.refuse("target_length", message, hint=f"use {target // ROWS * ROWS or ROWS}")
    basis = "torchao's Float8Linear; embeddings, head, norms and attention stay in bf16"
    return [Assumption(key, raw.precision or "fp8", basis), *told_of_gpu(fields, gpu)]


def told_of_gpu(fields: Fields, gpu: Gpu | None) -> list[Assumption]:
    """What is taken for granted of the GPU; one that has no fp8 is refused."""
    if gpu is None:
        return []
    able = runs_float8(gpu)
    if able is None:
        return [Assumption("gpu.fp8", True, f"unknown for {gpu.name}, which counts as able")]
    if not able:
        what = gpu.compute_capability or gpu.architecture
        message = f"{gpu.name} ({what}) has no fp8, which needs compute capability {SINCE[0]}.{SINCE[1]}"
        fields.refuse("precision", message, hint="use mixed-bf16" if gpu.bf16 is not False else "use mixed-fp16")
    return []
