"""The iteration that a job means under a strategy: what of it a replay needs to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.engines import engine_of, imported, is_cast_beside_policy
from vramplan.planner.behaviour import planning_of
from vramplan.planner.checkpoints import OPTIMAL, segments_in
from vramplan.replay.models.capable import masks_padding, no_checkpointing, own_loss, takes_packing
from vramplan.replay.models.modules import (
    CAUSAL_LM_FP32,
    FP32_LOGITS,
    GRPO,
    HALF_LOGITS,
    OUTSIDE_LOSSES,
    SMOOTHED,
    TILED,
)
from vramplan.replay.models.parts import compiles_blocks
from vramplan.replay.setup import Setup
from vramplan.values.job import BEFORE_BACKWARD, NEXT_FORWARD, ResolvedJob, of_torchao, shares_weights, trains_all
from vramplan.values.machine import WITH_TENSOR_CORES, WITH_TF32
from vramplan.values.parallel import FSDP, FSDP_GRAD_OP, ZERO3, ZERO_STAGES, is_fsdp

if TYPE_CHECKING:
    from vramplan.replay.loading import Loading
    from vramplan.replay.pipeline.stages import Stage


FIRST_AND_LAST = 2  # micro-steps
COPIED_FP32 = "mixed-fp32"  # of vramplan/replay/precision.py
CAST_BESIDE_POLICY = "fsdp-autocast-"  # the same


def setup_of(job: ResolvedJob, strategy: str, accumulates: bool) -> Setup:
    """The iteration of a job under a strategy: `accumulates` says that gradients of earlier micro-steps are there."""
    if job.planned is not None:
        return _of_part(job, strategy, accumulates)
    return Setup(
        model=job.model,
        precision=_precision_of(job),
        sequence_length=job.sequence_length,
        attention=job.attention,
        old_code=job.old_code if _has_cache_objects(job) else job.old_code._replace(own_rotary=True),
        segments=segments_in(strategy, job.model.stacks, every_second_matmul=job.every_second_matmul),
        optimizer=planning_of(job).optimizer_of(job),
        optimizer_implementation=job.optimizer_implementation,
        accumulating=accumulates and not _is_each_step_alike(job),
        has_middle_steps=accumulates and _has_middle_steps(job),
        persistent_gradients=job.runtime.gradients == "persistent" or keeps_zeroed_gradients(job),
        loss=loss_of(job),
        padded=_is_padded(job) and masks_padding(job.model, job.sequence_length),
        masked_apart=_is_masked_apart(job),
        packed=job.packing and takes_packing(job.model.family),
        hold_outputs=job.hold_outputs,
        reads_shards=engine_of(job.runtime.engine).reads_shards,
        outlives=job.hold_outputs_until == NEXT_FORWARD and (job.split is None or job.split.pipeline == 1),
        use_cache=job.use_cache,
        cache_objects=_has_cache_objects(job),
        dropout=job.dropout,
        optimizer_in_backward=job.optimizer_in_backward,
        zeroes_late=job.zero_grad == BEFORE_BACKWARD and not (accumulates or keeps_zeroed_gradients(job)),
        max_gradient_norm=job.max_gradient_norm,
        offload_activations=job.offload_activations,
        checkpoint_reentrant=job.checkpoint_reentrant,
        grad_scaler=job.grad_scaler,
        ema=job.ema,
        fp32_gradients=job.fp32_gradients,
        image_size=job.image_size,
        half_weights=job.half_weights,
        loading=_loading_of(job),
        target_length=job.target_length,
        compile=job.compile,
        wide_embeddings=job.runtime.embedding_states == "fp32" and not of_torchao(job),
        frozen=job.frozen,
        trained_blocks=job.trained_blocks,
        adapter=job.adapter,
        quantization=job.quantization,
        qat=job.qat,
        quantized_experts=job.quantized_experts,
        bitsandbytes=job.bitsandbytes,
        quantized_from=job.runtime.quantized_from,
        sharding=job.sharding,
        split=job.split,
        expert_imbalance=job.expert_imbalance or 1.0,
        expert_capacity_factor=job.expert_capacity_factor,
        expert_pad_to_capacity=job.expert_pad_to_capacity,
        offload=job.offload,
        pytorch=release_of(job),
        liger_kernels=job.liger_kernels,
        mamba_kernels=job.mamba_kernels,
        teacher=job.teacher,
        distillation=job.distillation,
        teacher_logprobs=job.teacher_logprobs,
        tiled_mlp=job.tiled_mlp,
        adam_denominators=(release_of(job) or job.runtime.foreach_adam_in_place_since)
        < job.runtime.foreach_adam_in_place_since,
        gathers_ahead=_gathers_ahead(job),
        first_flash=job.first_flash,
        composed_norms=not job.compile
        and (release_of(job) or job.runtime.fused_rms_norm_since) < job.runtime.fused_rms_norm_since,
    )


def _loading_of(job: ResolvedJob) -> Loading | None:
    """How weights of few bits come to the device."""
    how = planning_of(job).loads_by_transformers
    if job.quantization is None or how is None:
        return None
    found: Loading | None = imported("vramplan.planner.loads:by_transformers")(job, **how)
    return found


def _precision_of(job: ResolvedJob) -> str:
    """The job's, but that ZeRO has a copy of fp32 weights too, in one piece, which its optimizer steps.

    With FSDP1's policy there may be autocast.
    Source: deepspeed/runtime/zero/stage_1_and_2.py and stage3.py (clone().float(), whatever the weights are).
    """
    if is_cast_beside_policy(job):
        return CAST_BESIDE_POLICY + job.precision.rpartition("-")[2]
    shares = job.sharding is not None and job.sharding.kind in ZERO_STAGES
    return COPIED_FP32 if shares and job.precision == "fp32" else job.precision


def _is_each_step_alike(job: ResolvedJob) -> bool:
    """Whether an iteration that finds gradients of earlier micro-steps is the same as one that finds none.

    So it is where they are in buffers that stay. ZeRO-3 has such buffers on the device, unless the optimizer steps
    elsewhere or in backward, or steps some blocks at a time.
    """
    shared = job.sharding is not None and job.sharding.kind == ZERO3
    alike = shared and not (job.offload or job.optimizer_in_backward) and job.trained_blocks == "all"
    return alike or planning_of(job).keeps_buffers


def _has_middle_steps(job: ResolvedJob) -> bool:
    """Whether micro-steps under no_sync leave gradients where they are, which the last takes into buckets or shards.

    With two micro-steps there are a first and a last one alone.
    """
    sharding = job.sharding
    if sharding is None or job.gradient_accumulation_steps == FIRST_AND_LAST:
        return False
    return bool(sharding.bucket_views) or (is_fsdp(sharding.kind) and sharding.no_sync)


def iteration_of(job: ResolvedJob) -> Setup:
    """What jobs have in common whose iterations differ in nothing but the micro-batch: no card changes a replay."""
    strategy = job.activation_checkpointing
    return setup_of(job, "none" if strategy is None or strategy == OPTIMAL else strategy, accumulates=False)


def turns_images(job: ResolvedJob) -> bool:
    """Whether convolutions run on tensor cores, for which images lie with their channels last, and they lie otherwise.

    In fp32 that is in TF32, which cuDNN may use unless it is told not to (torch.backends.cudnn.allow_tf32).
    """
    able = WITH_TF32 if job.precision == "fp32" else WITH_TENSOR_CORES
    return not job.channels_last and job.gpu.architecture in able


def _is_padded(job: ResolvedJob) -> bool:
    """Whether a mask says what is padding: flash takes none."""
    return job.padding == "right" and job.attention != "flash"


def _is_masked_apart(job: ResolvedJob) -> bool:
    """Whether a mask of padded or packed sequences is one that the replay of the family's code does not make."""
    packed = job.packing and job.attention != "flash" and not takes_packing(job.model.family)
    return packed or (_is_padded(job) and not masks_padding(job.model, job.sequence_length))


def _of_part(job: ResolvedJob, strategy: str, accumulates: bool) -> Setup:
    """What one device has of a replica that the program splits by a plan."""
    planned = job.planned
    assert planned is not None
    part = imported("vramplan.replay.techniques.planned_split:shape_of_part")(job.model, planned)
    length = job.sequence_length // planned.context
    whole = job._replace(model=part, sequence_length=length, planned=None, split=None)
    return setup_of(whole, strategy, accumulates)._replace(planned=planned)


def setup_of_stage(job: ResolvedJob, strategy: str, accumulates: bool, stage: Stage) -> Setup:
    """The setup of a job with the blocks of a stage alone; a strategy is that of each part of the model.

    Of a stage with several parts that is the longest one, of whose blocks each has the first ones.
    """
    setup = setup_of(job, strategy, accumulates)
    if not planning_of(job).minds_micro_batches:
        stage = stage._replace(micro_batches=None)  # so steps that fill the pipeline share a replay
    blocks = max(stage.parts)
    return setup._replace(
        model=job.model._replace(layers=blocks),
        segments=segments_in(strategy, (blocks,), every_second_matmul=job.every_second_matmul),
        stage=stage,
    )


def release_of(job: ResolvedJob) -> tuple[int, int] | None:
    """The release of PyTorch that the job names."""
    if job.pytorch_version is None:
        return None
    major, _, minor = job.pytorch_version.partition(".")
    return int(major), int(minor)


def _has_cache_objects(job: ResolvedJob) -> bool:
    """Whether Transformers has them, as every release that a job can name; where it names none, PyTorch dates it."""
    since = job.runtime.cache_objects_since
    return job.transformers_version is not None or (release_of(job) or since) >= since


def _gathers_ahead(job: ResolvedJob) -> bool:
    """Whether FSDP1 gathers as many units as the program comes to, while the device is behind."""
    is_first = job.sharding is not None and job.sharding.kind in (FSDP, FSDP_GRAD_OP) and job.sharding.version == 1
    since = job.runtime.limited_gathers_since
    if not is_first or job.sharding is None:
        return False
    if job.sharding.limits_gathers is not None:
        return not job.sharding.limits_gathers
    return (release_of(job) or since) < since


def keeps_zeroed_gradients(job: ResolvedJob) -> bool:
    """Whether gradients stay after the step, filled with zeros, as `zero_grad` left them before PyTorch 2.0.

    Source: torch/nn/modules/module.py and torch/optim/optimizer.py of 1.13, zero_grad(set_to_none=False).
    """
    release = release_of(job)
    return release is not None and release < job.runtime.gradients_set_to_none_since and job.sharding is None


def loss_of(job: ResolvedJob) -> str:
    """The loss that the job's iteration computes."""
    planning = planning_of(job)
    taught = None if job.teacher_logprobs is None else planning.taught_from_file
    if job.teacher is not None:
        taught = planning.taught_in_tiles if job.loss == TILED else planning.taught_loss
    if taught is not None:
        return taught
    if job.label_smoothing and (job.loss.startswith("chunked:") or job.loss in (FP32_LOGITS, HALF_LOGITS)):
        return f"{SMOOTHED}-{job.loss}"
    if job.label_smoothing and job.loss != "fused":  # whose kernel smooths in place
        return planning_of(job).smoothed_loss
    if job.dpo_reference is not None and job.loss == GRPO:
        return f"{job.loss}-{job.dpo_reference}"
    if job.dpo_reference is not None:
        return job.loss if job.dpo_reference == "model" else f"{job.loss}-{job.dpo_reference}"
    own = own_loss(job.model.family)
    if own is not None:
        return own
    if job.loss == "standard" and job.old_code.casts_logits and job.runtime.loss == CAUSAL_LM_FP32:
        return FP32_LOGITS
    if job.loss == "standard":
        return job.runtime.loss
    if job.loss == "fp32-logits" and job.model.task == "lm" and not compiles_blocks(job.model.family):
        held = job.hold_outputs and job.model.published_family is None  # then the model has cast them itself
        return job.loss if held else CAUSAL_LM_FP32
    if job.loss != "fused":
        return job.loss
    from vramplan.replay.techniques.losses import FUSED, fused_on  # only who asks for it pays for it

    return fused_on(job.gpu) or FUSED


def can_be_placed(job: ResolvedJob) -> bool:
    """Whether checkpoints can be placed by sizes: each device has all blocks, all train, the loss is the model's."""
    able = no_checkpointing(job.model.family) is None and planning_of(job).unplaced is None
    able = able and not job.model.stored_blocks  # between which and the others the pieces do not add up
    return able and trains_all(job) and loss_of(job) not in OUTSIDE_LOSSES and not shares_weights(job)
