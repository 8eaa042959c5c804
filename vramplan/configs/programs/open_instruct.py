"""open-instruct: one YAML file for `open_instruct/finetune.py` or `open_instruct/dpo_tune_cache.py`.

`open_instruct/dpo_tune.py` was the script for preferences until 2025, with the reference model beside the trained one;
`open_instruct/finetune_trainer.py`, which ran the plain Trainer, is read with the Trainer's other scripts.

Source: allenai/open-instruct main (e6c3044a), open_instruct/finetune.py (FlatArguments; it loads bf16 with
FlashAttention, LoRA's targets, the optimizer), open_instruct/dpo_tune_cache.py, dpo_utils.py and olmo_core_utils.py
(ExperimentConfig of DPO), configs/train_configs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vramplan.configs.programs import open_instruct_policy as policy
from vramplan.configs.programs import preferences, trainer
from vramplan.configs.sheet import ALONE, Meaning, Program, Sheet
from vramplan.configs.table import ProgramRelease, Table, names

UNDERSTOOD = names(
    """
    model_name_or_path max_seq_length per_device_train_batch_size gradient_accumulation_steps clip_grad_norm
    max_grad_norm gradient_checkpointing use_liger_kernel use_lora use_qlora lora_rank lora_alpha lora_dropout
    use_8bit_optimizer dpo_use_paged_optimizer fused_optimizer packing loss_type beta dpo_loss_type
    attn_implementation use_flash_attn zero_stage offload_optimizer offload_param sequence_parallel_size
    tensor_parallel_degree context_parallel_degree optimizer_type activation_memory_budget compile_model program
    max_token_length
    use_slow_tokenizer dpo_beta activation_checkpointing_mode total_batch_size fsdp_shard_degree fsdp_num_replicas
    shard_degree num_replicas attn_backend launcher.nnodes launcher.nproc_per_node cp_degree cp_strategy
    """
)
WITHOUT_EFFECT = names(
    """
    exp_name run_name do_not_randomize_output_dir config_name model_revision additional_model_arguments*
    low_cpu_mem_usage tokenizer_name tokenizer_revision tokenizer_name_or_path get_tokenizer_fn chat_template
    chat_template_name dist_timeout_hours add_bos trust_remote_code dataset_* train_file mixer_* transform_fn
    target_columns cache_* max_train_samples preprocessing_num_workers overwrite_cache learning_rate logging_steps
    lr_scheduler_type num_train_epochs num_epochs output_dir warmup_ratio final_lr_ratio weight_decay timeout
    resume_from_checkpoint report_to save_to_hub max_train_steps seed data_loader_seed checkpointing_steps
    keep_last_n_checkpoints clean_checkpoints_at_end with_tracking wandb_* push_to_hub hf_*
    try_launch_beaker_eval_jobs try_auto_save_to_beaker gs_bucket_path oe_eval_* eval_workspace eval_priority
    sync_each_batch verbose label_smoothing gamma_beta_ratio load_balancing_weight concatenated_forward
    send_slack_alerts profiling use_fast_tokenizer ground_truths_key sft_messages_key preference_chosen_key
    preference_rejected_key include_padding_* reduce_loss base_model_name_or_path loss_reduction config_hash
    skip_cache local_cache_dir ephemeral_save_interval optimizer_kwargs* rope_scaling_* zero_hpz_partition_size
    no_auto_dataset_cache launcher.node_rank launcher.master_addr launcher.master_port launcher.rdzv_* evaluation_*
    dpo_gamma_beta_ratio dpo_label_smoothing average_log_prob if_push_to_hub use_compile
    num_evals total_episodes log_grad_norm save_merged_lora_model
    merge_lora
    """
)
UNMODELLED = {
    "load_balancing_loss": "the balancing loss of the experts",
    "loss_implementation": "how the loss is computed",
    "activation_checkpointing_modules": "what is recomputed",
    "cache_logprobs_only": "only the reference's log-probabilities are computed",
    "per_device_eval_batch_size": "the sequences of an evaluation",
    "neftune_noise_alpha": "NEFTune adds noise to the embeddings: a copy of them",
}
DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing": False,
    "lora_rank": 64,
    "lora_alpha": 16,
    "lora_dropout": 0.1,
    "fused_optimizer": True,
    "use_liger_kernel": False,
    "packing": False,
    "clip_grad_norm": -1,
}
RELEASES = (
    ProgramRelease(
        "main",
        "2026-08-20",
        "allenai/open-instruct main (e6c3044a), open_instruct/finetune.py and dpo_utils.py",
        DEFAULTS,
    ),
)
TARGETS = ["q_proj", "o_proj", "v_proj", "k_proj", "gate_proj", "up_proj", "down_proj"]
"""Of finetune.py and dpo_tune_cache.py: the files cannot say others."""

SURE = 100  # a script that names the program
PREFERENCES, TUNING = ("dpo", "dpo_tune_cache", "dpo_tune"), ("finetune", "olmo_core_finetune")
BESIDE = "dpo_tune"
"""The script that computes the reference in each step. Source: 91df2a61^, open_instruct/dpo_tune.py."""

OLMO_SFT = "olmo_core_finetune"
OF_OLMO_CORE = ("dpo", OLMO_SFT)
"""Scripts that train with OLMo-core under FSDP2. Source: open_instruct/dpo.py, TransformerDataParallelConfig."""

OLMO_CORE = "OLMo-core computes the model and compiles it; the model of Transformers is counted"

OF_POLICY = (policy.PROGRAM, policy.OLMO, *policy.OLDER)

REWARDS = "reward_modeling"
OF_REWARDS: dict[str, Any] = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 8,
    "max_token_length": 512,
}
"""What the script of reward models has by default, unlike the others. It clips nothing, steps torch.optim.AdamW, and
computes the attention that Transformers chooses. Source: open_instruct/reward_modeling.py, Args and main.
"""

SAMPLING = ("ppo", "ppo_fast", "online_dpo")
"""Scripts that sample answers beside training, of this release or an older one, but for those of the policy."""

OF_TRAINER = "finetune_trainer.py"  # with the plain Trainer
DPO = ("dpo", "dpo_norm", "wpo")


ENOUGH_WITHOUT_A_MODEL = 3
"""Keys that are open-instruct's alone, to take a file for its whose model the command line names."""


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are open-instruct's alone, times three: the others are those of TrainingArguments too."""
    own = ("with_tracking", "checkpointing_steps", "use_slow_tokenizer", "dataset_mix_dir", "hf_metadata_dataset")
    more = (
        "dataset_mixer",
        "dataset_mixer_list",
        "use_lora",
        "use_qlora",
        "max_seq_length",
        "preprocessing_num_workers",
    )
    heads = {key.split(".", 1)[0] for key in keys}
    written = keys.get("program")
    path = _path(str(getattr(written, "value", written) or ""))
    if path.endswith(OF_TRAINER):
        return 0
    if path.startswith("open_instruct/") or "/open_instruct/" in path:
        return SURE
    found = sum(name in heads for name in own)
    if found < (1 if "model_name_or_path" in keys else ENOUGH_WITHOUT_A_MODEL):
        return 0
    return 3 * found + sum(name in heads for name in more)


def _program_of(sheet: Sheet) -> str:
    """The name of the script that is run, without its folder and ending; empty where none is named."""
    return _path(sheet.text("program") or "").rsplit("/", 1)[-1].removesuffix(".py")


def _path(program: str) -> str:
    """The file of a program, which `-m` names by its dots."""
    return program.replace(".", "/") + ".py" if re.fullmatch(r"open_instruct(\.\w+)+", program) else program


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of an open-instruct file."""
    trainer.turned_off(sheet, TABLE)
    meaning.say("runtime", "transformers", "model_name_or_path")
    program = _program_of(sheet)
    if not program and any(sheet.given(key) for key in policy.OF_FILES):
        program = policy.PROGRAM
    if program in SAMPLING:
        hint = "give the script of finetune.py, dpo_tune_cache.py or reward_modeling.py"
        sheet.refuse("program", f"{program} samples answers beside training, which is not modelled", hint)
    elif program and program not in (*PREFERENCES, *TUNING, REWARDS, *OF_POLICY):
        sheet.refuse("program", f"{program} is not training on a data set", "a job has no word for it")
    rewards = program == REWARDS
    name = sheet.text("model_name_or_path")
    if name:
        meaning.say("model", name, "model_name_or_path")
    else:
        meaning.ask("model", "the file has no model_name_or_path")
    if program in OF_POLICY:
        if program == policy.OLMO:
            _checkpointing(sheet, meaning, program)
            meaning.lack("program", OLMO_CORE)
        policy.read(sheet, meaning, program)
        return
    key = "max_token_length" if rewards else "max_seq_length"
    length = sheet.count(key) or (OF_REWARDS[key] if rewards else None)
    if length:
        meaning.say("sequence_length", length, key if sheet.given(key) else f"{REWARDS}.py")
    else:
        meaning.ask("sequence_length", f"the file has no {key} (--seq N)")
    for key, ours in (
        ("per_device_train_batch_size", "micro_batch_size"),
        ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ):
        told = rewards and not sheet.given(key)
        meaning.say(ours, OF_REWARDS[key] if told else sheet.count(key), f"{REWARDS}.py" if told else key)
    norm = sheet.number("max_grad_norm") if sheet.given("max_grad_norm") else sheet.number("clip_grad_norm")
    meaning.say("max_gradient_norm", norm if norm and norm > 0 else None, "clip_grad_norm", "max_grad_norm")
    _checkpointing(sheet, meaning, program)
    kernel = sheet.text("attn_implementation") or ""
    if sheet.text("attn_backend") == "torch":  # of OLMo-core, whose others are those of FlashAttention
        kernel = "sdpa"
    plain = rewards or kernel in ("sdpa", "eager") or sheet.flag("use_flash_attn") is False
    of = ("attn_implementation", "use_flash_attn", "attn_backend")
    meaning.say(
        "attention",
        ("sdpa" if rewards else kernel or "sdpa") if plain else "flash",
        *(key for key in of if sheet.given(key)),
    )
    adapter = _adapter(sheet, meaning)
    _optimizer(sheet, meaning)
    _loss(sheet, meaning, adapter)
    if sheet.flag("packing") and "padding" in meaning.job:  # a trainer of preferences then pads nothing
        del meaning.job["padding"]
        if program in OF_OLMO_CORE:  # padding_free_collator.py fills one row of max_seq_length tokens
            meaning.say("micro_batch_size", 1, "packing", "max_seq_length")
        else:
            meaning.note("packing: sequences stand one behind the other, each counted at its full length")
    elif sheet.flag("packing"):
        meaning.say("packing", True, "packing")
    # Quantized weights go without DeepSpeed, and so does a launcher that starts one process and names no file.
    alone = (bool(sheet.flag("use_qlora")) and "parallel.sharding" not in sheet.beside) or ALONE in sheet.beside
    if program in OF_OLMO_CORE:
        meaning.say("precision", "fsdp-bf16", "program")
        meaning.say("parallel.sharding", "fsdp", "program")
        meaning.say("parallel.fsdp_version", 2, "program")
        meaning.say("parallel.reduce_dtype", "fp32", "program")
        meaning.lack("program", OLMO_CORE)
    elif alone or sheet.beside.get("parallel.sharding") == "ddp":
        meaning.say("precision", "amp-bf16" if adapter else "pure-bf16", "finetune.py loads bf16")
        if adapter:
            meaning.say("weight_dtype", "bf16", "finetune.py loads bf16")
    elif str(sheet.beside.get("parallel.sharding")).startswith(("fsdp", "hsdp")):  # Accelerate widens what is trained
        meaning.say("precision", "fsdp-bf16", "finetune.py loads bf16", "the launcher's FSDP file")
        if adapter:
            meaning.say("weight_dtype", "bf16", "finetune.py loads bf16")
    else:
        halves = (sheet.beside.get(name) for name in ("zero_precision", "mixed_precision"))
        half = next((one for one in halves if one in ("bf16", "fp16")), "bf16")  # which DeepSpeed turns the model to
        meaning.say("precision", f"mixed-{half}", "finetune.py loads bf16", "the launcher's DeepSpeed file")
    _devices(sheet, meaning)
    sheet.get("use_slow_tokenizer")


def _checkpointing(sheet: Sheet, meaning: Meaning, program: str) -> None:
    """Say what is recomputed.

    Source: allenai/open-instruct main (e6c3044a), finetune.py; dpo_tune_cache.py, where any budget below 1 turns
    checkpoints on; olmo_core_utils.py, build_ac_config.
    """
    key, budget_key, mode_key = "activation_checkpointing", "activation_memory_budget", "activation_checkpointing_mode"
    on, budget = sheet.flag("gradient_checkpointing"), sheet.number(budget_key)
    mode, compiled = sheet.text(mode_key), sheet.flag("compile_model") is not False
    saves = budget is not None and budget < 1
    if program not in (*OF_OLMO_CORE, policy.OLMO):
        meaning.say(key, "full" if on or saves else "none", budget_key if saves else "gradient_checkpointing")
    elif mode == "selected_modules":
        meaning.say(key, "full", mode_key)
        meaning.lack(mode_key, "each part of a block recomputed by itself, and whole blocks are counted")
    elif saves and compiled:
        meaning.say(key, "full", budget_key)
        meaning.lack(budget_key, f"the compiler keeps that share of activations ({budget}), and full checkpoints count")
    else:
        meaning.say(key, "none", budget_key)


def _adapter(sheet: Sheet, meaning: Meaning) -> bool:
    quantized = sheet.flag("use_qlora")
    lora = bool(sheet.flag("use_lora") or quantized)
    rank, alpha = sheet.count("lora_rank"), sheet.count("lora_alpha")
    dropout = sheet.number("lora_dropout")
    if lora:
        meaning.say("adapter.kind", "lora", "use_lora")
        meaning.say("adapter.rank", rank, "lora_rank")
        meaning.say("adapter.targets", list(TARGETS), "the script")
        meaning.say("adapter.dropout", dropout, "lora_dropout")
        meaning.say("adapter.alpha", alpha, "lora_alpha")
    if quantized:
        meaning.say("quantization", "nf4-double", "use_qlora")
    return lora


def _optimizer(sheet: Sheet, meaning: Meaning) -> None:
    fused = sheet.flag("fused_optimizer")
    eight = sheet.flag("use_8bit_optimizer")
    paged = sheet.flag("dpo_use_paged_optimizer")
    kind = (sheet.text("optimizer_type") or "adamw").lower()
    if kind not in ("adamw", "muon"):
        sheet.problem("optimizer_type", f"{kind!r} is not understood", "adamw or muon")
        return
    if paged or sheet.flag("use_qlora"):  # else 8 bits are not asked for: finetune.py, dpo_tune_cache.py
        word = "adamw-8bit-paged" if eight else "adamw-paged"
        meaning.say("optimizer", word, "use_qlora", "dpo_use_paged_optimizer", "use_8bit_optimizer")
    else:
        meaning.say("optimizer", kind, "optimizer_type")
        if fused is False or _program_of(sheet) == REWARDS:
            meaning.say("optimizer_implementation", "foreach", "fused_optimizer")


def _loss(sheet: Sheet, meaning: Meaning, adapter: bool) -> None:
    key = "loss_type" if sheet.given("loss_type") else "dpo_loss_type"
    word = (sheet.text(key) or "").lower().removeprefix("dpolosstype.")
    beta = any(sheet.given(name) for name in ("beta", "dpo_beta"))
    sheet.get("beta")
    sheet.get("dpo_beta")
    liger = sheet.flag("use_liger_kernel")
    program = _program_of(sheet)
    is_preference = program in PREFERENCES or (not program and sheet.given("num_epochs"))  # not finetune.py's word
    pairs = None if program or is_preference or beta or word or liger else preferences.sign(sheet)
    if pairs is not None and sheet.beside.get("loss") != "dpo":
        meaning.ask("loss", f"{pairs}; {preferences.ASKED}")
    elif pairs is not None:
        is_preference = True
    if program == REWARDS:
        meaning.say("loss", "reward", "program")
        meaning.say("padding", "right", "program")
    elif word in DPO or (not word and (beta or is_preference)):
        meaning.say("loss", "dpo", key)
        if _program_of(sheet) == BESIDE:
            meaning.say("dpo_reference", "adapter-off" if adapter else "model", "program", "use_lora")
        else:
            meaning.say("dpo_reference", "precomputed", "dpo_tune_cache.py computes the reference before training")
        meaning.say("padding", "right", key)
    elif word == "simpo":
        meaning.say("loss", "simpo", key)
        meaning.say("padding", "right", key)
    elif word:
        sheet.problem(key, f"{word!r} is not understood", "dpo, dpo_norm, simpo or wpo")
    elif liger:
        meaning.say("loss", "fused", "use_liger_kernel")
        meaning.say("liger_kernels", ["rms-norm", "glu", "rope"], "use_liger_kernel")


def _devices(sheet: Sheet, meaning: Meaning) -> None:
    tensor = sheet.count("tensor_parallel_degree")
    if tensor and tensor > 1:
        meaning.say("parallel.tensor", tensor, "tensor_parallel_degree")
    context = 1
    for key in ("context_parallel_degree", "sequence_parallel_size", "cp_degree"):
        degree = sheet.count(key) or 1
        if degree > 1:
            context = degree
            meaning.say("parallel.context", context, key)
    if sheet.text("cp_strategy") == "ulysses" and context > 1:
        meaning.lack("cp_strategy", "ulysses splits heads, and a ring is counted")
    stage = sheet.count("zero_stage")
    offload = [*(["optimizer", "gradients"] if sheet.flag("offload_optimizer") else [])]
    offload += ["parameters"] if sheet.flag("offload_param") else []
    if stage:
        meaning.say("parallel.sharding", f"zero{stage}", "zero_stage")
        if offload:
            meaning.say("offload", offload, "offload_optimizer", "offload_param")
    keys = ("fsdp_shard_degree", "shard_degree", "fsdp_num_replicas", "num_replicas")
    numbers = [sheet.count(key) or 1 for key in keys]
    shards, replicas = max(numbers[:2]), max(numbers[2:])  # which were called so first
    if shards > 1 and replicas > 1:
        given = [key for key in keys if sheet.given(key)]
        meaning.say("parallel.sharding", f"hsdp:{shards}", *given)
        meaning.say("parallel.data", shards * replicas, *given)
    sheet.get("total_batch_size")
    each, nodes = sheet.count("launcher.nproc_per_node"), sheet.count("launcher.nnodes") or 1
    group = (tensor or 1) * context
    if each and each * nodes % group == 0:
        meaning.say("parallel.data", each * nodes // group, "launcher.nproc_per_node", "launcher.nnodes")
        if _program_of(sheet) == OLMO_SFT and nodes > 1:
            meaning.say("parallel.sharding", f"hsdp:{each // context}", "launcher.nproc_per_node", "launcher.nnodes")
    sharded = stage or "parallel.sharding" in {**meaning.job, **sheet.beside}
    if not sharded and ALONE in sheet.beside:
        meaning.say("parallel.data", 1, "accelerate launch")
    elif not sharded:
        meaning.ask("parallel", "the launcher says how many GPUs there are, and which DeepSpeed file (give it too)")
    elif "parallel.data" not in {**meaning.job, **sheet.beside}:
        meaning.ask("parallel.data", "the launcher says how many GPUs there are (--gpus N)")


TABLE = Table(
    UNDERSTOOD | policy.UNDERSTOOD,
    WITHOUT_EFFECT | policy.WITHOUT_EFFECT,
    {**UNMODELLED, **policy.UNMODELLED},
    is_extended=True,
)

PROGRAM = Program("open-instruct", RELEASES, TABLE, read, recognise)
