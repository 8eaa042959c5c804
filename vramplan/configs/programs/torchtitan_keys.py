"""The keys of torchtitan's files, and their defaults.

Source: pytorch/torchtitan 0.2.2 (238fa995), torchtitan/config/job_config.py; the same of 2024 and early 2025,
torchtitan/config_manager.py; fla-org/flame, flame/config_manager.py (`training.gradient_accumulation_steps`).
"""

from __future__ import annotations

from typing import Any

from vramplan.configs.table import names

UNDERSTOOD = names(
    """
    model.name model.flavor model.converters optimizer.name optimizer.implementation
    optimizer.early_step_in_backward optimizer.fused training.local_batch_size training.batch_size
    training.global_batch_size training.seq_len training.max_norm training.enable_cpu_offload training.dtype
    training.mixed_precision_param training.mixed_precision_reduce training.data_parallel_degree
    training.tensor_parallel_degree training.sequence_parallel_degree training.compile
    training.data_parallel_shard_degree training.data_parallel_replicate_degree training.enable_float8_linear
    training.fp8_linear
    training.pipeline_parallel_degree training.fsdp_reshard_after_forward parallelism.data_parallel_replicate_degree
    parallelism.data_parallel_shard_degree parallelism.fsdp_reshard_after_forward parallelism.tensor_parallel_degree
    parallelism.disable_loss_parallel parallelism.pipeline_parallel_degree parallelism.pipeline_parallel_schedule
    parallelism.pipeline_parallel_microbatch_size parallelism.pipeline_parallel_microbatches
    experimental.pipeline_parallel_microbatches training.gradient_accumulation_steps
    parallelism.pipeline_parallel_layers_per_stage
    parallelism.context_parallel_degree parallelism.context_parallel_rotate_method
    parallelism.expert_parallel_degree experimental.pipeline_parallel_degree experimental.context_parallel_degree
    experimental.pipeline_parallel_schedule activation_checkpoint.mode activation_checkpoint.selective_ac_option
    compile.enable compile.components quantize.linear.float8.recipe_name float8.enable_float8_linear
    hf_transformers.model hf_model
    """
)

WITHOUT_EFFECT = names(
    """
    job.* profiling.* metrics.* model.hf_assets_path model.tokenizer_path model.print_after_conversion optimizer.lr
    optimizer.beta1 optimizer.beta2 optimizer.eps optimizer.weight_decay lr_scheduler.* training.dataset
    training.dataset_path training.steps training.gc_freq training.gc_debug training.warmup_steps training.seed
    training.deterministic training.dataloader.* checkpoint.* comm.* memory_estimation.* experimental.custom_import
    experimental.custom_args_module validation.* debug.* fault_tolerance.enable fault_tolerance.process_group*
    fault_tolerance.replica_id fault_tolerance.min_replica_size activation_checkpoint.preserve_rng_state
    activation_checkpoint.determinism_check activation_checkpoint.debug activation_checkpoint.early_stop
    activation_checkpoint.visualize_memory_budget_pareto parallelism.context_parallel_load_balancer
    parallelism.pipeline_parallel_schedule_csv compile.backend model.tokenizer_type quantize.linear.float8.emulate
    quantize.linear.float8.filter_fqns quantize.linear.mx.filter_fqns float8.filter_fqns
    parallelism.pipeline_parallel_expert_parallel_overlap training.checkpoint_* training.warmup_pct
    """
)

UNMODELLED = {
    "quantize.linear.float8.enable_fsdp_float8_all_gather": "FSDP gathers in fp8",
    "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp": "scales of fp8 are computed at once",
    "quantize.*": "products in fp8 or MX formats",
    "float8.*": "products in fp8",
    "mx.*": "products in MX formats",
    "parallelism.enable_async_tensor_parallel": "tensor-parallel communication overlaps with products",
    "experimental.enable_async_tensor_parallel": "tensor-parallel communication overlaps with products",
    "parallelism.expert_tensor_parallel_degree": "tensor parallelism of the experts",
    "parallelism.expert_parallel_comm_backend": "how tokens reach the experts",
    "parallelism.module_fqns_per_model_part": "which stage has which blocks",
    "parallelism.pipeline_parallel_first_stage_less_layers": "the first stage has fewer blocks",
    "parallelism.pipeline_parallel_last_stage_less_layers": "the last stage has fewer blocks",
    "parallelism.enable_compiled_autograd": "backward is compiled at run time",
    "activation_checkpoint.memory_budget": "how much a memory budget keeps",
    "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns": "products that are recomputed all the same",
    "fault_tolerance.*": "copies of the model for fault tolerance",
    "experimental.pipeline_parallel_split_points": "which stage has which blocks",
    "model.norm_type": "which norm",
    "experimental.torch_spmd": "another way to shard",
    "data.max_*": "images beside the text",
}

DEFAULTS: dict[str, Any] = {
    "model.name": "llama3",
    "model.flavor": "debugmodel",
    "model.converters": [],
    "optimizer.name": "AdamW",
    "optimizer.implementation": "fused",
    "training.local_batch_size": 8,
    "training.global_batch_size": -1,
    "training.seq_len": 2048,
    "training.max_norm": 1.0,
    "training.enable_cpu_offload": False,
    "training.dtype": "float32",
    "training.mixed_precision_param": "bfloat16",
    "training.mixed_precision_reduce": "float32",
    "parallelism.data_parallel_replicate_degree": 1,
    "parallelism.data_parallel_shard_degree": -1,
    "parallelism.fsdp_reshard_after_forward": "default",
    "parallelism.tensor_parallel_degree": 1,
    "parallelism.pipeline_parallel_degree": 1,
    "parallelism.pipeline_parallel_schedule": "1F1B",
    "parallelism.context_parallel_degree": 1,
    "parallelism.expert_parallel_degree": 1,
    "activation_checkpoint.mode": "selective",
    "activation_checkpoint.selective_ac_option": "2",
    "compile.enable": False,
    "compile.components": ["model", "loss"],
}

ATTENTIONS = ("_flex_attn", "_varlen_attn", "_flex", "_varlen", "_irope")
