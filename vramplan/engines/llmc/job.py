"""A job under llm.c: how its devices share states, and what it has not got."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.engines.llmc.model import ROW_MULTIPLE, padded_vocabulary, parameters, weights
from vramplan.values.job import Job
from vramplan.values.model import ModelShape
from vramplan.values.parallel import DDP, ZERO1, Sharded

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver

NAME = "llm.c"  # the runtime
LEAVE = "leave it out"
NEVER = ("no_sync", "gradient_as_bucket_view", "fsdp_version", "reduce_dtype")


def sharding_under_llmc(resolver: Resolver, model: ModelShape | None) -> Sharded | None:
    """How data-parallel devices share the states: all have the same, or each has a part of the optimizer's."""
    raw = resolver.raw
    fields, kind, devices = raw.fields.fields("parallel") or raw.fields, raw.sharding, raw.data_parallel_size
    given = [key for key in NEVER if getattr(raw, key)] + list(raw.zero or ())
    for key in given:
        fields.refuse(key, f"means nothing to {NAME}, which reduces its own gradients in place", hint=LEAVE)
    if kind in {None, "none"}:
        return None
    if kind not in (DDP, ZERO1):
        fields.refuse("sharding", f"{kind} is not {NAME}'s", hint="ddp (its option -z 0), or zero1 (-z 1)")
        return None
    if raw.shards is not None and raw.shards != devices:
        fields.refuse("shards", f"{raw.shards} of {devices} devices: {NAME} shares states among all", hint=LEAVE)
    if kind == DDP and devices < 2:
        fields.refuse("sharding", f"{kind} needs several devices, not parallel.data {devices}", hint=LEAVE)
        return None
    if kind == ZERO1 and model is not None and model.family == "llmc":
        uneven = next((one.name for one in weights(model) if one.elements % devices), None)
        if uneven is not None:
            message = f"zero1 needs tensors that {devices} devices can share evenly, and {uneven} is not one"
            fields.refuse("sharding", message, hint="ddp, or another parallel.data")
    assert kind is not None
    return Sharded(kind, devices)


def refuse_parts(resolver: Resolver) -> None:
    """Refuse to train less than every weight."""
    raw = resolver.raw
    given = {"adapter": raw.adapter is not None, "frozen": bool(raw.frozen), "quantization": bool(raw.quantization)}
    for key in (key for key, has in given.items() if has):
        raw.fields.refuse(key, f"{NAME} trains every weight", hint=f"{LEAVE}; or another --runtime")


def check_llmc(resolver: Resolver, job: Job) -> Job:
    """Refuse what llm.c has not got; the job with what is told about it."""
    fields = resolver.raw.fields
    for key, (given, hint) in _not_in_llmc(job).items():
        if given:
            fields.refuse(key, f"{given} is not in {NAME}", hint=hint)
    if job.precision.startswith("pure-") and not job.fp32_states:
        message = f"{job.precision} has 16-bit states, and those of {NAME} are in fp32"
        hint = "optimizer_state_dtype: fp32 is its option -w 0; or use mixed-bf16"
        fields.refuse("precision", message, hint=hint)
    if job.precision == "fp32":
        resolver.assume("master_dtype", "fp32", "its option -w 1 copies the weights whatever their type is")
    model, padded = job.model, parameters(job.model)
    rows = padded_vocabulary(model)
    if rows != model.vocabulary_size:
        resolver.assume("model.vocabulary_size", rows, f"{NAME} pads the table to a multiple of {ROW_MULTIPLE} rows")
    declared = model.declared_parameters
    if declared is not None and padded - ROW_MULTIPLE * model.hidden_size < declared < padded:
        model = model._replace(declared_parameters=padded)  # it counts the rows without those that pad them
    return job._replace(model=model, assumptions=tuple(resolver.assumptions))


def _not_in_llmc(job: Job) -> dict[str, tuple[str, str]]:
    """What of a job llm.c has no code for, by its key, and what to do instead."""
    return {
        "gradient_dtype": ("fp32" if job.fp32_gradients else "", LEAVE),
        "pytorch_version": ("PyTorch" if job.pytorch_version else "", LEAVE),
        "cuda_module_loading": ("a choice of how modules are loaded" if job.cuda_module_loading else "", LEAVE),
        "allocator": ("" if job.allocator is None else "PyTorch's allocator", LEAVE),
        "compile": ("true" if job.compile else "", LEAVE),
        "padding": (job.padding if job.padding != "none" else "", LEAVE),
        "packing": ("true" if job.packing else "", LEAVE),
        "ema": ("true" if job.ema else "", LEAVE),
        "grad_scaler": ("true" if job.grad_scaler else "", LEAVE),
        "hold_outputs": ("true" if job.hold_outputs else "", LEAVE),
        "optimizer_in_backward": ("true" if job.optimizer_in_backward else "", LEAVE),
        "checkpoint_reentrant": ("true" if job.checkpoint_reentrant else "", LEAVE),
        "label_smoothing": (f"{job.label_smoothing:g}" if job.label_smoothing else "", LEAVE),
        "eval_batch_size": ("an evaluation of another size" if job.eval_batch_size is not None else "", LEAVE),
        "generation_batch_size": ("" if job.generation_batch_size is None else "a generation", LEAVE),
    }
