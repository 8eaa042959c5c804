"""The YAML of `llamafactory-cli train`.

The words are those of `programs/llama_factory/`. Source of what its parser asks for:
hiyouga/LLaMA-Factory 0.9.5, src/llamafactory/hparams/parser.py and data_args.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from vramplan.configs.asked import Asked, ProgramFiles, Writer
from vramplan.configs.page import Page
from vramplan.configs.programs.llama_factory.computing import ATTENTIONS
from vramplan.configs.writers import words
from vramplan.configs.writers.arguments import FSDP_WORDS, put_liger

EXTRA = {"embeddings": "embed_tokens", "head": "lm_head", "norms": "norm"}
"""Parts that `freeze_extra_modules` trains beside the blocks, by programs/llama_factory/tuning.py, frozen."""


STAGES = {"dpo": "dpo", "orpo": "dpo", "simpo": "dpo", "kto": "kto", "reward": "rm"}
"""The stage that computes a loss; the others are those of `sft`."""

DATASETS = {"sft": "alpaca_en_demo", "dpo": "dpo_en_demo", "rm": "dpo_en_demo", "kto": "kto_en_demo"}
"""Of data/dataset_info.json, one that each stage takes: data/loader.py refuses pairs where there are none, and others
where there are.
"""


def write(asked: Asked) -> Iterator[ProgramFiles]:
    """One file."""
    page = Page("llama-factory.yaml")
    stage = STAGES.get(str(asked["loss"]), "sft")
    dpo = stage == "dpo"
    page.put("model_name_or_path", asked.checkpoint, "model")
    page.put("stage", stage, "loss")
    page.put("do_train", True)
    _trained(page, asked)
    _precision(page, asked)
    if asked["attention"] is not None:
        page.put("flash_attn", words.attention(asked, ATTENTIONS), "attention")
    page.put("cutoff_len", asked["sequence_length"], "sequence_length")
    if asked["packing"] and stage == "sft":  # hparams/parser.py, get_train_args: "cannot be set as True except SFT"
        page.put("packing", True, "packing")
        page.put("neat_packing", True, "packing")
    page.put("per_device_train_batch_size", asked["micro_batch_size"], "micro_batch_size")
    page.put("gradient_accumulation_steps", asked["gradient_accumulation_steps"], "gradient_accumulation_steps")
    off = asked["activation_checkpointing"] == "none"
    page.put("disable_gradient_checkpointing", off, "activation_checkpointing")
    if not off:
        page.put("use_reentrant_gc", bool(asked["checkpoint_reentrant"]), "checkpoint_reentrant")
        if asked.offloads("activations"):
            page.put("use_unsloth_gc", True, "offload")
    _optimizer(page, asked)
    page.put("max_grad_norm", asked["max_gradient_norm"] or 0.0, "max_gradient_norm")
    if dpo:
        page.put("pref_loss", "sigmoid" if asked["loss"] == "dpo" else asked["loss"], "loss")
        page.put("pref_beta", 0.1)
    elif asked["loss"] == "fused":
        put_liger(page, asked, "enable_liger_kernel")
    if asked["trained_blocks"] == "badam":
        page.put("use_badam", True, "trained_blocks")
    if asked["compile"]:
        page.put("torch_compile", True, "compile")
    if asked["from_scratch"]:
        page.put("train_from_scratch", True, "from_scratch")
    if asked["eval_batch_size"]:
        page.put("eval_strategy", "epoch", "eval_batch_size")  # without a set apart nothing is evaluated
        page.put("per_device_eval_batch_size", asked["eval_batch_size"], "eval_batch_size")
        page.yours("val_size", 0.05)
    _strategy(page, asked)
    page.yours("dataset", DATASETS[stage])
    page.yours("template", "default")
    page.yours("output_dir", "out")
    launch = f"{asked.environment(hides=True)}{_variables(asked)}llamafactory-cli train {page.name}"
    yield ProgramFiles((page,), (launch,))


def _variables(asked: Asked) -> str:
    """What its launcher reads: without a number it starts a process for each GPU that it sees."""
    if asked.is_alone:
        return ""
    meeting = f"NNODES={asked.nodes} NODE_RANK=RANK MASTER_ADDR=HOST MASTER_PORT=29500 " if asked.nodes > 1 else ""
    return f"FORCE_TORCHRUN=1 {meeting}NPROC_PER_NODE={asked.per_node} "


def _trained(page: Page, asked: Asked) -> None:
    """Adapters, frozen parts, or all."""
    if asked["adapter.kind"]:
        page.put("finetuning_type", "lora", "adapter.kind")
        page.put("lora_rank", asked["adapter.rank"] or 8, "adapter.rank")
        page.put("lora_alpha", words.alpha(asked), "adapter.alpha")
        page.put("lora_dropout", float(asked["adapter.dropout"] or 0), "adapter.dropout")
        found = words.targets(asked)
        page.put("lora_target", "all" if found == "all-linear" else ",".join(found), "adapter.targets")
        if asked["adapter.modules_to_save"]:
            page.put("additional_target", ",".join(asked["adapter.modules_to_save"]), "adapter.modules_to_save")
        if asked["adapter.kind"] == "dora":
            page.put("use_dora", True, "adapter.kind")
        _quantization(page, asked)
        return
    frozen = list(asked["frozen"] or ())
    if not frozen:
        page.put("finetuning_type", "full", "adapter.kind")
        return
    page.put("finetuning_type", "freeze", "frozen")
    blocks = next((re.fullmatch(r"layers\.0(?:-(\d+))?", part) for part in frozen if part.startswith("layers.")), None)
    if blocks is not None:
        page.put("freeze_trainable_layers", asked.blocks - int(blocks[1] or 0) - 1, "frozen")
    extra = [name for part, name in EXTRA.items() if part not in frozen]
    if extra:
        page.put("freeze_extra_modules", ",".join(extra), "frozen")


def _quantization(page: Page, asked: Asked) -> None:
    word = str(asked["quantization"])
    if word == "int8":
        page.put("quantization_bit", 8, "quantization")
    elif word.startswith("nf4"):
        page.put("quantization_bit", 4, "quantization")
        page.put("double_quantization", word == "nf4-double", "quantization")


def _precision(page: Page, asked: Asked) -> None:
    word, half = str(asked["precision"]), asked.half
    if word == "pure-bf16":
        page.put("pure_bf16", True, "precision", "weight_dtype")
    elif word.endswith("fp8"):
        page.put("bf16", True, "precision")
        page.put("fp8", True, "precision")
    elif half is not None:
        page.put(half, True, "precision", "weight_dtype")


OVER_GALORE = {"galore-adamw": None, "galore-adamw-8bit": "adamw_8bit", "galore-adafactor": "adafactor"}
LOW_RANK = (*OVER_GALORE, "apollo-adamw")


def _optimizer(page: Page, asked: Asked) -> None:
    word, _, rank = str(asked["optimizer"]).partition(":")
    if word in LOW_RANK and asked["adapter.kind"]:
        return  # hparams/finetuning_args.py, __post_init__, refuses LoRA beside it
    if word in LOW_RANK:
        name = word.partition("-")[0]
        page.put(f"use_{name}", True, "optimizer")
        page.put(f"{name}_rank", int(rank or 16), "optimizer")
        if OVER_GALORE.get(word):
            page.put("optim", OVER_GALORE[word], "optimizer")
        if asked["optimizer_in_backward"]:
            page.put(f"{name}_layerwise", True, "optimizer_in_backward")
    elif word == "adam-mini":
        page.put("use_adam_mini", True, "optimizer")
    elif word == "muon":
        page.put("use_muon", True, "optimizer")
    else:
        words.put_optimizer(page, "optim", asked)


def _strategy(page: Page, asked: Asked) -> None:
    if asked.zero is not None:
        words.put_zero(page, asked, "deepspeed.", filled=True)
        if asked.offloads("optimizer"):
            page.put("deepspeed.zero_force_ds_cpu_optimizer", False, note="the optimizer is the Trainer's")
    elif asked.fsdp:
        version = asked["parallel.fsdp_version"]
        word = FSDP_WORDS["fsdp" if version == 2 and asked.kind == "hsdp" else asked.kind]  # groups are of FSDP 1
        offload = " offload" * asked.offloads("parameters")
        page.put("fsdp", f"{word} auto_wrap{offload}", *words.STATES, "offload")
        page.put("fsdp_config.version", version, "parallel.fsdp_version")
        if asked["parallel.limit_all_gathers"] is False:
            page.put("fsdp_config.limit_all_gathers", False, "parallel.limit_all_gathers")
        if version == 2:
            page.put("fsdp_config.reshard_after_forward", asked.kind != "fsdp-grad-op", *words.STATES)


WRITER = Writer("llama-factory", ("transformers",), write)
