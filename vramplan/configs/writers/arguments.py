"""The YAML of TRL and of scripts with TrainingArguments.

The words are those of `programs/arguments/` and `programs/trainer.py`. Sources of what a script takes:
huggingface/trl 1.16.0, trl/scripts/sft.py, dpo.py (`--config`); huggingface/transformers 5.23.0,
src/transformers/hf_argparser.py (parse_yaml_file), examples/pytorch/language-modeling/run_clm.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.configs.asked import Asked, ProgramFiles, Writer
from vramplan.configs.page import Page
from vramplan.configs.programs import trainer
from vramplan.configs.writers import words

FSDP_WORDS = {"fsdp": "full_shard", "fsdp-grad-op": "shard_grad_op", "hsdp": "hybrid_shard"}
MODEL = ("model",)
TASKS = {"dpo": "trl-lib/ultrafeedback_binarized", "grpo": "trl-lib/tldr"}
"""Losses that have a script of TRL of their own, and data of its examples."""

GENERATIONS = 8  # completions of a prompt: trl 1.16.0, trainer/grpo_config.py, num_generations


def trl(asked: Asked) -> Iterator[ProgramFiles]:
    """One file for `trl sft --config`."""
    page = page_of(asked, "trl.yaml", is_trl=True)
    put_strategy(page, asked)
    yield ProgramFiles((page,), (f"{command_of(asked)} --config {page.name}",))


def arguments(asked: Asked) -> Iterator[ProgramFiles]:
    """One file for a script that parses TrainingArguments beside its own arguments of model and data."""
    page = page_of(asked, "training-arguments.yaml", is_trl=False)
    put_strategy(page, asked)
    launcher = "python" if asked.is_alone else asked.torchrun()  # which would make a group, and DDP's buckets
    launch = f"{asked.environment(hides=True)}{launcher} train.py {page.name}"
    yield ProgramFiles((page,), (launch, "train.py parses it with HfArgumentParser(...).parse_yaml_file"))


def command_of(asked: Asked) -> str:
    """What starts TRL's script, without its file."""
    return f"{asked.environment(hides=True)}{asked.accelerate()} -m trl.scripts.{task_of(asked)}"


def task_of(asked: Asked) -> str:
    """The script of TRL."""
    return asked["loss"] if asked["loss"] in TASKS else "sft"


def page_of(asked: Asked, name: str, *, is_trl: bool) -> Page:
    """The settings of TrainingArguments, and of TRL, without how the devices share the model."""
    page = Page(name)
    page.put("model_name_or_path", asked.checkpoint, "model")
    _precision(page, asked)
    kernel = words.attention(asked)
    if kernel is not None:
        page.put("attn_implementation", kernel, "attention")
    if asked["sequence_length"] and asked["loss"] == "grpo":
        put_completions(page, asked, "per_device_train_batch_size")
    elif asked["sequence_length"]:
        page.put("max_length" if is_trl else "block_size", asked["sequence_length"], "sequence_length")
    if asked["target_length"] not in (None, asked["sequence_length"]):
        page.put("max_target_length", asked["target_length"], "target_length")
    if is_trl and asked["loss"] not in TASKS:
        page.put("packing", bool(asked["packing"]), "packing")
    if asked["use_cache"]:
        page.put("use_cache", True, "use_cache")
    if "per_device_train_batch_size" not in page.lines:  # GRPO may need another
        page.put("per_device_train_batch_size", asked["micro_batch_size"], "micro_batch_size")
    page.put("gradient_accumulation_steps", asked["gradient_accumulation_steps"], "gradient_accumulation_steps")
    _checkpoints(page, asked, is_trl)
    words.put_optimizer(page, "optim", asked)
    page.put("max_grad_norm", asked["max_gradient_norm"] or 0.0, "max_gradient_norm")
    _loss(page, asked, is_trl)
    if asked["compile"]:
        page.put("torch_compile", True, "compile")
    if is_trl and (asked["adapter"] is not None or asked["adapter.kind"]):
        _adapter(page, asked)
    if is_trl and asked["quantization"]:
        _quantization(page, asked)
    if asked["eval_batch_size"]:
        page.put("eval_strategy", "epoch", "eval_batch_size")
        page.put("per_device_eval_batch_size", asked["eval_batch_size"], "eval_batch_size")
    if is_trl:
        page.yours("dataset_name", TASKS.get(asked["loss"], "trl-lib/Capybara"))
    page.yours("output_dir", "out")
    return page


def _precision(page: Page, asked: Asked) -> None:
    word, half = str(asked["precision"]), asked.half
    sharded = asked.zero is not None or asked.fsdp
    loaded = half or "fp32" if word.startswith("pure-") else str(asked["weight_dtype"] or "fp32")
    if asked.zero is None or half is None:
        name = words.DTYPES.get(loaded, "float32")
        if word.startswith("amp-") and loaded == half and not sharded and not asked["adapter.kind"]:
            name = "auto"  # the type of the checkpoint; spelt out, it would be pure half precision
        page.put("dtype", name, "precision", "weight_dtype")
    # over weights that are all in half precision autocast changes nothing; adapters would be in fp32 with it
    autocast = half is not None and not (word.startswith("pure-") and (sharded or asked["adapter.kind"]))
    for name in ("bf16", "fp16"):
        if autocast and half == name:
            page.put(name, True, "precision")
    if not autocast:
        page.put("bf16", False, "precision")
    if word == "tf32":
        page.put("tf32", True, "precision")


def _checkpoints(page: Page, asked: Asked, is_trl: bool) -> None:
    word = str(asked["activation_checkpointing"])
    key = "gradient_checkpointing"
    page.put(key, word != "none", "activation_checkpointing")
    if word != "none":
        kwargs = "gradient_checkpointing_kwargs"
        page.put(f"{kwargs}.use_reentrant", bool(asked["checkpoint_reentrant"]), "checkpoint_reentrant")
        head, _, apart = word.partition(":")
        if head == "selective-layer" and apart != "1":
            page.put(f"{kwargs}.every_n_layers", int(apart), "activation_checkpointing")
    if is_trl and asked.offloads("activations"):
        page.put("activation_offloading", True, "offload")


def _loss(page: Page, asked: Asked, is_trl: bool) -> None:
    word = asked["loss"]
    if word == "dpo" and is_trl:
        page.put("loss_type", "sigmoid", "loss")
        page.put("beta", 0.1, "loss")
        if asked["dpo_reference"] == "precomputed":
            page.put("precompute_ref_log_probs", True, "dpo_reference")
    elif word == "grpo" and is_trl:
        page.put("loss_type", "dapo", "loss")
        page.put("beta", 0.04 if asked["dpo_reference"] else 0.0, "dpo_reference")
        page.yours("reward_funcs", ["think_format_reward"])
    elif word == "fused":
        put_liger(page, asked, "use_liger_kernel")
    elif is_trl:
        page.put("loss_type", "nll", "loss")


def put_completions(page: Page, asked: Asked, micro_batch: str, before: str = "", devices: int | None = None) -> None:
    """How long completions are, half of a sequence, and how many a prompt has: they fill whole batches.

    A prompt has two at least, so one sequence of one device is too few: `micro_batch` is the key of how many there are.
    `before`: of the keys. `devices`: those whose batches a prompt's completions fill, where these are not all.
    """
    page.put(f"{before}max_completion_length", max(1, asked["sequence_length"] // 2), "sequence_length")
    steps, micro = asked["gradient_accumulation_steps"] or 1, asked["micro_batch_size"] or 1
    batch = micro * steps * (devices or asked.devices)
    if batch == 1:
        page.put(micro_batch, 2, "micro_batch_size")
        batch = 2
    found = next(n for n in range(min(GENERATIONS, batch), 0, -1) if batch % n == 0)
    number = found if found > 1 else batch
    page.put(f"{before}num_generations", number, note="completions of a prompt, which fill whole batches")


def put_liger(page: Page, asked: Asked, every: str) -> None:
    """Liger's loss and kernels: the key that turns on all of them, or the Trainer's with those that are off."""
    off = [word for word in trainer.LIGER_KEYS if word not in (asked["liger_kernels"] or ())]
    page.put("use_liger_kernel" if off else every, True, "loss", "liger_kernels")
    for name in (one for word in off for one in trainer.LIGER_KEYS[word]):
        page.put(f"{trainer.LIGER_CONFIG}.{name}", False, "liger_kernels")


def _adapter(page: Page, asked: Asked) -> None:
    page.put("use_peft", True, "adapter.kind")
    page.put("lora_r", asked["adapter.rank"] or 8, "adapter.rank")
    page.put("lora_alpha", words.alpha(asked), "adapter.alpha")
    page.put("lora_dropout", float(asked["adapter.dropout"] or 0), "adapter.dropout")
    page.put("lora_target_modules", words.targets(asked), "adapter.targets")
    if asked["adapter.modules_to_save"]:
        page.put("lora_modules_to_save", list(asked["adapter.modules_to_save"]), "adapter.modules_to_save")
    if asked["adapter.kind"] == "dora":
        page.put("use_dora", True, "adapter.kind")


def _quantization(page: Page, asked: Asked) -> None:
    word = asked["quantization"]
    if word == "int8":
        page.put("load_in_8bit", True, "quantization")
        return
    page.put("load_in_4bit", True, "quantization")
    page.put("bnb_4bit_quant_type", "nf4", "quantization")
    page.put("use_bnb_nested_quant", word == "nf4-double", "quantization")


def put_strategy(page: Page, asked: Asked) -> None:
    """How the devices share the model, in the training arguments themselves."""
    if asked.zero is not None:
        words.put_zero(page, asked, "deepspeed.", filled=True)
        if asked.offloads("optimizer"):
            page.put("deepspeed.zero_force_ds_cpu_optimizer", False, note="the optimizer is the Trainer's")
    elif asked.fsdp:
        version, offload = asked["parallel.fsdp_version"], asked.offloads("parameters")
        if version == 2:  # of FSDP 2 everything is in fsdp_config, which has no groups of replicas
            page.put("fsdp", True, *words.STATES)
            page.put("fsdp_config.reshard_after_forward", asked.kind != "fsdp-grad-op", *words.STATES)
            if offload:
                page.put("fsdp_config.cpu_offload", True, "offload")
        else:
            page.put("fsdp", f"{FSDP_WORDS[asked.kind]} auto_wrap{' offload' * offload}", *words.STATES, "offload")
        page.put("fsdp_config.version", version, "parallel.fsdp_version")
        if asked["parallel.limit_all_gathers"] is False:
            page.put("fsdp_config.limit_all_gathers", False, "parallel.limit_all_gathers")


TRL = Writer("trl", ("transformers",), trl)
ARGUMENTS = Writer("training-arguments", ("transformers",), arguments)
