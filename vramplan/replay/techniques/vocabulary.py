"""The techniques of a job by one name each: what traced rows are counted by, and what is looked up among them."""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.replay.techniques.expert_adapters import is_over_experts
from vramplan.values.job import BEFORE_BACKWARD, ResolvedJob
from vramplan.values.model import NEWEST, ModelShape
from vramplan.values.parallel import BLOCKS as ALONE
from vramplan.values.parallel import Sharded, Split

PLAIN_OPTIMIZER = "adamw"
BLOCKS = ("full", "sqrt", "every", "layers", "optimal")
"""Strategies of activation_checkpointing that recompute whole blocks: the same mechanism for more or fewer of them."""

SWITCHES = (
    *("checkpoint_reentrant", "compile", "ema", "grad_scaler", "mamba_kernels", "optimizer_in_backward", "packing"),
)
"""Keys of a job that are true or false, and each name one technique."""

LIGER, KERNELS = "liger_kernels", "adapter.kernels"
RELEASE, RELEASE_OF_LITGPT = "transformers_version", "litgpt_version"
TILED_MLP, DISTILLATION, FROM_FILE = "tiled_mlp", "distillation", "teacher_logprobs"
EVALUATION, GENERATION = "eval_batch_size", "generation_batch_size"


def techniques_of(job: ResolvedJob) -> tuple[str, ...]:
    """The techniques of a job, as `key: value` of a job file, sorted.

    A value stands for all that share its mechanism: `activation_checkpointing: full` for every strategy that recomputes
    whole blocks, `frozen: parts` for any parts, `loss: chunked` for any number of chunks. Keys whose value is a number
    or a list without such a mechanism stand alone (`label_smoothing`). A plain job in fp32 with AdamW has none.
    """
    return tuple(sorted(set(_named(job))))


def key_of(technique: str) -> str:
    """The key of a job where a technique is given."""
    return technique.partition(": ")[0]


def given(job: ResolvedJob, technique: str) -> str:
    """What the job has at the key of one of its techniques, as a message shows it."""
    key, _, word = technique.partition(": ")
    if key == "frozen":
        return ", ".join(job.frozen)
    if key == LIGER:
        return ", ".join(job.liger_kernels)
    if key == KERNELS and job.adapter is not None:
        return ", ".join(job.adapter.kernels)
    if key == "weight_dtype":
        return job.precision.rpartition("-")[2]
    if key in (RELEASE, RELEASE_OF_LITGPT, "optimizer", "loss", "activation_checkpointing", "trained_blocks"):
        return str(getattr(job, key))
    if word:
        return word
    room, _, leaf = key.rpartition(".")
    held = job if not room else job.sharding if leaf == "replicas" else job.split
    return str(getattr(held, leaf))


def traced_code(model: ModelShape) -> str:
    """Whose code a row traced: the model type of Transformers, or the family and the training program that has it."""
    return model.transformers_model_type if model.engine is None else model.code


def _named(job: ResolvedJob) -> Iterator[str]:
    switches = (key for key in SWITCHES if getattr(job, key))
    # a kernel that takes the lengths of sequences makes no mask: nothing of the technique is left
    yield from (f"{key}: true" for key in switches if key != "packing" or job.attention != "flash")
    if job.old_code != NEWEST:
        yield f"{RELEASE if job.litgpt_version is None else RELEASE_OF_LITGPT}: older code"
    if job.model.experts is not None and job.model.experts.separate:
        yield f"{RELEASE}: experts as modules"
    if job.zero_grad == BEFORE_BACKWARD:
        yield f"zero_grad: {BEFORE_BACKWARD}"
    yield from _of_precision(job)
    yield from _of_loss(job)
    yield from _of_training(job)
    yield from (f"offload: {what}" for what in job.offload)
    if job.offload_activations:
        yield "offload: activations"
    if job.sharding is not None:
        yield from _of_shards(job.sharding)
    if job.split is not None:
        yield from _of_split(job.split)


def _of_precision(job: ResolvedJob) -> Iterator[str]:
    if job.precision != "fp32":
        yield f"precision: {job.precision.partition('-')[0]}"
    if job.half_weights:
        yield "weight_dtype: 16 bits"
    if job.fp32_states:
        yield "optimizer_state_dtype: fp32"
    if job.fp32_gradients:
        yield "gradient_dtype: fp32"


def _of_loss(job: ResolvedJob) -> Iterator[str]:
    if job.loss != "standard":
        yield f"loss: {job.loss.partition(':')[0]}"
    if job.distillation is not None:
        yield FROM_FILE if job.teacher_logprobs is not None else f"{DISTILLATION}: {job.distillation}"
    if job.label_smoothing:
        yield "label_smoothing"
    if job.padding != "none":
        yield f"padding: {job.padding}"
    if job.liger_kernels:
        yield LIGER
    if job.tiled_mlp is not None:
        yield TILED_MLP
    if job.eval_batch_size is not None:
        yield EVALUATION
    if job.generation_batch_size is not None:
        yield GENERATION


def _of_training(job: ResolvedJob) -> Iterator[str]:
    strategy = (job.activation_checkpointing or "none").partition(":")[0]
    if strategy != "none":
        yield f"activation_checkpointing: {'full' if strategy in BLOCKS else strategy}"
    optimizer = job.optimizer.partition(":")[0]
    if optimizer != PLAIN_OPTIMIZER:
        yield f"optimizer: {optimizer}"
    if job.max_gradient_norm is not None:
        yield "max_gradient_norm"
    if job.frozen:
        yield "frozen: parts"
    if job.trained_blocks != "all":
        yield f"trained_blocks: {job.trained_blocks.partition(':')[0]}"
    if job.adapter is not None:
        yield f"adapter: {job.adapter.kind}"
        if job.adapter.kernels:
            yield KERNELS
        if job.adapter.modules_to_save:
            yield "adapter: modules_to_save"
        if _is_over_experts(job):
            yield "adapter: over experts"
    if job.qat is not None:
        yield f"qat: {job.qat.weights}"
    if job.quantization is not None:
        yield f"quantization: {job.quantization}"


def _is_over_experts(job: ResolvedJob) -> bool:

    adapter, model = job.adapter, job.model
    if adapter is None or model.experts is None:
        return False
    return is_over_experts(adapter.kind, model, adapter.targets)


def _of_shards(sharding: Sharded) -> Iterator[str]:
    yield f"parallel.sharding: {sharding.kind}"
    if sharding.kind.startswith("fsdp") and sharding.version == 1:
        yield "parallel.fsdp_version: 1"
    if sharding.units != ALONE:
        yield "parallel.fsdp_units: ends"
    if sharding.replicas > 1:
        yield "parallel.replicas"


def _of_split(split: Split) -> Iterator[str]:
    for way in ("tensor", "pipeline", "context", "expert"):
        if getattr(split, way) > 1:
            yield f"parallel.{way}"
