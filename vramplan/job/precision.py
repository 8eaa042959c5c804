"""The precision of a job: what it gives, or the default of its runtime on its GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.cells import FSDP_FP8, FSDP_PRECISION, Cells, compose
from vramplan.job.resolver import SPLITTING_RUNTIME
from vramplan.options import words
from vramplan.values.machine import Gpu
from vramplan.values.parallel import ZERO_STAGES

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver

FP8_OF_SHARDS = ("torchtitan", "llm-foundry")  # runtimes whose fp8 means FSDP


def precision_of(resolver: Resolver, gpu: Gpu | None) -> str:
    """The precision by its name; what is not modelled or the GPU cannot do is refused."""
    given = resolver.raw.precision
    if given is None or given == "auto":
        return _default_precision(resolver, gpu)
    if given not in words.PRECISIONS:
        resolver.fields.refuse("precision", f"{given} is not modelled (modelled: {', '.join(words.PRECISIONS)})")
        return given
    precision = words.PRECISIONS[given]
    if precision == FSDP_PRECISION and resolver.raw.cells.get("compute_dtype") == "fp16":
        precision = precision.replace("bf16", "fp16")
        resolver.assume("precision", precision, "what the element types amount to")
    if gpu is not None and precision.endswith("bf16"):
        if gpu.bf16 is False:
            instead = precision.replace("bf16", "fp16")
            resolver.fields.refuse("precision", f"{gpu.name} has no bf16, which {given} needs", hint=f"use {instead}")
        elif gpu.bf16 is None:
            resolver.assume("gpu.bf16", True, f"unknown for {gpu.name}, which counts as able")
    return precision


def _default_precision(resolver: Resolver, gpu: Gpu | None) -> str:
    raw = resolver.raw
    able = gpu is None or gpu.bf16 is not False
    why = "the GPU has bf16" if able else "the GPU has no bf16"
    if raw.runtime == "torchtitan" and able and _is_fully_sharded(resolver):
        resolver.assume("precision", "fsdp-bf16", "torchtitan gathers the weights in bf16")
        return "fsdp-bf16"
    if gpu is not None and gpu.bf16 is None:
        why = f"whether {gpu.name} has bf16 is unknown, which counts as able"
    splits = raw.runtime == SPLITTING_RUNTIME or (raw.runtime is None and raw.split is not None)
    name = "mixed" if splits or raw.sharding in ZERO_STAGES else "amp"
    precision = f"{name}-bf16" if able else f"{name}-fp16"
    resolver.assume("precision", precision, why)
    return precision


def cells_of(resolver: Resolver, precision: str, gpu: Gpu | None) -> Cells:
    """The precision with the element types that the job has of its own."""
    if precision == "fp8" and resolver.raw.runtime in FP8_OF_SHARDS:
        precision = FSDP_FP8
        resolver.assume("precision", precision, f"{resolver.raw.runtime}'s products in fp8 are of fp32 shards")
    if resolver.raw.runtime == "modded-nanogpt":
        from vramplan.engines.modded_nanogpt.job import cells_of_modded  # only its jobs pay for it

        return cells_of_modded(resolver, precision)
    cells = compose(resolver.fields, resolver.raw.cells, precision, resolver.raw.optimizer, gpu)
    if cells.precision != precision:
        resolver.assume("precision", cells.precision, "what the element types amount to")
    return cells


def _is_fully_sharded(resolver: Resolver) -> bool:
    from vramplan.job.fsdp import is_fsdp  # only torchtitan's jobs pay for it

    raw = resolver.raw
    devices = raw.data_parallel_size * (1 if raw.split is None else raw.split.context)
    return devices > 1 and (raw.sharding is None or is_fsdp(raw.sharding))
