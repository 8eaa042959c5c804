"""What torchtitan's own code makes of a job: defaults of its parallelism, and what it cannot do or was not traced."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from vramplan.job.behaviour import JobBehaviour
from vramplan.job.evidence.cells import FSDP_FP8
from vramplan.values.parallel import ALL_GATHER, DDP, ENDS_AS_BLOCKS, FSDP, FSDP_GRAD_OP, Split, is_fsdp

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.job import ResolvedJob
    from vramplan.values.machine import Gpu, Runtime
    from vramplan.values.model import ModelShape

VOCABULARY_PARALLEL = "vocab-parallel"
WHOLE_LOGITS = "fp32-logits"
BLOCKWISE = ("none", "full", "selective-op", "selective-layer:K")
INSTEAD = "use none, full, selective-op or selective-layer:K"


class TitanJob(JobBehaviour):
    """torchtitan shards over all devices; the rest is said of its own code of a model."""

    has_sharded_float8 = True
    wraps_one_device = True  # torchtitan main, models/llama3/parallelize.py: apply_fsdp_to_decoder is always called
    splits = ("tensor",)  # models/qwen3_5/parallelize.py: the plans of its models without code here
    shards_hold_experts = True  # distributed/parallel_dims.py: the mesh of experts is made of that of the shards
    lacks = MappingProxyType(
        dict.fromkeys(("adapter", "quantization", "dropout", "grad_scaler", "ema"), "leave it out, or runtime: pytorch")
    )

    def check_own_code(self, resolver: Resolver, own: str, model: ModelShape, runtime: Runtime) -> None:
        """All is checked in the resolved job."""

    def default_precision(self, resolver: Resolver, able: bool) -> tuple[str, str] | None:
        """FSDP's, where all states are shared."""
        raw = resolver.raw
        if able and self.sharing_devices(resolver) > 1 and (raw.sharding is None or is_fsdp(raw.sharding)):
            return "fsdp-bf16", "torchtitan gathers the weights in bf16"
        return None

    def check_sharded_float8(
        self, resolver: Resolver, model: ModelShape, gpu: Gpu | None, sequence_length: int
    ) -> None:
        """Its own models have them; what else they need is checked in the resolved job."""
        if model.engine is None:
            others = (("tied embeddings", model.tied_embeddings), ("a window", model.sliding_window is not None))
            why = [word for word, has in (*others, ("biases", model.qkv_bias or model.mlp_bias)) if has]
            has = f", as it has {' and '.join(why)}" if why else ""
            message = f"torchtitan has products in fp8 in its own code of models, and none of {model.name}{has}"
            hint = "fsdp-bf16; or a model that torchtitan has, such as llama-3.1-8b"
            resolver.fields.refuse("precision", message, hint=hint)

    def sharing_devices(self, resolver: Resolver) -> int:
        """FSDP's mesh is the devices that share the data and those that share a sequence together."""
        raw = resolver.raw
        return raw.data_parallel_size * (1 if raw.split is None else raw.split.context)

    def default_sharding(self, resolver: Resolver) -> tuple[str, str]:
        """FSDP, which keeps parameters whole between the micro-batches of a pipeline."""
        return FSDP_GRAD_OP if _has_stages(resolver) else FSDP, "torchtitan shards over all of them"

    def no_sync(self, resolver: Resolver) -> tuple[bool, str]:
        """The last micro-batch of a pipeline is the one that gradients are summed at."""
        if _has_stages(resolver):
            return True, "the last micro-batch of a pipeline reduces for all"
        return super().no_sync(resolver)

    def split_of(
        self, resolver: Resolver, split: Split | None, model: ModelShape, loss: str, sequence_length: int
    ) -> tuple[Split | None, str]:
        """Sequences in parts, and a loss over parts of the logits."""
        if model.engine is None:
            return split, loss
        return titan_split(resolver, split, loss, sequence_length)

    def check(self, resolver: Resolver, job: ResolvedJob) -> ResolvedJob:
        """Refuse what torchtitan's code has not, and what was not traced with it."""
        return job if job.model.engine is None else check_titan(resolver, job)


BEHAVIOUR = TitanJob()


def _has_stages(resolver: Resolver) -> bool:
    return resolver.raw.split is not None and resolver.raw.split.pipeline > 1


def titan_split(resolver: Resolver, split: Split | None, loss: str, sequence_length: int) -> tuple[Split | None, str]:
    """The split and the loss with torchtitan's own defaults: sequences in parts, and a loss over parts of the logits.

    Source: torchtitan/parallelisms/parallelize_llama.py, apply_tp; torchtitan/config_manager.py,
    experimental.disable_loss_parallel.
    """
    raw = resolver.raw
    parallel = raw.fields.fields("parallel") or raw.fields
    if raw.every_second_matmul is None and raw.activation_checkpointing in {None, "selective-op"}:
        raw.every_second_matmul = True
        resolver.assume("every_second_matmul", True, "torchtitan keeps every second product of a linear layer")
    if split is not None and split.pipeline > 1 and split.pipeline_split is None:
        split = split._replace(pipeline_split=ENDS_AS_BLOCKS)
        why = "torchtitan gives the first and the last stage a block less"
        resolver.assume("parallel.pipeline_split", split.pipeline_split, why)
    if split is not None and split.context > 1 and split.context_communication is None:
        split = split._replace(context_communication=ALL_GATHER)
        why = "torchtitan's default, context_parallel_rotate_method"
        resolver.assume("parallel.context_communication", split.context_communication, why)
    if raw.compile and raw.loss == WHOLE_LOGITS:
        loss = WHOLE_LOGITS  # beside compiled blocks, as torchtitan's was until 2025
    if split is None or split.tensor == 1:
        if loss == VOCABULARY_PARALLEL:
            message = f"{loss} needs the vocabulary in parts, and parallel.tensor is 1"
            raw.fields.refuse("loss", message, hint="use standard, or --tensor 2")
        return split, loss
    if not split.sequence_parallel:
        if parallel.present("sequence_parallel"):
            message = "false is not modelled: torchtitan's plan shares the sequence between the products"
            parallel.refuse("sequence_parallel", message, hint="leave it out")
        elif sequence_length % (split.tensor * split.context):
            message = f"{split.tensor} devices cannot share a sequence_length of {sequence_length}"
            parallel.refuse("tensor", message, hint="use a multiple")
        split = split._replace(sequence_parallel=True)
        resolver.assume("parallel.sequence_parallel", True, "torchtitan's plan of tensor parallelism")
    if raw.loss == WHOLE_LOGITS:
        loss = WHOLE_LOGITS
    elif loss == "standard":
        loss = VOCABULARY_PARALLEL
        resolver.assume("loss", loss, "torchtitan's default under tensor parallelism (disable_loss_parallel is off)")
    return split, loss


def check_titan(resolver: Resolver, job: ResolvedJob) -> ResolvedJob:
    """Refuse what torchtitan's code has not, and what was not traced with it, each where it was given.

    The job is returned with what was assumed on the way.
    """
    fields, model = resolver.raw.fields, job.model
    parallel = fields.fields("parallel") or fields
    strategy = job.activation_checkpointing
    if strategy is not None and not _is_blockwise(strategy):
        message = f"{strategy} is not modelled under torchtitan, whose checkpoints are of single blocks"
        fields.refuse("activation_checkpointing", message, hint=INSTEAD)
    if job.compile:
        basis = "each block is a graph of its own, by the rules of compiled steps"
        if job.loss == "standard":
            basis += "; and the loss"
        resolver.assume("compile", True, basis)
    if job.precision == FSDP_FP8 and not job.compile:
        message = f"{job.precision} is modelled compiled, where casts to fp8 are parts of kernels"
        fields.refuse("precision", message, hint="compile: true, or fsdp-bf16")
    elif job.precision == FSDP_FP8 and (job.sharding is None or job.sharding.kind == DDP):
        fields.refuse("precision", f"{job.precision} is FSDP's", hint="parallel.sharding fsdp")
    given = {
        "frozen": ", ".join(job.frozen) or None,
        "optimizer_in_backward": "true" if job.optimizer_in_backward else None,
        "offload": ", ".join(job.offload) or None,
    }
    for key, word in given.items():
        if word is not None:
            message = f"{word} is not modelled with torchtitan's code of {model.name}"
            fields.refuse(key, message, hint="leave it out, or runtime: pytorch")
    sharding = job.sharding
    if sharding is not None and sharding.version != 2:
        parallel.refuse("fsdp_version", f"{sharding.version} is not torchtitan's", hint="leave it out")
    if job.split is not None:
        _check_split(resolver, job, job.split)
    return job._replace(assumptions=tuple(resolver.assumptions))


def _check_split(resolver: Resolver, job: ResolvedJob, split: Split) -> None:
    fields, model, sharding = resolver.raw.fields, job.model, job.sharding
    parallel = fields.fields("parallel") or fields
    if split.pipeline > 1:
        if sharding is None or sharding.kind != FSDP_GRAD_OP:
            message = "torchtitan keeps parameters whole from one micro-batch of a pipeline to the next"
            grouped = sharding is not None and sharding.replicas > 1
            hint = f"use fsdp-grad-op with shards: {sharding.shards}" if sharding and grouped else "use fsdp-grad-op"
            parallel.refuse("sharding", message, hint=hint)
        elif not sharding.no_sync:
            message = "false is not modelled with a pipeline, whose last micro-batch alone is reduced"
            parallel.refuse("no_sync", message, hint="leave it out")
        if split.schedule == "gpipe" and job.gradient_accumulation_steps is None:
            message = "gpipe holds them all at once, so it has to be given"
            fields.refuse("gradient_accumulation_steps", message, hint="gradient_accumulation_steps: 8")
    if split.context > 1 and job.attention != "flash":
        message = f"{job.attention} is not modelled where devices share a sequence"
        fields.refuse("attention", message, hint="use flash")
    if split.context > 1 and (sharding is None or sharding.kind == DDP):
        message = "torchtitan combines context parallelism with FSDP"
        parallel.refuse("sharding", message, hint="--context 8 --sharding fsdp")
    if sharding is not None and sharding.replicas > 1 and sharding.shards % split.context:
        message = (
            f"{sharding.shards} devices that share the states are no multiple of the {split.context} of a sequence"
        )
        hint = f"they are all in one group: use a multiple of {split.context}"
        parallel.refuse("shards" if parallel.present("shards") else "sharding", message, hint=hint)
    if split.tensor == 1:
        return
    if sharding is None or sharding.kind == DDP:
        message = "torchtitan combines tensor parallelism with FSDP alone"
        parallel.refuse("sharding", message, hint="--gpus 16 --tensor 8 --sharding fsdp")
    for size, what in ((model.key_value_heads, "key and value heads"), (model.vocabulary_size, "words")):
        if size % split.tensor:
            parallel.refuse("tensor", f"{split.tensor} does not divide the {size} {what} of {model.name}")
    if split.pipeline == 1 and sharding is not None and sharding.no_sync:
        parallel.refuse("no_sync", "true is not modelled with tensor parallelism", hint="--sync")


def _is_blockwise(strategy: str) -> bool:
    return strategy in BLOCKWISE or strategy.startswith("selective-layer:")
