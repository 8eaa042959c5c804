"""LLaMA-Factory: one YAML or JSON file for `llamafactory-cli train`, and its v1 files (`USE_V1=1`).

Source: hiyouga/LLaMA-Factory 0.9.6.dev0 (ff6d4d12), src/llamafactory/hparams/*.py (keys and defaults; parser.py),
model/adapter.py (what is upcast to fp32), model/model_utils/{checkpointing,quantization,attention,liger_kernel}.py,
train/trainer_utils.py (optimizers, reference models); src/llamafactory/v1/config/*.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vramplan.configs.programs import trainer, zero
from vramplan.configs.sheet import Meaning, Program, Release, Sheet, Table, names

UNDERSTOOD = names(
    """
    model_name_or_path stage finetuning_type cutoff_len packing neat_packing flash_attn enable_liger_kernel
    use_liger_kernel liger_kernel_config.*
    disable_gradient_checkpointing use_reentrant_gc use_unsloth use_unsloth_gc upcast_layernorm
    train_from_scratch quantization_method quantization_bit quantization_type double_quantization
    gradient_checkpointing gradient_checkpointing_kwargs gradient_checkpointing_kwargs.* freeze_trainable_layers
    freeze_trainable_modules freeze_extra_modules use_llama_pro lora_rank lora_alpha lora_dropout lora_target
    additional_target use_dora oft_rank oft_block_size oft_target module_dropout pref_loss ref_model use_galore
    galore_rank galore_target galore_layerwise use_apollo apollo_rank apollo_target apollo_layerwise use_badam
    badam_mode badam_start_block use_adam_mini use_muon pure_bf16 bf16 fp16 fp8 optim optim_args
    per_device_train_batch_size gradient_accumulation_steps max_grad_norm torch_compile deepspeed deepspeed.* fsdp
    fsdp_config fsdp_config.* fsdp_transformer_layer_cls_to_wrap compute_dtype tensor_model_parallel_size
    pipeline_model_parallel_size context_parallel_size expert_model_parallel_size sequence_parallel
    virtual_pipeline_model_parallel_size use_distributed_optimizer recompute_granularity recompute_method
    recompute_num_layers use_mca use_megatron_bridge mixed_precision ray_num_workers
    program
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
    enable_thinking preserve_thinking tokenized_path data_shared_file_system adapter_name_or_path adapter_folder
    cache_dir use_fast_tokenizer split_special_tokens add_tokens add_special_tokens new_special_tokens_config
    init_special_tokens model_revision low_cpu_mem_usage infer_backend offload_folder use_kv_cache infer_dtype
    hf_hub_token ms_hub_token om_hub_token print_param_status trust_remote_code quantization_device_map
    moe_aux_loss_coef video_fps video_maxlen use_audio_in_video audio_sampling_rate export_* vllm_* sglang_*
    loraplus_lr_ratio loraplus_lr_embedding use_rslora pissa_init pissa_iter pissa_convert create_new_adapter
    pref_beta pref_ftx pref_bco_weight dpo_label_smoothing kto_chosen_weight kto_rejected_weight simpo_gamma
    ppo_buffer_size ppo_epochs ppo_score_norm ppo_target ppo_whiten_rewards ref_model_adapters reward_model_adapters
    ld_alpha galore_update_interval galore_scale galore_proj_type apollo_update_interval apollo_scale apollo_proj
    apollo_proj_type apollo_scale_type apollo_scale_front badam_switch_mode badam_switch_interval badam_verbose
    badam_mask_mode use_swanlab swanlab_* freeze_multi_modal_projector compute_accuracy disable_shuffling
    early_stopping_steps plot_loss include_effective_tokens_per_second ray_* placement_strategy resources_per_worker
    resources_per_worker.* master_addr master_port do_sample temperature top_p top_k num_beams max_length
    max_new_tokens repetition_penalty length_penalty skip_special_tokens fp8_backend task task_dir batch_size lang
    n_shot save_dir download_mode enable_torch_profiler profiler_* profile_modules custom_chat_template
    train_dataset batching_workers dist_timeout lr_scheduler_config lr_scheduler_config.* save_epochs
    save_ckpt_as_hf sample_backend asft_alpha eaft_alpha model_max_length image_do_pan_and_scan crop_to_patches
    dist_config.pin_memory dist_config.dcp_path dist_config.ep_dispatcher dist_config.hook_modules
    dist_config.fsdp_implementation peft_config.use_rslora peft_config.adapter_name_or_path peft_config.export_*
    peft_config.infer_dtype quant_config.quantization_type quant_config.compute_dtype optim_config.lr optim_config.wd
    optim_config.momentum optim_config.nesterov optim_config.ns_steps optim_config.adamw_betas optim_config.adamw_eps
    dft_alpha bias_activation_fusion apply_rope_fusion distributed_timeout megatron_pretrained_checkpoint
    calculate_per_token_loss
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
    "video_max_pixels": "pixels of a video",
    "video_min_pixels": "pixels of a video",
    "freeze_vision_tower": "the encoder of images is frozen",
    "freeze_language_model": "the language model is frozen",
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
RELEASES = (
    Release("0.9.6", "2026-08-18", _SOURCE, DEFAULTS),
    Release(
        "0.9.3",
        "2025-06-16",
        "hiyouga/LLaMA-Factory 0.9.3, src/llamafactory/hparams/; transformers 4.52 (optim: adamw_torch)",
        {**DEFAULTS, "optim": "adamw_torch"},
    ),
)

ATTENTIONS = {"auto": "sdpa", "sdpa": "sdpa", "fa2": "flash", "fa3": "flash", "disabled": "eager"}
ATTENTIONS_V1 = {**ATTENTIONS, **trainer.ATTENTIONS}
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear layers of a block of Llama and its kin."""

STAGES = ("pt", "sft", "rm", "ppo", "dpo", "kto")
DPO_LOSSES = ("sigmoid", "hinge", "ipo", "kto_pair")

CHECKPOINTS = (("gptq", "gptq-int4"), ("awq", "awq-int4"), ("aqlm", "aqlm-int2"))
"""Quantizations that stand in the name of a checkpoint and nowhere in the file."""


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are LLaMA-Factory's alone."""
    own = (
        "finetuning_type",
        "cutoff_len",
        "stage",
        "template",
        "lora_target",
        "dataset_dir",
        "preprocessing_num_workers",
    )
    found = sum(name in keys for name in own)
    if _is_v1(keys):
        found += 2 + sum(name in keys for name in ("kernel_config", "dist_config", "train_dataset", "model_class"))
    return found if "model_name_or_path" in keys or "model" in keys else 0


def _is_v1(keys: Mapping[str, Any]) -> bool:
    names = {key.split(".", 1)[0] for key in keys}
    own = {"train_dataset", "model_class", "dist_config", "kernel_config", "peft_config", "sample_backend"}
    return "model" in names and "model_name_or_path" not in names and bool(names & own)


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of a LLaMA-Factory file."""
    if _is_v1(sheet.written):
        _read_v1(sheet, meaning)
        return
    unsloth = sheet.flag("use_unsloth")
    megatron = any(
        sheet.given(key) for key in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "use_mca")
    )
    meaning.say("runtime", "megatron" if megatron else "unsloth" if unsloth else "transformers", "use_unsloth")
    name = sheet.text("model_name_or_path")
    if name:
        meaning.say("model", name, "model_name_or_path")
    else:
        meaning.ask("model", "the file has no model_name_or_path")
    meaning.say("sequence_length", sheet.count("cutoff_len"), "cutoff_len")
    meaning.say("micro_batch_size", sheet.count("per_device_train_batch_size"), "per_device_train_batch_size")
    key = "gradient_accumulation_steps"
    meaning.say(key, sheet.count(key), key)
    meaning.say("max_gradient_norm", sheet.number("max_grad_norm") or None, "max_grad_norm")
    kind = sheet.word("finetuning_type", {name: name for name in ("lora", "oft", "freeze", "full")})
    _optimizer(sheet, meaning)
    quantized = _quantization(sheet, meaning, name or "")
    _adapter(sheet, meaning, kind)
    _frozen(sheet, meaning, kind)
    stage, fsdp = _strategy(sheet, meaning)
    _precision(sheet, meaning, kind, quantized, stage, fsdp)
    _checkpointing(sheet, meaning, fsdp)
    attention = sheet.word("flash_attn", ATTENTIONS)
    if attention:
        meaning.say("attention", attention, "flash_attn")
    _stage(sheet, meaning, kind)
    if sheet.flag("torch_compile"):
        meaning.say("compile", True, "torch_compile")
    if sheet.flag("train_from_scratch"):
        meaning.say("from_scratch", True, "train_from_scratch")
    if megatron:
        _megatron(sheet, meaning)
    _devices(sheet, meaning)


def _devices(sheet: Sheet, meaning: Meaning) -> None:
    workers = sheet.count("ray_num_workers")  # one GPU each (train/tuner.py)
    started = trainer.devices(sheet) or workers
    if started:
        told = [meaning.job.get(f"parallel.{name}") for name in ("tensor", "pipeline", "context")]
        shared = math.prod(one.value for one in told if one is not None)
        keys = ("ray_num_workers", *(key for key in trainer.LAUNCHED if sheet.given(key)))
        meaning.say("parallel.data", max(1, started // shared), *keys)
    else:
        meaning.ask("parallel.data", "the number of GPUs is the launcher's (--gpus N)")


def _optimizer(sheet: Sheet, meaning: Meaning) -> None:
    sheet.get("optim_args")
    if sheet.flag("use_galore"):
        rank = sheet.count("galore_rank")
        meaning.say("optimizer", f"galore-adamw:{rank}", "use_galore", "galore_rank")
        sheet.text("optim")
        sheet.text("galore_target")
        if sheet.flag("galore_layerwise"):
            meaning.say("optimizer_in_backward", True, "galore_layerwise")
            meaning.say("max_gradient_norm", None, "galore_layerwise")
        return
    if sheet.flag("use_apollo"):
        meaning.say("optimizer", f"apollo-adamw:{sheet.count('apollo_rank') or 16}", "use_apollo", "apollo_rank")
        if sheet.flag("apollo_layerwise"):
            meaning.say("optimizer_in_backward", True, "apollo_layerwise")
            meaning.say("max_gradient_norm", None, "apollo_layerwise")
        sheet.text("apollo_target"), sheet.text("optim")
        return
    if sheet.flag("use_adam_mini"):
        meaning.say("optimizer", "adam-mini", "use_adam_mini")
        sheet.text("optim")
        return
    if sheet.flag("use_badam"):
        if (sheet.text("badam_mode") or "layer") == "layer":
            meaning.say("trained_blocks", "badam", "use_badam", "badam_mode")
        else:
            meaning.lack("badam_mode", "it trains a part of each weight, and AdamW of whole weights is counted")
    if sheet.flag("use_muon"):
        meaning.say("optimizer", "muon", "use_muon")
        sheet.text("optim")
        return
    trainer.optimizer(sheet, meaning, "optim")
    if not sheet.given("optim") and sheet.release.defaults["optim"] == "adamw_torch":
        meaning.say("optimizer_implementation", "foreach", "optim")


def _quantization(sheet: Sheet, meaning: Meaning, model: str) -> bool:
    for sign, word in CHECKPOINTS:
        if sign in model.lower().rsplit("/", 1)[-1]:
            meaning.say("quantization", word, "model_name_or_path")
            meaning.note("quantization: read from the name of the checkpoint; the file does not say it")
            return True
    bits = sheet.count("quantization_bit")
    if bits is None:
        return False
    method = (sheet.text("quantization_method") or "bnb").lower()
    if method in ("bnb", "bitsandbytes"):
        double = sheet.flag("double_quantization")
        if bits == 4:
            meaning.say("quantization", "nf4-double" if double else "nf4", "quantization_bit", "double_quantization")
        elif bits == 8:
            meaning.say("quantization", "int8", "quantization_bit")
        else:
            sheet.problem("quantization_bit", f"bitsandbytes has no {bits} bits", "4 or 8")
    elif method in ("hqq", "eetq"):
        word = "int8" if bits == 8 else "nf4"
        meaning.say("quantization", word, "quantization_method", "quantization_bit")
        meaning.lack("quantization_method", f"{method} with {bits} bits is counted as {word}")
    else:
        sheet.problem("quantization_method", f"{method!r} is not understood", "bnb, hqq or eetq")
    return True


def _adapter(sheet: Sheet, meaning: Meaning, kind: str | None) -> None:
    if kind == "oft":
        meaning.say("adapter.kind", "oft", "finetuning_type")
        targets = sheet.texts("oft_target") or ["all"]
        meaning.say("adapter.targets", "all-linear" if targets == ["all"] else targets, "oft_target")
        for key in ("oft_rank", "oft_block_size", "module_dropout"):
            sheet.get(key)
        meaning.note("finetuning_type: a job has no word for OFT adapters")
        return
    if kind != "lora":
        for key in ("lora_rank", "lora_alpha", "lora_dropout", "lora_target"):
            sheet.get(key)
        return
    rank = sheet.count("lora_rank")
    meaning.say("adapter.kind", "dora" if sheet.flag("use_dora") else "lora", "finetuning_type", "use_dora")
    meaning.say("adapter.rank", rank, "lora_rank")
    targets = sheet.texts("lora_target") or ["all"]
    stored = "quantization" in meaning.job and meaning.job["quantization"].of == ("model_name_or_path",)
    if targets == ["all"] and stored:
        # find_all_linear_modules takes names of layers, which PEFT's all-linear does not see in such checkpoints
        meaning.say("adapter.targets", list(PROJECTIONS), "lora_target", "model_name_or_path")
    elif targets == ["all"]:
        # of experts that are one tensor it finds none; PEFT's word would take them too
        layers = sheet.linears_of(sheet.text("model_name_or_path") or "")
        meaning.say("adapter.targets", layers or "all-linear", "lora_target")
    elif any(sign in target for target in targets for sign in "*+()|[\\^"):
        meaning.say("adapter.targets", "all-linear", "lora_target")
        meaning.lack("lora_target", "it is a regular expression, and every linear layer is counted")
    else:
        meaning.say("adapter.targets", targets, "lora_target")
    meaning.say("adapter.dropout", sheet.number("lora_dropout"), "lora_dropout")
    alpha = sheet.count("lora_alpha", 2 * rank if rank else None)
    meaning.say("adapter.alpha", alpha, "lora_alpha")
    saved = sheet.texts("additional_target")
    if saved:
        meaning.say("adapter.modules_to_save", saved, "additional_target")


def _frozen(sheet: Sheet, meaning: Meaning, kind: str | None) -> None:
    count = sheet.count("freeze_trainable_layers")
    modules = sheet.texts("freeze_trainable_modules")
    extra = sheet.texts("freeze_extra_modules") or []
    if kind != "freeze" or count is None:
        return
    frozen = []
    if not any("embed" in name or name == "wte" for name in extra):
        frozen.append("embeddings")
    if "lm_head" not in extra:
        frozen.append("head")
    if "norm" not in extra:
        frozen.append("norms")
    if count > 0:
        frozen.append(f"layers:-{count}")  # all but the last: the number of blocks is the model's
    else:
        frozen.append(f"layers:{-count}-")
    layers = sheet.layers_of(sheet.text("model_name_or_path") or "")
    meaning.say("frozen", resolve_frozen(frozen, layers), "freeze_trainable_layers", "freeze_extra_modules")
    if modules and modules != ["all"]:
        meaning.lack("freeze_trainable_modules", "parts of blocks, and whole blocks are counted")
    if sheet.flag("use_llama_pro"):
        meaning.lack("use_llama_pro", "the trained blocks are spread through the stack, and the last ones are counted")


def resolve_frozen(frozen: list[str], layers: int | None) -> list[str]:
    """`layers:-8` of a model of 32 blocks: all but the last 8, `layers.0-23`; `layers:2-`: all but the first 2.

    Where the number of blocks is not known, `layers:` words are left out: everything in a block counts as trained.
    """
    result: list[str] = []
    for item in frozen:
        if not item.startswith("layers:"):
            result.append(item)
            continue
        if layers is None:
            continue
        text = item.removeprefix("layers:")
        first, last = (0, layers + int(text) - 1) if text.startswith("-") else (int(text.rstrip("-")), layers - 1)
        if last >= first:
            result.append(f"layers.{first}-{last}" if last > first else f"layers.{first}")
    return result


def _strategy(sheet: Sheet, meaning: Meaning) -> tuple[int | None, bool]:
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
            meaning.note(f"deepspeed: {whole} is read as LLaMA-Factory has it")
        return zero.deepspeed(sheet, meaning, facts, "deepspeed"), False
    options = sheet.get("fsdp")
    below = sheet.under("fsdp_config")
    sheet.text("fsdp_transformer_layer_cls_to_wrap")
    words = " ".join(options) if isinstance(options, list) else str(options or "")
    if not words or words.lower() == "false":
        return None, False
    word = "fsdp-grad-op" if "shard_grad_op" in words else "hsdp:8" if "hybrid" in words else "fsdp"
    meaning.say("parallel.sharding", word, "fsdp")
    version = below.get("fsdp_version", below.get("version"))
    if version is not None:
        meaning.say("parallel.fsdp_version", int(version), "fsdp_config")
    if "offload" in words:
        meaning.say("offload", ["parameters", "gradients", "optimizer"], "fsdp")
    return None, True


def _precision(
    sheet: Sheet, meaning: Meaning, kind: str | None, quantized: bool, stage: int | None, fsdp: bool
) -> None:
    pure, bf16, fp16 = sheet.flag("pure_bf16"), sheet.flag("bf16"), sheet.flag("fp16")
    fp8 = sheet.flag("fp8")
    sheet.flag("upcast_layernorm")
    half = "bf16" if bf16 else "fp16" if fp16 else None
    adapter = kind in ("lora", "oft")
    of = ("pure_bf16",) if pure else ("bf16", "fp16")
    if pure:
        meaning.say("precision", "pure-bf16", *of)
    elif fp8:
        meaning.say("precision", "fsdp-fp8" if fsdp else "fp8", "fp8")
    elif half is None and (adapter or sheet.flag("use_badam")):
        # no autocast; weights that nobody upcasts stay in the type of the checkpoint (patcher.py, infer_optim_dtype)
        meaning.say("precision", "pure-bf16", *of)
        meaning.note("bf16, fp16: neither is on; the model stays in the type of its checkpoint, counted as bf16")
    elif half is None:
        meaning.say("precision", "fp32", *of)
        meaning.say("weight_dtype", "fp32", *of)
    elif fsdp:
        meaning.say("precision", f"fsdp-{half}", *of)
        if adapter:
            meaning.say("weight_dtype", half, *of)
    elif stage is not None:
        meaning.say("precision", f"mixed-{half}", *of, "deepspeed")
    else:
        meaning.say("precision", f"amp-{half}", *of)
        if adapter:
            meaning.say("weight_dtype", half, *of)  # the base model stays half; adapters are upcast to fp32
        elif kind == "full" and sheet.flag("use_badam"):
            meaning.say("weight_dtype", half, "use_badam")  # which upcasts what it trains by itself
        elif kind == "full":
            meaning.say("weight_dtype", "fp32", "finetuning_type")  # trainable weights are upcast (model/adapter.py)
        if half == "fp16":
            meaning.say("grad_scaler", True, "fp16")
    if kind == "lora" and meaning.job["precision"].value == "pure-bf16":
        meaning.say("adapter.dtype", "fp32", *of)  # PEFT upcasts adapters of half weights, whatever pure_bf16 says


def _checkpointing(sheet: Sheet, meaning: Meaning, fsdp: bool) -> None:
    off = sheet.flag("disable_gradient_checkpointing")
    sheet.flag("gradient_checkpointing")
    trainer.checkpointing_kwargs(sheet)
    sheet.flag("use_unsloth_gc")
    meaning.say("activation_checkpointing", "none" if off else "full", "disable_gradient_checkpointing")
    reentrant = sheet.flag("use_reentrant_gc")
    told = meaning.job.get("parallel.fsdp_version")
    if (told.value if fsdp and told else sheet.beside.get("parallel.fsdp_version")) == 2:
        reentrant = False
    if not off and reentrant:
        meaning.say("checkpoint_reentrant", True, "use_reentrant_gc")
    if sheet.flag("use_unsloth_gc") and not off:
        meaning.say("offload", ["activations"], "use_unsloth_gc")


def _stage(sheet: Sheet, meaning: Meaning, kind: str | None) -> None:
    stage = sheet.word("stage", {name: name for name in STAGES})
    neat, packing = sheet.flag("neat_packing"), sheet.flag("packing")
    meaning.say("packing", bool(neat), "neat_packing")
    if (packing and not neat) or (stage == "pt" and packing is not False):
        meaning.note("packing: samples stand one behind the other without a mask between them")
    loss = (sheet.text("pref_loss") or "").lower()
    if sheet.flag("enable_liger_kernel") or sheet.flag("use_liger_kernel"):
        trainer.liger(sheet, meaning, "enable_liger_kernel", loss=stage in ("pt", "sft"))
    if stage == "dpo":
        meaning.say("padding", "right", "stage")
        if loss in ("orpo", "simpo"):
            meaning.say("loss", loss, "pref_loss")
            return
        meaning.say("loss", "dpo", "stage", "pref_loss")
        if loss not in DPO_LOSSES:
            sheet.problem("pref_loss", f"{loss!r} is not understood", "sigmoid, hinge, ipo, kto_pair, orpo or simpo")
        adapter = kind in ("lora", "oft") and not sheet.text("ref_model")
        meaning.say("dpo_reference", "adapter-off" if adapter else "model", "finetuning_type", "ref_model")
        return
    if stage in ("kto", "rm"):
        meaning.say("padding", "right", "stage")
        meaning.say("loss", "kto" if stage == "kto" else "reward", "stage")
        if stage == "kto":
            adapter = kind in ("lora", "oft") and not sheet.text("ref_model")
            meaning.say("dpo_reference", "adapter-off" if adapter else "model", "finetuning_type", "ref_model")
    elif stage == "ppo":
        meaning.say("loss", "ppo", "stage")
        meaning.say("padding", "right", "stage")
        meaning.note("stage: a job has no word for PPO, which generates and has value and reward models")


def _megatron(sheet: Sheet, meaning: Meaning) -> None:
    sizes = {
        "tensor_model_parallel_size": "parallel.tensor",
        "pipeline_model_parallel_size": "parallel.pipeline",
        "context_parallel_size": "parallel.context",
        "expert_model_parallel_size": "parallel.expert",
    }
    for key, name in sizes.items():
        count = sheet.count(key)
        if count and count > 1:
            meaning.say(name, count, key)
    chunks = sheet.count("virtual_pipeline_model_parallel_size")
    if chunks and chunks > 1:
        meaning.say("parallel.schedule", f"interleaved:{chunks}", "virtual_pipeline_model_parallel_size")
    if sheet.flag("sequence_parallel") and "parallel.tensor" in meaning.job:
        meaning.say("parallel.sequence_parallel", True, "sequence_parallel")
    if sheet.flag("use_distributed_optimizer"):
        meaning.say("parallel.sharding", "distributed-optimizer", "use_distributed_optimizer")
    granularity = sheet.text("recompute_granularity")
    sheet.text("recompute_method")
    count = sheet.count("recompute_num_layers")
    words = {"full": "full" if (count or 1) == 1 else f"every:{count}", "selective": "selective"}
    word = words.get(granularity or "", "none")
    meaning.say("activation_checkpointing", word, "recompute_granularity")
    meaning.job.pop("checkpoint_reentrant", None)
    meaning.job.pop("attention", None)
    if meaning.job["precision"].value.startswith("amp-"):
        meaning.say("precision", "mixed-" + meaning.job["precision"].value[4:], "bf16", "fp16")
        meaning.job.pop("weight_dtype", None)
    bridge = (sheet.text("mixed_precision") or "").lower()  # of Megatron Bridge: bf16_mixed, bf16_with_fp8_..., fp8
    if bridge:
        half = "fp16" if bridge.startswith("fp16") else "bf16"
        meaning.say("precision", "fp8" if "fp8" in bridge else f"mixed-{half}", "mixed_precision")


def _plugin(sheet: Sheet, key: str) -> dict[str, Any]:
    """A plug-in of v1; what it does not know stays behind, and is not understood."""
    start = key + "."
    below = {name: item.value for name, item in sheet.written.items() if name.startswith(start)}
    sheet.taken.update(name for name in below if PROGRAM.table.class_of(name) == "understood")
    whole = sheet.get(key)
    return dict(whole) if isinstance(whole, Mapping) else {name[len(start) :]: value for name, value in below.items()}


def _read_v1(sheet: Sheet, meaning: Meaning) -> None:
    """The v1 schema: other names, a global batch, plug-ins as mappings."""
    meaning.say("runtime", "transformers", "model")
    meaning.say("model", sheet.text("model"), "model")
    sheet.text("model_class")
    meaning.say("sequence_length", sheet.count("cutoff_len"), "cutoff_len")
    micro = sheet.count("micro_batch_size")
    meaning.say("micro_batch_size", micro, "micro_batch_size")
    meaning.say("max_gradient_norm", sheet.number("max_grad_norm") or None, "max_grad_norm")
    total = sheet.count("global_batch_size")
    shards, data = sheet.count("mp_shard_size"), sheet.count("dp_size")
    if total is None:
        meaning.say("gradient_accumulation_steps", 1, "global_batch_size")
    else:
        meaning.say("global_batch_size", total, "global_batch_size")
    context = sheet.count("cp_size") or 1
    if context > 1:
        meaning.say("parallel.context", context, "cp_size")
        meaning.lack("cp_mode", f"{sheet.text('cp_mode', 'ulysses')} splits heads, and a ring is counted")
    sheet.text("cp_mode")
    dist = _plugin(sheet, "dist_config")
    kind = str(dist.get("name") or "")
    if kind in ("fsdp2", "fsdp", "fsdp_turbo", "fsdpturbo"):
        experts = int(dist.get("ep_size") or 1)
        if experts > 1:
            meaning.say("parallel.expert", experts, "dist_config.ep_size")
        replicas = sheet.count("mp_replicate_size") or 1
        word = f"hsdp:{shards}" if replicas > 1 and shards else "fsdp"
        meaning.say("parallel.sharding", word, "dist_config.name")
        meaning.say("parallel.fsdp_version", 2, "dist_config.name")
        if str(dist.get("offload_params")).lower() == "true":
            meaning.say("offload", ["parameters", "gradients", "optimizer"], "dist_config.offload_params")
        if str(dist.get("reshard_after_forward")).lower() == "false":
            meaning.say("parallel.sharding", "fsdp-grad-op", "dist_config.reshard_after_forward")
    elif kind == "deepspeed":
        path = str(dist.get("config_file") or "")
        facts = zero.facts_of(sheet, path, "dist_config.config_file")
        if facts is None:
            meaning.ask("parallel.sharding", f"dist_config.config_file: {path} is not here; give that file too")
        else:
            zero.deepspeed(sheet, meaning, facts, "dist_config.config_file")
    elif kind:
        sheet.problem("dist_config.name", f"{kind!r} is not understood", "fsdp2 or deepspeed")
    peft = _plugin(sheet, "peft_config")
    name = str(peft.get("name") or "")
    if name in ("lora", "qlora"):
        rank = int(peft.get("r") or peft.get("lora_rank") or 8)
        dora = str(peft.get("use_dora")).lower() == "true"
        meaning.say("adapter.kind", "dora" if dora else "lora", "peft_config.name")
        meaning.say("adapter.rank", rank, "peft_config.r")
        targets = peft.get("target_modules") or "all"
        targets = "all-linear" if targets in ("all", ["all"], "all-linear") else targets
        meaning.say("adapter.targets", targets, "peft_config.target_modules")
        meaning.say("adapter.dropout", float(peft.get("lora_dropout", 0.05)), "peft_config.lora_dropout")
        meaning.say("adapter.alpha", int(peft.get("lora_alpha") or 16), "peft_config.lora_alpha")
        if peft.get("export_dir"):
            meaning.note("peft_config.export_dir: merging an adapter trains nothing; training with it is counted")
        if peft.get("modules_to_save"):
            meaning.say("adapter.modules_to_save", peft["modules_to_save"], "peft_config.modules_to_save")
    elif name == "freeze":
        layers = int(peft.get("freeze_trainable_layers", 2))
        frozen = ["embeddings", "head", "norms", f"layers:-{layers}"]
        meaning.say("frozen", resolve_frozen(frozen, sheet.layers_of(sheet.text("model") or "")), "peft_config")
    quant = _plugin(sheet, "quant_config")
    if quant.get("name"):
        bits = int(quant.get("quantization_bit") or quant.get("bits") or 4)
        double = str(quant.get("double_quantization", True)).lower() != "false"
        word = "int8" if bits == 8 else "nf4-double" if double else "nf4"
        meaning.say("quantization", word, "quant_config.name")
    _v1_precision(sheet, meaning, bool(name in ("lora", "qlora")))
    on = sheet.flag("enable_activation_checkpointing")
    meaning.say("activation_checkpointing", "full" if on else "none", "enable_activation_checkpointing")
    if on:
        meaning.say("checkpoint_reentrant", False, "enable_activation_checkpointing")
    attention = sheet.word("flash_attn", ATTENTIONS_V1, "sdpa")
    if attention:
        meaning.say("attention", attention, "flash_attn")
    strategy = (sheet.text("batching_strategy") or "normal").lower()
    meaning.say("packing", strategy in ("padding_free", "dynamic_padding_free"), "batching_strategy")
    optimizer = _plugin(sheet, "optim_config")
    word = str(optimizer.get("name") or "adamw").lower()
    meaning.say("optimizer", "muon" if word == "muon" else "adamw", "optim_config.name")
    if word != "muon":  # core/base_trainer.py asks PyTorch for nothing
        meaning.say("optimizer_implementation", "foreach", "optim_config.name")
    kernels = _plugin(sheet, "kernel_config")
    if "liger_kernel" in [name.strip() for name in str(kernels.get("name") or "").split(",")]:
        # core/model_engine.py asks for logits wherever it trains, so Liger's fused loss is off unless a file says so
        if str(kernels.get("require_logits", True)).lower() == "false":
            meaning.say("loss", "fused", "kernel_config.require_logits")
        meaning.say("liger_kernels", list(trainer.LIGER_KEYS), "kernel_config.name")
    _plugin(sheet, "init_config")
    verb = sheet.text("program")  # of the command line, as a file does not say what it is for
    if verb == "rm":
        meaning.say("loss", "reward", "program")
        meaning.say("padding", "right", "program")
    elif verb == "dpo" or sheet.given("pref_loss"):
        word = sheet.text("pref_loss") or ""
        meaning.say("loss", word if word in ("orpo", "simpo") else "dpo", "pref_loss", "program")
        meaning.say("padding", "right", "pref_loss")
        if meaning.job["loss"].value == "dpo":
            meaning.say("dpo_reference", "adapter-off" if name in ("lora", "qlora") else "model", "pref_loss")
    if data or shards:
        meaning.say("parallel.data", data or (shards or 1) * (sheet.count("mp_replicate_size") or 1), "dp_size")
    else:
        _devices(sheet, meaning)


def _v1_precision(sheet: Sheet, meaning: Meaning, adapter: bool) -> None:
    sharding = meaning.job["parallel.sharding"].value if "parallel.sharding" in meaning.job else None
    if not sheet.flag("bf16", True):
        meaning.say("precision", "fp32", "bf16")
    elif sharding is None and adapter:  # no autocast: the checkpoint's bf16, under adapters that PEFT upcasts
        meaning.say("precision", "pure-bf16", "dist_config.name")
        meaning.say("adapter.dtype", "fp32", "dist_config.name")
    elif sharding is None:  # core/model_engine.py upcasts the whole model, and bf16 is a policy of FSDP
        meaning.say("precision", "fp32", "dist_config.name")
    elif sharding.startswith("zero") or sharding == "ddp":
        meaning.say("precision", "mixed-bf16", "bf16", "dist_config.name")
    else:
        meaning.say("precision", "fsdp-bf16", "bf16", "dist_config.name")
        if adapter:
            meaning.say("weight_dtype", "bf16", "bf16")


PROGRAM = Program(
    "llama-factory", RELEASES, Table(UNDERSTOOD | UNDERSTOOD_V1, WITHOUT_EFFECT, UNMODELLED), read, recognise
)
