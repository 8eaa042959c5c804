"""Keys of Megatron-Bridge's recipes, and what those begin with.

Source: NVIDIA-NeMo/Megatron-Bridge 0.7.0 (067f987d), src/megatron/bridge/recipes/common.py, training/config.py,
peft/lora.py; megatron-core, core/model_parallel_config.py, core/transformer/transformer_config.py,
core/optimizer/optimizer_config.py, core/distributed/distributed_data_parallel_config.py.
"""

from __future__ import annotations

from typing import Any

from vramplan.configs.table import ProgramRelease, Table, names

LORA: dict[str, Any] = {"peft._class": "LoRA"}
PACKED: dict[str, Any] = {
    "dataset.seq_length": 2048,
    "dataset.enable_offline_packing": True,
    "train.global_batch_size": 128,
    "train.micro_batch_size": 1,
}
IMAGES: dict[str, Any] = {
    "dataset.seq_length": 4096,
    "train.global_batch_size": 32,
    "train.micro_batch_size": 2,
}
BASES: dict[str, dict[str, Any]] = {
    "_pretrain_common": IMAGES,
    "_sft_common": PACKED,
    "_peft_common": {**PACKED, **LORA},
    "_sft_common_vlm": IMAGES,
    "_peft_common_vlm": {**IMAGES, **LORA},
}
"""What a recipe begins with, by recipes/common.py: sizes of the pre-training's are those of models with images too."""

PRECISION = "bf16_mixed"
"""What all of them have."""

OF_A_SCHEME = "default_peft_config"
"""What makes an adapter of its scheme, which may be none."""

KEPT = (
    OF_A_SCHEME,
    "default_squad_config",
    "default_tulu3_config",
    "default_openmathinstruct2_config",
    "default_openmathinstruct2_thinking_config",
    "distributed_fused_adam_with_cosine_annealing",
    "distributed_muon_with_cosine_annealing",
    "get_mixed_precision_config",
    "apply_determinism_overrides",
    "bf16_mixed",
    "bf16_with_mxfp8_mixed",
)
OF_PARTS = "VLMLoRA"
"""LoRA that may leave a part of the model trained, peft/lora.py: the language model is frozen unless it says else."""

SCHEMES = {"lora": "LoRA", "dora": "DoRA", "canonical_lora": "CanonicalLoRA"}

UNDERSTOOD = names(
    """
    _class recipe.num_gpus model._class model._of.* model.* dataset.seq_length dataset.sequence_length
    dataset.enable_offline_packing dataset.enable_in_batch_packing dataset.packed_sequence_specs.packed_sequence_size
    train.micro_batch_size train.global_batch_size
    mixed_precision mixed_precision._class mixed_precision.fp8 mixed_precision.bf16 mixed_precision.fp16
    mixed_precision.grad_reduce_in_fp32
    optimizer.optimizer optimizer._class optimizer.clip_grad optimizer.use_distributed_optimizer
    ddp.use_distributed_optimizer ddp.use_megatron_fsdp ddp.data_parallel_sharding_strategy peft peft._class peft.dim
    peft.alpha peft.dropout peft.target_modules model.tensor_model_parallel_size model.pipeline_model_parallel_size
    model.virtual_pipeline_model_parallel_size model.microbatch_group_size_per_vp_stage
    model.context_parallel_size model.expert_model_parallel_size
    model.sequence_parallel model.seq_length model.recompute_granularity model.recompute_method
    model.recompute_num_layers model.recompute_modules model.cuda_graph_impl model.num_layers model.hidden_size
    model.num_attention_heads model.ffn_hidden_size model.num_query_groups model.kv_channels model.num_moe_experts
    model.moe_router_topk model.vocab_size model.gated_linear_unit model.share_embeddings_and_output_weights
    model.hybrid_layer_pattern model.hybrid_override_pattern model.0
    model.expert_tensor_parallel_size model.mamba_num_heads model.mamba_head_dim model.mamba_state_dim
    model.mamba_num_groups
    model.moe_ffn_hidden_size model.moe_shared_expert_intermediate_size model.moe_latent_size
    model.account_for_embedding_in_pipeline_split model.account_for_loss_in_pipeline_split
    """
) - {"model.*"}
WITHOUT_EFFECT = names(
    """
    env_vars env_vars.* tokenizer tokenizer.* checkpoint checkpoint.* logger logger.* rng rng.* scheduler scheduler.*
    validation validation.* dist dist.* profiling profiling.* nvrx_straggler.* rerun_state_machine.* inprocess_restart.*
    dataset dataset._class dataset.* train._class train.* ddp._class ddp.check_for_nan_in_grad ddp.grad_reduce_in_fp32
    ddp.check_for_large_grads ddp.average_in_collective optimizer.lr optimizer.min_lr optimizer.weight_decay
    optimizer.adam_* optimizer.precision optimizer.max_lr optimizer.lr_* optimizer.start_weight_decay
    optimizer.end_weight_decay optimizer.weight_decay_incr_style optimizer.decoupled_* optimizer.muon_* optimizer.eps
    optimizer.warmup_* optimizer.apply_wd_* model.init_method_std model.pipeline_dtype model.params_dtype
    model.hf_model_id model.hf_model_revision model.make_vocab_size_divisible_by model.should_pad_vocab
    model.rotary_* model.yarn_* model.use_te_rng_tracker model.moe_aux_loss_coeff model.moe_z_loss_coeff
    model.moe_router_load_balancing_type model.moe_router_force_load_balancing model.mtp_loss_scaling_factor
    model.calculate_per_token_loss model.variable_seq_lengths
    model.cuda_graph_warmup_steps
    model.perform_initialization model.autocast_dtype model.fp16 model.bf16 mixed_precision.params_dtype
    mixed_precision.pipeline_dtype mixed_precision.autocast_enabled peft.lora_A_init_method peft.lora_B_init_method
    peft.dropout_position model.temporal_ckpt_compat model.*_token_id model.generation_config
    model.scatter_embedding_sequence_parallel model.add_class_token model.finalize_model_grads_func
    model.persist_layer_norm model.transformer_impl
    model.freeze_vision_model model.freeze_vision_projection model.freeze_sound_*
    model.quant_recipe
    model.cuda_graph_* model.deallocate_pipeline_outputs optimizer.log_* train.manual_gc*
    """
)
_STAGES = "which stage has which blocks, and they are cut evenly"
UNMODELLED = {
    "model.*": "a model that differs from its usual sizes, or kernels of its own",
    "model.moe_*": "how tokens reach the experts",
    "model.offload_modules": "activations on the host",
    "model.fine_grained_activation_offloading": "activations on the host",
    "model.cpu_offloading*": "activations or weights on the host",
    "model.cross_entropy_*": "which kernel computes the loss",
    "model.attention_backend": "which kernel computes attention",
    **dict.fromkeys(("model.pipeline_model_parallel_layout", "model._pipeline_model_parallel_layout_builder"), _STAGES),
    **dict.fromkeys(("model.num_layers_in_first_pipeline_stage", "model.num_layers_in_last_pipeline_stage"), _STAGES),
    "model.mtp_num_layers": "blocks that predict further tokens",
    "model.vision_*": "the vision encoder",
    "ddp.*": "how gradients are reduced",
    "comm_overlap": "communication overlaps with products, with buffers of its own",
    "comm_overlap.*": "communication overlaps with products, with buffers of its own",
    "mixed_precision.*": "element types of communication, and how numbers are scaled",
    "optimizer.*": "states of the optimizer in other element types, or on the host",
    "peft.*": "how adapters are computed",
}
DEFAULTS: dict[str, Any] = {
    "peft.dim": 32,
    "peft.alpha": 32,
    "peft.dropout": 0.0,
    "peft.target_modules": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],
}
RELEASES = (
    ProgramRelease(
        "0.7.0",
        "2026-08-22",
        "NVIDIA-NeMo/Megatron-Bridge 0.7.0 (067f987d), src/megatron/bridge/recipes/common.py",
        DEFAULTS,
    ),
)
TABLE = Table(UNDERSTOOD, WITHOUT_EFFECT, UNMODELLED)
