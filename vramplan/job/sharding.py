"""How a job's data-parallel devices share the states of its model: defaults, and what does not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job import vocabulary as words
from vramplan.job.cells import FSDP_PRECISION
from vramplan.models import shards_by_blocks
from vramplan.spec import DDP, Job, Sharded

if TYPE_CHECKING:
    from vramplan.job.resolve import Resolver

ELEMENTWISE = ("adamw", "adam", "sgd", "sgd-momentum", "rmsprop")  # each element of a shard is stepped on its own


def sharding_of(resolver: Resolver) -> Sharded | None:
    """What the keys of `parallel` say; None: nothing is shared, and no communication is counted."""
    raw = resolver.raw
    fields, devices, kind = raw.fields.fields("parallel") or raw.fields, raw.data_parallel_size, raw.sharding
    if kind is None and devices > 1:
        kind = DDP
        resolver.assume("parallel.sharding", kind, f"{devices} data-parallel devices: DistributedDataParallel")
    if kind in {None, "none"}:
        _only(resolver, "no_sync", "fsdp")
        _only(resolver, "gradient_as_bucket_view", DDP)
        if raw.precision == FSDP_PRECISION:
            hint = "parallel: {data: 8, sharding: fsdp}, as options --gpus 8 --sharding fsdp"
            raw.fields.refuse("precision", f"{FSDP_PRECISION} shards the weights over several devices", hint=hint)
        return None
    if kind not in words.MODELLED_SHARDINGS:
        return None  # which was refused
    assert kind is not None
    if devices < 2:
        message = f"{kind} needs several devices, not parallel.data {devices}"
        fields.refuse("sharding", message, hint="--gpus 8, or leave it out")
        return None
    if raw.shards is not None and raw.shards != devices:
        message = f"{raw.shards} of {devices} devices: shards over a part of them are not modelled"
        fields.refuse("shards", message, hint="leave it out")
    if kind == DDP:
        _only(resolver, "no_sync", "fsdp")
        if raw.precision == FSDP_PRECISION:
            raw.fields.refuse("precision", f"{FSDP_PRECISION} is FSDP's, not {kind}'s", hint="amp-bf16")
        return Sharded(kind, devices, bucket_views=bool(raw.gradient_as_bucket_view))
    _only(resolver, "gradient_as_bucket_view", DDP)
    no_sync = raw.no_sync
    if no_sync is None:
        no_sync = raw.runtime in {None, "transformers"}
        why = "Trainer accumulates under no_sync" if no_sync else "a plain loop sums the gradients of each micro-step"
        resolver.assume("parallel.no_sync", no_sync, why)
    return Sharded(kind, devices, no_sync=no_sync)


def _only(resolver: Resolver, key: str, kind: str) -> None:
    """Refuse a key that means something with another way to share alone."""
    if getattr(resolver.raw, key):
        fields = resolver.raw.fields.fields("parallel") or resolver.raw.fields
        fields.refuse(key, f"true belongs to parallel.sharding {kind}", hint="leave it out")


def check_sharding(resolver: Resolver, job: Job) -> None:
    """Refuse what was never traced with shards, each where it was given."""
    fields, sharding = resolver.raw.fields, job.sharding
    assert sharding is not None
    kind = sharding.kind
    if kind == DDP:
        if job.optimizer_in_backward:
            message = f"true contradicts {kind}, which sums gradients in buckets before any is stepped"
            fields.refuse("optimizer_in_backward", message, hint="leave it out, or one device")
        return
    model = job.model
    parallel = fields.fields("parallel") or fields
    if not shards_by_blocks(model.family):
        parallel.refuse("sharding", f"{kind} is not modelled for {model.family}", hint="use ddp")
    precisions = [FSDP_PRECISION, "fp32", "amp-*", "pure-*"]
    if job.precision.startswith("mixed-") or job.precision == "fp8":
        message = f"{job.precision} is not modelled with {kind}"
        fields.refuse("precision", message, hint="use " + ", ".join(precisions))
    if job.optimizer not in ELEMENTWISE:
        message = f"{job.optimizer} is not modelled with {kind} (modelled: {', '.join(ELEMENTWISE)})"
        fields.refuse("optimizer", message, hint="use adamw")
    strategy = job.activation_checkpointing or ""
    if strategy.startswith("selective") or strategy == words.OPTIMAL:
        message = f"{strategy} is not modelled with {kind}"
        fields.refuse("activation_checkpointing", message, hint="use none, sqrt, full or every:K")
    for key, given in _techniques(job).items():
        if given:
            message = f"{given} is not modelled with parallel.sharding {kind}"
            fields.refuse(key, message, hint="leave one of the two out")


def _techniques(job: Job) -> dict[str, str]:
    """What was not traced with shards, by its key, and what each is called; empty where the job has it not."""
    return {
        "adapter": "" if job.adapter is None else job.adapter.kind,
        "frozen": ", ".join(job.frozen),
        "optimizer_in_backward": "true" if job.optimizer_in_backward else "",
        "max_gradient_norm": "clipping" if job.max_gradient_norm is not None else "",
        "grad_scaler": "true" if job.grad_scaler else "",
        "ema": "true" if job.ema else "",
        "compile": "true" if job.compile else "",
        "loss": "" if job.loss in ("standard", "fp32-logits") else job.loss,
        "label_smoothing": f"{job.label_smoothing:g}" if job.label_smoothing else "",
        "padding": job.padding if job.padding != "none" else "",
        "offload": "activations" if job.offload_activations else "",
        "checkpoint_reentrant": "true" if job.checkpoint_reentrant else "",
        "weight_dtype": "half weights under autocast" if job.half_weights else "",
        "eval_batch_size": "" if job.eval_batch_size is None else "an evaluation",
        "generation_batch_size": "" if job.generation_batch_size is None else "a generation",
    }
