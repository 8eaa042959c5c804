"""A resolved job in the words of the job format: every default explicit, so that it can be fed back in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramplan.job import on_demand
from vramplan.job.behaviour import sharing_in, under
from vramplan.job.precision import over_fp32
from vramplan.options import table, words
from vramplan.options.option import SIZE, TEXTS, Option
from vramplan.values.job import Adapter, ResolvedJob
from vramplan.values.machine import Gpu
from vramplan.values.model import Experts, LinearAttention, ModelShape, ShortConvolution, StateSpace, Waveform
from vramplan.values.parallel import DDP, FSDP, FSDP_GRAD_OP, Sharded, Split
from vramplan.values.textbook import AnyJob, TextbookJob, TextbookModel

LISTED = ("targets", "feedforward_targets", "modules_to_save", "kernels")


def job_to_dict(job: AnyJob) -> dict[str, Any]:
    """The job as JSON-ready values, for `build_job`: it gives an equal job, but for what records how it came about.

    That is `assumptions` (nothing is assumed any more), `global_batch_given` and `case`. A global batch that follows
    from the steps is null; None, "to be recommended", is null too.
    """
    if isinstance(job, TextbookJob):
        return _textbook_to_dict(job)
    return {
        option.name: OWN[option.name](job) if option.name in OWN else _plain(option, job)
        for option in table.inside().values()
        if option.only is None and option.name not in OF_THE_PRECISION
    }


OF_THE_PRECISION = ("master_dtype", "compute_dtype")  # the name of the resolved precision says them


def _plain(option: Option, job: AnyJob) -> Any:
    """The value as the job has it; bytes with their unit, so that they can be read back."""
    value = getattr(job, option.attribute)
    if option.kind == TEXTS:
        return list(value)
    return f"{value} B" if option.kind == SIZE and value is not None else value


def allocator_of(job: ResolvedJob) -> str:
    """How the allocator is looked at, as the key of a job says it."""
    if job.allocator is None:
        return "estimate"
    return on_demand.text_of(job.allocator)


def _weight_dtype(job: ResolvedJob) -> str | None:
    """Null where it follows from the precision, and no default of the runtime would take its place."""
    if job.half_weights:
        return job.precision.rpartition("-")[2]
    loaded = "weight_dtype" in job.runtime.defaults and not job.from_scratch
    return "fp32" if loaded and over_fp32(job.precision) else None


def _clipping(job: ResolvedJob) -> float | None:
    """Null where nothing is clipped; 0 where the runtime's default would be taken in place of null."""
    off = 0.0 if job.runtime.defaults.get("max_gradient_norm") else None
    return off if job.max_gradient_norm is None else job.max_gradient_norm


def _every_second(job: ResolvedJob) -> bool | None:
    """Whether selective checkpoints keep every second product; null where a runtime says so and none are pinned."""
    if job.every_second_matmul and job.activation_checkpointing is None:
        return None
    return job.every_second_matmul and job.activation_checkpointing == "selective-op"


def _parallel(job: ResolvedJob) -> dict[str, Any]:
    values = {
        "data": job.data_parallel_size,
        **split_to_dict(job.split),
        **sharding_to_dict(job.sharding),
        **_zero_to_dict(job.sharding, job.offload),
        "devices_per_node": job.devices_per_node,
        "node_bandwidth": _figure(job.node_bandwidth_bytes_per_s, "B/s"),
    }
    return {name: values.get(name) for name in table.inside("parallel")}


def _whole(rate: float | None) -> int | None:
    return None if rate is None else int(rate)


OWN: dict[str, Callable[[ResolvedJob], Any]] = {
    "tokens": lambda job: job.length.tokens,
    "samples": lambda job: job.length.samples,
    "epochs": lambda job: job.length.epochs if job.length.epochs != 1 else None,
    "compute_optimal": lambda job: job.length.compute_optimal or None,
    "goodput": lambda job: job.length.goodput,
    "price": lambda job: None if job.length.price is None else job.length.price.text,
    "purchase_price": lambda job: _figure(job.length.purchase_usd, "USD"),
    "deadline": lambda job: _figure(job.length.deadline_seconds, "s"),
    "budget": lambda job: _figure(job.length.budget_usd, "USD"),
    "pue": lambda job: job.length.pue,
    "grid": lambda job: _figure(job.length.grid_g_per_kwh, "g/kWh"),
    "data_rate": lambda job: _figure(_whole(job.length.data_bytes_per_s), "B/s"),
    "sample_size": lambda job: _figure(job.length.sample_bytes, "B"),
    "model": lambda job: model_to_dict(job.model),
    "teacher": lambda job: None if job.teacher is None else model_to_dict(job.teacher),
    "gpu": lambda job: gpu_to_dict(job.gpu),
    "sequence_length": lambda job: job.sequence_length or None,
    "global_batch_size": lambda job: job.global_batch_size or None,
    "precision": lambda job: words.TF32 if job.tf32 else job.precision,
    "weight_dtype": lambda job: _weight_dtype(job),
    "max_gradient_norm": lambda job: _clipping(job),
    "gradient_dtype": lambda job: "fp32" if job.fp32_gradients else under(job.runtime).said_gradient_dtype(job),
    "optimizer_state_dtype": lambda job: "fp32" if job.fp32_states else None,
    "every_second_matmul": lambda job: _every_second(job),
    "attention": lambda job: job.attention if job.model.attention_heads else None,
    "adapter": lambda job: None if job.adapter is None else adapter_to_dict(job.adapter),
    "qat": lambda job: None if job.qat is None else {name: getattr(job.qat, name) for name in table.inside("qat")},
    "offload": lambda job: [*job.offload, *(["activations"] if job.offload_activations else [])],
    "frozen": lambda job: [] if job.trained_blocks != "all" else list(job.frozen),
    "parallel": _parallel,
    "runtime": lambda job: job.runtime.name,
    "allocator": lambda job: allocator_of(job),
}
"""Keys that the resolved job has in another form."""


def split_to_dict(split: Split | None) -> dict[str, Any]:
    """The keys of `parallel` that say how a replica is split."""
    split = split or Split()
    interleaved = f"interleaved:{split.virtual}"
    return {
        "tensor": split.tensor,
        "pipeline": split.pipeline,
        "schedule": None if split.pipeline == 1 else interleaved if split.virtual > 1 else split.schedule,
        "microbatch_group_size": split.group if split.virtual > 1 else None,
        "context": split.context,
        "expert": split.expert,
        "sequence_parallel": split.sequence_parallel,
        "pipeline_split": None if split.pipeline == 1 else split.pipeline_split,
        "context_communication": None if split.context == 1 else split.context_communication,
    }


def sharding_to_dict(sharding: Sharded | None) -> dict[str, Any]:
    """The keys of `parallel` that say how states are shared, those that mean something."""
    if sharding is None:
        return {"sharding": "none"}
    if sharding.kind == DDP:
        return {"sharding": DDP, "gradient_as_bucket_view": sharding.bucket_views}
    if sharding.kind not in (FSDP, FSDP_GRAD_OP):
        no_sync = None if sharding.zero is not None else sharding.no_sync
        return {"sharding": sharding.kind, "shards": sharding.shards, "no_sync": no_sync}
    hybrid = sharding.kind == FSDP and sharding.replicas > 1
    return {
        "sharding": f"hsdp:{sharding.shards}" if hybrid else sharding.kind,
        "shards": sharding.shards,
        "no_sync": sharding.no_sync,
        "fsdp_version": sharding.version,
        "reduce_dtype": sharding.reduce_dtype,
        "fsdp_units": sharding.units,
        **({} if sharding.limits_gathers is None else {"limit_all_gathers": sharding.limits_gathers}),
    }


def _zero_to_dict(sharding: Sharded | None, offload: tuple[str, ...]) -> dict[str, Any]:
    if sharding is None or sharding.zero is None:
        return {}
    return sharing_in(sharding.kind).to_dict(sharding, offload)


def _textbook_to_dict(job: TextbookJob) -> dict[str, Any]:
    """The keys that the equations look at; the others have no meaning in such a job and are refused in it."""
    cells = job.cells
    own = {
        "model": _textbook_model_to_dict(job.model),
        "gpu": gpu_to_dict(job.gpu),
        "sequence_length": job.sequence_length or None,
        "global_batch_size": job.global_batch_size or None,
        "weight_dtype": cells.weights,
        "gradient_dtype": cells.gradients,
        "master_dtype": cells.master,
        "optimizer_state_dtype": cells.optimizer,
        "compute_dtype": cells.compute,
        "trainable_parameters": job.model.trainable_parameters,
        "parallel": {"data": job.data_parallel_size, "sharding": job.sharding, "shards": job.shards},
        "runtime": job.runtime.name,
    }
    return {
        option.name: own[option.name] if option.name in own else _plain(option, job)
        for option in table.inside().values()
        if option.textbook
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
    values = {**adapter._asdict(), **{key: list(getattr(adapter, key)) for key in LISTED}}
    values["kernels"] = list(
        adapter.asked_kernels or adapter.kernels
    )  # so that the same is said of those that are idle
    without = on_demand.lacks(adapter.kind)
    return {name: values[name] for name in table.inside("adapter") if name not in without}


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
        "unknown_type": model.unknown_type,
        "max_positions": model.max_positions or None,
        "tied_embeddings": model.tied_embeddings,
        "parameters": model.declared_parameters,
        "experts": None if model.experts is None else _experts_to_dict(model.experts),
        "latent_attention": None if model.latent_attention is None else model.latent_attention._asdict(),
        "linear_attention": None if model.linear_attention is None else _linear_to_dict(model.linear_attention),
        "state_space": None if model.state_space is None else _space_to_dict(model.state_space),
        "waveform": None if model.waveform is None else _sound_to_dict(model.waveform),
        "short_convolution": None if model.short_convolution is None else _short_to_dict(model.short_convolution),
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
        "mel_bins": model.mel_bins,
        "audio_positions": model.audio_positions,
        "sliding_window": model.sliding_window,
        "partial_rotary_factor": model.partial_rotary_factor,
        "position_span": model.position_span,
        "mean_pooling": model.mean_pooling,
        "parallel_residual": model.parallel_residual,
        "pre_norm": model.pre_norm,
        "embedding_size": model.embedding_size,
        "attention_softcap": model.attention_softcap,
        "logit_softcap": model.logit_softcap,
        "clipped_qkv": model.clipped_qkv,
        "scaled_embeddings": model.scaled_embeddings,
        "sliding_window_pattern": model.sliding_window_pattern,
        "image_size": model.image_size,
        "patch_size": model.patch_size,
        "channels": model.channels,
        "depths": None if model.depths is None else list(model.depths),
        "widths": None if model.widths is None else list(model.widths),
        "bottleneck": model.bottleneck,
        "downsample_in_first_stage": model.downsample_in_first_stage,
        "downsample_in_bottleneck": model.downsample_in_bottleneck,
        "drops_paths": model.drops_paths,
        "vision_layers": model.vision_layers,
        "vision_hidden_size": model.vision_hidden_size,
        "vision_attention_heads": model.vision_attention_heads,
        "vision_intermediate_size": model.vision_intermediate_size,
        "vision_activation": model.vision_activation,
        "vision_attention_dropout": model.vision_attention_dropout,
        "vision_qkv_bias": model.vision_qkv_bias,
        "vision_merge": model.vision_merge,
        "vision_frames": model.vision_frames,
        "vision_window": model.vision_window,
        "vision_full_layers": list(model.vision_full_layers),
        "vision_positions": model.vision_positions,
        "vision_deepstack_layers": list(model.vision_deepstack_layers),
        "vision_rotary": model.vision_rotary,
        "vision_global_layers": model.vision_global_layers,
        "vision_tapped_layers": list(model.vision_tapped_layers),
        "vision_newline": model.vision_newline,
        "vision_tiles": model.vision_tiles,
        "cross_attention_layers": list(model.cross_attention_layers),
        "scaled_queries": model.scaled_queries,
        "text_type": model.text_type,
        "projection_size": model.projection_size,
        "sliding_window_start": model.sliding_window_start,
        "new_decoder_architecture": model.new_decoder_architecture,
        "parallel_norms": model.parallel_norms,
        "unrotated_layers": list(model.unrotated_layers),
        "rope_scaling": model.rope_scaling,
        "full_head_size": model.full_head_size,
        "full_key_value_heads": model.full_key_value_heads,
        "keys_as_values": model.keys_as_values,
        "layer_input_size": model.layer_input_size,
        "layer_input_vocabulary_size": model.layer_input_vocabulary_size,
        "key_value_sharing_layers": model.key_value_sharing_layers,
        "wide_sharing_layers": model.wide_sharing_layers,
        "recipe_global_batch_size": model.recipe_global_batch_size,
        "dtype": model.dtype,
        "alternating": None if model.alternating is None else model.alternating._asdict(),
        "unet": None
        if model.unet is None
        else {**model.unet._asdict(), "attention_free": list(model.unet.attention_free)},
    }


def _experts_to_dict(experts: Experts) -> dict[str, Any]:
    values = experts._asdict()
    values.pop("separate")  # which the release of Transformers says
    if not experts.noisy:
        del values["noisy"]
    return {"count": values.pop("routed"), **values, "dense_layers": list(experts.dense_layers)}


def _linear_to_dict(linear: LinearAttention) -> dict[str, Any]:
    return {**linear._asdict(), "layers": list(linear.layers)}


def _space_to_dict(space: StateSpace) -> dict[str, Any]:
    return {**space._asdict(), "layers": list(space.layers), "feedforward_layers": list(space.feedforward_layers)}


def _short_to_dict(convolution: ShortConvolution) -> dict[str, Any]:
    return {**convolution._asdict(), "layers": list(convolution.layers)}


def _sound_to_dict(sound: Waveform) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in sound._asdict().items()}


def gpu_to_dict(gpu: Gpu) -> dict[str, Any]:
    """A GPU with everything that the planner knows of it, so that it does not depend on a profile."""
    return {
        "name": gpu.name,
        "memory": f"{gpu.capacity_bytes} B",
        "capacity_basis": gpu.capacity_basis,
        "title": gpu.title,
        "architecture": gpu.architecture,
        "compute_capability": gpu.compute_capability,
        "bf16": gpu.bf16,
        "flash_attention": gpu.flash_attention,
        "memory_bandwidth": _figure(gpu.memory_bandwidth_bytes_per_s, "B/s"),
        "note": gpu.note,
        "fp32": _figure(gpu.fp32_flop_per_s, "FLOP/s"),
        "fp16": _figure(gpu.fp16_flop_per_s, "FLOP/s"),
        "bf16_rate": _figure(gpu.bf16_flop_per_s, "FLOP/s"),
        "fp8_rate": _figure(gpu.fp8_flop_per_s, "FLOP/s"),
        "link_bandwidth": _figure(gpu.link_bytes_per_s, "B/s"),
        "tdp": _figure(gpu.tdp_watts, "W"),
    }


def _figure(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value!r} {unit}"
