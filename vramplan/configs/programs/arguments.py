"""TrainingArguments of transformers and the configurations of TRL: YAML, JSON, or a command line as text.

Source: huggingface/transformers 5.23.0, src/transformers/training_args.py (keys and defaults), trainer.py and
integrations/deepspeed.py; examples/pytorch/language-modeling/run_clm.py (keys of scripts); huggingface/trl 1.16.0 and
the releases named below, trl/trainer/{sft,dpo,model,base}_config.py, trl/trainer/utils.py (get_peft_config,
get_quantization_config), trl/scripts/utils.py (ScriptArguments); huggingface/alignment-handbook (0d3df220),
recipes/zephyr-7b-beta/README.md and zephyr-141b-A35b/README.md: how the files of the handbook are launched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from vramplan.configs.programs import accelerate, trainer, zero
from vramplan.configs.sheet import Meaning, Program, Release, Sheet, Table, names
from vramplan.errors import near_matches

OF_TRL = names(
    """
    max_length max_seq_length packing packing_strategy padding_free eval_packing use_peft lora_r lora_alpha lora_dropout
    lora_target_modules lora_modules_to_save lora_task_type lora_target_parameters use_rslora use_dora load_in_8bit
    load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage beta loss_type max_prompt_length
    max_completion_length precompute_ref_log_probs activation_offloading dataset_text_field completion_only_loss
    assistant_only_loss model_init_kwargs chat_template dataset_mixture dataset_mixer dataset_splits datasets
    chat_template_path num_generations use_vllm desirable_weight dataset_train_split dataset_test_split
    """
)
"""Keys of TRL and of scripts around it that TrainingArguments lacks: with one of them, TRL's defaults hold."""

OF_SCRIPTS = names(
    """
    block_size train_file validation_file test_file task_name dataset_config_name max_train_samples max_eval_samples
    pad_to_max_length mlm_probability line_by_line source_lang target_lang max_source_length max_target_length
    validation_split_percentage config_name tokenizer_name doc_stride max_answer_length source_prefix
    """
)
"""Keys of the example scripts of transformers, which run the plain Trainer."""

HANDBOOK = names("chat_template dataset_mixture dataset_mixer dataset_splits")
"""Keys of the scripts of the alignment handbook, whose README launches full training under ZeRO-3."""

OF_PEFT = {
    "use_peft_lora": "use_peft",
    "use_4bit_quantization": "load_in_4bit",
    "use_8bit_quantization": "load_in_8bit",
    "use_nested_quant": "use_bnb_nested_quant",
    "bnb_4bit_quant_storage_dtype": "bnb_4bit_quant_storage",
    "use_flash_attn": "use_flash_attention_2",
    "use_reentrant": "gradient_checkpointing_kwargs.use_reentrant",
}
"""What the script of PEFT around TRL calls its arguments. Source: huggingface/peft, examples/sft/train.py."""

OF_OTHERS = names(
    """
    base_model finetuning_type cutoff_len stage with_tracking checkpointing_steps use_slow_tokenizer use_lora
    dataset_mixer_list dataset_mix_dir hf_metadata_dataset
    """
)
"""Keys of Axolotl, LLaMA-Factory and open-instruct, whose files have many keys of TrainingArguments."""

UNDERSTOOD = names(
    """
    model_name_or_path torch_dtype dtype attn_implementation use_flash_attention_2 use_peft lora_r lora_alpha
    lora_dropout lora_target_modules lora_modules_to_save use_dora load_in_8bit load_in_4bit bnb_4bit_quant_type
    use_bnb_nested_quant max_length max_seq_length block_size max_source_length max_target_length packing
    packing_strategy padding_free beta loss_type precompute_ref_log_probs num_generations max_completion_length
    desirable_weight per_device_train_batch_size per_gpu_train_batch_size per_device_eval_batch_size
    gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs gradient_checkpointing_kwargs.*
    activation_checkpointing activation_checkpointing_kwargs activation_checkpointing_kwargs.*
    activation_offloading bf16 fp16 tf32 optim optim_args max_grad_norm torch_compile torch_compile_backend
    torch_compile_mode use_liger_kernel use_liger_loss use_liger liger_kernel_config.*
    deepspeed deepspeed_config fsdp fsdp_config fsdp_config.*
    fsdp_transformer_layer_cls_to_wrap fsdp_min_num_params do_eval eval_strategy evaluation_strategy config
    model_init_kwargs model_init_kwargs.torch_dtype model_init_kwargs.dtype model_init_kwargs.attn_implementation
    program launcher.nproc_per_node launcher.nnodes launcher.num_processes launcher.num_gpus launcher.num_nodes
    """
) | {f"deepspeed.{name}" for name in ("*",)}

WITHOUT_EFFECT = (
    (trainer.ARGUMENTS - UNDERSTOOD)
    | trainer.LAUNCHER
    | names(
        """
    model_revision trust_remote_code use_fast_tokenizer tokenizer_name config_name cache_dir low_cpu_mem_usage token
    use_auth_token config_overrides ignore_mismatched_sizes lora_task_type use_rslora bnb_4bit_quant_storage
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
    ref_model_init_kwargs.* model_adapter_name ref_adapter_name force_use_ref_model disable_dropout max_prompt_length
    max_target_length_dpo generate_during_eval is_encoder_decoder use_logits_to_keep precompute_ref_batch_size tools
    label_smoothing reference_free f_divergence_type f_alpha_divergence_coef discopop_tau loss_weights use_weighting
    ld_alpha rpo_alpha wpo_temperature simpo_gamma gamma_beta_ratio cpo_alpha undesirable_weight ref_model_sync_steps
    ref_model_mixup_alpha completion_only_loss assistant_only_loss eval_packing router_aux_loss_coef
    wandb_project wandb_entity wandb_run_group wandb_log_unique_prompts hub_model_revision num_completions_to_print
    log_completions temperature top_p top_k min_p repetition_penalty reward_funcs reward_weights system_prompt
    benchmarks callbacks decontaminate bnb_4bit_compute_dtype run_id logger_name env env.* trainer_type optim_beta2
    sanity_check concatenate_sequences add_special_tokens num_samples subset split size_valid_set shuffle_buffer
    model_code_revision teacher_model_revision epochs save_final_model auto_insert_empty_system_msg
    """
    )
)
"""Keys that change neither memory nor time of a training step."""

UNMODELLED = {
    **{key: what for key, what in trainer.UNMODELLED_ARGUMENTS.items() if key not in UNDERSTOOD},
    "lora_target_parameters": "adapters on parameters, as those of experts",
    "sync_ref_model": "the reference model follows the trained one",
    "use_vllm": "an inference engine beside training",
    "vllm_*": "an inference engine beside training",
    "teacher_model_name_or_path": "distillation: a teacher beside the trained model",
    "teacher_*": "distillation: a teacher beside the trained model",
    "reward_model_path": "a reward model beside the trained one",
    "value_model_path": "a value model beside the trained one",
    "num_ppo_epochs": "PPO: passes over the same completions",
    "num_mini_batches": "PPO: parts of a batch",
    "local_rollout_forward_batch_size": "PPO: completions at a time",
    "num_iterations": "GRPO: passes over the same completions",
    "steps_per_generation": "GRPO: steps between generations",
    "generation_batch_size": "GRPO: completions at a time",
    "freeze_*": "which weights are frozen",
    "cast_lm_head_to_fp32": "the output layer in fp32",
    "use_transformers_*": "how completions are generated",
    "transformers_*": "how completions are generated",
    "top_entropy_quantile": "GRPO: the tokens that count",
    "replay_buffer_size": "GRPO: completions that are kept",
    "ds3_gather_for_generation": "weights are gathered for generation",
}

_TRAINER: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_grad_norm": 1.0,
    "optim": "adamw_torch_fused",
    "gradient_checkpointing": False,
    "bf16": False,
    "fp16": False,
    "eval_strategy": "no",
    "fsdp_config.version": 2,
}
_MODEL = {
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.05,
    "bnb_4bit_quant_type": "nf4",
    "use_bnb_nested_quant": False,
    "load_in_8bit": False,
    "load_in_4bit": False,
    "use_peft": False,
    "use_dora": False,
}
_TRL: dict[str, Any] = {
    **_TRAINER,
    **_MODEL,
    "max_length": 1024,
    "packing": False,
    "gradient_checkpointing": True,
    "dtype": "float32",
    "loss_type": "nll",
    "bf16": None,  # which becomes true where fp16 is not set
}


def _trl(version: str, date: str, **others: Any) -> Release:
    defaults = {key: value for key, value in {**_TRL, **others}.items() if value != ""}
    files = "trl/trainer/sft_config.py, dpo_config.py, model_config.py, base_config.py"
    return Release(version, date, f"huggingface/trl {version}, {files}; transformers, training_args.py", defaults)


_V4: dict[str, Any] = {"dtype": "", "fsdp_config.version": 1}
_OLD: dict[str, Any] = {**_V4, "gradient_checkpointing": False, "optim": "adamw_torch"}
TRL_RELEASES = (
    _trl("1.16.0", "2026-10-15"),
    _trl("1.9.0", "2026-07-21", loss_type="chunked_nll"),
    _trl("1.6.0", "2026-06-11", loss_type="chunked_nll"),
    _trl("1.0.0", "2026-03-30"),
    _trl("0.29.0", "2026-02-25"),
    _trl("0.25.0", "2025-11-05", **_V4),
    _trl("0.22.0", "2025-08-29", **_V4),
    _trl("0.19.1", "2025-07-08", **_OLD),
    _trl("0.16.1", "2025-04-04", **_OLD, bf16=False),
)
_ARGUMENTS = "huggingface/transformers {}, src/transformers/training_args.py"
RELEASES = (
    Release("5.23.0", "2026-11-13", _ARGUMENTS.format("5.23.0"), _TRAINER),
    Release(
        "4.53.3",
        "2025-07-22",
        _ARGUMENTS.format("4.53.3"),
        {**_TRAINER, "optim": "adamw_torch", "fsdp_config.version": 1},
    ),
)

HALVES = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16"}
DTYPES = {**HALVES, "float32": "fp32", "fp32": "fp32", "float": "fp32", "auto": "auto"}
DPO_LOSSES = names(
    """
    sigmoid hinge ipo exo_pair nca_pair robust bco_pair sppo_hard aot aot_pair aot_unpaired discopop apo_zero apo_down
    sft sigmoid_norm kto_pair
    """
)
SFT_LOSSES = ("nll", "dft", "chunked_nll")
SFT, DPO, OTHERS = "sft", "dpo", ("grpo", "kto", "orpo", "cpo", "ppo", "reward", "rloo", "gkd", "online_dpo")


TRAINER = re.compile(r"(?m)^\s*#.*\b(KTO|ORPO|CPO|DPO)(?:Trainer|Config)\b")
"""A comment that says whose arguments follow, as recipes of the alignment handbook have it."""

PREFERENCES = ("kto", "orpo", "cpo", "reward")  # losses of jobs, beside DPO


def recognise_trl(keys: Mapping[str, Any]) -> int:
    """How many keys are TRL's, or its scripts'."""
    if OF_OTHERS & set(keys):
        return 0
    program = str(getattr(keys.get("program"), "value", "") or "").rsplit("/", 1)[-1]
    tops = {key.split(".", 1)[0] for key in keys}
    found = len(tops & OF_TRL)
    if program in ("sft", "dpo", "kto", "grpo", "reward", "rloo", "sft.py", "dpo.py", "kto.py", "grpo.py"):
        found += 2
    if tops & OF_SCRIPTS and not found:
        return 0
    if "model_name_or_path" in keys and ("dataset_name" in keys or found):
        found += 2
    return found + min(2, len(tops & _COMMON)) if found else 0


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are the plain Trainer's."""
    if OF_OTHERS & set(keys) or recognise_trl(keys):
        return 0
    tops = {key.split(".", 1)[0] for key in keys}
    return len(tops & _COMMON) + 2 * len(tops & OF_SCRIPTS)


_COMMON = names(
    """
    per_device_train_batch_size gradient_accumulation_steps num_train_epochs learning_rate output_dir bf16 fp16 optim
    gradient_checkpointing max_grad_norm lr_scheduler_type warmup_ratio warmup_steps save_strategy logging_steps
    report_to model_name_or_path per_device_eval_batch_size fsdp deepspeed
    """
)


def read_trl(sheet: Sheet, meaning: Meaning) -> None:
    """The job of a file for TRL."""
    _Reader(sheet, meaning, is_trl=True).read()


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of TrainingArguments, with the keys of the example scripts."""
    _Reader(sheet, meaning, is_trl=False).read()


class _Reader:
    def __init__(self, sheet: Sheet, meaning: Meaning, is_trl: bool) -> None:
        self.sheet, self.meaning, self.is_trl = sheet, meaning, is_trl
        self.sharding = str(sheet.beside.get("parallel.sharding") or "")
        self.sharding_of: tuple[str, ...] = ()

    def read(self) -> None:
        sheet, meaning = self.sheet, self.meaning
        trainer.renamed(sheet, OF_PEFT)
        if "program" in sheet:
            trainer.complete(sheet, TABLE)
        meaning.say("runtime", "transformers", "program" if "program" in sheet else "model_name_or_path")
        name = sheet.text("model_name_or_path")
        if name:
            meaning.say("model", name, "model_name_or_path")
        else:
            meaning.ask("model", "the script's, which names no model_name_or_path here (--model)")
        task = self.task()
        self.length()
        self.batch()
        if not sheet.beside.get("optimizer"):
            trainer.optimizer(sheet, meaning, "optim")
        else:
            sheet.text("optim"), sheet.get("optim_args")
        meaning.say("max_gradient_norm", sheet.number("max_grad_norm") or None, "max_grad_norm")
        self.strategy()
        self.checkpointing()
        peft = self.adapter()
        quantized = self.quantization()
        self.precision(peft, quantized)
        self.attention()
        self.losses(task, peft)
        compiled = sheet.flag("torch_compile")
        for key in ("torch_compile_backend", "torch_compile_mode"):
            compiled = bool(sheet.text(key)) or compiled
        if compiled:
            meaning.say("compile", True, "torch_compile", "torch_compile_backend", "torch_compile_mode")
        self.evaluation()
        if "parallel.data" not in meaning.job:
            meaning.ask("parallel.data", "the number of GPUs is the launcher's (--gpus N)")

    def task(self) -> str:
        """Which of TRL's trainers the file is for, by the script, else by its keys."""
        sheet = self.sheet
        program = (sheet.text("program") or "").rsplit("/", 1)[-1].removesuffix(".py").lower()
        if not self.is_trl:
            return SFT
        for word in (*OTHERS, DPO, SFT):
            if program == word or program.startswith((word + "_", word + "-")) or program.endswith("_" + word):
                return word
        if sheet.given("num_generations") or sheet.given("max_completion_length") or sheet.given("reward_funcs"):
            return "grpo"
        if sheet.given("desirable_weight") or sheet.given("undesirable_weight"):
            return "kto"
        if sheet.given("gamma_beta_ratio"):
            return "cpo"
        losses = sheet.texts("loss_type") or []
        told = TRAINER.search(sheet.source)
        if told is not None and not sheet.given("loss_type"):
            return told[1].lower()
        if any(sheet.given(key) for key in ("beta", "max_prompt_length", "precompute_ref_log_probs", "rpo_alpha")):
            return DPO
        return DPO if any(word in DPO_LOSSES for word in losses) else SFT

    def _is_simpo(self, losses: list[str]) -> bool:
        """By TRL's word, or by the key that the trainer of SimPO's authors has and no other."""
        return self.sheet.given("gamma_beta_ratio") or bool({*losses} & {"simpo", "alphapo"})

    def length(self) -> None:
        sheet, meaning = self.sheet, self.meaning
        for key in ("max_seq_length", "block_size", "max_source_length"):
            if sheet.given(key):
                meaning.say("sequence_length", sheet.count(key), key)
                break
        else:
            found = sheet.count("max_length")
            if found is not None:
                meaning.say("sequence_length", found, "max_length")
        if self.is_trl and sheet.given("max_length") and sheet.given("max_seq_length"):
            meaning.say("sequence_length", sheet.count("max_length"), "max_length")
        if sheet.given("max_source_length") and sheet.given("max_target_length"):
            meaning.say("target_length", sheet.count("max_target_length"), "max_target_length")
        sheet.get("max_target_length")
        meaning.ask("sequence_length", "the script's, or the data's (--seq)")

    def batch(self) -> None:
        sheet, meaning = self.sheet, self.meaning
        key = "per_device_train_batch_size"
        if sheet.given("per_gpu_train_batch_size") and not sheet.given(key):
            key = "per_gpu_train_batch_size"
        meaning.say("micro_batch_size", sheet.count(key), key)
        key = "gradient_accumulation_steps"
        meaning.say(key, sheet.count(key), key)

    def strategy(self) -> None:
        """`deepspeed` and `fsdp` of TrainingArguments, and the GPUs that a launcher starts."""
        sheet, meaning = self.sheet, self.meaning
        path = sheet.get("deepspeed_config", sheet.get("deepspeed"))  # a script for DeepSpeed itself has both
        facts: Mapping[str, Any] | None = zero.inline_facts(sheet, "deepspeed")
        if facts is None and isinstance(path, str) and path.strip():
            meaning.pointed["deepspeed"] = path
            facts = zero.facts_of(sheet, path, "deepspeed")
            if facts is None and not self.sharding:
                meaning.ask("parallel.sharding", f"deepspeed: {path} is not here; give that file too")
        if facts is not None:
            zero.deepspeed(sheet, meaning, facts, "deepspeed")
            self.sharding, self.sharding_of = meaning.job["parallel.sharding"].value, ("deepspeed",)
        self.fsdp()
        devices = trainer.devices(sheet)
        if devices and devices > 1:
            keys = tuple(key for key in trainer.LAUNCHED if sheet.given(key))
            meaning.say("parallel.data", devices, *keys)
            if not self.sharding:
                self.sharding = "ddp"
                meaning.say("parallel.sharding", "ddp", *keys)

    def fsdp(self) -> None:
        """`fsdp` turns it on; `fsdp_config` alone does nothing."""
        sheet, meaning = self.sheet, self.meaning
        below = {key.removeprefix("fsdp_"): value for key, value in sheet.under("fsdp_config").items()}
        whole = sheet.get("fsdp_config")
        value = sheet.get("fsdp")
        for key in ("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params"):
            sheet.get(key)
        options = (
            [str(word) for word in value] if isinstance(value, list) else str(value or "").replace(",", " ").split()
        )
        if not options or options[0].lower() in ("false", "none"):
            if below or whole:
                meaning.note("fsdp_config: without fsdp the Trainer does not shard")
            return
        if isinstance(whole, str) and whole.strip():
            meaning.pointed["fsdp_config"] = whole
            written = sheet.opened(whole)
            if written is None:
                meaning.ask("parallel.fsdp_version", f"fsdp_config: {whole} is not here; give that file too")
            below = {key.removeprefix("fsdp_"): item.value for key, item in (written or {}).items()}
        for key in below:
            if key not in _FSDP_KEYS and not key.startswith("xla"):
                sheet.problem(f"fsdp_config.{key}", "is not understood", near_matches(key, _FSDP_KEYS))
        for word in options:
            if word.lower() not in (*_FSDP_OPTIONS, "true"):
                sheet.problem("fsdp", f"{word!r} is not understood", ", ".join(_FSDP_OPTIONS))
        word = next((accelerate.SHARDINGS[option] for option in options if option in accelerate.SHARDINGS), "fsdp")
        given = below.get("reshard_after_forward", below.get("sharding_strategy"))
        if word == "fsdp" and given is not None:
            word = accelerate.SHARDINGS.get(str(given).lower(), "fsdp")
        if word == "hsdp":
            word = f"hsdp:{accelerate.NODE}"
            meaning.note(f"hybrid_shard shards within a node; a node of {accelerate.NODE} GPUs is assumed")
        version = below.get("version") or sheet.release.defaults["fsdp_config.version"]
        meaning.say("parallel.sharding", word, "fsdp")
        if word != "ddp":
            meaning.say("parallel.fsdp_version", self.whole("fsdp_config", version, 2), "fsdp_config.version")
        self.sharding, self.sharding_of = word, ("fsdp",)
        if "offload" in options or _true(below.get("offload_params")) or _true(below.get("cpu_offload")):
            meaning.say("offload", ["parameters", "gradients", "optimizer"], "fsdp")
        if _true(below.get("activation_checkpointing")):
            meaning.say("activation_checkpointing", "full", "fsdp_config.activation_checkpointing")

    def checkpointing(self) -> None:
        sheet, meaning = self.sheet, self.meaning
        key = "activation_checkpointing" if sheet.given("activation_checkpointing") else "gradient_checkpointing"
        checkpoints = sheet.flag(key)
        sheet.get("gradient_checkpointing")
        of_fsdp = meaning.job.get("activation_checkpointing")
        beside = sheet.beside.get("activation_checkpointing")
        if checkpoints and (of_fsdp or beside == "full") and sheet.given(key):
            message = "is on beside activation_checkpointing of FSDP, which the Trainer refuses"
            sheet.problem(key, message, "leave one of the two out")
        how: dict[str, Any] = {}
        for name in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
            below, whole = sheet.under(name), sheet.get(name)
            if isinstance(whole, str):  # of a command line
                whole = _mapping(sheet, name, whole)
            how |= whole if isinstance(whole, Mapping) else below
        offload = list(meaning.job["offload"].value) if "offload" in meaning.job else []
        if not of_fsdp and not (beside == "full" and not checkpoints):
            apart = self.whole(f"{key}_kwargs", how.get("every_n_layers"), 1)
            word = "none" if not checkpoints else "full" if apart == 1 else f"selective-layer:{apart}"
            meaning.say("activation_checkpointing", word, key)
        if checkpoints and _true(how.get("use_reentrant")):
            meaning.say("checkpoint_reentrant", True, f"{key}_kwargs.use_reentrant")
        if checkpoints and _true(how.get("offload")):
            meaning.say("offload", [*offload, "activations"], f"{key}_kwargs.offload")
        if sheet.flag("activation_offloading"):
            meaning.say("offload", [*offload, "activations"], "activation_offloading")

    def whole(self, key: str, value: Any, default: int) -> int:
        """A whole number of one or more inside a mapping; anything else is a problem of its key."""
        try:
            number = default if value is None else int(value)
        except (TypeError, ValueError, OverflowError):
            number = 0
        if number < 1:
            self.sheet.problem(key, f"{value!r} is not a whole number of 1 or more")
            return default
        return number

    def adapter(self) -> bool:
        sheet, meaning = self.sheet, self.meaning
        wanted = bool(sheet.flag("use_peft"))
        rank, alpha, dropout = sheet.count("lora_r"), sheet.number("lora_alpha"), sheet.number("lora_dropout")
        targets, saved, dora = (
            sheet.texts("lora_target_modules"),
            sheet.texts("lora_modules_to_save"),
            sheet.flag("use_dora"),
        )
        if not wanted:
            if any(sheet.given(key) for key in ("lora_r", "lora_alpha", "lora_target_modules")):
                meaning.note("lora_*: without use_peft TRL makes no adapter")
            return False
        meaning.say("adapter.kind", "dora" if dora else "lora", "use_dora" if dora else "use_peft")
        meaning.say("adapter.rank", rank, "lora_r")
        if targets:
            everything = len(targets) == 1 and targets[0] == "all-linear"
            meaning.say("adapter.targets", "all-linear" if everything else targets, "lora_target_modules")
        meaning.say("adapter.dropout", dropout, "lora_dropout")
        meaning.say("adapter.alpha", _whole(alpha), "lora_alpha")
        if saved:
            meaning.say("adapter.modules_to_save", saved, "lora_modules_to_save")
        return True

    def quantization(self) -> bool:
        sheet, meaning = self.sheet, self.meaning
        four, eight = sheet.flag("load_in_4bit"), sheet.flag("load_in_8bit")
        kind, nested = sheet.text("bnb_4bit_quant_type"), sheet.flag("use_bnb_nested_quant")
        if four and eight:
            sheet.problem("load_in_8bit", "is on beside load_in_4bit", "TRL takes one of them")
        if four:
            if kind not in (None, "nf4"):
                meaning.note(f"bnb_4bit_quant_type: {kind} takes what nf4 takes")
            meaning.say(
                "quantization",
                "nf4-double" if nested else "nf4",
                "load_in_4bit",
                *(("use_bnb_nested_quant",) if nested else ()),
            )
        elif eight:
            meaning.say("quantization", "int8", "load_in_8bit")
        return bool(four or eight)

    def dtype(self) -> tuple[str | None, str]:
        """The element type in which the weights are loaded, None for the checkpoint's, and the key that says it."""
        sheet = self.sheet
        for key in ("torch_dtype", "model_init_kwargs.torch_dtype", "model_init_kwargs.dtype", "dtype"):
            sheet.taken.add(key)
        for key in ("torch_dtype", "model_init_kwargs.torch_dtype", "model_init_kwargs.dtype", "dtype"):
            if sheet.given(key) or (key == "dtype" and sheet.release.defaults.get(key)):
                word = str(sheet.get(key)).removeprefix("torch.").lower()
                if word not in DTYPES:
                    sheet.problem(key, f"{word!r} is not understood", "bfloat16, float16, float32 or auto")
                    return None, key
                return (None if word == "auto" else DTYPES[word]), key
        return None, "dtype"

    def precision(self, peft: bool, quantized: bool) -> None:
        """What bf16 and fp16 mean, by how the weights are loaded and how the devices share the model."""
        sheet, meaning = self.sheet, self.meaning
        loaded, loaded_by = self.dtype()
        fp16, bf16 = sheet.flag("fp16"), sheet.flag("bf16")
        key = "fp16" if fp16 else "bf16"
        if bf16 is None:
            bf16 = not fp16 if self.is_trl and "mixed_precision" not in sheet.beside else False
        if fp16 and bf16:
            sheet.problem("fp16", "is on beside bf16, which TrainingArguments refuses", "leave one of the two out")
        half = "bf16" if bf16 else "fp16" if fp16 else None
        if half is None and not sheet.given("bf16") and not sheet.given("fp16"):
            half = sheet.beside.get("mixed_precision")  # accelerate launch sets ACCELERATE_MIXED_PRECISION
            if half is not None and half not in ("bf16", "fp16"):
                meaning.note(f"mixed_precision: {half} of Accelerate holds")
                return
        of_zero = sheet.beside.get("zero_precision")
        if of_zero is not None and half is not None and half != of_zero:
            sheet.problem(
                key, f"is {half}, and the DeepSpeed file says {of_zero}", "the Trainer refuses that: write auto there"
            )
        half = half or of_zero
        row = accelerate.strategy_of(self.sharding)
        tf32 = sheet.flag("tf32")
        sharded = row in ("zero", "fsdp")
        if half is None:
            word = {"bf16": "pure-bf16", "fp16": "pure-fp16"}.get(loaded or "", "tf32" if tf32 else "fp32")
            meaning.say(
                "precision", word, loaded_by if loaded in ("bf16", "fp16") else "bf16", *(("tf32",) if tf32 else ())
            )
            return
        if sharded:
            meaning.say("precision", accelerate.PRECISIONS[row][half], key, *self.sharding_of)
            if row == "fsdp" and (peft or quantized) and loaded:
                meaning.say("weight_dtype", loaded, loaded_by)
            return
        if peft or quantized:
            meaning.say("precision", f"amp-{half}", key)
            if loaded:
                meaning.say("weight_dtype", loaded, loaded_by)
            return
        if HANDBOOK & {name.split(".", 1)[0] for name in sheet.written} and not self.sharding:
            orpo = self.task() == "orpo"
            meaning.say("precision", f"fsdp-{half}" if orpo else f"mixed-{half}", key)
            file, option = ("fsdp.yaml", "fsdp --fsdp-version 1") if orpo else ("zero3.yaml", "zero3")
            what = "ORPO" if orpo else "full training"
            meaning.note(
                f"the README of the alignment handbook launches {what} with its {file} on 8 GPUs a node; that is where "
                f"the precision comes from (--sharding {option} --gpus 8, or the file of accelerate launch)"
            )
            return
        if loaded == half:
            meaning.say("precision", f"pure-{half}", loaded_by, key)
            return
        meaning.say("precision", f"amp-{half}", key)
        if loaded:
            meaning.say("weight_dtype", loaded, loaded_by)

    def attention(self) -> None:
        sheet, meaning = self.sheet, self.meaning
        key = (
            "model_init_kwargs.attn_implementation"
            if sheet.given("model_init_kwargs.attn_implementation")
            else "attn_implementation"
        )
        word = sheet.word(key, trainer.ATTENTIONS)
        sheet.get("model_init_kwargs")
        if sheet.flag("use_flash_attention_2"):
            word, key = "flash", "use_flash_attention_2"
        if word:
            meaning.say("attention", word, key)

    def losses(self, task: str, peft: bool) -> None:
        sheet, meaning = self.sheet, self.meaning
        packing = bool(sheet.flag("packing"))
        meaning.say("packing", packing, "packing")
        if packing:
            sheet.text("packing_strategy")
        elif sheet.flag("padding_free"):
            meaning.note("padding_free: a batch is one row without padding; its longest rows are counted")
        sheet.get("padding_free"), sheet.get("packing_strategy"), sheet.number("beta")
        liger = sum(bool(sheet.flag(key)) for key in ("use_liger_kernel", "use_liger_loss", "use_liger")) > 0
        kinds = sheet.texts("loss_type") or []
        unknown: list[str] = []
        precomputed = sheet.flag("precompute_ref_log_probs")
        for key in ("num_generations", "max_completion_length", "desirable_weight"):
            sheet.get(key)
        if task == SFT:
            if liger:
                trainer.liger(sheet, meaning, "use_liger_kernel")
            elif self.is_trl and "chunked_nll" in kinds:
                meaning.lack(
                    "loss_type",
                    "chunked_nll computes the logits of some tokens at a time, and all at once are counted (--loss "
                    "tiled counts them as TRL 1.16 does, which makes none)",
                )
            unknown = (
                [word for word in kinds if word not in SFT_LOSSES] if sheet.given("loss_type") and self.is_trl else []
            )
        elif task == DPO:
            meaning.say("loss", "dpo", "loss_type" if sheet.given("loss_type") else "beta")
            how = "precomputed" if precomputed else "adapter-off" if peft else "model"
            meaning.say("dpo_reference", how, "precompute_ref_log_probs" if precomputed else "use_peft")
            meaning.say("padding", "right", "program")
            if liger:
                meaning.lack("use_liger_kernel", "Liger's fused DPO loss, and all logits are counted")
            unknown = [word for word in kinds if word not in (*DPO_LOSSES, *SFT_LOSSES)]
        elif task in PREFERENCES:
            kind = "simpo" if task == "cpo" and self._is_simpo(kinds) else task
            meaning.say("loss", kind, "program" if sheet.given("program") else "beta")
            if task == "kto":
                how = "precomputed" if precomputed else "adapter-off" if peft else "model"
                meaning.say("dpo_reference", how, "precompute_ref_log_probs" if precomputed else "use_peft")
            meaning.say("padding", "right", "program")
        else:
            meaning.say("loss", task.replace("_", "-"), "program")
            meaning.say("padding", "right", "program")
            meaning.note(f"a job has no word for {task.upper()}")
        if liger and task != SFT:
            trainer.liger(sheet, meaning, "use_liger_kernel", loss=False)
        for word in unknown:
            sheet.problem(
                "loss_type", f"{word!r} is not understood", ", ".join(SFT_LOSSES if task == SFT else sorted(DPO_LOSSES))
            )

    def evaluation(self) -> None:
        sheet, meaning = self.sheet, self.meaning
        when = sheet.text("eval_strategy") if sheet.given("eval_strategy") else sheet.text("evaluation_strategy", "no")
        sheet.get("eval_strategy"), sheet.get("do_eval")
        size = sheet.count("per_device_eval_batch_size")
        if when and when.lower() not in ("no", "false") and size:
            meaning.ask(
                "eval_batch_size",
                f"it evaluates with {size} sequences: --eval-batch-size {size} says whether that exceeds training",
            )


def _true(value: Any) -> bool:
    return str(value).lower() == "true"


def _mapping(sheet: Sheet, key: str, text: str) -> Mapping[str, Any]:
    """A mapping in JSON, as HfArgumentParser takes it on a command line."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, Mapping):
        sheet.problem(key, f"{text!r} is no mapping in JSON", '{"use_reentrant": false}')
        return {}
    return found


def _whole(value: float | None) -> float | int | None:
    return int(value) if value is not None and value == int(value) else value


_FSDP_KEYS = (
    *("version", "reshard_after_forward", "cpu_offload", "offload_params", "activation_checkpointing"),
    *("cpu_ram_efficient_loading", "state_dict_type", "auto_wrap_policy", "transformer_layer_cls_to_wrap"),
    *("min_num_params", "sharding_strategy", "backward_prefetch", "forward_prefetch", "limit_all_gathers"),
    *("use_orig_params", "sync_module_states", "transformer_cls_names_to_wrap", "xla", "xla_fsdp_settings"),
)
_FSDP_OPTIONS = (
    "full_shard",
    "shard_grad_op",
    "no_shard",
    "hybrid_shard",
    "hybrid_shard_zero2",
    "offload",
    "auto_wrap",
)
TABLE = Table(
    UNDERSTOOD,
    WITHOUT_EFFECT.difference(UNMODELLED),
    {key: what for key, what in UNMODELLED.items() if key not in UNDERSTOOD},
)
PROGRAM = Program("training-arguments", RELEASES, TABLE, read, recognise)
TRL = Program("trl", TRL_RELEASES, TABLE, read_trl, recognise_trl)
