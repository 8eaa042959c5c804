"""A job under modded-nanogpt: which runtimes run its models, and what its script has not got."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramplan.errors import InputError, Problem
from vramplan.job.cells import Cells
from vramplan.job.codes import RECORDS
from vramplan.replay.operators.flex_attention import BLOCK, is_whole
from vramplan.values.job import Job
from vramplan.values.machine import Runtime

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver

NAME = "modded-nanogpt"  # the runtime
FAMILY = "modded_nanogpt"
LEAVE = "leave it out"
CELLS = {"weight_dtype": ("fp32",), "compute_dtype": ("bf16",), "master_dtype": ("none",)}
"""Element types that mean what its script does: linear weights in fp32, all others in bf16, products in bf16."""


def check_family(values: dict[str, Any]) -> None:
    """Refuse a described model of another family: its keys do not say which tables and skips a record has."""
    if FAMILY in (values.get("family"), values.get("transformers_model_type")):
        return
    other = values.get("family") or "a model without a family"
    message = f"each record of {NAME} has an architecture of its own, which {other} is not"
    raise InputError([Problem(message, "model", RECORDS[NAME])])


def check_model(resolver: Resolver, runtime: Runtime) -> None:
    """Refuse to replay a record in another program."""
    if runtime.model_code != NAME:
        message = f"only {NAME} has this model: {runtime.name} is not modelled with it"
        resolver.fields.refuse("model", message, hint=f"runtime: {NAME}, as an option --runtime {NAME}")


def cells_of_modded(resolver: Resolver, precision: str) -> Cells:
    """Linear weights are fp32 under pure-bf16, whose products cast them at each use."""
    raw = resolver.raw
    for key, word in raw.cells.items():
        known = CELLS.get(key, ())
        if word not in known:
            has = "the element types of each weight" if not known else " or ".join(known)
            resolver.fields.refuse(key, f"{word} is not in {NAME}, which has {has}", hint=LEAVE)
    why = "of linear layers, cast at each use; all else has 16 bits, and gradients and states follow their weights"
    resolver.assume("weight_dtype", "fp32", why)
    return Cells(precision)


def check_modded(resolver: Resolver, job: Job) -> None:
    """Refuse what the script has not got."""
    fields = resolver.raw.fields
    parallel = fields.fields("parallel") or fields
    if job.sharding is None:
        message = f"{NAME} wraps its model in DistributedDataParallel, whose buckets are modelled for several devices"
        parallel.refuse("data", message, hint="parallel: {data: 8}, as an option --gpus 8")
    if job.micro_batch_size != 1:
        fields.refuse(
            "micro_batch_size", f"{job.micro_batch_size} is not in {NAME}, whose attention takes 1", hint="use 1"
        )
    if not is_whole(job.sequence_length):
        message = f"{job.sequence_length} is no multiple of {BLOCK}, a block of its mask"
        fields.refuse("sequence_length", message, hint=f"a multiple of {BLOCK}; its own is 65536")
    elif job.sequence_length > job.model.max_positions:
        message = f"{job.sequence_length} is more than the {job.model.max_positions} positions of its rotary buffers"
        fields.refuse("sequence_length", message, hint=f"use at most {job.model.max_positions}")
    if job.optimizer_implementation != "fused":
        message = f"{job.optimizer_implementation} is not in {NAME}, whose Adam is fused"
        fields.refuse("optimizer_implementation", message, hint=LEAVE)
    for key, given in _not_in_modded(job).items():
        if given:
            fields.refuse(key, f"{given} is not in {NAME}", hint=LEAVE)
    if not job.compile:
        what = "FlexAttention is compiled all the same: only its kernel is never as large as the scores"
        resolver.assume("compile", False, what)


def _not_in_modded(job: Job) -> dict[str, str]:
    """What of a job the script has no code for, by its key."""
    return {
        "padding": job.padding if job.padding != "none" else "",
        "packing": "true" if job.packing else "",
        "ema": "true" if job.ema else "",
        "grad_scaler": "true" if job.grad_scaler else "",
        "hold_outputs": "true" if job.hold_outputs else "",
        "max_gradient_norm": "" if job.max_gradient_norm is None else f"{job.max_gradient_norm:g}",
        "optimizer_in_backward": "true" if job.optimizer_in_backward else "",
        "checkpoint_reentrant": "true" if job.checkpoint_reentrant else "",
        "label_smoothing": f"{job.label_smoothing:g}" if job.label_smoothing else "",
        "eval_batch_size": "" if job.eval_batch_size is None else "an evaluation of another size",
        "generation_batch_size": "" if job.generation_batch_size is None else "a generation",
        "offload": ", ".join([*job.offload, *(["activations"] if job.offload_activations else [])]),
    }
