"""The arguments of ms-swift, and what they are called in the Trainer's terms.

Source: modelscope/ms-swift 4.6.0.dev0 (3602360a), swift/arguments/{sft,rlhf,tuner}_args.py and base_args/*.py,
swift/trainers/arguments.py; the releases 2 and 3 for their own names of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.configs.programs.arguments.keys import TABLE as OF_THE_TRAINER
from vramplan.configs.programs.arguments.releases import RELEASES as TRAINERS
from vramplan.configs.table import ProgramRelease, Table, names

TUNER = "tuner_type"

OF_OLD_RELEASES = {
    "train_type": TUNER,  # of release 3
    "sft_type": TUNER,  # of release 2, and the following
    "model_id_or_path": "model",
    "lora_target_modules": "target_modules",
    "lora_modules_to_save": "modules_to_save",
    "batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "lora_dropout_p": "lora_dropout",
    "use_flash_attn": "use_flash_attention_2",
    "bnb_4bit_comp_dtype": "bnb_4bit_compute_dtype",
    "quantization_bit": "quant_bits",
}
RENAMED = {
    "model": "model_name_or_path",
    "attn_impl": "attn_implementation",
    "lora_rank": "lora_r",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
    "freeze_vit": "freeze_vision_tower",
    "freeze_aligner": "freeze_merger",
    "teacher_model": "teacher_model_name_or_path",
}
"""By the names that readers of the Trainer's arguments take."""

UNDERSTOOD = names(
    """
    tuner_type quant_method quant_bits rlhf_type lora_dtype sequence_parallel_size adalora_init_r vera_rank vera_dropout
    boft_block_size boft_block_num fourier_n_frequency task_type global_world_size
    """
) | {*OF_OLD_RELEASES, *RENAMED}

WITHOUT_EFFECT = names(
    """
    acc_strategy adalora_* adapters add_non_thinking_prefix add_version agent_template aligner_lr
    bnb_4bit_compute_dtype boft_dropout boft_n_butterfly_factor cached_dataset cached_val_dataset
    check_dataset_strategy check_model cliprange cliprange_value columns create_checkpoint_symlink
    custom_dataset_info custom_plugins custom_register_path custom_train_dataset_path custom_val_dataset_path
    dataset_seed dataset_shuffle dataset_test_ratio disable_auto_column_mapping disable_ignore_empty_think
    download_mode early_stop_interval enable_channel_loss enable_dft_loss enable_npu_model_patch enable_thinking
    eval_dataset_args eval_generation_config eval_limit eval_metric eval_use_evalscope external_plugins
    extra_eval_args fourier_scaling hqq_axis hub_model_id hub_token ignore_args_error init_lora_weights
    init_strategy init_weights interleave_prob is_binary_loss_scale lazy_tokenize load_args load_data_args
    load_from_cache_file local_repo_path logprobs lora_ga_* lorap_lr_ratio loss_scale max_epochs max_model_len
    max_new_tokens max_pixels max_shard_size model_author model_kwargs model_name model_type mrl_dims
    new_special_tokens norm_bbox num_labels num_train_epochs offload_teacher_model only_save_model output_dir
    packing_length packing_num_proc padding_side preprocess_num_proc preserve_thinking problem_type ref_adapters
    ref_model ref_model_revision ref_model_type response_prefix resume_only_model reward_adapters reward_template
    rope_scaling safe_serialization self_cognition_sample sft_alpha shuffle_buffer_size split_dataset_ratio
    stop_words stopping_strategy stream streaming strict structured_outputs_regex swanlab_* system template
    template_backend template_type test_oom_error top_logprobs train_dataloader_shuffle train_dataset_sample
    truncation_strategy tuner_backend use_chat_template use_hf use_swift_lora val_dataset val_dataset_sample
    val_dataset_shuffle vera_d_initial vera_projection_prng_key vit_lr
    """
)

OF_A_RECORD = names(
    """
    rank local_world_size model_suffix model_info model_meta model_dir hub training_args _val_dataset_exists
    evaluation_strategy logging_first_step logging_dir config_file _n_gpu distributed_state cached_setup_devices
    swift_version template_meta adapter_act adapter_length reft_*
    """
)
"""Of `args.json`, where everything stands that a run had in hand, be it of adapters that it did not have."""

OF_SAMPLING = names(
    """
    overlong_filter async_generate multi_turn_scheduler max_turns advantage_estimator kl_in_reward use_gym_env gym_env
    dynamic_sample max_resample_times fipo_* tau_pos tau_neg log_rollout_offpolicy_metrics log_entropy soft_max_length
    soft_cache_length completion_length_limit_scope rollout_* num_infer_workers tensor_parallel_size lmdeploy_*
    """
)
"""Arguments of GRPO that say which answers count, and how they are sampled."""

SAMPLING = "what leaves the device while answers are sampled"

UNMODELLED: Mapping[str, str] = {
    **OF_THE_TRAINER.unmodelled,
    "freeze_parameters*": "which weights are frozen",
    "trainable_parameters*": "which weights are trained beside",
    "target_regex": "a regular expression of layers that have an adapter, and all linear layers are counted",
    "target_parameters": "tensors of experts that have an adapter",
    "lisa_*": "LISA trains a few blocks at a time",
    "galore_*": "GaLore's projections",
    "use_galore": "GaLore's projections",
    "llamapro_*": "LLaMA-Pro's further blocks",
    "deepspeed_autotp_size": "DeepSpeed's tensor parallelism",
    "zero_hpz_partition_size": "ZeRO++: a second copy of the shards within a machine",
    "max_memory": "which device has which layer",
    "vit_gradient_checkpointing": "the encoder of images is recomputed otherwise than the rest",
    "experts_impl": "how the products of experts are computed",
    "use_flash_ckpt": "a copy of the checkpoint on the host",
    "reward_model*": "a reward model beside the trained one",
    "sleep_level": SAMPLING,
    "offload_model": SAMPLING,
    "offload_optimizer": SAMPLING,
    "gc_collect_after_offload": SAMPLING,
    "move_model_batches": SAMPLING,
    "chord_*": "CHORD trains on further samples beside those of GRPO",
    "teacher_*": "how a teacher is loaded",
}

_UNDERSTOOD = UNDERSTOOD | OF_THE_TRAINER.understood
_UNMODELLED = {key: what for key, what in UNMODELLED.items() if key not in _UNDERSTOOD}

TABLE = Table(
    frozenset(_UNDERSTOOD),
    frozenset(WITHOUT_EFFECT | OF_A_RECORD | OF_SAMPLING | OF_THE_TRAINER.without_effect)
    - _UNDERSTOOD
    - {*_UNMODELLED},
    _UNMODELLED,
    is_extended=True,
)

DEFAULTS: dict[str, Any] = {
    **TRAINERS[0].defaults,
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "gradient_accumulation_steps": None,
    "gradient_checkpointing": True,
    "bf16": None,
    "fp16": None,
    "dtype": "auto",
    "packing": False,
    "use_peft": True,
    "lora_r": 8,
    "lora_alpha": 32,
    "lora_dropout": 0.05,
    "lora_target_modules": ["all-linear"],
    "use_bnb_nested_quant": True,
    "bnb_4bit_quant_type": "nf4",
    "max_completion_length": 512,
}

RELEASES = (
    ProgramRelease(
        "4.6.0.dev0",
        "2026-08-22",
        "modelscope/ms-swift 4.6.0.dev0 (3602360a), swift/arguments/*.py, swift/trainers/arguments.py",
        DEFAULTS,
    ),
)
