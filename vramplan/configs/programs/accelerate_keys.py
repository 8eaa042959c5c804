"""The keys of Accelerate's files and their defaults.

Source: huggingface/accelerate 1.15.0.dev0 (16cb6eb8), src/accelerate/commands/config/config_args.py,
utils/dataclasses.py.
"""

from __future__ import annotations

from typing import Any

from vramplan.configs.table import ProgramRelease, names

UNDERSTOOD = names(
    """
    distributed_type mixed_precision num_processes fp16 dynamo_backend dynamo_config.dynamo_backend fsdp_config
    deepspeed_config parallelism_config megatron_lm_config dynamo_config fp8_config
    fsdp_config.fsdp_version fsdp_config.fsdp_sharding_strategy fsdp_config.fsdp_reshard_after_forward
    fsdp_config.fsdp_offload_params fsdp_config.fsdp_activation_checkpointing fsdp_config.fsdp_use_orig_params
    fsdp_config.fsdp_backward_prefetch fsdp_config.fsdp_backward_prefetch_policy
    deepspeed_config.deepspeed_config_file deepspeed_config.zero_stage deepspeed_config.offload_optimizer_device
    deepspeed_config.offload_param_device deepspeed_config.gradient_accumulation_steps
    deepspeed_config.gradient_clipping deepspeed_config.deepspeed_moe_layer_cls_names
    parallelism_config.parallelism_config_dp_replicate_size parallelism_config.parallelism_config_dp_shard_size
    parallelism_config.parallelism_config_tp_size parallelism_config.parallelism_config_cp_size
    parallelism_config.parallelism_config_sp_size
    megatron_lm_config.megatron_lm_tp_degree megatron_lm_config.megatron_lm_pp_degree
    megatron_lm_config.megatron_lm_context_parallel_size megatron_lm_config.megatron_lm_expert_model_parallel_size
    megatron_lm_config.megatron_lm_sequence_parallelism megatron_lm_config.megatron_lm_recompute_activations
    megatron_lm_config.megatron_lm_use_distributed_optimizer megatron_lm_config.megatron_lm_gradient_clipping
    megatron_lm_config.megatron_lm_num_micro_batches
    """
)

WITHOUT_EFFECT = names(
    """
    compute_environment debug machine_rank num_machines gpu_ids main_process_ip main_process_port rdzv_backend rdzv_conf
    same_network main_training_function enable_cpu_affinity use_cpu downcast_bf16 tpu_name tpu_zone tpu_use_cluster
    tpu_use_sudo command_file commands tpu_vm tpu_env mpirun_config mpirun_config.* env env.* ec2_instance_type
    iam_role_name image_uri profile region base_job_name pytorch_version transformers_version py_version
    sagemaker_inputs_file sagemaker_metrics_file additional_args additional_args.* use_mps_device deepspeed_hostfile
    num_cpu_threads_per_process max_restarts monitor_interval tee log_dir role module multi_gpu quiet
    fsdp_config.fsdp_auto_wrap_policy fsdp_config.fsdp_transformer_layer_cls_to_wrap
    fsdp_config.fsdp_transformer_cls_names_to_wrap
    fsdp_config.fsdp_cpu_ram_efficient_loading fsdp_config.fsdp_sync_module_states fsdp_config.fsdp_state_dict_type
    fsdp_config.fsdp_limit_all_gathers fsdp_config.fsdp_mixed_precision
    deepspeed_config.pin_memory deepspeed_config.timeout fsdp_config.timeout fsdp_config.fsdp_timeout
    deepspeed_config.zero3_init_flag deepspeed_config.zero3_save_16bit_model deepspeed_config.stage
    deepspeed_config.deepspeed_multinode_launcher deepspeed_config.deepspeed_hostfile
    deepspeed_config.deepspeed_exclusion_filter deepspeed_config.deepspeed_inclusion_filter
    deepspeed_config.offload_optimizer_nvme_path deepspeed_config.offload_param_nvme_path config_file
    deepspeed_config.overlap_comm deepspeed_config.contiguous_gradients deepspeed_config.reduce_scatter
    deepspeed_config.reduce_bucket_size deepspeed_config.allgather_bucket_size deepspeed_config.allgather_partitions
    deepspeed_config.sub_group_size deepspeed_config.stage3_* deepspeed_config.offload_optimizer_pin_memory
    deepspeed_config.offload_param_pin_memory deepspeed_config.round_robin_gradients deepspeed_config.steps_per_print
    deepspeed_config.train_batch_size deepspeed_config.train_micro_batch_size_per_gpu
    deepspeed_config.wall_clock_breakdown deepspeed_config.zero_force_ds_cpu_optimizer
    deepspeed_config.zero_allow_untested_optimizer deepspeed_config.zero_optimization.* deepspeed_config.bf16.*
    deepspeed_config.fp16.* deepspeed_config.optimizer.* deepspeed_config.scheduler.* deepspeed_config.aio.*
    deepspeed_config.activation_checkpointing.* deepspeed_config.flops_profiler.* deepspeed_config.zero_optimization
    deepspeed_config.gradient_checkpointing deepspeed_config.bf16_enabled deepspeed_config.fp16_enabled
    parallelism_config.parallelism_config_cp_comm_strategy parallelism_config.parallelism_config_sp_seq_length
    parallelism_config.parallelism_config_sp_seq_length_is_variable
    megatron_lm_config.megatron_lm_no_load_optim megatron_lm_config.megatron_lm_no_save_optim
    megatron_lm_config.megatron_lm_eod_mask_loss ipex_config.*
    """
)

"""Keys that change nothing. Those of DeepSpeed's own file are among them: the launcher takes what stands below
`deepspeed_config` as its options, DeepSpeedPlugin reads few of them, and none of these.

Source: huggingface/accelerate 1.15.0, src/accelerate/commands/launch.py, _validate_launch_command, and
utils/launch.py, prepare_deepspeed_cmd_env.
"""

UNMODELLED = {
    "fsdp_config.fsdp_ignored_modules": "modules that FSDP leaves out",
    "deepspeed_config.seq_parallel_communication_data_type": "the element type of sums between devices",
    "fsdp_config.fsdp_forward_prefetch": "the next unit is gathered while one computes",
    "fsdp_config.fsdp_min_num_params": "units of FSDP by their size in the place of blocks",
    "parallelism_config.parallelism_config_cp_backend": "how context parallelism exchanges keys and values",
    "parallelism_config.parallelism_config_sp_backend": "Ulysses: the heads of the attention are split",
    "parallelism_config.parallelism_config_sp_attn_implementation": "the attention under Ulysses",
    "dynamo_config.*": "how torch.compile works",
    "fp8_config.*": "which library computes in fp8, and its scales",
    "megatron_lm_config.*": "settings of Megatron-LM",
}

DEFAULTS: dict[str, Any] = {"num_processes": -1, "fsdp_config.fsdp_version": 1, "deepspeed_config.zero_stage": 2}

_FILES = "src/accelerate/commands/config/config_args.py, utils/dataclasses.py"

RELEASES = (
    ProgramRelease("1.15.0", "2026-07-24", f"huggingface/accelerate 1.15.0.dev0 (16cb6eb8), {_FILES}", DEFAULTS),
)
