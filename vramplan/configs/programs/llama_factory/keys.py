"""The keys of LLaMA-Factory's files and their defaults.

Source: hiyouga/LLaMA-Factory 0.9.6.dev0 (ff6d4d12), src/llamafactory/hparams/*.py; src/llamafactory/v1/config/*.py.
"""

from __future__ import annotations

from typing import Any

from vramplan.configs.programs import trainer
from vramplan.configs.table import ProgramRelease, Table, names

UNDERSTOOD = names(
    """
    model_name_or_path stage finetuning_type cutoff_len packing neat_packing flash_attn enable_liger_kernel
    max_source_length max_target_length use_liger_kernel liger_kernel_config.*
    disable_gradient_checkpointing use_reentrant_gc use_unsloth use_unsloth_gc upcast_layernorm
    train_from_scratch quantization_method quantization_bit quantization_type double_quantization
    gradient_checkpointing gradient_checkpointing_kwargs gradient_checkpointing_kwargs.* freeze_trainable_layers
    freeze_vision_tower freeze_multi_modal_projector freeze_language_model train_mm_proj_only
    freeze_trainable_modules freeze_extra_modules use_llama_pro lora_rank lora_alpha lora_dropout lora_target
    adapter_name_or_path create_new_adapter additional_target use_dora oft_rank oft_block_size oft_target
    module_dropout pref_loss dpo_loss ref_model use_galore
    galore_rank galore_target galore_layerwise use_apollo apollo_rank apollo_target apollo_layerwise use_badam
    badam_mode badam_start_block use_adam_mini use_muon pure_bf16 bf16 fp16 fp8 optim optim_args
    per_device_train_batch_size gradient_accumulation_steps max_grad_norm torch_compile deepspeed deepspeed.* fsdp
    fsdp_config fsdp_config.* fsdp_transformer_layer_cls_to_wrap compute_dtype tensor_model_parallel_size
    pipeline_model_parallel_size context_parallel_size expert_model_parallel_size sequence_parallel
    virtual_pipeline_model_parallel_size use_distributed_optimizer recompute_granularity recompute_method
    recompute_num_layers sequence_parallel_size sequence_parallel_mode use_mca use_megatron_bridge mixed_precision
    ray_num_workers
    program use_cache
    """
) | frozenset(trainer.LAUNCHED)

UNDERSTOOD_V1 = names(
    """
    model micro_batch_size global_batch_size cutoff_len max_grad_norm bf16 enable_activation_checkpointing
    flash_attn init_config init_config.name peft_config peft_config.name peft_config.r peft_config.lora_rank
    peft_config.lora_alpha peft_config.lora_dropout peft_config.target_modules peft_config.use_dora
    peft_config.modules_to_save peft_config.freeze_trainable_layers kernel_config kernel_config.name
    kernel_config.require_logits quant_config quant_config.name quant_config.quantization_bit quant_config.bits
    quant_config.double_quantization dist_config dist_config.name dist_config.reshard_after_forward
    dist_config.offload_params dist_config.config_file dist_config.ep_size optim_config optim_config.name dp_size
    cp_size cp_mode mp_replicate_size mp_shard_size batching_strategy pref_loss model_class
    dist_config.cp_size dist_config.cp_mode dist_config.dp_size dist_config.mp_replicate_size dist_config.mp_shard_size
    dist_config.mixed_precision
    """
)

WITHOUT_EFFECT = (
    trainer.ARGUMENTS
    | trainer.LAUNCHER
    | names(
        """
    template dataset eval_dataset dataset_dir media_dir train_on_prompt mask_history streaming buffer_size
    mix_strategy interleave_probs overwrite_cache preprocessing_batch_size preprocessing_num_workers max_samples
    eval_num_beams ignore_pad_token_for_loss val_size eval_on_each_dataset tool_format default_system
    enable_thinking preserve_thinking tokenized_path data_shared_file_system adapter_folder
    padding_side use_auth_token hf_auth_token shuffle_for_sequence_parallel
    cache_dir use_fast_tokenizer split_special_tokens add_tokens add_special_tokens new_special_tokens_config
    init_special_tokens model_revision low_cpu_mem_usage infer_backend offload_folder use_kv_cache infer_dtype
    visual_inputs
    hf_hub_token ms_hub_token om_hub_token print_param_status trust_remote_code quantization_device_map
    moe_aux_loss_coef video_fps video_maxlen use_audio_in_video audio_sampling_rate export_* vllm_* sglang_*
    loraplus_lr_ratio loraplus_lr_embedding use_rslora pissa_init pissa_iter pissa_convert
    dpo_beta dpo_ftx orpo_beta kto_beta kto_ftx pref_beta pref_ftx pref_bco_weight dpo_label_smoothing
    kto_chosen_weight kto_rejected_weight simpo_gamma
    ppo_buffer_size ppo_epochs ppo_score_norm ppo_target ppo_whiten_rewards ref_model_adapters reward_model_adapters
    ld_alpha galore_update_interval galore_scale galore_proj_type apollo_update_interval apollo_scale apollo_proj
    apollo_proj_type apollo_scale_type apollo_scale_front badam_switch_mode badam_switch_interval badam_verbose
    badam_mask_mode use_swanlab swanlab_* compute_accuracy disable_shuffling
    early_stopping_steps plot_loss include_effective_tokens_per_second ray_* placement_strategy resources_per_worker
    resources_per_worker.* master_addr master_port do_sample temperature top_p top_k num_beams max_length
    max_new_tokens repetition_penalty length_penalty skip_special_tokens fp8_backend task task_dir batch_size lang
    n_shot save_dir download_mode enable_torch_profiler profiler_* profile_modules custom_chat_template
    train_dataset batching_workers dist_timeout lr_scheduler_config lr_scheduler_config.* save_epochs
    save_ckpt_as_hf sample_backend asft_alpha eaft_alpha model_max_length image_do_pan_and_scan crop_to_patches
    dist_config.timeout dist_config.pin_memory dist_config.dcp_path dist_config.ep_dispatcher dist_config.hook_modules
    dist_config.fsdp_implementation peft_config.use_rslora peft_config.adapter_name_or_path peft_config.export_*
    peft_config.infer_dtype quant_config.quantization_type quant_config.compute_dtype optim_config.lr optim_config.wd
    optim_config.momentum optim_config.nesterov optim_config.ns_steps optim_config.adamw_betas optim_config.adamw_eps
    dft_alpha bias_activation_fusion apply_rope_fusion distributed_timeout megatron_pretrained_checkpoint
    checkpoint_dir prompt_template dev_ratio resume_lora_training source_prefix
    calculate_per_token_loss messages formatting role_tag content_tag user_tag assistant_tag
    """
    )
)

UNMODELLED = {
    **{key: what for key, what in trainer.UNMODELLED_ARGUMENTS.items() if key not in UNDERSTOOD},
    "mixture_of_depths": "mixture of depths: each second block computes a part of the tokens",
    "shift_attn": "shifted sparse attention",
    "upcast_lmhead_output": "the logits are cast to fp32 once more",
    "resize_vocab": "the embedding is resized",
    "rope_scaling": "positions are scaled",
    "use_v1_kernels": "kernels of the v1 code",
    "use_kt": "KTransformers computes experts on the host",
    "kt_*": "KTransformers computes experts on the host",
    "cpu_infer": "KTransformers computes experts on the host",
    "chunk_size": "KTransformers computes experts on the host",
    "mode": "KTransformers computes experts on the host",
    "use_hyper_parallel": "HyperParallel shards the model",
    "hyper_parallel_*": "HyperParallel shards the model",
    "use_dft_loss": "dynamic fine-tuning: probabilities of the labels beside the loss",
    "use_asft_loss": "anchored fine-tuning: a reference model beside the trained one",
    "use_eaft_loss": "entropy-adaptive fine-tuning",
    "fp8_enable_fsdp_float8_all_gather": "FSDP gathers in fp8",
    "image_max_pixels": "pixels of an image",
    "image_min_pixels": "pixels of an image",
    "image_resolution": "pixels of an image",
    "video_resolution": "pixels of a video",
    "video_max_pixels": "pixels of a video",
    "video_min_pixels": "pixels of a video",
    **dict.fromkeys(("image_max_resolution", "image_min_resolution"), "pixels of an image"),  # of February 2025
    **dict.fromkeys(("video_max_resolution", "video_min_resolution"), "pixels of a video"),
    "reward_model": "the reward model of PPO stands beside training",
    "reward_model_type": "the reward model of PPO stands beside training",
    "reward_model_quantization_bit": "the reward model of PPO stands beside training",
    "ref_model_quantization_bit": "the reference model is quantized",
    "badam_update_ratio": "BAdam trains a part of the weights at a time",
    "overlap_param_gather": "Megatron gathers parameters during forward",
    "overlap_grad_reduce": "Megatron reduces gradients during backward",
    "moe_grouped_gemm": "Megatron computes the experts in one kernel",
    "moe_token_dispatcher_type": "how Megatron sends tokens to experts",
    "moe_*": "Megatron's experts",
    "device_map": "which device has which layer",
    "block_diag_attn": "one mask per packed sample",
    "dist_config.fsdp_ignored_modules": "modules that FSDP leaves whole",
    "peft_config.freeze_trainable_modules": "parts of the trained blocks",
    "peft_config.freeze_extra_modules": "what is trained beside the blocks",
    "peft_config.cast_trainable_params_to_fp32": "trained weights stay in the type of the checkpoint",
    "kernel_config.*": "kernels in the place of those of Transformers",
    "use_packed_sequences": "Megatron Bridge packs samples into one row",
    "masked_softmax_fusion": "Megatron's fused softmax of scaled and masked scores",
    "cross_entropy_loss_fusion": "Megatron's fused cross entropy",
    "account_for_embedding_in_pipeline_split": "the table counts as a block where a pipeline is cut",
    "account_for_loss_in_pipeline_split": "the loss counts as a block where a pipeline is cut",
    "extra_config*": "settings of Megatron Bridge by their own names",
}

DEFAULTS: dict[str, Any] = {
    "cutoff_len": 2048,
    "finetuning_type": "lora",
    "stage": "sft",
    "lora_rank": 8,
    "oft_rank": 0,
    "oft_block_size": 32,
    "module_dropout": 0.0,
    "lora_target": "all",
    "lora_dropout": 0.0,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_grad_norm": 1.0,
    "optim": "adamw_torch_fused",
    "flash_attn": "auto",
    "use_reentrant_gc": True,
    "disable_gradient_checkpointing": False,
    "quantization_method": "bnb",
    "quantization_type": "nf4",
    "double_quantization": True,
    "freeze_trainable_layers": 2,
    "freeze_trainable_modules": "all",
    "galore_rank": 16,
    "apollo_rank": 16,
    "pref_loss": "sigmoid",
    # of the v1 files
    "model": "Qwen/Qwen3-4B-Instruct-2507",
    "micro_batch_size": 1,
    "enable_activation_checkpointing": True,
    "cp_size": 1,
    "mp_replicate_size": 1,
}

_SOURCE = "hiyouga/LLaMA-Factory 0.9.6.dev0 (ff6d4d12), src/llamafactory/hparams/ and v1/config/; transformers 5.23.0"

OLD, OLD_SCRIPT = "0.7.1", "train_bash.py"
"""The last release with a script of this name, and what it is called."""

FIRST, FIRST_SCRIPTS = "0.1.0", {f"train_{stage}.py": stage for stage in ("pt", "sft", "rm", "ppo")}
"""The last release with a script for each stage, and the stages by their names."""

RELEASES = (
    ProgramRelease("0.9.6", "2026-08-18", _SOURCE, DEFAULTS),
    ProgramRelease(
        "0.9.3",
        "2025-06-16",
        "hiyouga/LLaMA-Factory 0.9.3, src/llamafactory/hparams/; transformers 4.52 (optim: adamw_torch)",
        {**DEFAULTS, "optim": "adamw_torch"},
    ),
    ProgramRelease(
        OLD,
        "2024-05-16",
        "hiyouga/LLaMA-Factory 0.7.1, src/llmtuner/hparams/data_args.py (cutoff_len, of 0.9.1 on 2048)",
        {**DEFAULTS, "optim": "adamw_torch", "cutoff_len": 1024},
    ),
    ProgramRelease(
        FIRST,
        "2023-07-22",
        "hiyouga/LLaMA-Efficient-Tuning 0.1.0, src/utils/config.py",
        {
            **DEFAULTS,
            "optim": "adamw_torch",
            "max_source_length": 512,
            "max_target_length": 512,
            "lora_alpha": 32,
            "lora_dropout": 0.1,
            "lora_target": "q_proj,v_proj",
            "freeze_trainable_layers": 3,
        },
    ),
)

TABLE = Table(UNDERSTOOD | UNDERSTOOD_V1, WITHOUT_EFFECT, UNMODELLED, is_extended=True)
