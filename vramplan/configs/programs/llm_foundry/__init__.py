"""llm-foundry: one YAML file for `composer train/train.py`.

Source: mosaicml/llm-foundry 0.22.0.dev0 (8c8dd48f), llmfoundry/utils/config_utils.py (TrainConfig: keys and defaults),
llmfoundry/models/mpt/configuration_mpt.py, llmfoundry/models/utils/config_defaults.py, llmfoundry/models/hf/
hf_causal_lm.py, scripts/train/yamls; mosaicml/composer, composer/utils/parallelism.py (FSDPConfig).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.configs.programs.arguments.peft_kinds import bias_of
from vramplan.configs.programs.llm_foundry import command
from vramplan.configs.sheet import Meaning, Program, Sheet
from vramplan.configs.table import ProgramRelease, Table, names

UNDERSTOOD = names(
    """
    max_seq_len model.name model.pretrained_model_name_or_path model.pretrained model.d_model model.n_heads
    model.n_layers model.expansion_ratio model.max_seq_len model.vocab_size model.no_bias model.learned_pos_emb
    model.tie_word_embeddings model.resid_pdrop model.emb_pdrop model.attn_config.attn_impl model.attn_config.alibi
    model.attn_config.attn_uses_sequence_id model.attn_config.rope model.attn_config.attn_type
    model.attn_config.kv_n_heads model.attn_config.attn_pdrop model.ffn_config.ffn_type
    model.ffn_config.ffn_hidden_size model.use_flash_attention_2 model.attn_implementation model.load_in_8bit
    model.config_overrides model.config_overrides.max_seq_len model.config_overrides.n_positions
    model.config_overrides.max_position_embeddings model.config_overrides.attn_config.attn_impl
    model.config_overrides.attn_config.attn_uses_sequence_id model.peft_config.peft_type model.peft_config.r
    model.peft_config.lora_alpha model.peft_config.lora_dropout model.peft_config.target_modules
    model.peft_config.modules_to_save model.peft_config.use_dora model.loss_fn optimizer.name optimizer.momentum
    model.peft_config.bias
    algorithms.gradient_clipping.clipping_type algorithms.gradient_clipping.clipping_threshold
    global_train_batch_size device_train_batch_size device_train_microbatch_size precision
    fsdp_config fsdp_config.sharding_strategy fsdp_config.mixed_precision fsdp_config.activation_checkpointing
    fsdp_config.mixed_precision.*
    fsdp_config.limit_all_gathers
    fsdp_config.activation_checkpointing_reentrant fsdp_config.activation_cpu_offload fsdp_config.cpu_offload
    fsdp_config.data_parallel_shard_degree fsdp_config.data_parallel_replicate_degree tp_config
    tp_config.tensor_parallel_degree parallelism_config.fsdp.* train_loader.name train_loader.dataset.packing_ratio
    train_loader.dataset.max_seq_len train_loader.dataset.decoder_only_format train_loader.dataset.allow_pad_trimming
    expandable_segments compile_config variables variables.* n_gpus
    train_loader.dataset.max_prompt_length train_loader.dataset.target_prompts model.use_cache
    """
)
WITHOUT_EFFECT = names(
    """
    run_name tokenizer.* train_loader.* eval_loader eval_loader.* eval_loaders scheduler.* optimizer.lr optimizer.betas
    optimizer.eps optimizer.weight_decay max_duration eval_interval eval_first eval_subset_num_batches seed
    device_eval_batch_size device_eval_microbatch_size progress_bar log_to_console console_log_interval log_config
    callbacks callbacks.* loggers loggers.* save_* load_* autoresume only_hf_checkpoint only_composer_checkpoint
    dist_timeout python_log_level code_paths metadata metadata.* flatten_metadata icl_* eval_gauntlet*
    train_subset_num_batches spin_dataloaders profiler profiler.* accumulate_train_batch_on_tokens cuda_load_lazy
    model.use_auth_token model.trust_remote_code model.init_device model.init_config.* model.norm_eps
    model.use_train_metrics model.additional_train_metrics model.additional_eval_metrics model.should_save_peft_only
    model.allow_embedding_resizing model.pretrained_lora_id_or_path model.logit_scale model.peft_config.task_type
    model.peft_config.inference_mode model.peft_config.use_rslora
    model.peft_config.init_lora_weights model.peft_config.base_model_name_or_path model.peft_config.fan_in_fan_out
    model.peft_config.revision model.attn_config.softmax_scale
    model.attn_config.alibi_bias_max model.attn_config.rope_* model.tokenizer_name model.verbose
    model.ffn_config.moe_loss_weight model.ffn_config.moe_lbl_in_fp32 model.ffn_config.uniform_expert_assignment
    fsdp_config.state_dict_type fsdp_config.sync_module_states fsdp_config.load_planner fsdp_config.save_planner
    fsdp_config.verbose fsdp_config.load_monolith_rank0_only fsdp_config.sharded_ckpt_prefix_dir
    data_local data_remote tokenizer_name global_seed dataset.* algorithms model_name
    """
)
UNMODELLED = {
    "fsdp_config.backward_prefetch": "which block is gathered ahead in backward",
    "fsdp_config.forward_prefetch": "the next block is gathered during forward",
    "fsdp_config.use_orig_params": "how FSDP keeps its parameters",
    "fsdp_config.keep_low_precision_grads": "gradients stay in half precision",
    "fsdp_config.te_checkpoint_wrapper": "layers of Transformer Engine",
    "fsdp_config.te_shard_fp8_weight": "layers of Transformer Engine",
    "fsdp_config.auto_wrap": "which modules are wrapped",
    "fsdp_config.ignored_modules": "which modules are wrapped",
    "fsdp_config.process_group": "which devices share the shards",
    "fsdp_config.device_mesh": "which devices share the shards",
    "fsdp_config.backward_prefetch_limit": "which block is gathered ahead in backward",
    "fsdp_config.forward_prefetch_limit": "the next block is gathered during forward",
    "model.ffn_config.*": "details of the MLP, as its experts",
    "model.attn_config.*": "details of attention",
    "model.fc_type*": "linear layers of Transformer Engine",
    "model.norm_type": "which norm",
    "model.config_overrides.*": "changes to the model's configuration",
    "model.block_overrides.*": "blocks that differ",
    "model.attention_bias": "biases of attention",
    "model.attention_patch_type": "an attention of llm-foundry's own in Llama, of releases before 0.7",
    "model.embedding_fraction": "a part of the embedding's gradient",
    "model.use_pad_tok_in_ffn": "padding is left out of the MLP",
    "model.final_logit_softcapping": "logits are capped",
    "model.head_dim": "the size of a head",
    "algorithms.*": "an algorithm of Composer",
    "compile_config.*": "settings of torch.compile",
    "max_split_size_mb": "a setting of the allocator",
    "device_train_grad_accum": "an old form of gradient accumulation",
}

DEFAULTS: dict[str, Any] = {
    "precision": "amp_bf16",
    "device_train_microbatch_size": "auto",
    "model.d_model": 2048,
    "model.n_heads": 16,
    "model.n_layers": 24,
    "model.expansion_ratio": 4,
    "model.max_seq_len": 2048,
    "model.vocab_size": 50368,
    "model.learned_pos_emb": True,
    "model.tie_word_embeddings": True,
    "model.attn_config.attn_impl": "flash",
    "model.attn_config.attn_uses_sequence_id": False,
    "model.attn_config.alibi": False,
    "model.pretrained": True,
    "model.use_flash_attention_2": False,
    "fsdp_config.sharding_strategy": "FULL_SHARD",
    "fsdp_config.mixed_precision": "DEFAULT",
    "fsdp_config.activation_checkpointing": False,
    "fsdp_config.activation_checkpointing_reentrant": True,
    "fsdp_config.activation_cpu_offload": False,
}
_SOURCE = "mosaicml/llm-foundry 0.22.0.dev0 (8c8dd48f), llmfoundry/utils/config_utils.py; composer/utils/parallelism.py"
RELEASES = (ProgramRelease("0.22.0", "2025-07-21", _SOURCE, DEFAULTS),)

OPTIMIZERS = {
    "decoupled_adamw": "adamw",
    "adamw": "adamw",
    "adam": "adam",
    "sgd": "sgd-momentum",
    "decoupled_sgdw": "sgd-momentum",
    "decoupled_lionw": "lion",
    "decoupled_lionw_8b": "lion",
    "clip_lion": "lion",
    "adalr_lion": "lion",
    "rmsprop": "rmsprop",
    "no_op": "sgd",
}
SHARDINGS = {
    "FULL_SHARD": "fsdp",
    "SHARD_GRAD_OP": "fsdp-grad-op",
    "NO_SHARD": "ddp",
    "HYBRID_SHARD": "hsdp:8",
    "_HYBRID_SHARD_ZERO2": "hsdp:8",
}
PRECISIONS = {"amp_bf16": "bf16", "amp_fp16": "fp16", "fp32": "fp32", "amp_fp8": "fp8"}
OWN_MPT = {
    # the configurations of MosaicML's checkpoints on the Hugging Face hub, config.json: sizes, and ALiBi
    "mpt-7b": {"layers": 32, "hidden_size": 4096, "attention_heads": 32},
    "mpt-30b": {"layers": 48, "hidden_size": 7168, "attention_heads": 64},
}
OWN_VOCABULARY = 50432
GPT2 = {"gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16), "gpt2-large": (36, 1280, 20), "gpt2-xl": (48, 1600, 25)}


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are llm-foundry's alone."""
    own = ("device_train_microbatch_size", "global_train_batch_size", "max_duration", "algorithms", "train_loader.name")
    found = sum(name in keys for name in own)
    return found + ("fsdp_config.activation_cpu_offload" in keys) + (keys.get("max_duration") is not None)


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of an llm-foundry file."""
    sheet.under("variables")
    meaning.say("runtime", "llm-foundry", "model.name")
    length = sheet.count("max_seq_len") or sheet.count("train_loader.dataset.max_seq_len")
    sheet.count("train_loader.dataset.max_seq_len")
    _model(sheet, meaning, length)
    if length:
        meaning.say("sequence_length", length, "max_seq_len")
    else:
        meaning.ask("sequence_length", "the file has no max_seq_len")
    word = sheet.word("optimizer.name", OPTIMIZERS, "decoupled_adamw")
    if word:
        meaning.say("optimizer", word, "optimizer.name")
    sheet.number("optimizer.momentum")
    kind = sheet.text("algorithms.gradient_clipping.clipping_type")
    limit = sheet.number("algorithms.gradient_clipping.clipping_threshold")
    if kind in (None, "norm"):
        meaning.say("max_gradient_norm", limit or None, "algorithms.gradient_clipping.clipping_threshold")
    else:
        meaning.say("max_gradient_norm", None, "algorithms.gradient_clipping.clipping_type")
        meaning.note(f"algorithms.gradient_clipping: a job has no word for clipping by {kind}")
    sharded = _sharding(sheet, meaning)
    _precision(sheet, meaning, sharded)
    _batch(sheet, meaning)
    on = sheet.flag("fsdp_config.activation_checkpointing")
    meaning.say("activation_checkpointing", "full" if on else "none", "fsdp_config.activation_checkpointing")
    if sheet.flag("fsdp_config.activation_checkpointing_reentrant") and on:
        meaning.say("checkpoint_reentrant", True, "fsdp_config.activation_checkpointing_reentrant")
    if sheet.flag("model.use_cache") and on:  # MPT copies none, which attention keeps without checkpoints
        meaning.lack("model.use_cache", "keys and values that outlive checkpointed blocks, which are not counted")
    offload = ["activations"] if sheet.flag("fsdp_config.activation_cpu_offload") else []
    if sheet.flag("fsdp_config.cpu_offload"):
        offload += ["parameters", "gradients", "optimizer"]
    if offload:
        meaning.say("offload", offload, "fsdp_config.activation_cpu_offload", "fsdp_config.cpu_offload")
    if sheet.flag("expandable_segments"):
        meaning.say("allocator", "expandable_segments:True", "expandable_segments")
    if sheet.get("compile_config") is not None or sheet.under("compile_config"):
        meaning.say("compile", True, "compile_config")
    _data(sheet, meaning)


def _model(sheet: Sheet, meaning: Meaning, length: int | None) -> None:
    kind = sheet.text("model.name") or ""
    pretrained = sheet.flag("model.pretrained")
    name = sheet.text("model.pretrained_model_name_or_path")
    for key in ("max_seq_len", "n_positions", "max_position_embeddings"):
        if sheet.given(f"model.config_overrides.{key}"):
            length = sheet.count(f"model.config_overrides.{key}")
    sheet.get("model.config_overrides")
    sheet.text("model.loss_fn")
    if kind == "mpt_causal_lm":
        _mpt(sheet, meaning, length)
        return
    if name is None:
        meaning.ask("model", "the file has no model.pretrained_model_name_or_path")
        return
    last = name.rsplit("/", 1)[-1].lower()
    own = next((sizes for start, sizes in OWN_MPT.items() if last.startswith(start)), None)
    of = ("model.pretrained_model_name_or_path", "max_seq_len")
    if own is not None:
        shape = {"name": last, "family": "mpt", **own, "vocabulary_size": OWN_VOCABULARY, "max_positions": length}
        meaning.say("model", {**shape, "positions": "alibi"}, *of)
    elif last in GPT2 and sheet.given("model.config_overrides.n_positions") and length != 1024:
        layers, width, heads = GPT2[last]
        shape = {"name": f"{last} {length} positions", "family": "gpt2", "layers": layers, "hidden_size": width}
        shape |= {"attention_heads": heads, "vocabulary_size": 50257, "max_positions": length}
        meaning.say("model", shape, *of, "model.config_overrides.n_positions")
    else:
        meaning.say("model", name, of[0])
    implementation = sheet.text("model.attn_implementation") or ""
    override = sheet.text("model.config_overrides.attn_config.attn_impl")
    flash = sheet.flag("model.use_flash_attention_2") or implementation.startswith("flash")
    if own is not None:
        # The hub's code runs, and its config.json says attn_impl torch; use_flash_attention_2 is not its key.
        if override in (None, "torch"):
            key = "model.config_overrides.attn_config.attn_impl"
            meaning.say("attention", "eager", "model.pretrained_model_name_or_path", key)
    elif flash or override == "flash":
        meaning.say("attention", "flash", "model.use_flash_attention_2", "model.config_overrides.attn_config.attn_impl")
    elif implementation in ("eager", "sdpa"):
        meaning.say("attention", implementation, "model.attn_implementation")
    if sheet.flag("model.load_in_8bit"):
        meaning.say("quantization", "int8", "model.load_in_8bit")
    sheet.flag("model.config_overrides.attn_config.attn_uses_sequence_id")
    if not pretrained:
        meaning.note("model.pretrained is false: the weights are drawn, and only the shape is that of the checkpoint")
    _adapter(sheet, meaning)


def _mpt(sheet: Sheet, meaning: Meaning, length: int | None) -> None:
    width, heads = sheet.count("model.d_model"), sheet.count("model.n_heads")
    layers, ratio = sheet.count("model.n_layers"), sheet.number("model.expansion_ratio")
    positions = sheet.count("model.max_seq_len") or length
    alibi = sheet.flag("model.attn_config.alibi")
    rope = sheet.flag("model.attn_config.rope")
    learned = sheet.flag("model.learned_pos_emb") and not alibi and not rope
    billions = 12 * (layers or 0) * (width or 0) ** 2 / 1e9
    shape: dict[str, Any] = {
        "name": f"mpt-{billions:.2g}b",
        "family": "mpt",
        "layers": layers,
        "hidden_size": width,
        "attention_heads": heads,
        "vocabulary_size": sheet.count("model.vocab_size"),
        "max_positions": positions,
        "positions": "learned" if learned else "alibi" if alibi else "rope" if rope else "none",
        "tied_embeddings": bool(sheet.flag("model.tie_word_embeddings")),
    }
    inner = sheet.count("model.ffn_config.ffn_hidden_size")
    if inner or (ratio and ratio != 4 and width):
        shape["intermediate_size"] = inner or int((ratio or 4) * (width or 0))
    kind = sheet.text("model.ffn_config.ffn_type") or "mptmlp"
    if "moe" in kind:
        key = "model.ffn_config.ffn_type"
        meaning.ask("model", f"{key} {kind}: an MPT whose blocks have experts is not modelled (--model NAME)")
    else:
        meaning.say("model", shape, "model.d_model", "model.n_layers", "model.n_heads")
    attention = sheet.text("model.attn_config.attn_impl")
    if attention == "torch":
        meaning.say("attention", "eager", "model.attn_config.attn_impl")
    for key in ("no_bias", "resid_pdrop", "emb_pdrop", "attn_config.attn_pdrop", "attn_config.attn_type"):
        sheet.get(f"model.{key}")
    groups = sheet.count("model.attn_config.kv_n_heads") or heads
    if groups != heads:
        meaning.lack("model.attn_config.kv_n_heads", f"{groups} of keys and values, and one for each query is counted")
    if kind != "mptmlp" and "moe" not in kind:
        meaning.lack("model.ffn_config.ffn_type", f"{kind} in an MPT, and one plain MLP is counted")


def _adapter(sheet: Sheet, meaning: Meaning) -> None:
    kind = (sheet.text("model.peft_config.peft_type") or "").lower()
    if not kind:
        return
    if kind != "lora":
        sheet.problem("model.peft_config.peft_type", f"{kind!r} is not understood", "LORA")
        return
    word = "dora" if sheet.flag("model.peft_config.use_dora") else "lora"
    meaning.say("adapter.kind", word, "model.peft_config.peft_type", "model.peft_config.use_dora")
    meaning.say("adapter.rank", sheet.count("model.peft_config.r", 8), "model.peft_config.r")
    targets = sheet.texts("model.peft_config.target_modules")
    if targets:
        value: Any = "all-linear" if targets == ["all-linear"] else targets
        meaning.say("adapter.targets", value, "model.peft_config.target_modules")
    meaning.say(
        "adapter.dropout", sheet.number("model.peft_config.lora_dropout", 0.0), "model.peft_config.lora_dropout"
    )
    meaning.say("adapter.alpha", sheet.count("model.peft_config.lora_alpha", 8), "model.peft_config.lora_alpha")
    saved = sheet.texts("model.peft_config.modules_to_save")
    if saved:
        meaning.say("adapter.modules_to_save", saved, "model.peft_config.modules_to_save")
    if bias := bias_of(sheet.text("model.peft_config.bias")):
        meaning.say("adapter.bias", bias, "model.peft_config.bias")


def _sharding(sheet: Sheet, meaning: Meaning) -> bool:
    given = any(key.startswith(("fsdp_config.", "parallelism_config.fsdp.")) for key in sheet.written)
    below = sheet.under("parallelism_config.fsdp")
    strategy = str(below.get("sharding_strategy") or sheet.text("fsdp_config.sharding_strategy") or "").upper()
    if not given:
        sheet.get("fsdp_config")
        return False
    if (sheet.devices or sheet.count("n_gpus")) == 1:  # llmfoundry/command_utils/train.py, train
        meaning.note("fsdp_config: llm-foundry takes no FSDP on one GPU")
        return False
    if strategy not in SHARDINGS:
        sheet.problem("fsdp_config.sharding_strategy", f"{strategy!r} is not understood", ", ".join(SHARDINGS))
        return True
    word = SHARDINGS[strategy]
    shards = sheet.count("fsdp_config.data_parallel_shard_degree")
    copies = sheet.count("fsdp_config.data_parallel_replicate_degree")
    if word.startswith("hsdp") and shards and shards > 0:
        word = f"hsdp:{shards}"
    elif word.startswith("hsdp"):
        meaning.note("HYBRID_SHARD shards within a node; a node of 8 GPUs is assumed")
    meaning.say("parallel.sharding", word, "fsdp_config.sharding_strategy")
    if sheet.flag("fsdp_config.limit_all_gathers") is False and word != "ddp":
        meaning.say("parallel.limit_all_gathers", False, "fsdp_config.limit_all_gathers")
    if shards and shards > 0:
        meaning.say("parallel.data", shards * (copies or 1), "fsdp_config.data_parallel_shard_degree")
    if word != "ddp":
        meaning.say("parallel.fsdp_version", 1, "Composer wraps with FullyShardedDataParallel")
    tensor = sheet.count("tp_config.tensor_parallel_degree")
    if tensor and tensor > 1:
        meaning.say("parallel.tensor", tensor, "tp_config.tensor_parallel_degree")
    return word != "ddp"


DTYPES = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "fp32": "fp32", "float32": "fp32"}


def _precision(sheet: Sheet, meaning: Meaning, sharded: bool) -> None:
    half = sheet.word("precision", PRECISIONS)
    if half is None:
        return
    if half in ("fp32", "fp8"):
        meaning.say("precision", "fsdp-fp8" if half == "fp8" and sharded else half, "precision")
        return
    key = "fsdp_config.mixed_precision"
    each = sheet.under(key)  # types by their names, as Composer has it beside its three words
    mixed = (sheet.text(key) or "DEFAULT").upper()
    whole = mixed == "FULL" and not each  # FSDP gathers in fp32, and autocast is what the trainer has anyway
    meaning.say("precision", f"fsdp-{half}" if sharded and not whole else f"amp-{half}", "precision", key)
    if not sharded or whole:
        return
    reduce = half if mixed == "PURE" else "fp32"
    if each:
        reduce = DTYPES.get(str(each.get("reduce_dtype")).removeprefix("torch.").lower(), "fp32")
        parameters = str(each.get("param_dtype") or half).removeprefix("torch.").lower()
        if DTYPES.get(parameters) != half:
            meaning.lack(f"{key}.param_dtype", f"parameters are gathered in {parameters}, and {half} is counted")
    meaning.say("parallel.reduce_dtype", reduce, f"{key}.reduce_dtype" if each else key)


def _batch(sheet: Sheet, meaning: Meaning) -> None:
    micro = sheet.get("device_train_microbatch_size")
    total = sheet.count("global_train_batch_size")
    each = sheet.count("device_train_batch_size")
    devices = sheet.devices or sheet.count("n_gpus")
    number = None if str(micro) == "auto" else sheet.number("device_train_microbatch_size")
    if number is None and str(micro) != "auto":
        return
    if devices and "parallel.data" not in meaning.job:
        meaning.say("parallel.data", devices, "n_gpus")
    elif "parallel.data" not in meaning.job:
        meaning.ask("parallel.data", "the number of GPUs is the launcher's (--gpus N)")
    if number is None:
        meaning.ask("micro_batch_size", "device_train_microbatch_size: auto is found while training (--micro-batch N)")
        whole = total or (each * devices if each and devices else None)
        if whole:
            meaning.say("global_batch_size", whole, "global_train_batch_size" if total else "device_train_batch_size")
        return
    size = max(1, int(number))
    meaning.say("micro_batch_size", size, "device_train_microbatch_size")
    key = "gradient_accumulation_steps"
    if each:
        meaning.say(key, max(1, each // size), "device_train_batch_size")
    elif total and devices:
        if total % devices:
            sheet.problem("global_train_batch_size", f"{total} is no multiple of {devices} GPUs")
            return
        meaning.say(key, max(1, -(-total // devices // size)), "global_train_batch_size")
    elif total:
        meaning.ask(key, f"global_train_batch_size {total} is shared by the GPUs of the launcher (--gpus N)")
    else:
        meaning.ask(key, "the file has no global_train_batch_size")


def _data(sheet: Sheet, meaning: Meaning) -> None:
    kind = sheet.text("train_loader.name")
    ratio = sheet.get("train_loader.dataset.packing_ratio")
    apart = sheet.flag("model.attn_config.attn_uses_sequence_id") or sheet.flag(
        "model.config_overrides.attn_config.attn_uses_sequence_id"
    )
    sheet.get("train_loader.dataset.decoder_only_format")
    sheet.get("train_loader.dataset.allow_pad_trimming")
    if ratio not in (None, 1, 1.0):
        if apart:
            meaning.say("packing", True, "train_loader.dataset.packing_ratio")
        else:
            meaning.note("train_loader.dataset.packing_ratio: samples stand one behind the other without a mask")
    elif kind == "finetuning":
        meaning.say("padding", "right", "train_loader.name")


PROGRAM = Program(
    "llm-foundry",
    RELEASES,
    Table(UNDERSTOOD, WITHOUT_EFFECT, UNMODELLED, is_extended=True),
    read,
    recognise,
    started=command.started,
    on_platform=command.of_platform,
)
