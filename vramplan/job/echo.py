"""A resolved job in the words of the job format: every default explicit, so that it can be fed back in."""

from __future__ import annotations

from typing import Any

from vramplan.job import vocabulary as words
from vramplan.job.behaviour import sharing_in, under
from vramplan.values.job import Adapter, Job
from vramplan.values.machine import Gpu
from vramplan.values.model import Experts, ModelShape
from vramplan.values.parallel import DDP, FSDP, FSDP_GRAD_OP, Sharded, Split
from vramplan.values.textbook import AnyJob, TextbookJob, TextbookModel


def job_to_dict(job: AnyJob) -> dict[str, Any]:
    """The job as JSON-ready values, for `build_job`: it gives an equal job, but for what records how it came about.

    That is `assumptions` (nothing is assumed any more), `global_batch_given` and `case`. A global batch that follows
    from the steps is null; None, "to be recommended", is null too.
    """
    if isinstance(job, TextbookJob):
        return _textbook_to_dict(job)
    return {
        "name": job.name,
        "model": model_to_dict(job.model),
        "gpu": gpu_to_dict(job.gpu),
        "sequence_length": job.sequence_length or None,
        "target_length": job.target_length,
        "image_size": job.image_size,
        "micro_batch_size": job.micro_batch_size,
        "global_batch_size": job.global_batch_size or None,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "precision": job.precision,
        "weight_dtype": job.precision.rpartition("-")[2] if job.half_weights else None,
        "gradient_dtype": "fp32" if job.fp32_gradients else under(job.runtime).said_gradient_dtype(job),
        "optimizer_state_dtype": "fp32" if job.fp32_states else None,
        "optimizer": job.optimizer,
        "optimizer_implementation": job.optimizer_implementation,
        "optimizer_in_backward": job.optimizer_in_backward,
        "max_gradient_norm": job.max_gradient_norm,
        "grad_scaler": job.grad_scaler,
        "ema": job.ema,
        "activation_checkpointing": job.activation_checkpointing,
        "every_second_matmul": _every_second(job),
        "attention": job.attention if job.model.attention_heads else None,
        "expert_imbalance": job.expert_imbalance,
        "expert_capacity_factor": job.expert_capacity_factor,
        "expert_pad_to_capacity": job.expert_pad_to_capacity,
        "checkpoint_reentrant": job.checkpoint_reentrant,
        "loss": job.loss,
        "label_smoothing": job.label_smoothing,
        "dpo_reference": job.dpo_reference,
        "padding": job.padding,
        "packing": job.packing,
        "compile": job.compile,
        "dropout": job.dropout,
        "hold_outputs": job.hold_outputs,
        "adapter": None if job.adapter is None else adapter_to_dict(job.adapter),
        "quantization": job.quantization,
        "bitsandbytes": job.bitsandbytes,
        "frozen": list(job.frozen),
        "eval_batch_size": job.eval_batch_size,
        "generation_batch_size": job.generation_batch_size,
        "generation_length": job.generation_length,
        "offload": [*job.offload, *(["activations"] if job.offload_activations else [])],
        "parallel": {
            "data": job.data_parallel_size,
            **split_to_dict(job.split),
            **sharding_to_dict(job.sharding),
            **_zero_to_dict(job.sharding, job.offload),
            "devices_per_node": job.devices_per_node,
        },
        "runtime": job.runtime.name,
        "host_memory": None if job.host_memory_bytes is None else f"{job.host_memory_bytes} B",
        "gpu_free": None if job.gpu_free_bytes is None else f"{job.gpu_free_bytes} B",
        "pytorch_version": job.pytorch_version,
        "cuda_module_loading": job.cuda_module_loading,
        "allocator": _allocator(job),
        "reserve": f"{job.reserve_bytes} B",
        "expect": job.expect,
        "max_utilization": job.max_utilization,
        "base_batch_size": job.base_batch_size,
        "base_learning_rate": job.base_learning_rate,
    }


def _allocator(job: Job) -> str:
    if job.allocator is None:
        return "estimate"
    from vramplan.job.allocator import text_of  # only simulated ones pay for it

    return text_of(job.allocator)


def _every_second(job: Job) -> bool | None:
    """Whether selective checkpoints keep every second product; null where a runtime says so and none are pinned."""
    if job.every_second_matmul and job.activation_checkpointing is None:
        return None
    return job.every_second_matmul and job.activation_checkpointing == "selective-op"


def split_to_dict(split: Split | None) -> dict[str, Any]:
    """The keys of `parallel` that say how a replica is split."""
    split = split or Split()
    interleaved = f"interleaved:{split.virtual}"
    return {
        "tensor": split.tensor,
        "pipeline": split.pipeline,
        "schedule": None if split.pipeline == 1 else interleaved if split.virtual > 1 else split.schedule,
        "context": split.context,
        "expert": split.expert,
        "sequence_parallel": split.sequence_parallel,
        "pipeline_split": None if split.pipeline == 1 else split.pipeline_split,
        "context_communication": None if split.context == 1 else split.context_communication,
    }


def sharding_to_dict(sharding: Sharded | None) -> dict[str, Any]:
    """The keys of `parallel` that say how states are shared."""
    keys = ("sharding", "shards", "no_sync", "gradient_as_bucket_view", "fsdp_version", "reduce_dtype")
    if sharding is None:
        return dict.fromkeys(keys, None) | {"sharding": "none"}
    if sharding.kind == DDP:
        return dict.fromkeys(keys, None) | {"sharding": DDP, "gradient_as_bucket_view": sharding.bucket_views}
    if sharding.kind not in (FSDP, FSDP_GRAD_OP):
        no_sync = None if sharding.zero is not None else sharding.no_sync
        return dict.fromkeys(keys, None) | {"sharding": sharding.kind, "shards": sharding.shards, "no_sync": no_sync}
    hybrid = sharding.kind == FSDP and sharding.replicas > 1
    return {
        "sharding": f"hsdp:{sharding.shards}" if hybrid else sharding.kind,
        "shards": sharding.shards,
        "no_sync": sharding.no_sync,
        "gradient_as_bucket_view": None,
        "fsdp_version": sharding.version,
        "reduce_dtype": sharding.reduce_dtype,
    }


def _zero_to_dict(sharding: Sharded | None, offload: tuple[str, ...]) -> dict[str, Any]:
    if sharding is None or sharding.zero is None:
        return dict.fromkeys(words.ZERO_KEYS)
    return sharing_in(sharding.kind).to_dict(sharding, offload)


def _textbook_to_dict(job: TextbookJob) -> dict[str, Any]:
    """The keys that the equations look at; the others have no meaning in such a job and are refused in it."""
    cells = job.cells
    return {
        "name": job.name,
        "model": _textbook_model_to_dict(job.model),
        "gpu": gpu_to_dict(job.gpu),
        "sequence_length": job.sequence_length,
        "micro_batch_size": job.micro_batch_size,
        "global_batch_size": job.global_batch_size or None,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "precision": job.precision,
        "weight_dtype": cells.weights,
        "gradient_dtype": cells.gradients,
        "master_dtype": cells.master,
        "optimizer_state_dtype": cells.optimizer,
        "compute_dtype": cells.compute,
        "optimizer": job.optimizer,
        "activation_checkpointing": job.activation_checkpointing,
        "activation_model": job.activation_model,
        "activation_bytes": None if job.activation_bytes is None else f"{job.activation_bytes} B",
        "checkpoint_factor": job.checkpoint_factor,
        "trainable_parameters": job.model.trainable_parameters,
        "parallel": {"data": job.data_parallel_size, "sharding": job.sharding, "shards": job.shards},
        "runtime": job.runtime.name,
        "expect": job.expect,
        "max_utilization": job.max_utilization,
        "base_batch_size": job.base_batch_size,
        "base_learning_rate": job.base_learning_rate,
    }


def _textbook_model_to_dict(model: TextbookModel) -> dict[str, Any]:
    if model.shape is not None:
        return {**model_to_dict(model.shape), "parameters": model.parameters}
    return {
        "name": model.name,
        "family": model.family,
        "parameters": model.parameters,
        "layers": model.layers,
        "hidden_size": model.hidden_size,
        "attention_heads": model.attention_heads,
    }


def adapter_to_dict(adapter: Adapter) -> dict[str, Any]:
    """An adapter with every key that its kind has."""
    kept: dict[str, Any] = {"kind": adapter.kind, "targets": list(adapter.targets)}
    if adapter.kind == "ia3":
        kept["feedforward_targets"] = list(adapter.feedforward_targets)
    else:
        kept |= {"rank": adapter.rank, "alpha": adapter.alpha, "dropout": adapter.dropout}
    return {**kept, "modules_to_save": list(adapter.modules_to_save), "dtype": adapter.dtype}


def model_to_dict(model: ModelShape) -> dict[str, Any]:
    """An inline model with every key."""
    return {
        "name": model.name,
        "family": model.published_family or model.family,
        "transformers_model_type": model.transformers_model_type,
        "task": model.task,
        "layers": model.layers,
        "hidden_size": model.hidden_size,
        "attention_heads": model.attention_heads or None,
        "key_value_heads": model.key_value_heads or None,
        "head_size": model.head_size or None,
        "intermediate_size": model.intermediate_size or None,
        "vocabulary_size": model.vocabulary_size or None,
        "max_positions": model.max_positions or None,
        "tied_embeddings": model.tied_embeddings,
        "parameters": model.declared_parameters,
        "experts": None if model.experts is None else _experts_to_dict(model.experts),
        "latent_attention": None if model.latent_attention is None else model.latent_attention._asdict(),
        "qkv_bias": model.qkv_bias,
        "output_bias": model.output_bias,
        "mlp_bias": model.mlp_bias,
        "qk_norm": model.qk_norm,
        "positions": model.positions,
        "activation": model.activation,
        "gated_mlp": model.gated_mlp,
        "decoder_layers": model.decoder_layers,
        "classes": model.classes,
        "token_types": model.token_types,
        "embedding_dropout": model.embedding_dropout,
        "attention_dropout": model.attention_dropout,
        "hidden_dropout": model.hidden_dropout,
        "activation_dropout": model.activation_dropout,
        "sliding_window": model.sliding_window,
        "partial_rotary_factor": model.partial_rotary_factor,
        "parallel_residual": model.parallel_residual,
        "pre_norm": model.pre_norm,
        "embedding_size": model.embedding_size,
        "attention_softcap": model.attention_softcap,
        "logit_softcap": model.logit_softcap,
        "sliding_window_pattern": model.sliding_window_pattern,
        "image_size": model.image_size,
        "patch_size": model.patch_size,
        "channels": model.channels,
        "depths": None if model.depths is None else list(model.depths),
        "widths": None if model.widths is None else list(model.widths),
        "bottleneck": model.bottleneck,
        "downsample_in_first_stage": model.downsample_in_first_stage,
        "downsample_in_bottleneck": model.downsample_in_bottleneck,
        "vision_layers": model.vision_layers,
        "vision_hidden_size": model.vision_hidden_size,
        "vision_attention_heads": model.vision_attention_heads,
        "vision_intermediate_size": model.vision_intermediate_size,
        "vision_activation": model.vision_activation,
        "vision_attention_dropout": model.vision_attention_dropout,
        "projection_size": model.projection_size,
        "sliding_window_start": model.sliding_window_start,
        "new_decoder_architecture": model.new_decoder_architecture,
        "parallel_norms": model.parallel_norms,
        "rope_scaling": model.rope_scaling,
        "unet": None
        if model.unet is None
        else {**model.unet._asdict(), "attention_free": list(model.unet.attention_free)},
    }


def _experts_to_dict(experts: Experts) -> dict[str, Any]:
    values = experts._asdict()
    return {"count": values.pop("routed"), **values, "dense_layers": list(experts.dense_layers)}


def gpu_to_dict(gpu: Gpu) -> dict[str, Any]:
    """A GPU with everything that the planner knows of it, so that it does not depend on a profile."""
    bandwidth = gpu.memory_bandwidth_bytes_per_s
    return {
        "name": gpu.name,
        "memory": f"{gpu.capacity_bytes} B",
        "capacity_basis": gpu.capacity_basis,
        "title": gpu.title,
        "architecture": gpu.architecture,
        "compute_capability": gpu.compute_capability,
        "bf16": gpu.bf16,
        "flash_attention": gpu.flash_attention,
        "memory_bandwidth": None if bandwidth is None else f"{bandwidth!r} B/s",
        "note": gpu.note,
    }
