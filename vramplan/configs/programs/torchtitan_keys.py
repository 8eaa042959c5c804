"""The keys of torchtitan's files, their defaults, and the models that its flavors are.

Source: pytorch/torchtitan 0.2.2 (238fa995), torchtitan/config/job_config.py and models/*/__init__.py.
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
    training.tensor_parallel_degree training.compile training.data_parallel_shard_degree
    training.data_parallel_replicate_degree training.enable_float8_linear parallelism.data_parallel_replicate_degree
    parallelism.data_parallel_shard_degree parallelism.fsdp_reshard_after_forward parallelism.tensor_parallel_degree
    parallelism.disable_loss_parallel parallelism.pipeline_parallel_degree parallelism.pipeline_parallel_schedule
    parallelism.pipeline_parallel_microbatch_size parallelism.pipeline_parallel_layers_per_stage
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
    quantize.linear.float8.filter_fqns quantize.linear.mx.filter_fqns
    parallelism.pipeline_parallel_expert_parallel_overlap
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

FLAVORS = {
    ("llama3", "8B"): "llama-3.1-8b",
    ("llama3", "70B"): "llama-3.1-70b",
    ("llama3", "405B"): "llama-3.1-405b",
    ("llama2", "7B"): "llama-2-7b",
    ("llama2", "13B"): "llama-2-13b",
    ("llama2", "70B"): "llama-2-70b",
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("deepseek_v3", "236B"): "deepseek-v2",
    ("deepseek_v3", "671B"): "deepseek-v3",
    ("llama4", "17bx16e"): "llama-4-scout-17b-16e",
    ("llama4", "17bx128e"): "llama-4-maverick-17b-128e",
    ("gpt_oss", "20b"): "gpt-oss-20b",
    ("gpt_oss", "120b"): "gpt-oss-120b",
}

SHAPES: dict[tuple[str, str], dict[str, Any]] = {
    ("llama3", "debugmodel"): {
        "name": "torchtitan llama3 debugmodel",
        "family": "llama",
        "layers": 6,
        "hidden_size": 256,
        "attention_heads": 16,
        "intermediate_size": 768,
        "vocabulary_size": 2048,
        "max_positions": 131072,
        "tied_embeddings": False,
    },
    ("qwen3", "debugmodel"): {
        "name": "torchtitan qwen3 debugmodel",
        "family": "qwen3",
        "layers": 8,
        "hidden_size": 256,
        "attention_heads": 16,
        "key_value_heads": 8,
        "head_size": 128,
        "intermediate_size": 3072,
        "vocabulary_size": 2048,
        "max_positions": 4096,
        "tied_embeddings": True,
    },
    ("qwen3", "debugmodel_moe"): {
        "name": "torchtitan qwen3 debugmodel_moe",
        "family": "qwen_moe",
        "transformers_model_type": "qwen3_moe",
        "layers": 8,
        "hidden_size": 256,
        "attention_heads": 16,
        "key_value_heads": 8,
        "head_size": 128,
        "intermediate_size": 3072,
        "vocabulary_size": 2048,
        "max_positions": 4096,
        "tied_embeddings": False,
        "qk_norm": True,
        "experts": {"count": 64, "active": 8, "intermediate_size": 768, "normalized": True},
    },
    ("deepseek_v3", "debugmodel"): {
        "name": "torchtitan deepseek_v3 debugmodel",
        "family": "deepseek",
        "transformers_model_type": "deepseek_v2",
        "layers": 6,
        "hidden_size": 256,
        "attention_heads": 16,
        "intermediate_size": 1024,
        "vocabulary_size": 2048,
        "max_positions": 16384,
        "tied_embeddings": False,
        "experts": {"count": 8, "active": 3, "shared": 2, "intermediate_size": 256, "dense_layers": [0]},
        "latent_attention": {"key_value_rank": 512, "plain_size": 128, "rotary_size": 64, "value_size": 128},
    },
    ("gpt_oss", "debugmodel"): {
        "name": "torchtitan gpt_oss debugmodel",
        "family": "gpt_oss",
        "layers": 4,
        "hidden_size": 256,
        "attention_heads": 64,
        "key_value_heads": 8,
        "head_size": 64,
        "intermediate_size": 2880,
        "vocabulary_size": 201088,
        "max_positions": 131072,
        "sliding_window": 128,
        "sliding_window_pattern": 2,
        "experts": {"count": 8, "active": 4},
    },
}
"""Flavors that no checkpoint has, by torchtitan/models/*/__init__.py."""

ATTENTIONS = ("_flex_attn", "_varlen_attn", "_flex", "_varlen", "_irope")
