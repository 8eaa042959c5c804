"""The keys of torchtune's files, their defaults, and what its words mean.

Source: the same as of `programs/torchtune.py`.
"""

from __future__ import annotations

import re
from typing import Any

from vramplan.configs.table import ProgramRelease, names
from vramplan.options.spellings import CLASSES

UNDERSTOOD = names(
    """
    model._component_ model.lora_attn_modules model.apply_lora_to_mlp model.apply_lora_to_output model.lora_rank
    model.lora_alpha model.lora_dropout model.use_dora model.quantize_base model.max_seq_len model.vocab_size
    model.num_layers model.num_heads model.num_kv_heads model.embed_dim model.intermediate_dim
    model.tie_word_embeddings policy_model.vocab_size policy_model.max_seq_len policy_model.num_layers
    policy_model.num_heads policy_model.num_kv_heads policy_model.embed_dim policy_model.intermediate_dim
    policy_model._component_ tokenizer.max_seq_len dataset.max_seq_len dataset.packed batch_size
    gradient_accumulation_steps
    optimizer._component_ optimizer.fused optimizer.foreach optimizer.momentum optimizer_in_bwd loss._component_
    loss.num_output_chunks clip_grad_norm compile dtype enable_activation_checkpointing enable_activation_offloading
    ac_mode ac_option fsdp_cpu_offload cpu_offload fsdp.cpu_offload fsdp_reshard_after_forward custom_sharded_layers
    tensor_parallel_dim
    tensor_parallel_plan._component_ context_parallel_dim data_parallel_shard_dim data_parallel_replicate_dim
    enable_fp8_training enable_expandable_segments model.encoder_trainable model.decoder_trainable
    model.fusion_trainable model.image_size teacher_model._component_ kd_loss._component_ kd_loss.num_output_chunks
    quantizer._component_ quantizer.groupsize fake_quant_after_n_steps ppo_batch_size grpo_samples
    max_generated_tokens inference.max_generated_tokens orchestration.num_training_workers
    """
)

WITHOUT_EFFECT = names(
    """
    output_dir safe_serialization tokenizer.* checkpointer.* teacher_checkpointer.* ref_checkpointer.*
    ref_policy_checkpointer.*
    value_checkpointer.* reward_checkpointer.* resume_from_checkpoint save_adapter_weights_only save_every_n_steps
    save_every_n_epochs enable_async_checkpointing dataset dataset.* dataset_val dataset_val.* datasets dataloader.*
    seed shuffle epochs max_steps_per_epoch num_steps batch_size_val run_val_every_n_steps optimizer.lr
    optimizer.weight_decay optimizer.betas optimizer.eps optimizer.nesterov optimizer.amsgrad lr_scheduler
    kd_loss.ignore_index kd_loss.sym_kd_ratio loss.loss_type
    lr_scheduler.* loss.ignore_index loss.beta loss.label_smoothing loss.epsilon loss.kl_coeff loss.value_coeff
    loss.value_clip_range loss.reduction metric_logger.* log_every_n_steps log_peak_memory_stats log_level
    profiler.* profile_memory device collate_fn kd_ratio name base_model_path checkpoint_dir checkpoint_files
    cudnn_deterministic_mode debug_logging_enabled debug_num_samples_per_step ppo_epochs gamma lmbda whiten_rewards
    penalise_no_eos reward_penalty min_response_length stop_token_ids kl_coeff temperature top_k reward_functions
    grad_reduce_dtype fp8_recipe_name use_distributed_state_dict low_cpu_ram context_parallel_rotate_method
    policy_model.* activation_offloading_use_streams chat_template prompt prompt.* max_new_tokens tasks limit
    model.attn_dropout model.norm_eps model.rope_base model.encoder_max_seq_len apply_chat_template include_path
    max_seq_length num_output_chunks model.max_batch_size enable_fsdp share_weights.*
    """
)

UNMODELLED = {
    "parallelize_plan.*": "how tensor parallelism splits each layer",
    "memory_efficient_fsdp_wrap": "layers that are sharded on their own, as embedding and head",
    "teacher_model.*": "a teacher that the file describes",
    "reward_and_value_model.*": "the reward and value models of PPO",
    "forward_batch_size": "the batch of the forward passes without gradients",
    "enable_kv_cache": "a KV cache for generating",
    "vllm_*": "an inference engine, in copies of torchtune",
    "layer_dropout*": "layers that are left out at random",
    "early_exit_loss*": "losses after several layers",
    "resize_token_embeddings": "the embedding is resized to the tokenizer",
    "use_flex": "FlexAttention over packed samples",
    "inference.*": "an inference engine beside training",
    "orchestration.*": "several kinds of workers",
    "postprocessing.*": "several kinds of workers",
    "steps_before_weight_sync": "how often an inference engine takes the weights",
}

DIVERGENCES = {
    f"{name}KL{rest}Loss": f"{name.lower()}-kl"
    for name in ("Forward", "Reverse", "Symmetric")
    for rest in ("", "WithChunkedOutput")
}
"""Losses of torchtune/modules/loss/kd_losses.py, by the words of `distillation`."""

_FULL = ("full_finetune_distributed", "qat_distributed")
_MESHES = (*_FULL, "lora_finetune_distributed")
_PREFERENCES = ("lora_dpo_distributed", "lora_dpo_single_device")
ONLY_READ_BY: dict[str, tuple[str, ...]] = {
    "ac_mode": _FULL,
    "ac_option": _FULL,
    "optimizer_in_bwd": (*_FULL, "full_finetune_single_device", "full_dpo_distributed"),
    "enable_fp8_training": _FULL[:1],
    **dict.fromkeys(
        ("data_parallel_shard_dim", "data_parallel_replicate_dim", "tensor_parallel_dim", "context_parallel_dim"),
        _MESHES,
    ),
}
"""Keys that some recipes read and the others do not: they say nothing there. Source: recipes/ of main (bd2a0fc7)."""

NOT_READ_BY: dict[str, tuple[str, ...]] = {
    "clip_grad_norm": (*_PREFERENCES, "knowledge_distillation_distributed"),
    "compile": _PREFERENCES[:1],
    "enable_activation_offloading": ("knowledge_distillation_distributed", "knowledge_distillation_single_device"),
}
"""Keys that all other recipes read."""


def is_read(key: str, recipe: str) -> bool:
    """Whether a recipe reads a key of its file."""
    return recipe in ONLY_READ_BY.get(key, (recipe,)) and recipe not in NOT_READ_BY.get(key, ())


_BUILDERS = "torchtune/models/*/_model_builders.py"
DEFAULTS: dict[str, Any] = {
    "enable_activation_checkpointing": False,
    "enable_activation_offloading": False,
    "optimizer_in_bwd": False,
    "compile": False,
    "gradient_accumulation_steps": 1,
    "fsdp_cpu_offload": False,
    "fsdp_reshard_after_forward": True,
    "model.apply_lora_to_mlp": False,
    "model.apply_lora_to_output": False,
    "model.lora_rank": 8,
    "model.lora_alpha": 16,
    "model.lora_dropout": 0.0,
    "loss.num_output_chunks": 8,
}
RELEASES = (
    ProgramRelease("main", "2026-04-23", f"pytorch/torchtune main (bd2a0fc7), recipes/ and {_BUILDERS}", DEFAULTS),
    ProgramRelease("0.6.1", "2025-04-10", f"pytorch/torchtune 0.6.1, recipes/ and {_BUILDERS}", DEFAULTS),
)

MODELS = {
    "phi3_mini": "phi-3-mini-4k",
    "phi4_14b": "phi-4",
    "code_llama2_7b": "codellama-7b",
    "code_llama2_13b": "codellama-13b",
    "code_llama2_70b": "codellama-70b",
    "llama2_reward_7b": "llama-2-7b",
    "mistral_reward_7b": "mistral-7b",
    "mistral_classifier_7b": "mistral-7b",
    "llama4_scout_17b_16e": "llama-4-scout-17b-16e",
    "llama4_maverick_17b_128e": "llama-4-maverick-17b-128e",
    "llama3_2_vision_11b": "llama-3.2-11b-vision-instruct",
    "llama3_2_vision_90b": "llama-3.2-90b-vision-instruct",
}
NAME = re.compile(
    r"(?:(?P<llama>llama)(?P<llama_version>2|3_1|3_2|3_3|3|4)|(?P<qwen>qwen)(?P<qwen_version>2_5|2|3)|"
    r"(?P<other>gemma|smollm|mistral|phi)(?P<other_version>\d*))(?P<reward>_reward)?"
    r"_(?P<size>\d+(?:_\d+)?[bm])(?P<rest>(?:_\d+e)?)(?:_base|_instruct)?"
)
DASHED = ("llama", "gemma", "phi")  # llama-3.1-8b, but qwen2.5-7b

COMPONENTS = dict.fromkeys(("llama2", "llama3", "llama3_1", "llama3_2", "mistral"), "llama") | {"qwen2": "qwen2"}
"""Builders that take the sizes of a model, torchtune/models/*/_component_builders.py, and families."""

SIZES = {
    "num_layers": "layers",
    "embed_dim": "hidden_size",
    "num_heads": "attention_heads",
    "num_kv_heads": "key_value_heads",
    "intermediate_dim": "intermediate_size",
    "vocab_size": "vocabulary_size",
    "max_seq_len": "max_positions",
}

PROJECTIONS = {"output_proj": "o_proj"}
MLP = ("gate_proj", "down_proj", "up_proj")

QUANTIZERS = {
    "Int8DynActInt4WeightQATQuantizer": ("int4", "int8"),
    "Int4WeightOnlyQATQuantizer": ("int4-tinygemm", None),
}
"""torchao's quantizers that train: formats of weights and inputs."""

GROUP = 256  # of a quantizer that is told none

OPTIMIZERS = {
    "torch.optim.AdamW": "adamw",
    "torch.optim.Adam": "adam",
    "torch.optim.SGD": "sgd",
    "torch.optim.RMSprop": "rmsprop",
    "torch.optim.Adafactor": "adafactor",
    "torch.optim.Adagrad": "adagrad",
    "torch.optim.NAdam": "nadam",
    "torch.optim.RAdam": "radam",
    "torch.optim.Adamax": "adamax",
    "torch.optim.Adadelta": "adadelta",
    "torch.optim.ASGD": "asgd",
    "optimi.StableAdamW": "stable-adamw",
    "optimi.AdamW": "adamw-optimi",
    "came_pytorch.CAME": "came",
    "prodigyopt.Prodigy": "prodigy",
    "grokadamw.GrokAdamW": "grokadamw",
    **{f"bitsandbytes.optim.{name}": word for name, word in CLASSES.items()},
    "torchao.optim.AdamW8bit": "adamw-8bit-torchao",
    "torchao.optim.AdamW4bit": "adamw-4bit-torchao",
    "torchao.optim.AdamWFp8": "adamw-fp8-torchao",
    "torchao.prototype.low_bit_optim.AdamW8bit": "adamw-8bit-torchao",
    "torchao.prototype.low_bit_optim.AdamW4bit": "adamw-4bit-torchao",
    "torchao.prototype.low_bit_optim.CPUOffloadOptimizer": "adamw",
}
LOSSES = {
    "torchtune.modules.loss.LinearCrossEntropyLoss": "chunked",
    "torchtune.modules.loss.CEWithChunkedOutputLoss": "chunked",
    "torch.nn.CrossEntropyLoss": "standard",
    "torchtune.rlhf.loss.DPOLoss": "dpo",
    "torchtune.modules.rlhf.loss.DPOLoss": "dpo",  # of 0.3
    "torchtune.modules.loss.DPOLoss": "dpo",  # until 0.2
    "torchtune.modules.rlhf.loss.PPOLoss": "ppo",
    "torchtune.rlhf.loss.RSOLoss": "dpo",
    "torchtune.rlhf.loss.IPOLoss": "dpo",
    "torchtune.rlhf.loss.SimPOLoss": "simpo",
    "torchtune.rlhf.loss.PPOLoss": "ppo",
}
DTYPES = {"bf16": "pure-bf16", "bfloat16": "pure-bf16", "fp32": "fp32", "float32": "fp32", "fp16": "pure-fp16"}

UNITS = {
    ("tok_embeddings",): "embedding",
    ("output",): "head",
    ("output", "tok_embeddings"): "embedding-and-head",
}
"""Of `custom_sharded_layers`, in order."""
