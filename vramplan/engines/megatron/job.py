"""A job under Megatron-LM: its defaults, how its devices share states, and what it does not go with."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from vramplan.job.behaviour import LEAVE, JobBehaviour
from vramplan.job.devices.fsdp import refuse_fsdp_keys
from vramplan.job.kernels.float8 import told_of_gpu
from vramplan.options import words
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import (
    BLOCKS,
    DDP,
    DISTRIBUTED_OPTIMIZER,
    ENDS_AS_BLOCKS,
    FSDP,
    FSDP_GRAD_OP,
    RING,
    ZERO1,
    Sharded,
    Split,
    is_fsdp,
)

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.machine import Gpu, Runtime
    from vramplan.values.model import ModelShape

SHARDINGS = (DDP, DISTRIBUTED_OPTIMIZER, ZERO1, FSDP, FSDP_GRAD_OP)
OPTIMIZERS = ("adam", "adamw", "sgd", "sgd-momentum")
CHECKPOINTINGS = tuple(
    word
    for word in words.CHECKPOINTINGS
    if word not in (words.OPTIMAL, *words.LLMC_CHECKPOINTINGS) and not word.startswith("selective-")
)
TOKENS = (
    16  # of a sequence, which the products in fp8 take (TransformerEngine, pytorch/utils.py, assert_dim_for_fp8_exec)
)
TASKS = ("lm", "mlm", "seq2seq")
SWITCHES = {"reduce_bucket_size": 500_000_000, "contiguous_gradients": True, "overlap_comm": False}
"""What DeepSpeed does by itself with stage 1 (deepspeed/runtime/zero/config.py), as Megatron-DeepSpeed is modelled."""

LACKED = (
    *("quantization", "compile", "ema", "hold_outputs", "use_cache", "optimizer_in_backward"),
    *("label_smoothing", "generation_batch_size", "generation_length"),
)


LINEARS = {
    "q_proj": ("linear_qkv", "linear_q_proj", "linear_q_up_proj"),
    **dict.fromkeys(("k_proj", "v_proj"), ("linear_qkv", "linear_kv_up_proj")),
    **dict.fromkeys(("qkv_proj", "c_attn", "query_key_value"), ("linear_qkv",)),
    "q_a_proj": ("linear_q_down_proj",),
    "q_b_proj": ("linear_q_up_proj",),
    "kv_a_proj_with_mqa": ("linear_kv_down_proj",),
    "kv_b_proj": ("linear_kv_up_proj",),
    **dict.fromkeys(("o_proj", "dense", "out_proj"), ("linear_proj",)),
    **dict.fromkeys(("gate_proj", "up_proj", "gate_up_proj", "fc1", "c_fc", "dense_h_to_4h"), ("linear_fc1",)),
    **dict.fromkeys(("down_proj", "fc2", "c_proj", "dense_4h_to_h"), ("linear_fc2",)),
}
"""Megatron's names of layers by those of Transformers; the first that a model has."""


class MegatronJob(JobBehaviour):
    """Megatron-LM's own models, buffers and optimizers, and DeepSpeed's ZeRO-1 around them."""

    keeps_master_copy = True
    groups_micro_batches = True
    splits_loss_anyway = True
    shares_by_itself = True
    joined = MappingProxyType(LINEARS)
    adapter_targets = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    accepts = MappingProxyType(
        {
            "precision": ("mixed-bf16", "mixed-fp16", "amp-bf16", "amp-fp16", "fp32", "fp8"),
            "optimizer": OPTIMIZERS,
            "loss": ("standard",),
            "attention": ("flash", "eager"),
            "activation_checkpointing": CHECKPOINTINGS,
            "adapter": ("none", "lora"),
        }
    )
    lacks = MappingProxyType(
        {**dict.fromkeys(LACKED, LEAVE), "grad_scaler": "leave it out: mixed-fp16 scales its loss"}
    )

    def check_own_code(self, resolver: Resolver, own: str, model: ModelShape, runtime: Runtime) -> None:
        """All is checked in the resolved job."""

    def check_own_float8(self, resolver: Resolver, gpu: Gpu | None, sequence_length: int) -> bool:
        """Refuse fp8 where Transformer Engine's layers cannot run."""
        fields = resolver.raw.fields
        if sequence_length % TOKENS:
            message = f"{sequence_length} is no multiple of {TOKENS}, which the products in fp8 need"
            hint = f"use {sequence_length // TOKENS * TOKENS or TOKENS}"
            fields.refuse("sequence_length", message, hint=hint)
        resolver.assumptions += told_of_gpu(fields, gpu)
        basis = "every linear layer of a block is Transformer Engine's, by a stated rule; weights also stay in fp8"
        resolver.assume("precision.fp8", "te", basis)
        return True

    def sharding_of(self, resolver: Resolver, model: ModelShape | None) -> Sharded | None:
        """Megatron's own ways, and DeepSpeed's ZeRO-1."""
        return sharding_under_megatron(resolver)

    def check(self, resolver: Resolver, job: ResolvedJob) -> ResolvedJob:
        """Refuse what Megatron's code was not traced with; the job with Megatron's defaults."""
        return check_megatron(resolver, job)

    def said_gradient_dtype(self, job: ResolvedJob) -> str | None:
        """That of the weights, where Megatron would take fp32 else."""
        shared = job.sharding is not None and job.sharding.kind == ZERO1
        return "bf16" if job.precision == "mixed-bf16" and not shared else None


BEHAVIOUR = MegatronJob()


def sharding_under_megatron(resolver: Resolver) -> Sharded | None:
    """How data-parallel devices share the states: Megatron's own ways, and DeepSpeed's ZeRO-1."""
    raw = resolver.raw
    fields, kind = raw.fields.fields("parallel") or raw.fields, raw.sharding
    if is_fsdp(kind):
        _check_fsdp_keys(resolver)
    else:
        refuse_fsdp_keys(raw, fields)
    devices = raw.data_parallel_size * (1 if raw.split is None else raw.split.context)
    for key in ("no_sync", "gradient_as_bucket_view"):
        if getattr(raw, key):
            fields.refuse(key, "Megatron reduces its own gradient buffers", hint="leave it out")
    for key, value in (raw.zero or {}).items():
        if kind == ZERO1 and (key == "allgather_bucket_size" or SWITCHES.get(key) == value):
            continue  # the former changes no memory
        if kind == ZERO1:
            message = "the buckets of Megatron-DeepSpeed are modelled at DeepSpeed's default, 500,000,000 elements"
            fields.refuse(key, message, hint="leave it out")
        else:
            fields.refuse(key, "belongs to DeepSpeed's parallel.sharding zero1", hint="leave it out")
    if kind is None and devices > 1:
        kind = DDP
        resolver.assume("parallel.sharding", kind, f"{devices} data-parallel devices: Megatron's own buffers")
    if kind in {None, "none"}:
        return None
    assert kind is not None
    if kind not in SHARDINGS:
        fields.refuse("sharding", f"{kind} is not modelled under megatron", hint=f"modelled: {', '.join(SHARDINGS)}")
        return None
    if raw.shards is not None and raw.shards != devices:
        message = f"{raw.shards} of {devices} devices: shards over a part of them are not modelled"
        fields.refuse("shards", message, hint="leave it out")
    return Sharded(kind, devices)


def _check_fsdp_keys(resolver: Resolver) -> None:
    """Megatron's FSDP, and PyTorch's under it, are counted as `fully_shard` on each block."""
    raw = resolver.raw
    fields = raw.fields.fields("parallel") or raw.fields
    for key, only in (("fsdp_version", 2), ("fsdp_units", BLOCKS), ("reduce_dtype", None), ("limit_all_gathers", None)):
        given = getattr(raw, key)
        if given not in {None, only}:
            hint = "leave it out" if only is None else f"use {only}"
            fields.refuse(key, f"{given} is not modelled under megatron", hint=hint)


def check_megatron(resolver: Resolver, job: ResolvedJob) -> ResolvedJob:
    """Refuse what Megatron's code was not traced with; the job with Megatron's defaults."""
    fields = resolver.raw.fields
    parallel = fields.fields("parallel") or fields
    for key, (given, hint) in untraced_under_megatron(job).items():
        fields.refuse(key, f"{given} is not modelled under the runtime megatron", hint=hint)
    split, kind = job.split, None if job.sharding is None else job.sharding.kind
    if split is not None and split.schedule == "gpipe" and job.gradient_accumulation_steps is None:
        hint = "gradient_accumulation_steps: 8"
        fields.refuse("gradient_accumulation_steps", "gpipe holds them all at once, so it has to be given", hint=hint)
    groups = job.model.key_value_heads
    if split is not None and split.tensor > groups and split.tensor % groups:
        message = f"{split.tensor} devices are no multiple of the {groups} key and value heads"
        parallel.refuse("tensor", message, hint=f"use {groups}")
    if is_fsdp(kind) and split is not None and split.pipeline > 1:
        parallel.refuse("pipeline", "Megatron-FSDP is modelled without a pipeline", hint=f"use {DISTRIBUTED_OPTIMIZER}")
    if split is not None and split.virtual > 1:
        _check_interleaved(resolver, job)
    if kind == ZERO1 and split is not None:
        if split.sequence_parallel:
            parallel.refuse("sequence_parallel", "true is not modelled with zero1", hint="leave it out")
        if split.pipeline > 1 and split.schedule != "1f1b":
            parallel.refuse("schedule", f"{split.schedule} is not DeepSpeed's", hint="use 1f1b")
    if job.model.experts is not None:
        _check_experts(resolver, job)
    if job.adapter is not None:
        _check_adapter(resolver, job)
    if split is not None and split.context > 1:
        job = _check_context(resolver, job, split)
        split = job.split
        assert split is not None
    if job.model.positions == "alibi" and kind != ZERO1:
        if kind in {None, DDP}:
            resolver.assume("model.positions", "alibi", "beside Megatron's own buffers, as under DeepSpeed's stage 0")
        else:
            message = f"{job.model.published_family} is Megatron-DeepSpeed's, whose states are shared by zero1"
            parallel.refuse("sharding", message, hint="--sharding zero1")
    if split is not None and split.pipeline_split is None:
        chosen = "blocks"
        if split.pipeline > 1 and kind == ZERO1 and (job.model.blocks + 2) % split.pipeline == 0:
            chosen = ENDS_AS_BLOCKS if job.model.blocks % split.pipeline else chosen
        elif job.model.blocks % (split.pipeline * split.virtual) and _even_with_ends(job.model.blocks, split):
            chosen = ENDS_AS_BLOCKS
        if split.pipeline > 1:
            resolver.assume("parallel.pipeline_split", chosen, "what divides the blocks evenly")
        job = job._replace(split=split._replace(pipeline_split=chosen))
    sums_in_fp32 = job.precision in ("mixed-bf16", "fp8") and kind != ZERO1
    if sums_in_fp32 and not job.fp32_gradients and not fields.given("gradient_dtype"):
        resolver.assume("gradient_dtype", "fp32", "Megatron sums bf16 gradients in fp32")
        job = job._replace(fp32_gradients=True)
    return job._replace(assumptions=tuple(resolver.assumptions))


def _check_experts(resolver: Resolver, job: ResolvedJob) -> None:
    """Refuse what MoELayer does not train, and what was not traced with it."""
    fields, split = resolver.raw.fields, job.split
    parallel = fields.fields("parallel") or fields
    if split is not None and split.tensor > 1 and not split.sequence_parallel:
        message = "Megatron's experts want the sequence in parts beside tensor parallelism"
        parallel.refuse("sequence_parallel", message, hint="--sequence-parallel")
    if job.sharding is not None and job.sharding.kind == ZERO1:
        parallel.refuse("sharding", f"{ZERO1} is not modelled with experts", hint=f"use {DISTRIBUTED_OPTIMIZER}")


def _check_adapter(resolver: Resolver, job: ResolvedJob) -> None:
    """Refuse what ParallelLinearAdapter cannot be made for: its rank is split over tensor-parallel devices."""
    fields, split, adapter = resolver.raw.fields, job.split, job.adapter
    assert adapter is not None
    inside = fields.fields("adapter") or fields
    if job.sharding is not None and job.sharding.kind == ZERO1:
        inside.refuse("kind", "an adapter is not in Megatron-DeepSpeed", hint=f"use {DISTRIBUTED_OPTIMIZER}")
    if split is not None and adapter.rank % split.tensor:
        message = f"{adapter.rank} is no multiple of the {split.tensor} tensor-parallel devices that share it"
        inside.refuse("rank", message, hint=f"use {-(-adapter.rank // split.tensor) * split.tensor}")


def _check_context(resolver: Resolver, job: ResolvedJob, split: Split) -> ResolvedJob:
    """The job with Megatron's default for keys and values; refuse what Transformer Engine's core does not run.

    Source: megatron-core, TEDotProductAttention (core/extensions/transformer_engine.py), whose cp_comm_type is p2p.
    """
    fields = resolver.raw.fields
    parallel = fields.fields("parallel") or fields
    if job.attention != "flash":
        message = f"{job.attention} is not modelled where devices share a sequence: Megatron's own core refuses it"
        fields.refuse("attention", message, hint="use flash")
    if job.sharding is not None and job.sharding.kind == ZERO1:
        parallel.refuse("context", f"{split.context} is not modelled with zero1", hint="leave it out")
    if split.sequence_parallel and job.sequence_length % (split.context * split.tensor):
        message = f"{split.tensor} devices cannot share {job.sequence_length // split.context} tokens of a sequence"
        parallel.refuse("sequence_parallel", message, hint="use a sequence_length that divides, or leave it out")
    if split.context_communication is not None:
        return job
    resolver.assume("parallel.context_communication", RING, "Megatron's default, p2p")
    return job._replace(split=split._replace(context_communication=RING))


def _even_with_ends(blocks: int, split: Split) -> bool:
    """Whether all parts are equal where the embedding and the head count as a block each: 126 blocks are 8 x 2 parts.

    Source: megatron-core, core/transformer/transformer_block.py, get_num_layers_to_build (account_for_*).
    """
    return split.pipeline > 1 and (blocks + 2) % (split.pipeline * split.virtual) == 0


def _check_interleaved(resolver: Resolver, job: ResolvedJob) -> None:
    fields = resolver.raw.fields.fields("parallel") or resolver.raw.fields
    split = job.split
    assert split is not None
    parts, steps = split.pipeline * split.virtual, job.gradient_accumulation_steps
    if job.model.blocks % parts and not _even_with_ends(job.model.blocks, split):
        message = f"{job.model.blocks} blocks are not {split.pipeline} stages of {split.virtual} equal parts"
        fields.refuse("schedule", message, hint="use 1f1b, or another number of parts")
    group = split.group or split.pipeline
    if group < split.pipeline:
        message = f"{group} micro-batches in a row are fewer than the {split.pipeline} stages"
        fields.refuse("microbatch_group_size", message, hint=f"use {split.pipeline} or more")
    elif steps is not None and steps < group:
        message = f"{group} micro-batches in a row are more than the {steps} of a step"
        fields.refuse("microbatch_group_size", message, hint=f"use at most {steps}, or more micro-batches")
    elif steps is not None and 0 < steps % group < split.pipeline:
        message = f"an interleaved schedule needs a multiple of the {split.pipeline} stages, not {steps}"
        if split.group is not None:
            message = f"groups of {group} leave {steps % group} of {steps}, fewer than the {split.pipeline} stages"
        hint = f"use {-(-steps // group) * group}"
        resolver.raw.fields.refuse("gradient_accumulation_steps", message, hint=hint)


def untraced_under_megatron(job: ResolvedJob) -> dict[str, tuple[str, str]]:
    """What of a job Megatron's code was not traced with, by its key, and what to do instead."""
    strategy = job.activation_checkpointing or ""
    apart = job.split is not None and job.split.pipeline > 1 and strategy.startswith("layers:")
    kind = None if job.sharding is None else job.sharding.kind
    leave = "leave it out"
    found = {
        "precision": (
            job.precision if job.precision in ("fp32", "fp8") and kind == ZERO1 else "",
            "use mixed-bf16 or mixed-fp16",
        ),
        "activation_checkpointing": (
            strategy if apart else "",
            "use none, selective, full or every:K",
        ),
        "frozen": (", ".join(job.frozen), leave),
        "padding": (job.padding if job.padding != "none" else "", leave),
        "packing": ("true" if job.packing and job.attention != "flash" else "", "use attention flash"),
        "offload": ("activations" if job.offload_activations else ", ".join(job.offload), leave),
        "eval_batch_size": ("" if job.eval_batch_size is None else "an evaluation", leave),
        "model": (job.model.name if job.model.task not in TASKS else "", "a language model"),
    }
    return {key: pair for key, pair in found.items() if pair[0]}
