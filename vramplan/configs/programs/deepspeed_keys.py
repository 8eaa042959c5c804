"""The keys of a DeepSpeed file, what is known of each, and DeepSpeed's releases.

Source: deepspeedai/DeepSpeed 0.19.6 (edaa7221), deepspeed/runtime/config.py, runtime/zero/config.py,
runtime/zero/offload_config.py, runtime/precision_config.py and runtime/constants.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vramplan.configs.sheet import Meaning
from vramplan.configs.table import ProgramRelease, Table, names
from vramplan.errors import closest

ZERO = "zero_optimization"
SIZES = {
    "reduce_bucket_size": "reduce_bucket_size",
    "allgather_bucket_size": "allgather_bucket_size",
    "sub_group_size": "sub_group_size",
    "stage3_max_live_parameters": "stage3_max_live_parameters",
    "max_live_parameters": "stage3_max_live_parameters",
    "stage3_prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold": "stage3_param_persistence_threshold",
    "param_persistence_threshold": "stage3_param_persistence_threshold",
}
"""Sizes of `zero_optimization`, with the old names, and their keys under `parallel`."""

OF_STAGE_3 = ("sub_group_size", *(name for name in SIZES.values() if name.startswith("stage3_")))
"""Those that stages 1 and 2 do not look at (DeepSpeed 0.19.8, runtime/engine.py, _configure_zero_optimizer)."""

UNDERSTOOD = names(
    """
    train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping fp16 fp16.enabled
    bf16 bf16.enabled bfloat16.enabled optimizer optimizer.type tensor_parallel.autotp_size zero_optimization
    optimizer.params.momentum
    zero_optimization.stage zero_optimization.overlap_comm zero_optimization.contiguous_gradients
    zero_optimization.cpu_offload zero_optimization.cpu_offload_param zero_optimization.cpu_offload_params
    zero_optimization.offload_optimizer zero_optimization.offload_optimizer.device zero_optimization.offload_param
    zero_optimization.offload_param.device zero_optimization.memory_efficient_linear
    """
) | {f"{ZERO}.{name}" for name in SIZES}

WITHOUT_EFFECT = names(
    """
    steps_per_print wall_clock_breakdown memory_breakdown dump_state scheduler scheduler.* optimizer.params
    optimizer.params.* optimizer.legacy_fusion zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
    fp16.auto_cast fp16.loss_scale fp16.initial_scale_power fp16.loss_scale_window fp16.hysteresis
    fp16.consecutive_hysteresis fp16.min_loss_scale bf16.immediate_grad_update bf16.check_grad_overflow
    bf16.loss_scale bf16.initial_scale_power bf16.loss_scale_window bf16.hysteresis bf16.min_loss_scale bf16.auto_cast
    bf16.check_overflow prescale_gradients gradient_predivide_factor gradient_allreduce_op sparse_gradients
    disable_allgather managed_gradient_accumulation flops_profiler flops_profiler.* tensorboard tensorboard.* wandb
    _comment* comms_config comms_config.* wandb.* comet comet.* csv_monitor csv_monitor.* monitor_config.*
    comms_logger comms_logger.* autotuning autotuning.* elasticity elasticity.* checkpoint checkpoint.* aio aio.*
    curriculum_learning.* data_efficiency.* progressive_layer_drop.* eigenvalue.* hybrid_engine.* nebula.*
    dataloader_drop_last timers.* weight_quantization.* use_data_before_expert_parallelism use_node_local_storage
    vocabulary_size seed data_parallel_group global_rank log_level cuda_visible_devices pipeline.* tensor_parallel
    tensor_parallel.tp.* zero_optimization.allgather_partitions zero_optimization.reduce_scatter
    zero_optimization.load_from_fp32_weights zero_optimization.elastic_checkpoint
    zero_optimization.ignore_unused_parameters zero_optimization.find_unused_parameters zero_optimization.legacy_stage1
    zero_optimization.gather_16bit_weights_on_model_save zero_optimization.stage3_gather_16bit_weights_on_model_save
    zero_optimization.stage3_gather_fp16_weights_on_model_save zero_optimization.log_trace_cache_warnings
    zero_optimization.enable_sanity_checks zero_optimization.cpu_offload_use_pin_memory
    zero_optimization.pipeline_loading_checkpoint zero_optimization.override_module_apply
    zero_optimization.offload_optimizer.pin_memory zero_optimization.offload_optimizer.nvme_path
    zero_optimization.offload_optimizer.buffer_count zero_optimization.offload_optimizer.pipeline_read
    zero_optimization.offload_optimizer.pipeline_write zero_optimization.offload_optimizer.fast_init
    zero_optimization.offload_optimizer.cpuadam_cores_perc zero_optimization.offload_param.pin_memory
    zero_optimization.offload_param.nvme_path zero_optimization.offload_param.max_in_cpu
    zero3_init_flag zero3_save_16bit_model elastic_checkpoint fp16.opt_level fp16.fp16_scale_tolerance
    """
)
"""Keys that change neither the memory of the device nor the time of a step, by reading where each is used.

The last five are none of DeepSpeed's: two of Accelerate's beside others that older examples have.
"""

UNMODELLED = {
    "quantize_training.*": "weights are quantized while training",
    "activation_checkpointing.*": "how checkpoints are kept, where the script uses DeepSpeed's own checkpointing",
    "amp.*": "Apex's mixed precision",
    "torch_autocast.*": "DeepSpeed's own autocast",
    "compression_training.*": "compression while training",
    "compile.*": "DeepSpeed's compiler",
    "sparse_attention.*": "block-sparse attention",
    "communication_data_type": "the element type in which gradients are summed",
    "seq_parallel_communication_data_type": "the element type of the sums between sequence-parallel devices",
    "data_types.*": "the element type in which gradients are accumulated",
    "fp16.fp16_master_weights_and_grads": "master weights and gradients in fp16",
    "bf16.bf16_master_weights_and_grads": "master weights and gradients in bf16",
    "bf16.bf16_optimizer_states": "optimizer states in bf16",
    "ddp_bf16.*": "bf16 without ZeRO",
    "tensor_parallel.*": "how the model is split between tensor-parallel devices",
    "sequence_parallel_size": "Ulysses: the heads of the attention are split between devices",
    "optimizer.params.torch_adam": "PyTorch's AdamW with its multi-tensor scratch, in the place of FusedAdam",
    f"{ZERO}.round_robin_gradients": "gradients are copied to the host in turns",
    f"{ZERO}.stage3_max_reuse_distance": "gathered parameters that are used again soon are kept",
    f"{ZERO}.max_reuse_distance": "gathered parameters that are used again soon are kept",
    f"{ZERO}.stage3_model_persistence_threshold": "how many parameters are never sharded",
    f"{ZERO}.model_persistence_threshold": "how many parameters are never sharded",
    f"{ZERO}.stage3_module_granularity_threshold": "modules that are gathered as a whole",
    f"{ZERO}.stage3_use_all_reduce_for_fetch_params": "parameters are gathered with all-reduce",
    f"{ZERO}.stage3_allgather_sequential": "parameters are gathered one by one",
    f"{ZERO}.use_multi_rank_bucket_allreduce": "one reduction for several owners of a bucket",
    f"{ZERO}.zero_hpz_partition_size": "ZeRO++: a second shard of the parameters within a node",
    f"{ZERO}.zero_quantized_weights": "ZeRO++: weights are gathered in int8",
    f"{ZERO}.zero_quantized_nontrainable_weights": "ZeRO++: frozen weights are held in int8",
    f"{ZERO}.zero_quantized_gradients": "ZeRO++: gradients are summed in int4",
    f"{ZERO}.zeropp_loco_param.*": "ZeRO++: errors of quantized gradients are kept",
    f"{ZERO}.mics_shard_size": "MiCS: shards within groups of devices",
    f"{ZERO}.mics_hierarchical_params_gather": "MiCS: parameters are gathered within nodes first",
    f"{ZERO}.leaf_module.*": "modules that are gathered as a whole",
    f"{ZERO}.save_muon_momentum_buffer_in_memory": "a second copy of Muon's momentum",
    f"{ZERO}.zenflow.*": "ZenFlow: a part of the optimizer stays on the GPU",
    f"{ZERO}.offload_optimizer.ratio": "Twin-Flow: a part of the optimizer stays on the GPU",
    f"{ZERO}.offload_optimizer.buffer_size": "buffers of an optimizer on NVMe",
    f"{ZERO}.offload_optimizer.super_offload": "SuperOffload: the optimizer steps on the host while gradients arrive",
    f"{ZERO}.offload_param.buffer_count": "buffers of parameters on NVMe",
    f"{ZERO}.offload_param.buffer_size": "buffers of parameters on NVMe",
}

_SOURCE = "deepspeedai/DeepSpeed {}, deepspeed/runtime/config.py, runtime/zero/config.py, runtime/constants.py"
DEFAULTS: dict[str, Any] = {f"{ZERO}.stage": 0}
RELEASES = (ProgramRelease("0.19.6", "2026-08-22", _SOURCE.format("0.19.6 (edaa7221)"), DEFAULTS),)

OPTIMIZERS = {
    "adam": "adam",
    "adamw": "adamw",
    "lion": "lion",
    "sgd": "sgd",
    "muon": "muon",
    "adagrad": "adagrad",
    "lamb": "lamb",
    "rmsprop": "rmsprop",
    "adafactor": "adafactor",
    "nadam": "nadam",
    "radam": "radam",
    "adamax": "adamax",
    "adadelta": "adadelta",
    "asgd": "asgd",
    "muadam": "adam",
    "muadamw": "adamw",
    "musgd": "sgd",
}
"""The last three have the states of their namesakes, with learning rates of muP (mup/optim.py).

Whatever DeepSpeed has no class for is one of torch.optim, and so is Adagrad (runtime/engine.py,
_configure_basic_optimizer).
"""

COMPRESSED = {"onebitadam": "adam", "zerooneadam": "adam", "onebitlamb": "lamb"}
"""Optimizers that keep what compression left out of the gradients, and whose states a job has: runtime/fp16/onebit."""


def ask_compressed(meaning: Meaning, name: str) -> None:
    """Leave an optimizer of `COMPRESSED` open, and tell which one has its other states."""
    word = COMPRESSED[name.lower()]
    errors = "the errors of its compression, a number for each weight and for each that a device serves"
    meaning.ask("optimizer", f"{name} keeps {errors}; {word} has all its other states (--optimizer {word})")


TABLE = Table(UNDERSTOOD, WITHOUT_EFFECT, UNMODELLED)

SLIP = 0.8  # of difflib: `gradient_acumulation_steps` is a slip, `moe` is another program's


def passed_over(keys: Iterable[str]) -> list[str]:
    """Keys in sections that DeepSpeed has not: at the top of a file it reads what it knows, and looks at nothing else.

    So it does of an optimizer. A slip of a known name is none of these. Source: deepspeed/runtime/config.py,
    DeepSpeedConfig.__init__, get_optimizer_name, get_optimizer_params and get_optimizer_legacy_fusion.
    """
    known = {key.partition(".")[0] for key in TABLE.known()}

    def is_read(section: str) -> bool:
        above, _, name = section.rpartition(".")
        names_read = OF_OPTIMIZERS if above else known
        return name in names_read or bool(closest(name, names_read, 1, SLIP))

    return [key for key in keys if TABLE.class_of(key) is None and not is_read(section_of(key))]


OF_OPTIMIZERS = ("type", "params", "legacy_fusion")


def section_of(key: str) -> str:
    """The section that a key is in, as DeepSpeed looks for it: the first name, and under `optimizer` the second too."""
    return ".".join(key.split(".")[: 2 if key.startswith("optimizer.") else 1])
