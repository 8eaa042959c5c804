"""Axolotl: one YAML file for `axolotl train`.

Source: axolotl-ai-cloud/axolotl 0.18.0 (067b021c), src/axolotl/utils/schemas/*.py (keys and defaults),
utils/config/__init__.py (normalize_config, resolve_dtype), core/builders/base.py (what becomes TrainingArguments),
loaders/model.py (quantization), loaders/adapter.py (targets), integrations/*/args.py (keys of plugins).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.configs.programs import trainer, zero
from vramplan.configs.sheet import Meaning, Program, Release, Sheet, Table, names
from vramplan.errors import near_matches
from vramplan.job.parts import matches_weight
from vramplan.replay.models import only_kernel_of
from vramplan.values.model import ModelShape

UNDERSTOOD = names(
    """
    base_model sequence_len micro_batch_size gradient_accumulation_steps batch_size optimizer optim_args bf16 fp16
    fp8 bfloat16 float16 float32 max_grad_norm gradient_checkpointing gradient_checkpointing_kwargs
    gradient_checkpointing_kwargs.* activation_offloading unfrozen_parameters rl rl_beta precompute_ref_log_probs
    attn_implementation xformers_attention sdp_attention flex_attention flash_attention sage_attention
    eager_attention sample_packing pretraining_dataset torch_compile plugins liger_fused_linear_cross_entropy
    lisa_n_layers lisa_step_interval liger_rope liger_rms_norm liger_swiglu liger_glu_activation
    cut_cross_entropy chunked_cross_entropy chunked_cross_entropy_num_chunks load_in_4bit load_in_8bit gptq
    bnb_config_kwargs bnb_config_kwargs.* adapter lora_r lora_alpha lora_dropout lora_target_modules
    lora_target_linear lora_modules_to_save peft_use_dora deepspeed deepspeed.* fsdp fsdp_version fsdp_config
    fsdp_config.* tensor_parallel_size context_parallel_size sequence_parallel_degree dp_shard_size
    dp_replicate_size reinit_weights world_size reward_model process_reward_model tf32 use_ray ray_num_workers
    expert_parallel_size
    """
) | frozenset(trainer.LAUNCHED)

WITHOUT_EFFECT = trainer.LAUNCHER | names(
    """
    base_model_config cls_model_config tokenizer_config tokenizer_use_fast tokenizer_legacy
    tokenizer_use_mistral_common tokenizer_type processor_type processor_kwargs processor_kwargs.*
    tokenizer_save_jinja_files trust_remote_code experimental_skip_move_to_device model_type type_of_model
    model_revision revision_of_model output_dir hub_model_id hub_strategy hub_revision save_safetensors
    special_tokens special_tokens.* tokens tokens.* added_tokens_overrides added_tokens_overrides.* strict
    resume_from_checkpoint auto_resume_from_checkpoints mean_resizing_embeddings trainer_cls
    center_rewards_coefficient dpo_use_weighting dpo_label_smoothing dpo_loss_weights dpo_beta dpo_padding_free
    datasets datasets.* test_datasets test_datasets.* pretraining_dataset.* shuffle_merged_datasets
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
    message_property_mappings.* vllm.* trl.log_completions nemo_gym_* diffusion.noise_schedule grokfast_alpha
    grokfast_lamb early_stopping kd_temperature kd_alpha kd_ce_alpha kd_normalize_topk kd_temperature_min kd_beta
    torch_dtype spectrum_model_name group_texts eta_min sample_packing_seq_len_multiplier base_model_ignore_patterns
    process_count model_kwargs model_config.output_router_logits torch_compile_backend_options
    """
)
"""Keys of the schemas that change neither memory nor time of a training step, by reading where each is used."""

UNMODELLED = {
    "liger_rms_norm_gated": "Liger's gated RMSNorm",
    "liger_layer_norm": "Liger's LayerNorm",
    "liger_cross_entropy": "Liger's cross entropy overwrites the logits with their gradient",
    "lora_mlp_kernel": "the fused LoRA kernel of the MLP saves less",
    "lora_qkv_kernel": "the fused LoRA kernel of the attention saves less",
    "lora_o_kernel": "the fused LoRA kernel of the attention's output saves less",
    "lora_embedding_kernel": "the fused LoRA kernel of the embedding",
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
    "tiled_mlp": "the MLP runs in tiles along the sequence",
    "tiled_mlp_num_shards": "how many tiles the MLP has",
    "tiled_mlp_use_original_mlp": "which MLP is tiled",
    "layer_offloading": "frozen layers wait on the host",
    "selective_checkpointing": "outputs that a checkpoint keeps",
    "selective_checkpointing.*": "outputs that a checkpoint keeps",
    "relora": "ReLoRA merges and restarts the adapter",
    "relora_cpu_offload": "ReLoRA keeps merged weights on the host",
    "lora_target_parameters": "adapters on parameters, as those of experts",
    "lora_rank_pattern": "ranks by module",
    "lora_rank_pattern.*": "ranks by module",
    "peft_layers_to_transform": "adapters on some layers only",
    "peft_layers_pattern": "adapters on some layers only",
    "peft_layer_replication": "blocks that are repeated",
    "peft_trainable_token_indices": "some rows of the embedding are trained",
    "peft_autocast_adapter_dtype": "the element type of the adapter",
    "loftq_config.*": "LoftQ quantizes while it initialises",
    "quantize_moe_experts": "experts are quantized when they are loaded",
    "experts_implementation": "how the experts are computed",
    "llama4_linearized_experts": "experts as linear layers",
    "neftune_noise_alpha": "NEFTune adds noise to the embeddings: a copy of them",
    "torch_compile_backend": "the backend of torch.compile",
    "torch_compile_mode": "the mode of torch.compile",
    "torch_compile_options": "options of torch.compile",
    "torch_compile_options.*": "options of torch.compile",
    "deepcompile": "DeepSpeed's compiler",
    "fp32_norms": "norms stay in fp32",
    "fp32_norm_classes": "which norms stay in fp32",
    "qat.*": "quantization-aware training: fake quantization of weights and activations",
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
    "pad_to_sequence_len": "every row has the whole length",
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
    "kd_*": "distillation",
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
RELEASES = (Release("0.18.0", "2026-07-24", _SOURCE.format("0.18.0 (067b021c)"), DEFAULTS),)

OPTIMIZERS: dict[str, tuple[str, tuple[tuple[str, Any], ...]]] = {
    "muon": ("muon", ()),
    "optimi_adamw": ("adamw", (("optimizer_implementation", "for-loop"),)),
    "adopt_adamw": ("adamw", ()),
    "ao_adamw_8bit": ("adamw-8bit", ()),
    "ao_adamw_4bit": ("adamw-8bit", ()),
    "ao_adamw_fp8": ("adamw-8bit", ()),
    "flash_adamw": ("adamw-8bit", ()),
    "flash_adam": ("adamw-8bit", ()),
    "flash_sgd": ("sgd-momentum", ()),
    "flash_sgdw": ("sgd-momentum", ()),
    "flash_lion": ("lion", ()),
    "came_pytorch": ("came", ()),
    "dion": ("dion", ()),
    "sinkgd": ("sgd", ()),
    "q_galore_adamw8bit": ("q-galore-adamw-8bit", ()),
}
LORA_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
NEAR = frozenset(("optimi_adamw", "adopt_adamw", "ao_adamw_8bit", "ao_adamw_4bit", "ao_adamw_fp8", "sinkgd"))

LEGACY_ATTENTIONS = {
    "xformers_attention": "xformers",
    "sage_attention": "sage",
    "flex_attention": "flex_attention",
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}
"""In the order in which Axolotl asks them."""

SHARDINGS = {
    "FULL_SHARD": "fsdp",
    "1": "fsdp",
    "SHARD_GRAD_OP": "fsdp-grad-op",
    "2": "fsdp-grad-op",
    "NO_SHARD": "ddp",
    "3": "ddp",
    "HYBRID_SHARD": "hsdp",
    "4": "hsdp",
    "HYBRID_SHARD_ZERO2": "hsdp",
    "5": "hsdp",
}

LIGER = {"rms-norm": ("liger_rms_norm",), "glu": ("liger_glu_activation", "liger_swiglu"), "rope": ("liger_rope",)}
FUSED_LOSSES = ("liger_fused_linear_cross_entropy", "cut_cross_entropy")
CCE_PLUGIN = "CutCrossEntropyPlugin"
LM_LOSSES = {"dpo": "dpo", "ipo": "dpo", "kto": "kto"}
PREFERENCES = ("orpo", "simpo", "grpo", "gdpo", "ebft")


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are Axolotl's alone."""
    own = ("base_model", "sequence_len", "micro_batch_size", "sample_packing", "lora_r", "load_in_4bit")
    return sum(name in keys for name in own) if "base_model" in keys else 0


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of an Axolotl file."""
    meaning.say("runtime", "transformers", "base_model")
    name = sheet.text("base_model")
    if name:
        meaning.say("model", name, "base_model")
    else:
        meaning.ask("model", "the file names no base_model")
    meaning.say("sequence_length", sheet.count("sequence_len"), "sequence_len")
    micro = sheet.count("micro_batch_size")
    meaning.say("micro_batch_size", micro, "micro_batch_size")
    _steps(sheet, meaning, micro)
    _optimizer(sheet, meaning)
    norm = sheet.number("max_grad_norm")
    meaning.say("max_gradient_norm", norm or None, "max_grad_norm")
    adapter = _adapter(sheet, meaning)
    stage, fsdp = _strategy(sheet, meaning)
    _lora_kernels(sheet, meaning)
    _precision(sheet, meaning, adapter, stage, fsdp)
    _checkpointing(sheet, meaning)
    _attention(sheet, meaning)
    meaning.say("packing", bool(sheet.flag("sample_packing", False)), "sample_packing")
    _loss(sheet, meaning, adapter)
    compiled = sheet.text("torch_compile")
    if compiled is not None and (compiled == "auto" or sheet.flag("torch_compile")):
        meaning.say("compile", True, "torch_compile")
    if sheet.flag("reinit_weights"):
        meaning.say("from_scratch", True, "reinit_weights")
    if sheet.flag("reward_model"):
        meaning.say("loss", "reward", "reward_model")
        meaning.say("padding", "right", "reward_model")
    if sheet.flag("process_reward_model"):
        meaning.lack("process_reward_model", "rewards of steps, and the loss over a vocabulary is counted")
    sheet.flag("tf32") if sheet.text("tf32") != "auto" else None
    _devices(sheet, meaning)


def _steps(sheet: Sheet, meaning: Meaning, micro: int | None) -> None:
    total = sheet.count("batch_size")
    if sheet.given("batch_size") and not sheet.given("gradient_accumulation_steps") and total and micro:
        meaning.say("gradient_accumulation_steps", total // micro, "batch_size", "micro_batch_size")
        return
    key = "gradient_accumulation_steps"
    meaning.say(key, sheet.count(key), key)


def _optimizer(sheet: Sheet, meaning: Meaning) -> None:
    trainer.optimizer(sheet, meaning, "optimizer", **OPTIMIZERS)
    if sheet.text("optimizer") in NEAR:
        meaning.lack("optimizer", f"{sheet.text('optimizer')} is counted as {meaning.job['optimizer'].value}")


def _adapter(sheet: Sheet, meaning: Meaning) -> bool:
    kind = (sheet.text("adapter") or "").lower()
    four, eight = sheet.flag("load_in_4bit"), sheet.flag("load_in_8bit")
    if kind in ("lora", "qlora", "dora", "llama-adapter", "ia3"):
        dora = sheet.flag("peft_use_dora")
        meaning.say("adapter.kind", "dora" if dora or kind == "dora" else "ia3" if kind == "ia3" else "lora", "adapter")
        rank = sheet.count("lora_r")
        if rank is not None:
            meaning.say("adapter.rank", rank, "lora_r")
        _targets(sheet, meaning)
        meaning.say("adapter.dropout", sheet.number("lora_dropout"), "lora_dropout")
        alpha = sheet.number("lora_alpha")
        if alpha is not None:
            meaning.say("adapter.alpha", int(alpha) if alpha == int(alpha) else alpha, "lora_alpha")
        saved = sheet.texts("lora_modules_to_save")
        if saved:
            meaning.say("adapter.modules_to_save", saved, "lora_modules_to_save")
    elif kind:
        sheet.problem("adapter", f"{kind!r} is not a known adapter", "lora or qlora")
    else:
        for key in ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_linear"):
            sheet.get(key)
    if four and kind:
        double = {**sheet.under("bnb_config_kwargs")}.get("bnb_4bit_use_double_quant", True)
        meaning.say("quantization", "nf4-double" if double else "nf4", "load_in_4bit")
    elif eight:
        meaning.say("quantization", "int8", "load_in_8bit")
    elif sheet.flag("gptq"):
        meaning.say("quantization", "gptq-int4", "gptq")
    return bool(kind)


def _lora_kernels(sheet: Sheet, meaning: Meaning) -> None:
    """Kernels that Axolotl turns on where a file says nothing of them.

    Source: utils/schemas/config.py, check_auto_enable_lora_kernels.
    """
    kind = (sheet.text("adapter") or "").lower()
    version = meaning.job.get("parallel.fsdp_version")
    if kind not in ("lora", "qlora") or (kind == "lora" and sheet.flag("load_in_8bit")):
        return
    if (version is not None and version.value == 1) or any(sheet.given(key) for key in LORA_KERNELS):
        return
    if any(sheet.get(key) for key in ("rl", "trust_remote_code", "nvfp4_merge_aware")):
        return
    meaning.lack(LORA_KERNELS[0], "Axolotl turns its fused LoRA kernels on, which save less; PEFT's layers are counted")


def _targets(sheet: Sheet, meaning: Meaning) -> None:
    if sheet.flag("lora_target_linear"):
        # find_all_linear_names takes names of layers; PEFT's word would take the tensors of experts too
        layers = sheet.linears_of(sheet.text("base_model") or "")
        meaning.say("adapter.targets", layers or "all-linear", "lora_target_linear")
        return
    targets = sheet.get("lora_target_modules")
    if isinstance(targets, str) and targets != "all-linear":
        if any(sign in targets for sign in "*+()|[\\"):
            meaning.say("adapter.targets", "all-linear", "lora_target_modules")
            meaning.lack("lora_target_modules", "it is a regular expression, and every linear layer is counted")
            return
        targets = [targets]
    if targets:
        meaning.say("adapter.targets", targets, "lora_target_modules")


def _strategy(sheet: Sheet, meaning: Meaning) -> tuple[int | None, bool]:
    """The stage of ZeRO, and whether FSDP is used."""
    whole = sheet.get("deepspeed")
    inline = zero.inline_facts(sheet, "deepspeed")
    if inline is not None:
        return zero.deepspeed(sheet, meaning, inline, "deepspeed"), False
    if isinstance(whole, str) and whole.strip():
        facts = zero.facts_of(sheet, whole, "deepspeed")
        meaning.pointed["deepspeed"] = whole
        if facts is None:
            meaning.ask("parallel.sharding", f"deepspeed: {whole} is not here; give that file too")
            return None, False
        if sheet.opened(whole) is None:
            meaning.note(f"deepspeed: {whole} is read as Axolotl has it")
        return zero.deepspeed(sheet, meaning, facts, "deepspeed"), False
    below = {key.removeprefix("fsdp_") if key != "fsdp_version" else key: v for key, v in _fsdp(sheet).items()}
    options = sheet.texts("fsdp") or []
    if not below and not options:
        return None, False
    version = sheet.get("fsdp_version") or below.get("fsdp_version") or below.get("version") or 1
    strategy = str(below.get("sharding_strategy") or "")
    word = SHARDINGS.get(strategy.upper(), "fsdp")
    if not strategy:
        words = " ".join(options)
        word = "fsdp-grad-op" if "shard_grad_op" in words else "hsdp" if "hybrid" in words else "fsdp"
        word = "ddp" if "no_shard" in words else word
    if str(below.get("reshard_after_forward")).lower() == "false":
        word = "fsdp-grad-op"
    replicas, shards = sheet.count("dp_replicate_size"), sheet.count("dp_shard_size")
    if shards and (replicas or 1) > 1:
        word = f"hsdp:{shards}"
    elif word == "hsdp":
        word = "hsdp:8"
        meaning.note("HYBRID_SHARD shards within a node; a node of 8 GPUs is assumed")
    meaning.say("parallel.sharding", word, "fsdp_config", "fsdp")
    meaning.say("parallel.fsdp_version", int(version), "fsdp_version")
    offload = str(below.get("offload_params")).lower() == "true" or "offload" in options
    if offload:
        meaning.say("offload", ["parameters", "gradients", "optimizer"], "fsdp_config.offload_params")
    if str(below.get("activation_checkpointing")).lower() == "true":
        meaning.say("activation_checkpointing", "full", "fsdp_config.activation_checkpointing")
    return None, True


def _fsdp(sheet: Sheet) -> dict[str, Any]:
    whole = sheet.get("fsdp_config")
    below = sheet.under("fsdp_config")
    known = {
        *("version", "fsdp_version", "activation_checkpointing", "offload_params", "sync_module_states"),
        *("cpu_ram_efficient_loading", "cpu_offload_pin_memory", "use_orig_params", "state_dict_type"),
        *("final_state_dict_type", "auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params"),
        *("reshard_after_forward", "mixed_precision_policy", "sharding_strategy", "limit_all_gathers"),
        *("backward_prefetch", "backward_prefetch_policy", "forward_prefetch", "save_optimizer_state_on_cpu"),
    }

    for key in below:
        if key.removeprefix("fsdp_") not in known and key not in known:
            sheet.problem(f"fsdp_config.{key}", "is not understood", near_matches(key, known))
    return dict(whole) if isinstance(whole, Mapping) else below


def _precision(sheet: Sheet, meaning: Meaning, adapter: bool, stage: int | None, fsdp: bool) -> None:
    bf16 = sheet.text("bf16")
    wants_fp16, half16 = sheet.flag("fp16"), sheet.flag("float16")
    bfloat = sheet.flag("bfloat16")
    if bf16 == "auto":
        half = "fp16" if wants_fp16 else "bf16"
    elif bf16 == "full" or sheet.flag("bf16") or bfloat:
        half = "bf16"
    elif wants_fp16 or half16 or sheet.flag("load_in_8bit"):
        half = "fp16"
    else:
        half = "fp32"
    autocast = half == "bf16" or bool(wants_fp16)
    sheet.flag("float32")
    of = ("bf16", "fp16") if autocast else ("bf16", "fp16", "float16", "bfloat16")
    fp8 = sheet.flag("fp8")
    if half == "fp32":
        meaning.say("precision", "fp8" if fp8 else "fp32", *of)
        if not fp8:
            meaning.say("weight_dtype", "fp32", *of)
        return
    if fsdp:
        meaning.say("precision", "fsdp-fp8" if fp8 else f"fsdp-{half}", *of)
        if adapter:
            meaning.say("weight_dtype", half, *of)
    elif fp8:
        meaning.say("precision", "fp8", "fp8")
    elif stage is not None:
        meaning.say("precision", f"mixed-{half}", *of, "deepspeed")
    elif adapter and autocast:
        meaning.say("precision", f"amp-{half}", *of)
        meaning.say("weight_dtype", half, *of)
    elif half == "fp16" and autocast:
        meaning.say("precision", "amp-fp16", *of)
        meaning.say("weight_dtype", "fp16", *of)
        meaning.say("grad_scaler", True, *of)
    else:
        meaning.say("precision", f"pure-{half}", *of)
        if adapter:
            meaning.say("weight_dtype", half, *of)


def _checkpointing(sheet: Sheet, meaning: Meaning) -> None:
    key = "gradient_checkpointing"
    word = (sheet.text(key) or "false").lower()
    offload = sheet.text("activation_offloading") or "false"
    on = word in ("offload", "offload_disk", "unsloth") or bool(sheet.flag(key))
    if "activation_checkpointing" not in meaning.job:
        meaning.say("activation_checkpointing", "full" if on else "none", key)
    reentrant = trainer.checkpointing_kwargs(sheet)
    of = "gradient_checkpointing_kwargs"
    if on and reentrant is None and not sheet.given("unfrozen_parameters") and not sheet.given("rl"):
        # normalize_config sets use_reentrant itself where a file has no gradient_checkpointing_kwargs
        reentrant = offload.lower() == "false" and not word.startswith("offload")
    if on and reentrant:
        meaning.say("checkpoint_reentrant", True, of)
    if on and (word.startswith("offload") or offload.lower() not in ("false", "none")):
        before = meaning.job["offload"].value if "offload" in meaning.job else []
        meaning.say("offload", [*before, "activations"], key, "activation_offloading")
    blocks, interval = sheet.count("lisa_n_layers"), sheet.count("lisa_step_interval")
    if blocks and interval:
        meaning.say("trained_blocks", f"lisa:{blocks}", "lisa_n_layers", "lisa_step_interval")
    frozen = sheet.get("unfrozen_parameters")
    if frozen and "adapter.kind" in meaning.job:
        meaning.note("unfrozen_parameters: PEFT freezes the whole model beside an adapter")
    elif frozen:
        _unfrozen(sheet, meaning, frozen if isinstance(frozen, list) else [frozen])


def _as_counted(names: list[str], shape: ModelShape | None) -> list[str]:
    """Patterns of a class that is answered with the blocks of another, as those call their weights."""
    if shape is None or shape.unknown_type is None:
        return names
    import re  # few files have it

    inner = [re.sub(r"^(\^?)(model\\?\.)?language_model(?=\W).*", r"\1model.+", name) for name in names]
    return [re.sub(r"transformer\\?\.(blocks|h)(?=\W)", "model.layers", name) for name in inner]


def _unfrozen(sheet: Sheet, meaning: Meaning, patterns: list[Any]) -> None:
    """`unfrozen_parameters`: what no regular expression matches is frozen; a dot means itself unless `+` is behind it.

    Source: axolotl, utils/freeze.py, LayerNamePattern, which matches from the beginning of a name.
    """
    import re  # few files have it

    texts = [str(pattern) for pattern in patterns]
    names = [re.sub(r"\[\d*:\d*\]$", "", text) for text in texts]
    if names != texts:
        meaning.lack("unfrozen_parameters", "some rows of a weight, and all of them are counted as trained")
    shape = sheet.shape_of(sheet.text("base_model") or "")
    names = _as_counted(names, shape)
    words = ["all-but:^" + re.sub(r"(?<!\\)\.(?![+*])", r"\\.", name.removeprefix("^")) for name in names]
    strange = [] if shape is None else [word for word in words if not matches_weight(word, shape)]
    if strange and len(strange) < len(words):
        words = [word for word in words if word not in strange]
        meaning.note(f"unfrozen_parameters: {len(strange)} patterns match no weight, and Axolotl passes over them")
    meaning.say("frozen", list(dict.fromkeys(words)), "unfrozen_parameters")


def _takes_no_xformers(sheet: Sheet) -> bool:
    shape = sheet.shape_of(sheet.text("base_model") or "")
    return shape is not None and only_kernel_of(shape) is not None


def _attention(sheet: Sheet, meaning: Meaning) -> None:
    key, name = "attn_implementation", sheet.text("attn_implementation")
    for legacy, value in LEGACY_ATTENTIONS.items():
        if sheet.flag(legacy) and name is None:
            key, name = legacy, value
    if name is None:
        meaning.say("attention", "sdpa", "attn_implementation")
    elif name == "xformers" and _takes_no_xformers(sheet):
        meaning.say("attention", "sdpa", key)
        meaning.note(f"{key}: the code of this model has no kernel of xformers, and what SDPA takes is counted")
    elif name in trainer.ATTENTIONS:
        meaning.say("attention", trainer.ATTENTIONS[name], key)
    elif name in ("flex_attention", "sage", "fp8", "kernels-community/sage-attention") or "/" in name:
        meaning.lack(key, f"the kernel {name}, and SDPA's is counted")
    else:
        known = (*trainer.ATTENTIONS, "flex_attention", "sage", "fp8")
        sheet.problem(key, f"{name!r} is not a known kernel", near_matches(name, known))


def _loss(sheet: Sheet, meaning: Meaning, adapter: bool) -> None:
    plugins = " ".join(sheet.texts("plugins") or [])
    cut = sheet.get("cut_cross_entropy", CCE_PLUGIN in plugins)
    sheet.flag("cut_cross_entropy", CCE_PLUGIN in plugins)
    liger = sheet.flag("liger_fused_linear_cross_entropy")
    chunked = sheet.flag("chunked_cross_entropy")
    chunks = sheet.count("chunked_cross_entropy_num_chunks", 8)
    method = (sheet.text("rl") or "").lower()
    if method in LM_LOSSES:
        meaning.say("loss", LM_LOSSES[method], "rl")
        if sheet.flag("precompute_ref_log_probs"):
            meaning.say("dpo_reference", "precomputed", "precompute_ref_log_probs")
        else:
            meaning.say("dpo_reference", "adapter-off" if adapter else "model", "rl", "adapter")
        meaning.say("padding", "right", "rl")
    elif method in PREFERENCES:
        meaning.say("loss", method, "rl")
        meaning.say("padding", "right", "rl")
    elif method:
        sheet.problem("rl", f"{method!r} is not understood", "dpo, ipo, kto, orpo, simpo, grpo, gdpo or ebft")
    elif liger or cut is True:
        meaning.say("loss", "fused", "liger_fused_linear_cross_entropy" if liger else "cut_cross_entropy")
    elif chunked:
        meaning.say("loss", f"chunked:{chunks}", "chunked_cross_entropy", "chunked_cross_entropy_num_chunks")
    sheet.get("rl_beta")
    kernels = {word: [key for key in keys if sheet.flag(key)] for word, keys in LIGER.items()}
    if any(kernels.values()):
        given = [key for keys in kernels.values() for key in keys]
        meaning.say("liger_kernels", [word for word, keys in kernels.items() if keys], *given)


def _devices(sheet: Sheet, meaning: Meaning) -> None:
    tensor = sheet.count("tensor_parallel_size")
    if tensor and tensor > 1:
        meaning.say("parallel.tensor", tensor, "tensor_parallel_size")
    for key in ("context_parallel_size", "sequence_parallel_degree"):
        context = sheet.count(key)
        if context and context > 1:
            meaning.say("parallel.context", context, key)
    shards, replicas = sheet.count("dp_shard_size"), sheet.count("dp_replicate_size")
    world = sheet.count("world_size")
    experts = sheet.count("expert_parallel_size") or 1
    if experts > 1:  # its devices have data of their own, as those of Megatron's experts
        meaning.say("parallel.expert", experts, "expert_parallel_size")
    started, workers = trainer.devices(sheet), sheet.count("ray_num_workers", 1)
    if started:
        started = max(1, started // ((tensor or 1) * (context or 1)))
    if (shards or replicas) and (shards or 0) != -1:
        told = ("dp_shard_size", "dp_replicate_size", *(("expert_parallel_size",) if experts > 1 else ()))
        meaning.say("parallel.data", (shards or 1) * (replicas or 1) * experts, *told)
    elif world:
        meaning.say("parallel.data", world, "world_size")
    elif started:
        meaning.say("parallel.data", started, *(key for key in trainer.LAUNCHED if sheet.given(key)))
    elif sheet.flag("use_ray") and workers:
        meaning.say("parallel.data", workers, "ray_num_workers")  # cli/train.py, ScalingConfig: one GPU each
    else:
        meaning.ask("parallel.data", "the number of GPUs is the launcher's (--gpus N)")


PROGRAM = Program("axolotl", RELEASES, Table(UNDERSTOOD, WITHOUT_EFFECT, UNMODELLED), read, recognise)
