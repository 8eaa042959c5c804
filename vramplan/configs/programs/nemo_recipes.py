"""NeMo 2: a recipe, a Python file with `pretrain_recipe` and `finetune_recipe`, that NeMo-Run configures.

Source: NVIDIA/NeMo 2.5.0rc0 (8cfedd72), nemo/collections/llm/recipes/*.py, finetune_default.py (`SquadDataModule` with
2048 tokens), optim/adam.py (`clip_grad` 1.0, the distributed optimizer), precision/mixed_precision.py (a master copy),
nemo/collections/llm/peft/lora.py (rank 32, all four linear layers), nemo/collections/llm/gpt/model/*.py (sizes).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vramplan.configs import constructed
from vramplan.configs.constructed import CLASS, Constructed
from vramplan.configs.forms import NotConstant
from vramplan.configs.programs import nemo_library as library
from vramplan.configs.programs.megatron import hybrid
from vramplan.configs.programs.megatron.devices import GROUP_KEY, ends_of, say_group
from vramplan.configs.programs.megatron.recomputing import whole_blocks
from vramplan.configs.sheet import Meaning, Sheet
from vramplan.configs.table import names
from vramplan.configs.written import Written
from vramplan.errors import InputError, Problem

UNDERSTOOD = names(
    """
    model._class model.config._class model.version model.config.seq_length model.config.recompute_granularity
    model.config.recompute_method model.config.recompute_num_layers trainer.devices trainer.num_nodes
    trainer.plugins._class trainer.plugins.precision trainer.plugins.fp8 trainer.plugins trainer.strategy._class
    trainer.plugins.grad_reduce_in_fp32
    trainer.strategy.tensor_model_parallel_size trainer.strategy.pipeline_model_parallel_size
    trainer.strategy.virtual_pipeline_model_parallel_size
    trainer.strategy.microbatch_group_size_per_vp_stage trainer.strategy.context_parallel_size
    trainer.strategy.sequence_parallel trainer.strategy.expert_model_parallel_size data.seq_length
    data.global_batch_size data.micro_batch_size data.packed_sequence_specs._class data.packed_sequence_specs
    optim._class optim.clip_grad optim.config.clip_grad optim.config.use_distributed_optimizer peft._class peft.dim
    peft.alpha peft.dropout peft.target_modules trainer.strategy.account_for_embedding_in_pipeline_split
    trainer.strategy.account_for_loss_in_pipeline_split trainer.account_for_embedding_in_pipeline_split
    trainer.account_for_loss_in_pipeline_split trainer.strategy.expert_tensor_parallel_size
    """
)
WITHOUT_EFFECT = names(
    """
    _class 0 model.tokenizer* trainer._class trainer.callbacks trainer.limit_* trainer.strategy.ckpt_*
    model.bert_type
    trainer.fast_dev_run trainer.strategy.pipeline_dtype trainer.strategy.ddp._class
    trainer.strategy.ddp.check_for_nan_in_grad trainer.strategy.ddp.average_in_collective
    trainer.strategy.ddp.grad_reduce_in_fp32
    trainer.plugins.params_dtype trainer.plugins.pipeline_dtype trainer.plugins.autocast_enabled data._class data.*
    log.* resume.* resume optim.* tokenizer tokenizer.* log
    trainer.strategy.gradient_as_bucket_view
    model.config.init_method_std model.config.apply_rope_fusion callbacks
    """
)
UNMODELLED = {
    "trainer.strategy.ddp.*": "how gradients are reduced",
    "trainer.strategy.ddp": "how gradients are reduced",
    "trainer.strategy.*": "how devices share the work",
    "trainer.plugins.*": "element types of communication",
    "model.config.cross_entropy_*": "which kernel computes the loss",
    "model.config.*": "a model that differs from its usual sizes",
    "optim.config.use_precision_aware_optimizer": "states of the optimizer in smaller element types",
    "peft.*": "how adapters are computed",
}
DEFAULTS: dict[str, Any] = {
    "trainer.strategy.tensor_model_parallel_size": 1,
    "trainer.strategy.pipeline_model_parallel_size": 1,
    "trainer.strategy.context_parallel_size": 1,
    "trainer.strategy.expert_model_parallel_size": 1,
    "optim.clip_grad": 1.0,
    "optim.config.use_distributed_optimizer": True,
    "peft.dim": 32,
    "peft.alpha": 32,
    "peft.dropout": 0.0,
    "peft.target_modules": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],
}
FINETUNING: dict[str, Any] = {
    "data.seq_length": 2048,
    "data.global_batch_size": 128,
    "data.micro_batch_size": 1,
    "trainer.plugins._class": "bf16_mixed",
    "trainer.strategy._class": "nl.MegatronStrategy",
    "optim._class": "distributed_fused_adam_with_cosine_annealing",
}
"""What `default_finetune_recipe` has, by finetune_default.py."""

OF_TRAINER = {
    "tensor_parallelism": "strategy.tensor_model_parallel_size",
    "pipeline_parallelism": "strategy.pipeline_model_parallel_size",
    "virtual_pipeline_parallelism": "strategy.virtual_pipeline_model_parallel_size",
    "context_parallelism": "strategy.context_parallel_size",
    "expert_parallelism": "strategy.expert_model_parallel_size",
    "sequence_parallelism": "strategy.sequence_parallel",
    "pipeline_parallelism_type": "strategy.pipeline_dtype",
    "num_gpus_per_node": "devices",
    "precision": "plugins.precision",
}
"""Arguments of the functions that make a trainer, for recipes where that function stands in a file that is not here."""

KEPT = (
    "bf16_mixed",
    "fp16_mixed",
    "bf16_with_fp8_mixed",
    "fp16_with_fp8_mixed",
    "distributed_fused_adam_with_cosine_annealing",
    "pytorch_adam_with_cosine_annealing",
    "default_finetune_recipe",
    "default_log",
    "default_resume",
    "nemo_resume",
    "tensorboard_logger",
)
PRECISIONS = ("fp8", "fp8"), ("bf16", "mixed-bf16"), ("16", "mixed-fp16"), ("32", "fp32"), ("", "fp32")
"""What stands in the name of a plugin or in its `precision`, as `nemotron_h_bf16_with_fp8_current_scaling_mixed`."""
TARGETS = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
    "linear_q_proj": ("q_proj",),
    "linear_q_down_proj": ("q_a_proj",),
    "linear_q_up_proj": ("q_b_proj",),
    "linear_kv_down_proj": ("kv_a_proj_with_mqa",),
    "linear_kv_up_proj": ("kv_b_proj",),
}
SERIES = {
    "llama2": "llama-2",
    "llama3": "llama-3",
    "llama31": "llama-3.1",
    "llama32": "llama-3.2",
    "codellama": "codellama",
    "qwen2": "qwen2",
    "qwen25": "qwen2.5",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "gemma2": "gemma-2",
    "gemma3": "gemma-3",
    "mistral": "mistral",
    "mistralnemo": "mistral-nemo",
    "mixtral": "mixtral",
    "starcoder2": "starcoder2",
    "chatglm3": "chatglm3",
    "chatglm2": "chatglm2",
    "baichuan2": "baichuan2",
    "nemotron3": "nemotron-3",
    "nemotron4": "nemotron-4",
    "t5": "t5",
    "bert": "bert",
}
"""Series of models by the names of NeMo's classes and recipes, in the catalogue's words."""

NAMED = {
    "t5-220m": "t5-base",
    "megatronbertbase": "bert-base-uncased",
    "megatronbertlarge": "bert-large-uncased",
    "bert-110m": "bert-base-uncased",
    "bert-340m": "bert-large-uncased",
    "llama31nemotron70b": "llama-3.1-70b",
    "llama31nemotronnano8b": "llama-3.1-8b",
    "gptoss-20b": "gpt-oss-20b",
    "gptoss-120b": "gpt-oss-120b",
    "phi3-mini": "phi-3-mini-4k",
    "deepseekv2lite": "deepseek-v2-lite",
    "deepseekv2": "deepseek-v2-236b",
    "deepseekv3": "deepseek-v3",
    "llama4experts16": "llama-4-scout-17b-16e",
    "llama4experts128": "llama-4-maverick-17b-128e",
}
GPT = {"126M": (12, 768, 12), "5B": (24, 4096, 32), "7B": (32, 4096, 32), "20B": (44, 6144, 48), "40B": (48, 8192, 64)}
GPT |= {"175B": (96, 12288, 96)}
"""Blocks, width and heads of `GPTConfig*`, by nemo/collections/llm/gpt/model/base.py; 2048 positions."""


def from_python(
    text: str, file: str, wanted: str | None, beside: constructed.Beside
) -> tuple[dict[str, Written], str] | None:
    """The settings of one recipe of a file, and a note on the others; None where the file has none.

    Without a name `pretrain_recipe` counts, and `finetune_recipe` where it has no other.
    """
    if not (library.calls_one(text) or (re.search(r"\brun\.(Partial|Config|cli)\b", text) and "_recipe" in text)):
        return None
    module = constructed.Module(text, file, beside, KEPT)
    started = None if wanted else library.started(module)
    if started is not None:
        name, made, others = started.name, started, list[str]()
    else:
        name, made, others = constructed.chosen(module, wanted, lambda name: name in library.MAKERS)
    found = constructed.settings(made, file, _of_class)
    # an object that only an assignment to its attribute made known has no name
    found = {key: item for key, item in found.items() if item.value or not key.endswith(CLASS)}
    if made.name.rpartition(".")[2] in library.MAKERS:
        base = library.settings_of(module, made)
        if base is None and "." in made.name and not any(key.startswith(("model", "trainer")) for key in found):
            message = f"{made.name} is in a file that is not here"
            raise InputError([Problem(message, hint="give the file of that recipe", file=file, line=made.line)])
        found = _of_base(found, made, file) if base is None else library.over(base, found, made, file)
    if made.name == "default_finetune_recipe":
        inner = {key: item for key, item in found.items() if key.startswith("0.")}
        found = {key: item for key, item in found.items() if not re.match(r"\d", key)}
        found.update({f"model.{key[2:]}": item for key, item in inner.items()})
        place = Written(None, file, made.line)
        found.update({key: place._replace(value=value) for key, value in FINETUNING.items() if key not in found})
        for number, key in ((4, "trainer.num_nodes"), (5, "trainer.devices")):
            if number < len(made.positional) and not isinstance(made.positional[number], NotConstant):
                found.setdefault(key, place._replace(value=made.positional[number]))
    made_by = found.get(f"trainer.{CLASS}")
    if made_by is not None and any(f"trainer.{own}" in found for own in OF_TRAINER):
        for own, ours in OF_TRAINER.items():
            if f"trainer.{own}" in found:  # an assignment to the attribute comes after the call, and wins
                found.setdefault(f"trainer.{ours}", found[f"trainer.{own}"])
        found = {key: item for key, item in found.items() if key.removeprefix("trainer.") not in OF_TRAINER}
        found[f"trainer.strategy.{CLASS}"] = made_by
        if not any(key.startswith("trainer.plugins") for key in found):
            found[f"trainer.plugins.{CLASS}"] = made_by._replace(value="bf16_mixed")  # as all of them have it
    known = {key: item for key, item in found.items() if not isinstance(item.value, NotConstant)}
    return known, constructed.note_on(file, name, [other for other in others if other.endswith("_recipe")])


def _of_base(found: dict[str, Written], made: Constructed, file: str) -> dict[str, Written]:
    """The settings of a recipe that changes another one, whose file is not here: `llama3_70b.pretrain_recipe(...)`."""
    place = Written(None, file, made.line)
    own = {key: item for key, item in found.items() if key.partition(".")[0] in ("model", "trainer", "data", "optim")}
    own.update({key: item for key, item in found.items() if key.startswith(("peft", CLASS, "resume", "log"))})
    for argument, key in (("num_nodes", "trainer.num_nodes"), ("num_gpus_per_node", "trainer.devices")):
        if argument in found:
            own.setdefault(key, found[argument])
    if not any(key.startswith("optim") for key in own):
        own[f"optim.{CLASS}"] = place._replace(value="distributed_fused_adam_with_cosine_annealing")
    if not any(key.startswith("model") for key in own):
        own[f"model.{CLASS}"] = place._replace(value=f"{made.name.rpartition('.')[0]}.model")
    if f"trainer.strategy.{CLASS}" not in own:
        own.setdefault(f"trainer.{CLASS}", place._replace(value=f"{made.name.rpartition('.')[0]}.trainer"))
    return own


def _of_class(made: Constructed) -> Constructed:
    """`run.Config(Class, size=1)` is `Class(size=1)`."""
    if made.name in ("run.Config", "run.Partial") and made.positional:
        made = Constructed(str(made.positional[0]), made.line, made.positional[1:], made.fields)
    plugins, line = made.fields.get("plugins", (None, 0))
    if isinstance(plugins, list) and len(plugins) == 1:  # a trainer takes one, or a list
        return replace(made, fields={**made.fields, "plugins": (plugins[0], line)})
    return made


def is_recipe(keys: Mapping[str, Any]) -> bool:
    """Whether settings are a recipe's."""
    return f"trainer.strategy.{CLASS}" in keys


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of a recipe."""
    meaning.say("runtime", "megatron", "trainer.strategy._class")
    _model(sheet, meaning)
    length = sheet.count("data.seq_length") or sheet.count("model.config.seq_length")
    if length:
        meaning.say("sequence_length", length, "data.seq_length")
    else:
        meaning.ask("sequence_length", "the recipe's data has no seq_length (--seq N)")
    if sheet.count("data.seq_length_dec"):
        meaning.say("target_length", sheet.count("data.seq_length_dec"), "data.seq_length_dec")
    _devices(sheet, meaning)
    _precision(sheet, meaning)
    meaning.say("optimizer", "adam", "optim._class")
    if "distributed" in (sheet.text("optim._class") or "") and sheet.flag("optim.config.use_distributed_optimizer"):
        meaning.say("parallel.sharding", "distributed-optimizer", "optim.config.use_distributed_optimizer")
    clip = sheet.number("optim.config.clip_grad") or sheet.number("optim.clip_grad")
    meaning.say("max_gradient_norm", clip or None, "optim.clip_grad")
    granularity = sheet.text("model.config.recompute_granularity")
    each = sheet.count("model.config.recompute_num_layers") or 1
    method_key = "model.config.recompute_method"
    of = ("model.config.recompute_granularity", "model.config.recompute_num_layers")
    method = sheet.text(method_key)
    if granularity == "full":
        named = meaning.job.get("model")
        layers = sheet.layers_of(named.value) if named is not None and isinstance(named.value, str) else None
        whole_blocks(meaning, method, each, layers, *of, method_key=method_key)
    else:
        meaning.say("activation_checkpointing", "selective" if granularity == "selective" else "none", *of)
    if any(key.startswith("data.packed_sequence_specs") for key in sheet.written):
        meaning.say("packing", True, "data.packed_sequence_specs._class")
        meaning.say("attention", "flash", "data.packed_sequence_specs._class")  # it takes lengths of sequences alone
    _adapter(sheet, meaning)


def _precision(sheet: Sheet, meaning: Meaning) -> None:
    fp8 = sheet.text("trainer.plugins.fp8")
    kind = sheet.text("trainer.plugins._class") or ""
    word = "fp8" if fp8 else sheet.text("trainer.plugins.precision") or kind
    precision = next((ours for part, ours in PRECISIONS if part == word or (part and part in word)), None)
    if precision:
        meaning.say("precision", precision, "trainer.plugins._class", "trainer.plugins.precision")
        usual = precision != "mixed-fp16"
        wide = sheet.flag("trainer.plugins.grad_reduce_in_fp32", usual)
        if precision != "fp32" and wide != usual:
            meaning.say("gradient_dtype", "fp32" if wide else "bf16", "trainer.plugins.grad_reduce_in_fp32")
    else:
        meaning.ask("precision", f"{word} is made in another file (--precision NAME)")


MAMBA: dict[str, tuple[str, dict[str, int], int]] = {
    "BaseMambaConfig130M": ("M" * 24, {"hidden_size": 768, "vocabulary_size": 50277}, 1),
    "BaseMambaConfig370M": ("M" * 48, {"hidden_size": 1024, "vocabulary_size": 50277}, 1),
    "BaseMambaConfig780M": ("M" * 48, {"hidden_size": 1536, "vocabulary_size": 50277}, 1),
    "BaseMambaConfig1_3B": ("M" * 48, {"hidden_size": 2048, "vocabulary_size": 50277}, 1),
    "BaseMambaConfig2_7B": ("M" * 64, {"hidden_size": 2560, "vocabulary_size": 50277}, 1),
    "NVIDIAMambaConfig8B": ("M" * 56, {"hidden_size": 4096, "vocabulary_size": 256000, "attention_heads": 32}, 8),
    "NVIDIAMambaHybridConfig8B": (
        "M-M-M--M-M*-M-M-M-M--M*-M-M-M-M-M*--M-M-M-M-M*-M--M-M-M-",
        {"hidden_size": 4096, "vocabulary_size": 256000, "intermediate_size": 16384, "attention_heads": 32}
        | {"key_value_heads": 8},
        8,
    ),
}
"""Blocks, sizes and groups of state spaces, by nemo/collections/llm/gpt/model/ssm.py; embeddings are not tied.

The smaller ones have the tokens of EleutherAI/gpt-neox-20b, those of 8B the 256000 of nvidia/mamba2-8b-3t-4k.
"""


def _model(sheet: Sheet, meaning: Meaning) -> None:
    of = next((key for key in ("model.config._class", "model.version") if sheet.text(key)), "model._class")
    module, _, name = (sheet.text(of) or "").rpartition(".")
    if of == "model._class":  # `llama3_70b.model`, in a file that is not here
        name = module.rpartition(".")[2] if name == "model" else ""
    sized = re.fullmatch(r"GPTConfig(\w+)", name)
    if sized and sized[1] in GPT:
        layers, width, heads = GPT[sized[1]]
        shape = {"name": f"gpt3-{sized[1].lower()}", "family": "gpt2", "layers": layers, "hidden_size": width}
        shape |= {"attention_heads": heads, "intermediate_size": 4 * width, "vocabulary_size": 50257}
        meaning.say("model", {**shape, "max_positions": 2048}, of)
    elif name in MAMBA:
        _mamba(meaning, name, of)
    elif name:
        meaning.say("model", named(name), of)
    else:
        meaning.ask("model", "the recipe's model is made in another file (--model NAME)")


def _mamba(meaning: Meaning, name: str, of: str) -> None:
    """A model of state spaces, which may have no attention; its feed-forward layers are computed with GELU."""
    blocks, given, groups = MAMBA[name]
    sizes = {"intermediate_size": given["hidden_size"], "attention_heads": 1, **given}
    sizes.setdefault("key_value_heads", sizes["attention_heads"])
    sizes["head_size"] = sizes["hidden_size"] // sizes["attention_heads"]
    shape = hybrid.shape_of(blocks, {**sizes, "tied_embeddings": False}, {"groups": groups}, {})
    if hybrid.FEEDFORWARD in blocks:
        meaning.lack(of, "the activation is GELU, and a squared ReLU is counted")
    meaning.say("model", shape, of)


def named(name: str) -> str:
    """The catalogue's word for a class or a recipe, as `Llama31Config8B`, `Qwen25Config1P5B` or `qwen3_8b`."""
    series, _, size = name.partition("Config" if "Config" in name else "_")
    series, size = re.sub(r"[^a-z0-9]", "", series.lower()), size.lower()
    size = re.sub(r"_\d+k$", "", re.sub(r"(\d)p(\d)", r"\1.\2", size))  # nemotron3_22b_16k is the same model
    size = re.sub(r"^([56])00m$", r"0.\1b", size)  # Qwen's 500M and 600M are called 0.5B and 0.6B
    whole = f"{series}-{size}".rstrip("-")
    return NAMED.get(whole) or f"{SERIES.get(series, series)}-{size.replace('_', '-')}".rstrip("-")


def _devices(sheet: Sheet, meaning: Meaning) -> None:
    degrees = {}
    for ours, key in (
        ("parallel.tensor", "tensor_model_parallel_size"),
        ("parallel.pipeline", "pipeline_model_parallel_size"),
        ("parallel.context", "context_parallel_size"),
        ("parallel.expert", "expert_model_parallel_size"),
    ):
        degrees[ours] = sheet.count(f"trainer.strategy.{key}") or 1
        if degrees[ours] > 1:
            meaning.say(ours, degrees[ours], f"trainer.strategy.{key}")
    if sheet.flag("trainer.strategy.sequence_parallel") and degrees["parallel.tensor"] > 1:
        meaning.say("parallel.sequence_parallel", True, "trainer.strategy.sequence_parallel")
    for before in ("trainer.strategy.", "trainer."):
        ends_of(sheet, meaning, degrees["parallel.pipeline"], before)
    chunks = sheet.count("trainer.strategy.virtual_pipeline_model_parallel_size")
    if chunks and chunks > 1:
        key = "trainer.strategy.virtual_pipeline_model_parallel_size"
        meaning.say("parallel.schedule", f"interleaved:{chunks}", key)
        key = f"trainer.strategy.{GROUP_KEY}"
        say_group(meaning, sheet.count(key), degrees["parallel.pipeline"], key)
    each = degrees["parallel.tensor"] * degrees["parallel.pipeline"] * degrees["parallel.context"]
    nodes, of_node = sheet.count("trainer.num_nodes"), sheet.count("trainer.devices")
    world = sheet.devices or (nodes or 1) * (of_node or 0)
    data = world // each if world and world % each == 0 else 0
    whole = sheet.count("trainer.strategy.expert_tensor_parallel_size") == 1
    sharing = degrees["parallel.context"] * (degrees["parallel.tensor"] if whole else 1)
    if data and data * sharing % degrees["parallel.expert"] == 0:
        meaning.say("parallel.data", data, "trainer.devices", "trainer.num_nodes")
    else:
        least = each * max(1, degrees["parallel.expert"] // sharing)
        meaning.ask("parallel.data", f"the recipe starts {world or 'all'} GPUs, and groups of {least} (--gpus N)")
        if world:
            meaning.note(f"trainer.devices x trainer.num_nodes is {world}, and {least} GPUs are needed")
        data = max(1, degrees["parallel.expert"] // sharing)  # the fewest that experts need
    micro, total = sheet.count("data.micro_batch_size"), sheet.count("data.global_batch_size")
    if micro:
        meaning.say("micro_batch_size", micro, "data.micro_batch_size")
    if micro and total:
        if total % (micro * data):
            message = f"{total} is no multiple of {micro} samples x {data} data-parallel devices"
            sheet.problem("data.global_batch_size", message)
        else:
            meaning.say("gradient_accumulation_steps", total // (micro * data), "data.global_batch_size")


def _adapter(sheet: Sheet, meaning: Meaning) -> None:
    kind = sheet.text("peft._class")
    if not kind:
        return
    meaning.say("adapter.kind", "dora" if "dora" in kind.lower() else "lora", "peft._class")
    meaning.say("adapter.rank", sheet.count("peft.dim"), "peft.dim")
    targets: list[str] = []
    for name in sheet.texts("peft.target_modules") or []:
        if name not in TARGETS:
            sheet.problem("peft.target_modules", f"{name!r} is not understood", ", ".join(TARGETS))
        targets += TARGETS.get(name, ())
    meaning.say("adapter.targets", targets, "peft.target_modules")
    meaning.say("adapter.dropout", sheet.number("peft.dropout"), "peft.dropout")
    meaning.say("adapter.alpha", sheet.count("peft.alpha"), "peft.alpha")
