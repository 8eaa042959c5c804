"""The keys of TrainingArguments, of TRL's configurations and of scripts around them.

Source: huggingface/transformers 5.23.0, src/transformers/training_args.py; huggingface/trl 1.16.0,
trl/trainer/*_config.py, trl/scripts/utils.py.
"""

from __future__ import annotations

import re

from vramplan.configs.programs import trainer
from vramplan.configs.programs.sampling import SHARE
from vramplan.configs.table import Table, names

OF_TRL = names(
    """
    max_length max_seq_length packing packing_strategy padding_free eval_packing use_peft lora_r lora_alpha lora_dropout
    lora_target_modules lora_modules_to_save lora_task_type lora_target_parameters use_rslora use_dora load_in_8bit
    load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage beta loss_type max_prompt_length
    max_completion_length precompute_ref_log_probs activation_offloading dataset_text_field completion_only_loss
    assistant_only_loss model_init_kwargs chat_template dataset_mixture dataset_mixer dataset_splits datasets
    teacher_model_name_or_path lmbda
    chat_template_path num_generations use_vllm log_completions desirable_weight dataset_train_split dataset_test_split
    """
)
"""Keys of TRL and of scripts around it that TrainingArguments lacks: with one of them, TRL's defaults hold."""

OF_SCRIPTS = names(
    """
    block_size train_file validation_file test_file task_name dataset_config_name max_train_samples max_eval_samples
    pad_to_max_length mlm_probability line_by_line source_lang target_lang max_source_length max_target_length
    validation_split_percentage config_name config_overrides model_type tokenizer_name doc_stride max_answer_length
    source_prefix
    """
)
"""Keys of the example scripts of transformers, which run the plain Trainer."""

KBIT = "prepare_model_for_kbit_training"
"""A call of PEFT in a script: whatever is not quantized is in fp32."""

OLD_KBIT = "prepare_model_for_int8_training"
"""Its name up to PEFT 0.9. Source: huggingface/peft 0.4.0, src/peft/utils/other.py."""

SETS_GRADIENTS = "requires_grad"
"""An attribute that a script sets itself: what is trained hangs on names that its text does not say."""

MADE_ELSEWHERE = "model_of_another_module"
"""A model that comes to a trainer ready made, with an adapter or without."""

FREEZES_SOUND = ("freeze_feature_encoder", "freeze_feature_extractor")
"""What models of sound have that leaves their convolutions untrained; arguments of scripts are called so too.

Source: huggingface/transformers 5.23.0, models/wav2vec2/modeling_wav2vec2.py; the second is its name before 4.20.
"""

CLASSIFIER = "ForSequenceClassification"
"""A model of a script that classifies sequences."""

OF_PAIRS = "trainer_of_pairs"
"""The class of somebody's own trainer whose name is of preferences, made from the plain one."""

LORA = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "use_dora": "use_dora",
    "use_rslora": "use_rslora",
    "bias": "lora_bias",
    "trainable_token_indices": "trainable_token_indices",
}
"""Arguments of a script by the names that they have in PEFT's LoraConfig."""

QUANTIZATION = "model_init_kwargs.quantization_config."
BITS = {
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "bnb_4bit_quant_type": "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
}
"""Arguments of a script by the names that they have in BitsAndBytesConfig of Transformers."""

OF_LENGTH = ("max_len", "max_length", "max_seq_len", "max_seq_length", "seq_len", "seq_length", "cutoff_len")
"""Options of a script that say how long its samples are, where no call of a tokenizer cuts them."""

TO_DICT = re.compile(r"\.to_dict\(\)$")
"""How all arguments of one class are handed to another: `GRPOConfig(**training_args.to_dict())`."""

HANDBOOK = names("chat_template dataset_mixture dataset_mixer dataset_splits")
"""Keys of the scripts of the alignment handbook, whose README launches full training under ZeRO-3."""

OF_PEFT = {
    "use_peft_lora": "use_peft",
    "use_lora": "use_peft",
    "lora_rank": "lora_r",
    "peft_lora_r": "lora_r",
    "peft_lora_alpha": "lora_alpha",
    "peft_lora_dropout": "lora_dropout",
    "peft_lora_modules": "lora_target_modules",
    "peft_target_modules": "lora_target_modules",
    "target_modules": "lora_target_modules",
    "bias": "lora_bias",
    "lora": "use_peft",
    "lora_enable": "use_peft",
    "enable_lora": "use_peft",
    "peft_enable": "use_peft",
    "peft_enabled": "use_peft",
    "model_id": "model_name_or_path",
    "model": "model_name_or_path",
    "model_path": "model_name_or_path",
    "double_quant": "use_bnb_nested_quant",
    "quant_type": "bnb_4bit_quant_type",
    "modules_to_save": "lora_modules_to_save",
    "r": "lora_r",
    "use_gradient_checkpointing": "gradient_checkpointing",
    "enable_gradient_checkpointing": "gradient_checkpointing",
    "gradient_checkpointing_use_reentrant": "gradient_checkpointing_kwargs.use_reentrant",
    "use_packing": "packing",
    "model_name": "model_name_or_path",
    "base_model_name_or_path": "model_name_or_path",
    "use_4bit_quantization": "load_in_4bit",
    "use_8bit_quantization": "load_in_8bit",
    "use_nested_quant": "use_bnb_nested_quant",
    "bnb_4bit_quant_storage_dtype": "bnb_4bit_quant_storage",
    "use_flash_attn": "use_flash_attention_2",
    "flash_attn": "use_flash_attention_2",
    "use_reentrant": "gradient_checkpointing_kwargs.use_reentrant",
    "optimizer": "optim",
    "seq_length": "max_seq_length",
    "seq_len": "max_seq_length",
    "max_seq_len": "max_seq_length",
    "task_type": "lora_task_type",
    **{f"model_init_kwargs.{name}": name for name in ("load_in_4bit", "load_in_8bit")},
    **{f"{QUANTIZATION}{name}": ours for name, ours in BITS.items()},
}
"""What scripts around TRL and the Trainer call arguments.

Source: huggingface/peft, examples/sft/train.py; huggingface/trl 0.7.2, examples/scripts/sft.py (`peft_lora_r`);
llm-jp/llm-jp-sft, train.py (`peft_target_modules`); shibing624/MedicalGPT, training/*.py (`target_modules`);
2U1/Qwen2-VL-Finetune, src/params.py (`model_id`, `lora_enable`).
"""

OF_OTHERS = names(
    """
    base_model finetuning_type cutoff_len stage with_tracking checkpointing_steps use_slow_tokenizer
    dataset_mixer_list dataset_mix_dir hf_metadata_dataset lora_query lora_projection checkpoint_dir
    device_train_microbatch_size global_train_batch_size
    """
)
"""Keys of Axolotl, LLaMA-Factory, open-instruct, LitGPT and llm-foundry, whose files have many of TrainingArguments."""

UNDERSTOOD = names(
    """
    model_name_or_path torch_dtype dtype attn_implementation use_flash_attention_2 use_peft lora_r lora_alpha
    requires_grad
    lora_config peft_config.* freeze_vision_tower freeze_merger freeze_llm tune_mm_vision tune_mm_mlp tune_mm_llm
    tune_merger disable_flash_attn2 lora_target_parameters lora_bias trainable_token_indices
    trainable_token_indices.*
    lora_dropout lora_target_modules lora_modules_to_save use_dora load_in_8bit load_in_4bit bnb_4bit_quant_type
    teacher_model_name_or_path lmbda seq_kd
    use_bnb_nested_quant max_length max_seq_length block_size max_source_length max_target_length model_max_length
    source_max_len target_max_len packing packing_strategy padding_free beta loss_type precompute_ref_log_probs
    num_generations max_completion_length force_use_ref_model ref_model vllm_mode vllm_enable_sleep_mode
    desirable_weight per_device_train_batch_size per_gpu_train_batch_size per_device_eval_batch_size
    gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs gradient_checkpointing_kwargs.*
    activation_checkpointing activation_checkpointing_kwargs activation_checkpointing_kwargs.*
    activation_offloading bf16 fp16 tf32 optim optim_args max_grad_norm torch_compile torch_compile_backend
    torch_compile_mode use_liger_kernel use_liger_loss use_liger liger_kernel_config.*
    deepspeed deepspeed_config fsdp fsdp_config fsdp_config.*
    fsdp_transformer_layer_cls_to_wrap fsdp_min_num_params do_eval eval_strategy evaluation_strategy config
    model_init_kwargs model_init_kwargs.torch_dtype model_init_kwargs.dtype model_init_kwargs.attn_implementation
    use_cache use_unsloth program launcher.nproc_per_node launcher.nnodes launcher.num_processes launcher.num_gpus
    launcher.num_nodes _target_
    """
) | {f"deepspeed.{name}" for name in ("*",)}

WITHOUT_EFFECT = (
    (trainer.ARGUMENTS - UNDERSTOOD)
    | trainer.LAUNCHER
    | names(
        """
    model_revision trust_remote_code use_fast_tokenizer tokenizer_name cache_dir low_cpu_mem_usage token
    num_processes num_machines use_auth_token ignore_mismatched_sizes lora_task_type
    init_lora_weights use_rslora bnb_4bit_quant_storage
    chat_template chat_template_path dataset_mixture dataset_mixture.* dataset_mixer dataset_mixer.* dataset_splits
    dataset_configs datasets datasets.* dataset_name dataset_config dataset_config_name dataset_train_split
    dataset_test_split dataset_streaming dataset_num_proc dataset_text_field dataset_kwargs dataset_kwargs.*
    dataset_batch_size text_column train_file validation_file test_file train_split eval_split max_train_samples
    max_eval_samples max_predict_samples streaming test_split_size overwrite_cache validation_split_percentage
    preprocessing_num_workers keep_linebreaks pad_to_max_length line_by_line mlm_probability task_name source_lang
    target_lang source_prefix ignore_pad_token_for_loss num_beams doc_stride n_best_size max_answer_length
    version_2_with_negative null_score_diff_threshold ignore_bias_buffers
    eos_token pad_token pad_token_id label_pad_token_id padding_value truncation_mode shuffle_dataset
    pad_to_multiple_of num_of_sequences chars_per_token
    splits append_concat_token chat_template_format num_generations_eval generation_kwargs generation_kwargs.*
    chat_template_kwargs chat_template_kwargs.* cache_implementation epsilon epsilon_high normalize_advantages
    reward_clip_range mask_truncated_completions log_multimodal log_unique_prompts delta sapo_* vespo_*
    importance_sampling_level multi_objective_aggregation scale_rewards entropy_* use_adaptive_entropy
    max_tool_calling_iterations off_policy_mask_threshold use_bias_correction_kl log_completions_hub_repo
    center_rewards_coefficient dataset_prompt_column cosine_* max_completion_len_* code_* codeforces_* ioi_provider
    parallel_code_exec_per_proc e2b_router_url morph_router_url soft_punish_cache
    model_init_kwargs.* ref_model_init_kwargs
    ref_model_init_kwargs.* model_adapter_name ref_adapter_name disable_dropout max_prompt_length
    max_target_length_dpo generate_during_eval is_encoder_decoder use_logits_to_keep precompute_ref_batch_size tools
    label_smoothing reference_free f_divergence_type f_alpha_divergence_coef discopop_tau loss_weights use_weighting
    ld_alpha wpo_temperature simpo_gamma gamma_beta_ratio cpo_alpha undesirable_weight ref_model_sync_steps
    ref_model_mixup_alpha completion_only_loss assistant_only_loss eval_packing router_aux_loss_coef
    wandb_project wandb_entity wandb_run_group wandb_log_unique_prompts hub_model_revision num_completions_to_print
    log_completions temperature top_p top_k min_p repetition_penalty reward_funcs reward_weights system_prompt
    benchmarks callbacks decontaminate bnb_4bit_compute_dtype run_id logger_name env env.* trainer_type optim_beta2
    sanity_check concatenate_sequences add_special_tokens num_samples subset split size_valid_set shuffle_buffer
    model_code_revision teacher_model_revision epochs save_final_model auto_insert_empty_system_msg
    data_path eval_data_path train_data_path train_file_path lazy_preprocess tokenizer_name_or_path dataset_path
    dataset_id_or_path conversation_template disable_group_texts dialogue_template
    dataset dataset_format dataset_dir data_cache_dir dataset_cache_dir eval_dataset_size eval_dataset_path train_splits
    train_on_source max_new_tokens min_new_tokens do_mmlu_eval do_mmlu_sample do_sample alpha mmlu_* max_mmlu_samples
    max_memory_mb
    lora_weight_path lora_modules use_auth save_aggregated_lora use_ram_optimized_load
    truncation_side padding_side arch_type lisa_layers_attribute lisa_interval_steps group_texts_batch_size optim_beta1
    optim_beta3 optim_dummy_* optim_adam_* optim_momentum optim_weight_decay wandb_name wandb_tags
    valid_file min_lr min_learning_rate early_stopping_patience early_stopping_threshold eval_dataset_id_or_path
    dataset_names dataset_revision dataset_schema data_dir num_warmup_steps truncate_side save_best_model
    vf_coef cliprange cliprange_value kl_coef kl_estimator whiten_rewards gamma lam num_sample_generations stop_token
    stop_token_id missing_eos_penalty sft_model_path total_episodes
    clean_best_model train_seed precompute_ref_log_probs_path
    embedding_learning_rate chosen_column rejected_column chosen_key rejected_key chosen_field rejected_field
    """
    )
)
"""Keys that change neither memory nor time of a training step."""

UNMODELLED = {
    **{key: what for key, what in trainer.UNMODELLED_ARGUMENTS.items() if key not in UNDERSTOOD},
    "device_map": "which device has which layer",
    "rpo_alpha": "a language-modelling loss of the chosen answers beside DPO's",  # which TRL 1.16 has no more
    "sync_ref_model": "the reference model follows the trained one",
    "use_vllm": "an inference engine beside training",
    "vllm_gpu_memory_utilization": SHARE,
    "vllm_*": "an inference engine beside training",
    "teacher_*": "how a teacher is loaded",
    "reward_model_path": "a reward model beside the trained one",
    "value_model_path": "a value model beside the trained one",
    "response_length": "PPO: the tokens of a completion",
    "num_ppo_epochs": "PPO: passes over the same completions",
    "num_mini_batches": "PPO: parts of a batch",
    "local_rollout_forward_batch_size": "PPO: completions at a time",
    "num_iterations": "GRPO: passes over the same completions",
    "steps_per_generation": "GRPO: steps between generations",
    "generation_batch_size": "GRPO: completions at a time",
    "freeze_*": "which weights are frozen",
    "lora_config.layers_pattern": "what the blocks are called that have an adapter",
    "lora_config.exclude_modules": "which layers have no adapter, and all that are named are counted",
    "lora_config.lora_bias": "a bias of each second matrix of the adapter, which is trained too",
    "lora_namespan_exclude": "which layers have no adapter, and all linear layers are counted",
    "num_lora_modules": "how many layers have an adapter, and all linear layers are counted",
    "cast_lm_head_to_fp32": "the output layer in fp32",
    "use_transformers_*": "how completions are generated",
    "transformers_*": "how completions are generated",
    "top_entropy_quantile": "GRPO: the tokens that count",
    "replay_buffer_size": "GRPO: completions that are kept",
    "quantization_config": "how the weights are quantized",
    "ds3_gather_for_generation": "weights are gathered for generation",
}

TABLE = Table(
    UNDERSTOOD,
    WITHOUT_EFFECT.difference(UNMODELLED),
    {key: what for key, what in UNMODELLED.items() if key not in UNDERSTOOD},
    is_extended=True,
)


def script_name(program: str) -> str:
    """The name of the script that a command starts: `sft` of `python -m trl.scripts.sft`, `own.py` of a path."""
    return program.rsplit("/", 1)[-1].removeprefix("trl.scripts.")
