"""The keys of Axolotl's files and their defaults.

Source: axolotl-ai-cloud/axolotl 0.18.0 (067b021c), src/axolotl/utils/schemas/*.py, integrations/*/args.py.
"""

from __future__ import annotations

from typing import Any

from vramplan.configs.programs import trainer
from vramplan.configs.table import ProgramRelease, names

UNDERSTOOD = names(
    """
    base_model sequence_len micro_batch_size gradient_accumulation_steps batch_size optimizer optim_args bf16 fp16
    fp8 bfloat16 float16 float32 peft_autocast_adapter_dtype max_grad_norm gradient_checkpointing
    gradient_checkpointing_kwargs gradient_checkpointing_kwargs.* activation_offloading unfrozen_parameters rl rl_beta
    trl.beta trl.num_generations
    trl.max_completion_length precompute_ref_log_probs
    attn_implementation xformers_attention sdp_attention flex_attention flash_attention sage_attention
    eager_attention sample_packing pretraining_dataset torch_compile plugins liger_fused_linear_cross_entropy
    lisa_n_layers lisa_step_interval liger_rope liger_rms_norm liger_swiglu liger_glu_activation
    cut_cross_entropy chunked_cross_entropy chunked_cross_entropy_num_chunks load_in_4bit load_in_8bit gptq
    quantize_moe_experts llama4_linearized_experts bnb_config_kwargs bnb_config_kwargs.* adapter lora_r lora_alpha
    processor_type lora_target_parameters tiled_mlp tiled_mlp_num_shards tiled_mlp_use_original_mlp
    lora_dropout lora_target_modules lora_target_linear lora_modules_to_save peft_trainable_token_indices
    peft_trainable_token_indices.* peft_use_dora deepspeed deepspeed.* fsdp
    fsdp_version fsdp_config
    fsdp_config.* tensor_parallel_size context_parallel_size sequence_parallel_degree dp_shard_size
    dp_replicate_size reinit_weights world_size reward_model process_reward_model tf32 use_ray ray_num_workers
    model_type expert_parallel_size qat.weight_dtype qat.activation_dtype qat.group_size qat.quantize_embedding
    qat.fake_quant_after_n_steps rl_adapter_ref_model random_init_weights optim_args.*
    kd_trainer kd_beta kd_ce_alpha kd_online_topk PYTORCH_ALLOC_CONF
    """
) | frozenset(trainer.LAUNCHED)

WITHOUT_EFFECT = trainer.LAUNCHER | names(
    """
    base_model_config cls_model_config tokenizer_config tokenizer_use_fast tokenizer_legacy
    tokenizer_use_mistral_common tokenizer_type processor_kwargs processor_kwargs.*
    tokenizer_save_jinja_files trust_remote_code experimental_skip_move_to_device type_of_model
    model_revision revision_of_model output_dir hub_model_id hub_strategy hub_revision save_safetensors
    special_tokens special_tokens.* tokens tokens.* added_tokens_overrides added_tokens_overrides.* strict
    resume_from_checkpoint auto_resume_from_checkpoints mean_resizing_embeddings trainer_cls
    center_rewards_coefficient dpo_use_weighting dpo_label_smoothing dpo_loss_weights dpo_beta dpo_padding_free
    datasets datasets.* test_datasets test_datasets.* pretraining_dataset.* shuffle_merged_datasets
    pad_to_sequence_len
    shuffle_before_merging_datasets dataset_prepared_path dataset_shard_num dataset_shard_idx skip_prepare_dataset
    num_dataset_shards_to_save dataset_processes dataset_num_proc dataset_exact_deduplication dataset_keep_in_memory
    dataloader_pin_memory dataloader_num_workers dataloader_prefetch_factor dataloader_drop_last accelerator_config
    accelerator_config.* remove_unused_columns push_dataset_to_hub hf_use_auth_token device local_rank ddp seed
    ddp_timeout ddp_broadcast_buffers ddp_find_unused_parameters do_causal_lm_eval eval_causal_lm_metrics
    do_bench_eval bench_dataset bench_split metric_for_best_model greater_is_better loss_watchdog_threshold
    loss_watchdog_patience gc_collect_steps excess_length_strategy min_sample_len max_prompt_len
    sample_packing_group_size sample_packing_bin_size sample_packing_sequentially sample_packing_mp_start_method
    eval_sample_packing eval_sequence_len eval_batch_size pad_to_multiple_of curriculum_sampling
    multipack_real_batches pose_split_on_token_ids pretrain_multipack_buffer_size pretrain_multipack_attn
    pretraining_sample_concatenation streaming streaming_multipack_buffer_size flex_attn_compile_kwargs
    flex_attn_compile_kwargs.* eaft_alpha eaft_k fsdp_final_state_dict_type val_set_size heads_k_stride
    ring_attn_func max_steps warmup_steps warmup_ratio eval_steps evals_per_epoch eval_strategy evaluation_strategy
    save_steps saves_per_epoch save_strategy save_total_limit save_first_step logging_steps early_stopping_patience
    load_best_model_at_end save_only_model use_tensorboard profiler_steps profiler_steps_start
    include_tokens_per_second include_tkps orpo_alpha simpo_gamma cpo_alpha kto_desirable_weight
    kto_undesirable_weight low_cpu_mem_usage chat_template chat_template_jinja chat_template_kwargs
    chat_template_kwargs.* eot_tokens default_system_message fix_untrained_tokens is_preprocess preprocess_iterable
    total_num_tokens total_supervised_tokens sample_packing_eff_est axolotl_config_path is_falcon_derived_model
    is_llama_derived_model is_mistral_derived_model is_qwen_derived_model generate_samples num_generation_samples
    generation_max_new_tokens generation_temperature generation_top_p generation_top_k generation_prompt_ratio
    generation_do_sample scaling_softmax_factor scaling_softmax_bias train_on_inputs group_by_length learning_rate
    embedding_lr embedding_lr_scale weight_decay torchdistx_path lr_scheduler lr_scheduler_kwargs
    lr_scheduler_kwargs.* lr_quadratic_warmup cosine_min_lr_ratio cosine_constant_lr_ratio lr_div_factor lr_groups
    adam_epsilon adam_epsilon2 adam_eps adam_beta1 adam_beta2 adam_beta3 dion_lr dion_momentum jagged_restart_steps
    jagged_restart_warmup_steps jagged_restart_anneal_steps num_epochs lora_model_dir lora_fan_in_fan_out
    lora_alpha_pattern lora_alpha_pattern.* peft.* peft_use_rslora peft_init_lora_weights peft_ensure_weight_tying
    qlora_sharded_model_loading lora_on_cpu loraplus_lr_ratio loraplus_lr_embedding merge_lora merge_method
    gptq_disable_exllama gptq_groupsize gptq_model_v1 fsdp_config.fsdp_sync_module_states use_wandb wandb_*
    use_mlflow mlflow_* hf_mlflow_log_artifacts use_comet comet_* gradio_* ray_run_name
    resources_per_worker resources_per_worker.* use_trackio trackio_* use_otel_metrics otel_metrics_* use_swanlab
    swanlab_* lm_eval_* noisy_embedding_alpha eval_table_size eval_max_new_tokens relora_prune_ratio
    relora_prune_method lisa_layers_attribute liger_use_token_scaling dynamic_checkpoint.* local_files_only
    total_batch_size flash_optimum image_resize_algorithm role_boundaries role_boundaries.* shuffle_seed debug
    message_property_mappings.* vllm.* trl.log_completions trl.reward_funcs trl.reward_weights trl.epsilon
    trl.epsilon_high trl.loss_type trl.scale_rewards trl.temperature trl.top_p trl.top_k trl.min_p
    trl.repetition_penalty trl.mask_truncated_completions trl.importance_sampling_level trl.multi_objective_aggregation
    trl.num_iterations trl.num_completions_to_print trl.rollout_func trl.generation_kwargs* nemo_gym_*
    diffusion.noise_schedule grokfast_alpha grokfast_lamb early_stopping kd_temperature kd_alpha
    kd_normalize_topk kd_temperature_min kd_online_server_base_url kd_online_server kd_online_timeout
    torch_dtype spectrum_model_name group_texts eta_min sample_packing_seq_len_multiplier base_model_ignore_patterns
    process_count model_kwargs model_config.output_router_logits torch_compile_backend_options
    full_finetune test_value processor_config model_config_type
    """
)
"""Keys of the schemas that change neither memory nor time of a training step, by reading where each is used."""

OF_OLD_RELEASES = names(
    """
    eval_table_max_new_tokens collator_pad_to_longest log_sweep_min_lr log_sweep_max_lr lora_out_dir
    push_to_hub_model_id preprocess_shards relora_steps relora_warmup_steps relora_anneal_steps
    sample_pack_sequentially gptq_bits dpo_generate_during_eval dpo_norm_loss inference peft_adapter dataset_prcoesses
    """
)
"""Keys of the schemas from 0.1.0 to 0.13.0 that later ones have not, and that say nothing of a step.

`relora` itself says that an adapter is merged and restarted.
"""

OF_OTHERS = names(
    """
    push_to_hub push_adapter_to_hub hub_private_repo hub_token data_seed padding_side merge_adapter epochs
    num_train_epochs
    bnb_4bit_quant_type bnb_4bit_use_double_quant bnb_4bit_compute_dtype save_embedding_layers report_to run_name
    logging_dir overwrite_output_dir lr_scheduler_type
    """
)
"""Keys that no release of Axolotl has and that files have nonetheless, as they are the Trainer's or PEFT's.

Axolotl takes from a file what its schema has and passes over the rest, so none has an effect; none of those here would
have one on a step elsewhere either, but for bitsandbytes', which Axolotl sets itself to nf4 with double quantization.
"""

UNMODELLED = {
    "deepspeed_config.*": "Axolotl has no setting of that name and passes over it; its own is `deepspeed`",
    "liger_rms_norm_gated": "Liger's gated RMSNorm",
    "liger_cross_entropy": "Liger's cross entropy overwrites the logits with their gradient",
    "resize_token_embeddings_to_32x": "the vocabulary is padded to a multiple of 32",
    "shrink_embeddings": "the embedding shrinks to the tokenizer's vocabulary",
    "embeddings_skip_upcast": "embeddings and head stay in half precision over quantized weights",
    "fp8_enable_fsdp_float8_all_gather": "FSDP gathers in fp8",
    "flash_attn_cross_entropy": "the fused cross entropy of flash-attn",
    "flash_attn_fuse_mlp": "the fused MLP of flash-attn",
    "flash_attn_fuse_qkv": "one product for queries, keys and values",
    "flash_attn_rms_norm": "the RMSNorm of flash-attn",
    "max_packed_sequence_len": "an old form of packing, which Axolotl refuses",
    "device_map.*": "which device has which layer",
    "s2_attention": "shifted sparse attention",
    "layer_offloading": "frozen layers wait on the host",
    "selective_checkpointing": "outputs that a checkpoint keeps",
    "selective_checkpointing.*": "outputs that a checkpoint keeps",
    "relora": "ReLoRA merges and restarts the adapter",
    "relora_cpu_offload": "ReLoRA keeps merged weights on the host",
    "lora_rank_pattern": "ranks by module",
    "lora_rank_pattern.*": "ranks by module",
    "peft_layers_to_transform": "adapters on some layers only",
    "peft_layers_pattern": "adapters on some layers only",
    "peft_layer_replication": "blocks that are repeated",
    "loftq_config.*": "LoftQ quantizes while it initialises",
    "experts_implementation": "how the experts are computed",
    "neftune_noise_alpha": "NEFTune adds noise to the embeddings: a copy of them",
    "torch_compile_backend": "the backend of torch.compile",
    "torch_compile_mode": "the mode of torch.compile",
    "torch_compile_options": "options of torch.compile",
    "torch_compile_options.*": "options of torch.compile",
    "deepcompile": "DeepSpeed's compiler",
    "fp32_norms": "norms stay in fp32",
    "fp32_norm_classes": "which norms stay in fp32",
    "quantization.*": "quantization after training",
    "max_memory.*": "how much each device takes of the model",
    "gpu_memory_limit": "how much each device takes of the model",
    "device_map": "which device has which layer",
    "model_config.*": "changes to the model's configuration",
    "overrides_of_model_config.*": "changes to the model's configuration",
    "overrides_of_model_kwargs.*": "arguments of from_pretrained",
    "model_kwargs.*": "arguments of from_pretrained",
    "model_quantization_config*": "the quantization of the checkpoint",
    "use_kernels": "kernels of the Hugging Face hub",
    "use_onebitllms": "weights of one bit",
    "gc_steps": "the allocator's cache is emptied between steps",
    "torch_empty_cache_steps": "the allocator's cache is emptied between steps",
    "ddp_bucket_cap_mb": "the size of DistributedDataParallel's buckets",
    "auto_find_batch_size": "the Trainer halves the batch size when memory runs out",
    "batch_flattening": "a batch is one row without padding",
    "use_pose": "PoSE: positions are skipped",
    "pose_*": "PoSE: positions are skipped",
    "use_eaft": "entropy-aware loss",
    "scaling_softmax": "attention is scaled by the length",
    "gemma4_*": "attention of Gemma 4",
    "large_head_attention": "attention of large heads",
    "flash_attn_d512": "attention of large heads",
    "sdpa_varlen": "SDPA over packed rows",
    "fused_attn_kernel": "fused attention kernel",
    "freeze_mm_modules": "the encoder of images is frozen",
    "image_size": "pixels of an image",
    "num_labels": "classes of a classification head",
    "dpo_use_liger_kernel": "Liger's fused DPO loss",
    "dpo_loss_type": "which preference loss",
    "dpo_use_logits_to_keep": "logits of the answers only",
    "optim_target_modules": "modules that a low-rank optimizer works on",
    "qgalore_*": "settings of Q-GaLore",
    "dion_rank_*": "settings of Dion",
    "trl.*": "settings of GRPO: completions and an inference engine beside training",
    "ebft.*": "settings of EBFT",
    "diffusion.*": "training as a diffusion model",
    "kd_*": "distillation by other releases' keys",
    "expert_parallel_*": "experts on several devices",
    "expert_backend": "kernels of experts",
    "nonexpert_quantization": "kernels of experts",
    "moe_*": "kernels of experts",
    "use_scattermoe": "kernels of experts",
    "use_sonicmoe": "kernels of experts",
    "use_dsv4_kernels": "kernels of DeepSeek-V4",
    "use_glm_dsa_kernels": "kernels of GLM",
    "dsv4_*": "kernels of DeepSeek-V4",
    "nvfp4_*": "NVFP4 weights",
    "dense_mixer": "all experts in forward",
    "spectrum_top_fraction": "Spectrum trains a fraction of the layers",
    "llmcompressor.*": "sparse or quantized training",
    "mora.*": "MoRA adapters",
    "hatchery.*": "training on a remote service",
    "use_mora": "MoRA adapters",
    "axolotl_cce": "cut cross entropy",
    "unsloth_*": "kernels of Unsloth, of releases up to 0.16.1",
    "rope_scaling": "positions are scaled, and those of the model are counted",
    "rope_scaling.*": "positions are scaled, and those of the model are counted",
    "xpos_rope": "another form of rotary positions, of releases up to 0.3.0",
    "landmark_attention": "landmark attention, of releases up to 0.3.0",
    "load_4bit": "GPTQ weights of four bits, of releases up to 0.4.0",
    "rpo_alpha": "a language-modelling loss of the chosen answers beside DPO's",
    "dynamic_checkpoint": "checkpoints that are asked for",
}

DEFAULTS: dict[str, Any] = {
    "sequence_len": 512,
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "optimizer": "adamw_torch_fused",
    "bf16": "auto",
    "gradient_checkpointing": False,
    "activation_offloading": False,
    "lora_dropout": 0.0,
    "load_in_8bit": False,
    "load_in_4bit": False,
    "max_grad_norm": 1.0,  # of TrainingArguments, to which Axolotl hands on what a file gives
}

_SOURCE = "axolotl-ai-cloud/axolotl {}, src/axolotl/utils/schemas/"

BEFORE_OWN_FSDP2 = "0.11.0"
"""Accelerate makes fp32 of what FSDP2 trains there; from 0.12.0 of 2025-08-08 Axolotl's own function keeps bf16."""

EXPANDABLE, ROUNDED = "expandable_segments:True", "roundup_power2_divisions:16"

OF_ALLOCATOR = "PYTORCH_ALLOC_CONF"
"""The variable that `axolotl` sets where nobody else has.

With PyTorch 2.2 and later segments are expandable and sizes rounded since e4063d60a of 2024-07-19, whose first release
is 0.5.0; with 2.9 and later sizes are rounded no more since e41237087 of 2026-03-24 (0.16.0). 0.18.0 asks for PyTorch
2.11, and 0.11.0 was built with 2.6 and 2.7.
Source: axolotl-ai-cloud/axolotl, src/axolotl/utils/__init__.py, set_pytorch_cuda_alloc_conf; .github/workflows.
"""

RELEASES = (
    ProgramRelease("0.18.0", "2026-07-24", _SOURCE.format("0.18.0 (067b021c)"), DEFAULTS | {OF_ALLOCATOR: EXPANDABLE}),
    ProgramRelease(
        BEFORE_OWN_FSDP2,
        "2025-07-09",
        _SOURCE.format(BEFORE_OWN_FSDP2),
        DEFAULTS | {OF_ALLOCATOR: f"{EXPANDABLE},{ROUNDED}"},
    ),
)
