"""A job under modded-nanogpt: which runtimes run its models, and what its script has not got."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vramplan.errors import InputError, Problem
from vramplan.job.behaviour import LEAVE, JobBehaviour
from vramplan.job.evidence.cells import Cells
from vramplan.replay.operators.flex_attention import BLOCK, is_whole
from vramplan.values.job import ResolvedJob

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver

NAME = "modded-nanogpt"  # the runtime
FAMILY = "modded_nanogpt"
RECORDS = (
    "model: modded-nanogpt-2024-12-17 or modded-nanogpt-2024-12-10, or family: modded_nanogpt with the keys of unet"
)
"""What to write as the model: the family of a general architecture does not say what the script computes."""
CELLS = {"weight_dtype": ("fp32",), "compute_dtype": ("bf16",), "master_dtype": ("none",)}
"""Element types that mean what its script does: linear weights in fp32, all others in bf16, products in bf16."""


def check_family(values: dict[str, Any]) -> None:
    """Refuse a described model of another family: its keys do not say which tables and skips a record has."""
    if FAMILY in (values.get("family"), values.get("transformers_model_type")):
        return
    other = values.get("family") or "a model without a family"
    message = f"each record of {NAME} has an architecture of its own, which {other} is not"
    raise InputError([Problem(message, "model", RECORDS)])


LACKED = (
    *(
        "padding",
        "packing",
        "ema",
        "grad_scaler",
        "hold_outputs",
        "use_cache",
        "max_gradient_norm",
        "optimizer_in_backward",
    ),
    *("checkpoint_reentrant", "label_smoothing", "eval_batch_size", "generation_batch_size", "generation_length"),
    "offload",
)


class ModdedJob(JobBehaviour):
    """One script for one model, of each record its own."""

    refuses_micro_batches = True
    models_hint = RECORDS
    lacks = MappingProxyType(dict.fromkeys(LACKED, LEAVE))

    def described(self, resolver: Resolver, values: dict[str, Any]) -> dict[str, Any]:
        """A description of a record, by its own keys."""
        check_family(values)
        return values

    def cells_of(self, resolver: Resolver, precision: str) -> Cells | None:
        """Linear weights are fp32 under pure-bf16, whose products cast them at each use."""
        return _cells_of(resolver, precision)

    def check(self, resolver: Resolver, job: ResolvedJob) -> ResolvedJob:
        """Refuse sizes that the script cannot run."""
        _check(resolver, job)
        return job._replace(assumptions=tuple(resolver.assumptions))


BEHAVIOUR = ModdedJob()


def _cells_of(resolver: Resolver, precision: str) -> Cells:
    raw = resolver.raw
    for key, word in raw.cells.items():
        known = CELLS.get(key, ())
        if word not in known:
            has = "the element types of each weight" if not known else " or ".join(known)
            resolver.fields.refuse(key, f"{word} is not in {NAME}, which has {has}", hint=LEAVE)
    why = "of linear layers, cast at each use; all else has 16 bits, and gradients and states follow their weights"
    resolver.assume("weight_dtype", "fp32", why)
    return Cells(precision)


def _check(resolver: Resolver, job: ResolvedJob) -> None:
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
    if not job.compile:
        what = "FlexAttention is compiled all the same: only its kernel is never as large as the scores"
        resolver.assume("compile", False, what)
