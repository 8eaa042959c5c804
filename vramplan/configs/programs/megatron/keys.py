"""The arguments of Megatron-LM and their defaults.

Source: NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), megatron/training/arguments.py and megatron/training/config/*.py.
"""

from __future__ import annotations

from typing import Any

from vramplan.configs.programs import megatron_beside as beside
from vramplan.configs.programs.megatron import other_releases as other
from vramplan.configs.table import ProgramRelease, Table, names

UNDERSTOOD = names(
    """
    program launcher.nproc_per_node launcher.nproc-per-node launcher.nnodes launcher.nodes world_size num_layers
    encoder_num_layers decoder_num_layers hidden_size ffn_hidden_size num_attention_heads kv_channels
    group_query_attention num_query_groups max_position_embeddings seq_length encoder_seq_length decoder_seq_length
    vocab_size padded_vocab_size tokenizer_type vocab_file tokenizer_model vocab_extra_ids swiglu normalization
    position_embedding_type untie_embeddings_and_output_weights disable_bias_linear num_experts moe_router_topk
    moe_ffn_hidden_size micro_batch_size batch_size global_batch_size rampup_batch_size step_batch_size_schedule
    decrease_batch_size_if_needed freeze_lm freeze_llm
    moe_shared_expert_intermediate_size moe_latent_size
    hybrid_layer_pattern hybrid_override_pattern mamba_num_heads mamba_head_dim mamba_state_dim mamba_num_groups
    optimizer clip_grad fp16 bf16 fp8_format fp8_hybrid fp8_e4m3 fp8 recompute_activations recompute_granularity
    recompute_method recompute_num_layers checkpoint_activations activations_checkpoint_method
    activations_checkpoint_num_layers checkpoint_num_layers attention_backend use_flash_attn attention_dropout
    hidden_dropout tensor_model_parallel_size model_parallel_size pipeline_model_parallel_size context_parallel_size
    expert_model_parallel_size num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank
    microbatch_group_size_per_virtual_pipeline_stage
    sequence_parallel use_distributed_optimizer overlap_param_gather overlap_grad_reduce optimizer_cpu_offload
    optimizer_offload_fraction moe_expert_capacity_factor moe_pad_expert_input_to_capacity use_megatron_fsdp
    data_parallel_sharding_strategy use_torch_fsdp2 qk_layernorm use_rotary_position_embeddings
    account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split sgd_momentum
    accumulate_allreduce_grads_in_fp32 grad_reduce_in_bf16 main_grads_dtype glu_activation no_position_embedding
    expert_tensor_parallel_size recompute_modules add_qkv_bias squared_relu moe_layer_freq
    expert_interval mlp_type disable_moe_token_dropping moe_train_capacity_factor
    """
)

WITHOUT_EFFECT = names(
    """
    launcher.* lr lr_* min_lr adam_* weight_decay* start_weight_decay end_weight_decay head_lr_mult warmup
    decoupled_* train_iters train_samples exit_* manual_gc* log_* no_log_* timing_log_* tensorboard_* wandb_*
    one_logger* no_one_logger app_tag_run_* logging_level save* load* no_save_* no_load_* finetune
    pretrained_checkpoint ckpt_* no_ckpt_* dist_ckpt_* async_save use_dist_ckpt use_checkpoint_*
    auto_detect_ckpt_format use_persistent_ckpt_worker non_persistent_* exit_on_missing_checkpoint override_*
    replication* eval_* skip_train full_validation multiple_validation_sets test_mode data_* train_data_path
    valid_data_path test_data_path per_split_data_args_path per_dataset_sequences_path split mock_data merge_file
    tiktoken_* special_tokens tokenizer_* null_tokenizer_* legacy_tokenizer trust_remote_code chat_template
    num_workers dataloader_* no_mmap_bin_files no_create_attention_mask_in_dataloader num_dataset_builder_threads
    mid_level_dataset_surplus reset_position_ids reset_attention_mask eod_mask_loss mask_prob short_seq_prob seed
    data_parallel_random_init init_method_std init_method_xavier_uniform no_initialization perform_initialization
    use_cpu_initialization distributed_backend distributed_timeout_* rank local_rank dist_url lazy_mpu_init ddp_impl
    nccl_communicator_config_path disable_gloo_process_groups enable_gloo_process_groups use_gloo_process_groups
    use_tp_pp_dp_mapping use_sharp high_priority_stream_groups profile* use_pytorch_profiler pytorch_profiler_*
    record_memory_history memory_snapshot_path nvtx_ranges check_weight_hash_across_dp_replicas_interval check_for_*
    no_check_for_nan_in_loss_and_grad rerun_mode error_injection_* disable_straggler_on_startup straggler_*
    loss_scale* initial_loss_scale min_loss_scale hysteresis use_mcore_models use_legacy_models transformer_impl
    rotary_base rotary_percent rotary_interleaved rotary_seq_len_interpolation_factor
    rope_* use_rope_scaling apply_layernorm_1p norm_epsilon layernorm_epsilon
    apply_query_key_layer_scaling attention_softmax_in_fp32 deterministic_mode calculate_per_token_loss
    moe_aux_loss_coeff moe_z_loss_coeff moe_input_jitter_eps moe_router_* moe_per_layer_logging
    moe_token_drop_policy train_sync_interval fp8_amax_* fp8_margin fp8_interval no_fp8_wgrad bert_no_binary_head
    classes_fraction data_per_class_fraction sample_rate fim_* enable_ft_package calc_ft_timeouts
    ft_num_warmup_iters inprocess_* sft sft_tokenizer_prompt_format qk_clip_* iterations_to_skip
    result_rejected_tracker_filename gpu_sniff_test_interval adlr_autoresume* delay_grad_reduce no_delay_grad_reduce
    align_grad_reduce align_param_gather no_align_param_gather ddp_average_in_collective mtp_loss_scaling_factor
    yaml_cfg onnx_safe otel_* enable_msc disable_msc muon_* lion_beta1 lion_beta2 config_logger_dir
    make_vocab_size_divisible_by flash_attention_version attention_dropout_* log use_one_sent_docs
    clone_scatter_output_in_embedding no_clone_scatter_output_in_embedding no_barrier_with_level_1_timing
    barrier_with_l1_time tp_comm_bootstrap_backend nccl_all_reduce_for_prefill fake_process_group kitchen_*
    inference_* export_* force_* te_rng_tracker rotary_scaling_factor mscale* async_strategy async_ckpt_*
    verify_integrity no_use_tokenizer_model_from_checkpoint_args no_record_throughput apply_wd_to_qk_layernorm
    flash_decode use_legacy_static_engine max_tokens_to_oom yarn_* no_weight_decay_cond_type
    grad_norm_skip_threshold attention_output_gate_* openai_gelu squared_relu_clip override_opt_param_scheduler
    cache_* workers use_mpi causal_lm ademamix_* internals_log_interval embedding_lr_multiplier
    """
)

UNMODELLED = {
    "fp8_param_gather": "weights are gathered in fp8",
    "fp8_recipe": "how fp8 is scaled",
    "fp8_output_proj": "which products are in fp8",
    "fp8_dot_product_attention": "attention in fp8",
    "fp8_multi_head_attention": "attention in fp8",
    "fp8_quantizer_factory": "how fp8 is scaled",
    "fp4_*": "training in fp4",
    "cross_entropy_loss_fusion": "the cross entropy is one kernel",
    "cross_entropy_fusion_impl": "the cross entropy is one kernel",
    "fp16_lm_cross_entropy": "the cross entropy reads half-precision logits",
    "moe_grouped_gemm": "the experts are one grouped product",
    "moe_use_legacy_grouped_gemm": "the experts are one grouped product",
    "moe_token_dispatcher_type": "how tokens reach the experts",
    "moe_*": "details of the experts",
    "no_masked_softmax_fusion": "the softmax of attention is not fused",
    "no_bias_gelu_fusion": "bias and GELU are not fused",
    "no_bias_swiglu_fusion": "bias and SwiGLU are not fused",
    "no_bias_dropout_fusion": "bias and dropout are not fused",
    "no_rope_fusion": "the rotary embedding is not fused",
    "apply_rope_fusion": "the rotary embedding is fused",
    "bias_activation_fusion": "bias and activation are fused",
    "no_gradient_accumulation_fusion": "gradients of weights are not added up inside the product",
    "gradient_accumulation_fusion": "gradients of weights are added up inside the product",
    "no_persist_layer_norm": "the LayerNorm kernel of Apex is not used",
    "no_async_tensor_model_parallel_allreduce": "gradients of inputs are reduced before the product",
    "distribute_saved_activations": "checkpoints are shared between tensor-parallel devices",
    "mhc_*": "hyper-connections",
    "tp_comm_*": "communication overlaps with products, with buffers of its own",
    "disable_tp_comm_*": "communication overlaps with products, with buffers of its own",
    "ddp_bucket_size": "the size of the buckets of gradients",
    "ddp_*": "buckets of gradients",
    "num_distributed_optimizer_instances": "the optimizer is shared within groups",
    "use_precision_aware_optimizer": "states of the optimizer in half precision",
    "main_params_dtype": "element type of the master copy",
    "exp_avg_dtype": "element type of the optimizer's states",
    "exp_avg_sq_dtype": "element type of the optimizer's states",
    "store_param_remainders": "the master copy is kept as 16 bits of remainders",
    "overlap_param_gather_with_optimizer_step": "parameters are gathered during the step",
    "overlap_cpu_optimizer_d2h_h2d": "the optimizer on the host",
    "use_torch_optimizer_for_cpu_offload": "the optimizer on the host",
    "optimizer_cuda_graph": "the step as a CUDA graph",
    "empty_unused_memory_level": "the allocator's cache is emptied during the step",
    "cuda_graph*": "CUDA graphs",
    "enable_cuda_graph": "CUDA graphs",
    "external_cuda_graph": "CUDA graphs",
    "cpu_offloading*": "activations or weights on the host",
    "fine_grained_activation_offloading": "activations on the host",
    "offload_modules": "activations on the host",
    "fp32_residual_connection": "the residual stream is in fp32",
    "apply_residual_connection_post_layernorm": "the residual stream starts behind the LayerNorm",
    "qk_*": "norms of queries and keys",
    "multi_latent_attention": "latent attention",
    "q_lora_rank": "latent attention",
    "kv_lora_rank": "latent attention",
    "v_head_dim": "latent attention",
    "mtp_*": "multi-token prediction",
    "hybrid_*": "Mamba layers",
    "mamba_*": "Mamba layers",
    "linear_*": "linear attention",
    "window_*": "sliding windows",
    "no_rope_freq": "layers without positions",
    "is_hybrid_model": "Mamba layers",
    "spec": "the modules of a block come from another file",
    "heterogeneous_*": "blocks of different sizes",
    "pipeline_model_parallel_layout": "which stage has which blocks",
    "num_layers_in_first_pipeline_stage": "the first stage has another number of blocks",
    "num_layers_in_last_pipeline_stage": "the last stage has another number of blocks",
    "decoder_first_pipeline_num_layers": "the first stage has another number of blocks",
    "decoder_last_pipeline_num_layers": "the last stage has another number of blocks",
    "pipeline_model_parallel_split_rank": "where the decoder begins",
    "standalone_embedding_stage": "the embedding has a stage of its own",
    "cp_comm_type": "how context parallelism exchanges keys and values",
    "hierarchical_context_parallel_sizes": "context parallelism of two levels",
    "hybrid_context_parallel": "context parallelism by sample",
    "overlap_moe_expert_parallel_comm": "tokens travel during computation",
    "overlap_p2p_*": "stages send during computation",
    "no_overlap_p2p_communication": "stages do not send during computation",
    "delay_wgrad_compute": "gradients of weights are computed later",
    "defer_embedding_wgrad_compute": "the gradient of the embedding is computed later",
    "wgrad_deferral_limit": "the gradient of the embedding is computed later",
    "variable_seq_lengths": "lengths change from batch to batch",
    "fsdp_*": "details of Megatron's FSDP",
    "megatron_fsdp_*": "details of Megatron's FSDP",
    "init_model_with_meta_device": "weights are made on no device first",
    "torch_fsdp2_no_reshard_after_forward": "FSDP2 keeps gathered weights",
    "outer_dp_sharding_strategy": "sharding between nodes",
    "keep_fp8_transpose_cache": "transposes of fp8 weights are kept",
    "reuse_grad_buf_for_mxfp8_param_ag": "weights are gathered into the buffer of gradients",
    "use_nccl_ub": "NCCL's registered buffers",
    "suggested_communication_unit_size": "sizes of communication",
    "quick_geglu": "the activation is a quick GeGLU",
    "retro_*": "RETRO: a retriever beside the model",
    "rl_*": "reinforcement learning: an engine for inference beside training",
    "grpo_*": "reinforcement learning: an engine for inference beside training",
    "perform_rl_step": "reinforcement learning: an engine for inference beside training",
    "batch_invariant_mode": "kernels whose result does not depend on the batch",
    "use_transformer_engine_op_fuser": "fused kernels of Transformer Engine",
    "memory_efficient_layer_norm": "the LayerNorm saves less",
    "fused_*": "fused kernels",
    "use_fused_*": "fused kernels",
    "use_te_*": "kernels of Transformer Engine",
    "experimental_attention_variant": "another attention",
    "dsa_*": "sparse attention",
    "softmax_type": "the softmax of attention",
    "glu_*": "the activation",
    "activation_func_*": "the activation",
    "disable_bf16_reduced_precision_matmul": "sums inside products",
    "disable_jit_fuser": "fused kernels of TorchScript",
    "te_precision_config_file": "precision by layer",
    "gtp_*": "tensor parallelism of another kind",
    "enable_experimental": "functions under test",
    "encoder_tensor_model_parallel_size": "tensor parallelism of the encoder",
    "encoder_pipeline_model_parallel_size": "pipeline stages of the encoder",
    "first_last_layers_bf16": "the first and last blocks stay in bf16 beside fp8",
    "num_layers_at_*": "how many of the first and last blocks stay in bf16",
    "attention_output_gate": "a gate behind attention",
    "patch_dim": "images",
    "img_h": "images",
    "img_w": "images",
    "langrl_*": "reinforcement learning: an engine for inference beside training",
    "logits_*": "distillation from stored logits",
}

DEFAULTS: dict[str, Any] = {
    "optimizer": "adam",
    "clip_grad": 1.0,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
    "normalization": "LayerNorm",
    "position_embedding_type": "learned_absolute",
    "attention_backend": "auto",
    "moe_router_topk": 2,
    "recompute_num_layers": 1,
}

RELEASES = (
    ProgramRelease(
        "core 0.20.0",
        "2026-08-22",
        "NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), megatron/training/arguments.py, megatron/core/*/*_config.py",
        DEFAULTS,
    ),
)

TABLE = Table(
    UNDERSTOOD | beside.UNDERSTOOD,
    WITHOUT_EFFECT | beside.WITHOUT_EFFECT | other.WITHOUT_EFFECT,
    {**UNMODELLED, **beside.UNMODELLED, **other.UNMODELLED},
    is_extended=True,
)
