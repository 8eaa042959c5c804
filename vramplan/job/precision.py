"""The precision of a job: what it gives, or the default of its runtime on its GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.behaviour import under
from vramplan.job.evidence.cells import FSDP_FP8, FSDP_HALVES, FSDP_PRECISION, Cells, compose, own_cells
from vramplan.options import words
from vramplan.values.machine import Gpu
from vramplan.values.parallel import ZERO_STAGES, is_fsdp

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.model import ModelShape

CHECKPOINT = "checkpoint"  # a runtime's default of weight_dtype: the element type in which the model was published
AUTOCAST = "autocast"  # the one in which autocast computes, whatever the checkpoint has


def precision_of(resolver: Resolver, gpu: Gpu | None) -> str:
    """The precision by its name; what is not modelled or the GPU cannot do is refused."""
    given = resolver.raw.precision
    if given is None or given == "auto":
        return _default_precision(resolver, gpu)
    if given not in words.PRECISIONS:
        resolver.fields.refuse("precision", f"{given} is not modelled (modelled: {', '.join(words.PRECISIONS)})")
        return given
    precision = words.PRECISIONS[given]
    if given in words.HALVES and _has_master_copy(resolver):
        precision = f"mixed-{given}"
        resolver.assume("precision", precision, f"what {given} means to programs that keep an fp32 copy of the weights")
    if precision == FSDP_PRECISION and resolver.raw.cells.get("compute_dtype") == "fp16":
        precision = precision.replace("bf16", "fp16")
        resolver.assume("precision", precision, "what the element types amount to")
    if gpu is not None and precision.endswith("bf16"):
        if gpu.bf16 is False:
            instead = precision.replace("bf16", "fp16")
            resolver.fields.refuse("precision", f"{gpu.name} has no bf16, which {given} needs", hint=f"use {instead}")
        elif gpu.bf16 is None:
            resolver.assume("gpu.bf16", True, f"unknown for {gpu.name}; assumed yes")
    return precision


def _default_precision(resolver: Resolver, gpu: Gpu | None) -> str:
    able = gpu is None or gpu.bf16 is not False
    why = "the GPU has bf16" if able else "the GPU has no bf16"
    own = under(resolver.runtime).default_precision(resolver, able)
    if own is not None:
        resolver.assume("precision", *own)
        return own[0]
    if gpu is not None and gpu.bf16 is None:
        why = f"whether {gpu.name} has bf16 is unknown; assumed yes"
    name = "mixed" if _has_master_copy(resolver) else "amp"
    precision = f"{name}-bf16" if able else f"{name}-fp16"
    resolver.assume("precision", precision, why)
    return precision


def _has_master_copy(resolver: Resolver) -> bool:
    """Whether training in 16 bits is over an fp32 copy of the weights, as those of Megatron and DeepSpeed have."""
    return under(resolver.runtime).keeps_master_copy or resolver.raw.sharding in ZERO_STAGES


def over_fp32(precision: str) -> bool:
    """Whether a precision has weights in fp32 by itself, which other element types may replace."""
    return precision == "fp32" or precision.startswith("amp-") or precision in FSDP_HALVES


def load_weights(resolver: Resolver, model: ModelShape | None, precision: str) -> None:
    """The element type of weights that a job does not name, where the program keeps that of the checkpoint.

    Transformers 5 does: `from_pretrained` has `dtype="auto"`. What then happens to it depends on the precision and on
    what is trained (docs/precision.md, "Weights as they are loaded").
    """
    raw, runtime = resolver.raw, resolver.runtime
    if runtime is None or model is None:
        return
    loads = runtime.defaults.get("weight_dtype")
    if loads not in (CHECKPOINT, AUTOCAST):
        if raw.from_scratch:
            resolver.warnings.append(f"from_scratch changes nothing: {runtime.name} takes no type from a checkpoint")
        return
    if raw.from_scratch and raw.adapter is not None:
        message = "an adapter is trained beside a model that was trained before"
        resolver.fields.refuse("from_scratch", message, hint="leave one of the two out")
    if raw.fields.present("weight_dtype") or not over_fp32(precision):
        if raw.from_scratch:
            resolver.warnings.append("from_scratch changes nothing: the element type of the weights is given")
        return
    half = precision.rpartition("-")[2]
    own = half if loads == AUTOCAST else model.dtype
    why = _why_fp32(resolver, model, precision, own)
    if why is None and resolver.prefer("weight_dtype"):
        why = f"the checkpoint of {model.name} has it"
        if loads == AUTOCAST:
            why = runtime.notes.get("weight_dtype") or f"{runtime.name} loads a model in it"
        elif own != half:
            why = f"the checkpoint of {model.name} has {own}; taken as loaded with dtype={half}, as autocast computes"
        raw.cells["weight_dtype"] = half
        resolver.assume("weight_dtype", half, why)
        return
    if why is None:
        why = f"not {own}, as {runtime.name} loads it: {resolver.given_up['weight_dtype']}"
    elif raw.adapter is not None and raw.quantization is None and not raw.from_scratch:
        where = "where it has 16 bits" if own is None else "where your script names it" if why == OF_TRL else None
        if where is not None:
            resolver.warnings.append(f"{why}, and fp32 is counted: --weight-dtype {half} {where}")
    resolver.assume("weight_dtype", "fp32", why)


OF_TRL = "TRL loads a model in fp32 unless a type is named"


def _why_fp32(resolver: Resolver, model: ModelShape, precision: str, own: str | None) -> str | None:
    """Why the weights are in fp32 whatever the checkpoint has; None: they may have its element type.

    Sources: accelerate 1.12.0, utils/fsdp_utils.py, fsdp2_prepare_model, and accelerator.py, prepare_model (what is
    trained under FSDP is brought to fp32); trl, trainer/utils.py, create_model_from_path (fp32 where no type is named);
    torch/amp/grad_scaler.py, _unscale_grads_ (no gradients in fp16).
    """
    raw = resolver.raw
    if raw.from_scratch:
        return "from scratch: a model made from its configuration has torch's default type"
    if precision == "fp32":
        return "precision fp32 is that of the weights too"
    if own is None:
        return f"the element type of {model.name}'s checkpoint is unknown"
    if own == "fp32":
        return f"the checkpoint of {model.name} has it"
    if raw.loss in words.PREFERENCE_LOSSES and raw.loss not in words.PAIR_LOSSES:  # whose trainers name none
        return OF_TRL
    if raw.adapter is not None:
        return None
    if is_fsdp(raw.sharding):
        return "accelerate brings what FSDP trains to fp32"
    if precision == "amp-fp16":
        return f"torch.amp.GradScaler cannot unscale gradients in 16 bits, and the checkpoint has {own}"
    half = precision.rpartition("-")[2]
    if own != half:
        return f"the checkpoint has {own}, and autocast in {half} over weights in it is not modelled"
    return None


def cells_of(resolver: Resolver, precision: str, gpu: Gpu | None) -> Cells:
    """The precision with the element types that the job has of its own."""
    runtime, engine = resolver.runtime, under(resolver.runtime)
    of_shards = engine.has_sharded_float8 or (engine.has_float8_of_fsdp and is_fsdp(resolver.raw.sharding))
    if precision == "fp8" and runtime is not None and of_shards:
        precision = FSDP_FP8
        resolver.assume("precision", precision, f"products in fp8 are of fp32 shards under {runtime.name}")
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
