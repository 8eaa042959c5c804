"""How a job's data-parallel devices share the states of its model: defaults, and what does not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.behaviour import sharing_in, under
from vramplan.job.devices.fsdp import fsdp_of, refuse_fsdp_keys
from vramplan.job.evidence.cells import FSDP_HALVES, FSDP_PRECISION
from vramplan.options import words
from vramplan.replay.sharding.reasons import reason_of
from vramplan.replay.sharding.traced import SHARDED_BITS, composed_with_shards, refused_with_shards, stepped_under
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import DDP, DISTRIBUTED_OPTIMIZER, FSDP, FSDP_GRAD_OP, ZERO_STAGES, Sharded, is_fsdp

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver

ALONE = (FSDP, FSDP_GRAD_OP)  # what a single device wraps too

HINTS = {
    "precision": f"use {FSDP_PRECISION}, fp32, amp-*, pure-*",
    "optimizer": "use adamw",
    "optimizer_implementation": "use for-loop",
    "activation_checkpointing": "use none, sqrt, full, every:K, selective or selective-op",
    "quantization": "use nf4 or nf4-double",
}
"""What to do instead, by the key that is refused."""

STAGE_3_HINTS = {
    "adapter": "use zero2, or lora",
    "frozen": "use zero2",
    "quantization": "use nf4 or nf4-double, or zero2",
}
"""The same where it is refused under stage 3 of ZeRO."""


def sharding_of(resolver: Resolver) -> Sharded | None:
    """What the keys of `parallel` say; None: nothing is shared, and no communication is counted."""
    raw = resolver.raw
    engine = under(resolver.runtime)
    fields, kind = raw.fields.fields("parallel") or raw.fields, raw.sharding
    if engine.shares_by_itself:
        shared = engine.sharding_of(resolver, resolver.model_shape)
        if raw.shards is not None and (shared is None or shared.kind == DDP) and not resolver.is_refused:
            _refuse_shards(resolver, DDP if shared else None, raw.data_parallel_size)
        return shared
    devices = engine.sharing_devices(resolver)
    if (raw.zero or raw.deepspeed_version) and kind not in ZERO_STAGES:
        sharing_in(ZERO_STAGES[0]).refuse_keys(resolver)
    if kind is None and (devices > 1 or engine.way_of_replicas is not None):
        kind, why = engine.default_sharding(resolver)
        several = f"{devices} data-parallel devices: " if devices > 1 else ""
        resolver.assume("parallel.sharding", kind, f"{several}{why}")
    if not is_fsdp(kind):
        refuse_fsdp_keys(raw, fields)
        _refuse_shards(resolver, kind, devices)
    if kind in {None, "none"}:
        _only(resolver, "no_sync", "fsdp")
        _only(resolver, "gradient_as_bucket_view", DDP)
        if raw.precision in FSDP_HALVES:
            hint = "parallel: {data: 8, sharding: fsdp}, as options --gpus 8 --sharding fsdp"
            raw.fields.refuse("precision", f"{raw.precision} shards the weights over several devices", hint=hint)
        return None
    if kind == DISTRIBUTED_OPTIMIZER:
        message = f"{kind} is not modelled under {'the runtime' if resolver.runtime is None else resolver.runtime.name}"
        fields.refuse("sharding", message, hint="--runtime megatron")
        return None
    if kind is not None and words.pattern_word(kind) not in words.SHARDINGS:
        return None  # which was refused
    assert kind is not None
    if devices < 2 and not _runs_alone(resolver, kind):
        if all(one.key != "gpu" for one in fields.sink.refusals):  # whose name may have counted them
            message = f"{kind} needs several devices, not parallel.data {devices}"
            fields.refuse("sharding", message, hint="--gpus 8, or leave it out")
        return None
    if kind in ZERO_STAGES:
        _only(resolver, "no_sync", "fsdp")
        _only(resolver, "gradient_as_bucket_view", DDP)
        return sharing_in(kind).sharded(resolver, kind, devices)
    if kind == DDP:
        _only(resolver, "no_sync", "fsdp")
        if raw.precision in FSDP_HALVES:
            hint = raw.precision.replace("fsdp", "amp")
            raw.fields.refuse("precision", f"{raw.precision} is FSDP's, not {kind}'s", hint=hint)
        return Sharded(kind, devices, bucket_views=bool(raw.gradient_as_bucket_view), way=engine.way_of_replicas)
    _only(resolver, "gradient_as_bucket_view", DDP)
    return fsdp_of(resolver, fields, kind, devices)


def _runs_alone(resolver: Resolver, kind: str) -> bool:
    """Whether one device runs it: ZeRO's flat buffers, and FSDP's units where a job says that there is one device.

    PyTorch's FSDP1 then gathers nothing (NO_SHARD), and its policy still casts; FSDP2 copies what it has.
    Source: torch/distributed/fsdp/_init_utils.py, _init_core_state; _fully_shard/_fsdp_param_group.py.
    """
    engine, fields = under(resolver.runtime), resolver.raw.fields.fields("parallel")
    if kind == DDP:
        return engine.way_of_replicas is not None
    wraps = kind in ALONE and engine.wraps_one_device and fields is not None and fields.given("data")
    return kind in ZERO_STAGES or wraps


def _refuse_shards(resolver: Resolver, kind: str | None, devices: int) -> None:
    """Refuse a number of shards where nothing is sharded, or where all devices share the states.

    DeepSpeed's partitions go over the whole data-parallel group. Source: deepspeed/runtime/engine.py,
    _configure_zero_optimizer, dp_process_group. ZeRO++ and MiCS, which have groups of their own, are not modelled.
    """
    raw = resolver.raw
    if raw.shards is None or devices % raw.shards or (kind in ZERO_STAGES and raw.shards == devices):
        return  # nothing is said, all of them are meant, or it was refused where it was read
    fields = raw.fields.fields("parallel") or raw.fields
    if kind in ZERO_STAGES:
        message = f"{raw.shards} of {devices} devices: {kind} shares the states among all of them"
        fields.refuse("shards", message, hint=f"leave it out, or --sharding hsdp:{raw.shards}")
        return
    whole = f"parallel.sharding {kind}, which shares no states" if devices > 1 and kind else "one device"
    fields.refuse("shards", f"{raw.shards} has no meaning with {whole}", hint="leave it out, or --sharding fsdp")


def _only(resolver: Resolver, key: str, kind: str) -> None:
    """Refuse a key that means something with another way to share alone."""
    if getattr(resolver.raw, key):
        fields = resolver.raw.fields.fields("parallel") or resolver.raw.fields
        fields.refuse(key, f"true belongs to parallel.sharding {kind}", hint="leave it out")


def check_sharding(resolver: Resolver, job: ResolvedJob) -> tuple[str, ...]:
    """Refuse what does not go with shards, each where it was given. What goes but was never traced is returned."""
    fields, sharding = resolver.raw.fields, job.sharding
    assert sharding is not None
    kind = sharding.kind
    parallel = fields.fields("parallel") or fields
    if kind == DDP:
        if job.optimizer_in_backward:
            message = f"true contradicts {kind}, which sums gradients in buckets before any is stepped"
            fields.refuse("optimizer_in_backward", message, hint="leave it out, or one device")
        return ()
    if sharding.zero is not None:
        sharing_in(kind).check(parallel, job)
    for key, given in refused_with_shards(job).items():
        if key == "sharding":
            parallel.refuse(key, f"{kind} takes no scalar weight, and {given} has one (logit_scale)", hint="use ddp")
            continue
        if key == "precision" and kind in ZERO_STAGES:
            half = "fp16" if given.endswith("fp16") else "bf16"
            fields.refuse(key, f"{given} is not modelled with parallel.sharding {kind}", hint=f"use mixed-{half}")
            continue
        if kind == "zero3" and key in STAGE_3_HINTS:
            message = f"{given} is not modelled with parallel.sharding {kind}"
            fields.refuse(key, message, hint=STAGE_3_HINTS[key])
            continue
        version = " and fsdp_version 1" if sharding.version == 1 else ""
        why = reason_of(job, key) if sharding.zero is None else ""
        message = f"{given} is not modelled with parallel.sharding {kind}{version}"
        if why:
            message = f"{given} cannot run with parallel.sharding {kind}{version}: {why}"
        elif key == "optimizer":
            message += f" (modelled: {', '.join(stepped_under(sharding))})"
        hint = HINTS.get(key, "leave one of the two out")
        if sharding.version == 1:
            hint = _hint_of_flat_parameters(key, job) or hint
        fields.refuse(key, message, hint=hint)
    version = " with fsdp_version 1" if sharding.version == 1 else ""
    return tuple(
        f"{key} {given} was never traced together with parallel.sharding {kind}{version}"
        for key, given in composed_with_shards(job).items()
    )


def _hint_of_flat_parameters(key: str, job: ResolvedJob) -> str | None:
    """What to do instead under FSDP1, where that is not the same."""
    if key == "adapter":
        return "use lora, or fsdp_version 2"
    if key == "precision" and job.adapter is not None:
        return "use runtime transformers, whose Accelerate has autocast beside the policy, amp-*, or fsdp_version 2"
    if key == "quantization" and job.quantization in SHARDED_BITS:
        return "use weight_dtype bf16 under lora, or fsdp_version 2"
    if key == "activation_checkpointing" and job.offload:
        return "use none or full, or gradient_accumulation_steps: 1"
    return None
