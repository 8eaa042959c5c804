"""The precision of a job: what it gives, or the default of its runtime on its GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.behaviour import under
from vramplan.job.cells import FSDP_FP8, FSDP_PRECISION, Cells, compose, own_cells
from vramplan.options import words
from vramplan.values.machine import Gpu
from vramplan.values.parallel import ZERO_STAGES

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver


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
    own = under(resolver.runtime).default_precision(resolver, able)
    if own is not None:
        resolver.assume("precision", *own)
        return own[0]
    if gpu is not None and gpu.bf16 is None:
        why = f"whether {gpu.name} has bf16 is unknown, which counts as able"
    name = "mixed" if under(resolver.runtime).keeps_master_copy or raw.sharding in ZERO_STAGES else "amp"
    precision = f"{name}-bf16" if able else f"{name}-fp16"
    resolver.assume("precision", precision, why)
    return precision


def cells_of(resolver: Resolver, precision: str, gpu: Gpu | None) -> Cells:
    """The precision with the element types that the job has of its own."""
    runtime, engine = resolver.runtime, under(resolver.runtime)
    if precision == "fp8" and runtime is not None and engine.has_sharded_float8:
        precision = FSDP_FP8
        resolver.assume("precision", precision, f"{runtime.name}'s products in fp8 are of fp32 shards")
    own = engine.cells_of(resolver, precision)
    if own is not None:
        return own
    raw = resolver.raw
    cells = compose(resolver.fields, raw.cells, precision, raw.optimizer, gpu)
    if raw.optimizer in words.STATELESS and "optimizer_state_dtype" in raw.cells:
        resolver.assume("optimizer_state_dtype", "none", f"{raw.optimizer} keeps no states")
    if cells.precision != precision:
        resolver.assume("precision", cells.precision, "what the element types amount to")
        _tell_of_override(resolver, precision, cells)
    return cells


def _tell_of_override(resolver: Resolver, precision: str, cells: Cells) -> None:
    """Warn where the job names a precision, and element types beside it that make it another one."""
    raw = resolver.raw
    if raw.precision in (None, words.AUTO) or words.PRECISIONS.get(raw.precision) != precision:
        return
    own = own_cells(precision)
    different = ", ".join(f"{key} {word}" for key, word in raw.cells.items() if own.get(key) != word)
    resolver.warnings.append(f"precision {raw.precision} beside {different} is answered as {cells.precision}")
