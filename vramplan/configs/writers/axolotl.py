"""The YAML of `axolotl train`.

The words are those of `programs/axolotl/`. Source of what its schema asks for:
axolotl-ai-cloud/axolotl 0.19.0, src/axolotl/utils/schemas/config.py and validation.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from vramplan.configs.asked import Asked, ProgramFiles, Writer
from vramplan.configs.page import JSON, Page
from vramplan.configs.programs.axolotl import OPTIMIZERS, computing, rounding
from vramplan.configs.writers import words
from vramplan.configs.writers.arguments import FSDP_WORDS, put_completions
from vramplan.replay.models.lora_kernels import EVERY

OWN_OPTIMIZERS = ("muon", "optimi_adamw", "adopt_adamw", "adamc", "came_pytorch")  # which the Trainer has no name for
LIGER = "axolotl.integrations.liger.LigerPlugin"
KD = "axolotl.integrations.kd.KDPlugin"

OF_A_TEACHER = {
    "path": "axolotl-ai-co/evolkit-logprobs-pipeline-75k-v2-sample",
    "type": "axolotl.integrations.kd.chat_template",
    "field_messages": "messages_combined",
    "split": "train",
    "logprobs_field": "llm_text_generation_vllm_logprobs",
    "temperature": 1.0,
}
"""Data of its page on distillation, with log-probabilities."""

PAIRS = "fozziethebeat/alpaca_messages_2k_dpo_test"
REWARD = "rewards.own_reward"
OF_REWARDS = "rewards.py beside it has your reward functions: own_reward(completions, **kwargs) returns their rewards"

DATASETS: dict[str, tuple[str, str | None]] = {
    "standard": ("yahma/alpaca-cleaned", "alpaca"),
    "dpo": (PAIRS, "chat_template.default"),
    "simpo": (PAIRS, "chat_template.default"),
    "orpo": ("argilla/ultrafeedback-binarized-preferences-cleaned", "chat_template.argilla"),
    "kto": ("argilla/ultrafeedback-binarized-preferences-cleaned-kto", "llama3.ultra"),
    "grpo": ("trl-lib/tldr", None),
    "reward": ("argilla/distilabel-intel-orca-dpo-pairs", "bradley_terry.chat_template"),
}
"""Data of Axolotl's examples for each loss, and its form: prompt_strategies/{dpo,orpo,kto,bradley_terry}."""


def write(asked: Asked) -> Iterator[ProgramFiles]:
    """One file."""
    page = Page("axolotl.yaml")
    page.put("base_model", asked.checkpoint, "model")
    _precision(page, asked)
    kernel = words.attention(asked)
    if (asked["parallel.context"] or 1) > 1:
        kernel = "flash_attention_2"  # schemas/validation.py takes no other around the ring
    if kernel is not None:
        page.put("attn_implementation", kernel, "attention")
    page.put("sequence_len", asked["sequence_length"], "sequence_length")
    page.put("sample_packing", bool(asked["packing"]), "packing")
    # check_context_parallel_size: the ring takes one packed sequence at a time
    alone = asked["packing"] and (asked["parallel.context"] or 1) > 1
    page.put("micro_batch_size", 1 if alone else asked["micro_batch_size"], "micro_batch_size")
    page.put("gradient_accumulation_steps", asked["gradient_accumulation_steps"], "gradient_accumulation_steps")
    _checkpoints(page, asked)
    words.put_optimizer(page, "optimizer", asked, {name: OPTIMIZERS[name] for name in OWN_OPTIMIZERS})
    page.put("max_grad_norm", asked["max_gradient_norm"] or 0.0, "max_gradient_norm")
    _loss(page, asked)
    _tiles(page, asked)
    if asked["compile"]:
        page.put("torch_compile", True, "compile")
    if asked["from_scratch"]:
        page.put("reinit_weights", True, "from_scratch")
    if asked["adapter.kind"]:
        _adapter(page, asked)
    elif asked.trained:
        page.put("unfrozen_parameters", patterns_of(asked.trained, asked.blocks), "frozen")
    if asked["qat.weights"]:
        _rounding(page, asked)
    if asked["eval_batch_size"]:
        page.put("eval_strategy", "epoch", "eval_batch_size")  # without a set apart nothing is evaluated
        page.put("eval_batch_size", asked["eval_batch_size"], "eval_batch_size")
        page.yours("val_set_size", 0.05)
    further = _strategy(page, asked)
    _data(page, asked)
    page.yours("learning_rate", 0.00002)
    page.yours("num_epochs", 1)
    page.yours("output_dir", "out")
    launch = f"{asked.environment(hides=True)}axolotl train {page.name} {_launcher(asked)}"
    further_words = (OF_REWARDS,) if asked["loss"] == "grpo" else ()
    yield ProgramFiles((page, *further), (launch, *further_words))


def _data(page: Page, asked: Asked) -> None:
    """Examples of the form that the loss needs: answers, pairs of them, or answers with a judgement."""
    word = str(asked["loss"])
    if asked["teacher_logprobs"]:
        page.yours("datasets", [OF_A_TEACHER])
        return
    path, form = DATASETS.get(word, DATASETS["standard"])
    page.yours("datasets", [{"path": path, "type": form} if form is not None else {"path": path, "split": "train"}])
    if form is not None and form.startswith(("chat_template", "bradley_terry")):
        page.yours("chat_template", "tokenizer_default_fallback_chatml")
    if word == "kto":
        page.put("remove_unused_columns", False)  # schemas/validation.py, validate_kto_config, asks for it


def _launcher(asked: Asked) -> str:
    """Options of `axolotl train`, which starts Accelerate's launcher: of several machines it asks for an address, and
    for one GPU it makes no process group, which sharding needs.
    """
    launcher = asked.accelerate()
    if asked.nodes > 1 or launcher.startswith("torchrun"):
        return f"--launcher torchrun -- {asked.torchrun().removeprefix('torchrun ')}"
    return f"--num-processes {asked.devices}"


def patterns_of(names: Sequence[str], count: int) -> list[str]:
    """Weights as `unfrozen_parameters` names them: those of several of `count` blocks in one pattern.

    A dot means itself. Source: axolotl, utils/freeze.py, LayerNamePattern.
    """
    blocks: dict[str, list[str]] = {}
    for name in names:
        found = re.fullmatch(r"(.*\blayers\.)(\d+)(\..*)", name)
        blocks.setdefault(name if found is None else f"{found[1]}#{found[3]}", []).append(found[2] if found else "")
    return [f"^{name.replace('#', _any_of(numbers, count))}$" for name, numbers in blocks.items()]


def _any_of(numbers: Sequence[str], count: int) -> str:
    if len(numbers) == count:
        return "[0-9]+"
    return numbers[0] if len(numbers) == 1 else f"({'|'.join(numbers)})"


UNQUANTIZED_UNDER_FSDP2 = ("dpo", "kto", "orpo")
"""Losses that quantized weights do not go with there: schemas/validation.py, check_fsdp2_base_model_quant_rl."""


def _precision(page: Page, asked: Asked) -> None:
    word, half = str(asked["precision"]), asked.half
    page.put("bf16", half == "bf16", "precision", "weight_dtype")
    if word == "pure-fp16":
        page.put("float16", True, "precision", "weight_dtype")
    elif half == "fp16":
        page.put("fp16", True, "precision", "weight_dtype")
    if word.endswith("fp8"):
        page.put("fp8", True, "precision")
        page.put("bf16", True, "precision")


def _checkpoints(page: Page, asked: Asked) -> None:
    # check_mpt_checkpointing refuses it by the name of the model
    on = asked["activation_checkpointing"] != "none" and "mpt" not in asked.checkpoint.lower()
    page.put("gradient_checkpointing", on, "activation_checkpointing")
    if on:
        reentrant = bool(asked["checkpoint_reentrant"])
        page.put("gradient_checkpointing_kwargs.use_reentrant", reentrant, "checkpoint_reentrant")
    if asked.offloads("activations"):
        page.put("activation_offloading", True, "offload")


def _loss(page: Page, asked: Asked) -> None:
    word, _, chunks = str(asked["loss"]).partition(":")
    if word in ("dpo", "kto"):
        page.put("rl", word, "loss")
        if asked["dpo_reference"] == "precomputed":
            page.put("precompute_ref_log_probs", True, "dpo_reference")
    elif word in ("orpo", "simpo"):
        page.put("rl", word, "loss")
    elif word == "grpo":
        page.put("rl", word, "loss")
        # schemas/validation.py, check_grpo_batch_size_divisibility: those of one device
        put_completions(page, asked, "micro_batch_size", "trl.", devices=1)
        if asked.devices > 1:
            whole = asked["micro_batch_size"] * asked["gradient_accumulation_steps"] * asked.devices
            page.put("trl.generation_batch_size", whole, note="completions of all devices for one step")
        page.put("trl.beta", 0.04 if asked["dpo_reference"] else 0.0, "dpo_reference")
        page.yours("trl.reward_funcs", [REWARD])
    elif word == "reward":
        page.put("reward_model", True, "loss")
    elif word == "fused":
        page.put("plugins", [LIGER], "loss")
        page.put("liger_fused_linear_cross_entropy", True, "loss")
    elif word == "chunked":
        page.put("chunked_cross_entropy", True, "loss")
        page.put("chunked_cross_entropy_num_chunks", int(chunks), "loss")
    if asked["teacher_logprobs"]:
        _taught(page, asked)
    kernels = asked["liger_kernels"] or ()
    turns, _, blocks_at_a_time = str(asked["trained_blocks"]).partition(":")
    if turns == "lisa":
        page.put("lisa_n_layers", int(blocks_at_a_time), "trained_blocks")
        page.yours("lisa_step_interval", 20)
        page.yours("lisa_layers_attribute", "model.layers")
    if kernels and word != "fused":
        page.put("plugins", [LIGER, *([KD] if asked["teacher_logprobs"] else [])], "liger_kernels")
    for kernel in kernels:
        page.put(computing.LIGER[kernel][0], True, "liger_kernels")


def _taught(page: Page, asked: Asked) -> None:
    """Both losses are counted, so both have a share."""
    page.put("plugins", [KD], "teacher_logprobs")
    page.put("kd_trainer", True, "teacher_logprobs")
    page.put("kd_online_topk", int(asked["teacher_logprobs"]), "teacher_logprobs")
    page.put("kd_beta", {"forward-kl": 0.0, "reverse-kl": 1.0}.get(str(asked["distillation"]), 0.5), "distillation")
    page.yours("kd_ce_alpha", 0.1)
    page.yours("kd_alpha", 0.9)
    page.yours("kd_temperature", 1.0)


def _tiles(page: Page, asked: Asked) -> None:
    if asked["tiled_mlp"]:
        page.put("tiled_mlp", True, "tiled_mlp")
        page.put("tiled_mlp_num_shards", int(asked["tiled_mlp"]), "tiled_mlp")


def _adapter(page: Page, asked: Asked) -> None:
    quantization = asked["quantization"]
    four = str(quantization).startswith("nf4")
    page.put("adapter", "qlora" if four else "lora", "adapter.kind")
    if four:
        page.put("load_in_4bit", True, "quantization")
        if quantization == "nf4":
            page.put("bnb_config_kwargs.bnb_4bit_use_double_quant", False, "quantization")
    elif quantization == "int8":
        page.put("load_in_8bit", True, "quantization")
    elif quantization == "gptq-int4":
        page.put("gptq", True, "quantization")
    if asked["quantized_experts"]:
        page.put("quantize_moe_experts", True, "quantized_experts")
    page.put("lora_r", asked["adapter.rank"] or 8, "adapter.rank")
    page.put("lora_alpha", words.alpha(asked), "adapter.alpha")
    page.put("lora_dropout", float(asked["adapter.dropout"] or 0), "adapter.dropout")
    found = words.targets(asked)
    if found == "all-linear":
        page.put("lora_target_linear", True, "adapter.targets")
    else:
        page.put("lora_target_modules", found, "adapter.targets")
    if asked["adapter.modules_to_save"]:
        page.put("lora_modules_to_save", list(asked["adapter.modules_to_save"]), "adapter.modules_to_save")
    for word in EVERY:  # Axolotl turns them on where a file says nothing
        page.put(f"lora_{word}_kernel", word in (asked["adapter.kernels"] or ()), "adapter.kernels")
    if asked["adapter.kind"] == "dora":
        page.put("peft_use_dora", True, "adapter.kind")
    if asked.half and asked["adapter.dtype"] == asked.half and asked.zero is None:
        page.put("peft_autocast_adapter_dtype", False, "adapter.dtype")


def _rounding(page: Page, asked: Asked) -> None:
    back = {ours: theirs for theirs, ours in rounding.FORMATS.items()} | {("mxfp4", "mxfp4"): ("mxfp4", None)}
    found = back.get((asked["qat.weights"], asked["qat.activations"]))
    if found is None:
        return  # which the reader finds missing
    weights, inputs = found
    page.put("qat.weight_dtype", weights, "qat.weights")
    if inputs is not None:
        page.put("qat.activation_dtype", inputs, "qat.activations")
    if asked["qat.group_size"] is not None:
        page.put("qat.group_size", asked["qat.group_size"], "qat.group_size")
    if asked["qat.embedding"]:
        page.put("qat.quantize_embedding", True, "qat.embedding")


def _strategy(page: Page, asked: Asked) -> tuple[Page, ...]:
    """How the devices share the model, and a file of DeepSpeed's own where the schema opens one: it puts the degree of
    tensor parallelism there.
    """
    further: tuple[Page, ...] = ()
    if asked.zero is not None and (asked["parallel.tensor"] or 1) > 1:
        zero = Page("ds_config.json", JSON)
        _zero(zero, asked, "")
        page.put("deepspeed", zero.name, *words.STATES)
        further = (zero,)
    elif asked.zero is not None:
        _zero(page, asked, "deepspeed.")
    elif asked.fsdp:
        version = asked["parallel.fsdp_version"]
        if version == 2 and asked["quantization"] and asked["loss"] in UNQUANTIZED_UNDER_FSDP2:
            version = 1
        page.put("fsdp_version", version, "parallel.fsdp_version")
        if asked["parallel.limit_all_gathers"] is False:
            page.put("fsdp_config.limit_all_gathers", False, "parallel.limit_all_gathers")
        if version == 1:
            page.put("fsdp", [FSDP_WORDS[asked.kind], "auto_wrap"], *words.STATES)
        else:
            page.put("fsdp_config.reshard_after_forward", asked.kind != "fsdp-grad-op", *words.STATES)
        page.put("fsdp_config.auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
        page.put("fsdp_config.offload_params", asked.offloads("parameters"), "offload")
        page.put("fsdp_config.state_dict_type", "SHARDED_STATE_DICT")
        if asked.kind == "hsdp" and version != 1:
            shards, context = asked["parallel.shards"], asked["parallel.context"] or 1
            page.put("dp_shard_size", max(1, shards // context), *words.STATES)
            page.put("dp_replicate_size", max(1, asked["parallel.data"] * context // shards), *words.STATES)
    for key, ours in (("tensor_parallel_size", "parallel.tensor"), ("context_parallel_size", "parallel.context")):
        if (asked[ours] or 1) > 1:
            page.put(key, asked[ours], ours)
    return further


def _zero(page: Page, asked: Asked, prefix: str) -> None:
    words.put_zero(page, asked, prefix, filled=True)
    if asked.offloads("optimizer"):
        page.put(f"{prefix}zero_force_ds_cpu_optimizer", False, note="the optimizer is the Trainer's")


WRITER = Writer("axolotl", ("transformers",), write)
