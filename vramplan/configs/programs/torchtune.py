"""torchtune: one YAML file for `tune run RECIPE --config FILE`.

Source: pytorch/torchtune main after 0.6.1 (bd2a0fc7), recipes/*.py (which keys a recipe reads and their defaults),
torchtune/models/*/_model_builders.py (models and the defaults of their adapters), torchtune/modules/loss/,
torchtune/_cli/run.py and config/_utils.py (`key=value`, `~key`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vramplan.configs.command import Words, assigned, option, processes, starts_with
from vramplan.configs.programs import sampling, torchtune_images, trainer
from vramplan.configs.programs.torchtune_keys import (
    COMPONENTS,
    DASHED,
    DIVERGENCES,
    DTYPES,
    GROUP,
    LOSSES,
    MLP,
    MODELS,
    NAME,
    OPTIMIZERS,
    PROJECTIONS,
    QUANTIZERS,
    RELEASES,
    SIZES,
    UNDERSTOOD,
    UNITS,
    UNMODELLED,
    WITHOUT_EFFECT,
)
from vramplan.configs.sheet import Launched, Meaning, Program, Sheet
from vramplan.configs.shell import Script
from vramplan.configs.table import Table
from vramplan.configs.written import Written
from vramplan.options.words import LOOPS_ALONE
from vramplan.replay.models.parts import own_units
from vramplan.replay.sharding import OWN_UNITS

SERVING = ("tasks", "max_new_tokens", "enable_kv_cache", "quantizer", "quantizer._component_")
"""Keys of the recipes generate, eleuther_eval and quantize; those that train with a quantizer have an optimizer."""
TRAINING_FILE = "give the file of a training run"

_RECIPE = re.compile(r"\b(\w*_(?:single_device|distributed|fsdp2)|\w*_distributed_\w+)\b")
_RUN = re.compile(r"\btune\s+run\s+(?:--[\w-]+(?:=|\s+)\d+\s+)*(?P<recipe>[\w./-]+)")
"""A comment that says how the file is run; the names of other files around it say nothing of its recipe."""

OF_MANY = ("distributed", "fsdp2")
"""How the names of recipes for several devices end; fsdp2 is that of recipes/dev before release 0.3."""


VISION = "llama3_2_vision"  # in the names of the builders of models that look at images


def recognise(keys: Mapping[str, Any]) -> int:
    """How many keys are torchtune's alone."""
    own = ("model._component_", "optimizer._component_", "loss._component_", "tokenizer._component_")
    return sum(name in keys for name in (*own, "checkpointer._component_", "metric_logger._component_"))


def shape_name(component: str) -> str:
    """The name of a model from its builder: `torchtune.models.llama3_1.lora_llama3_1_8b` is `llama-3.1-8b`."""
    builder = re.sub(r"^(q?lora)_", "", component.rsplit(".", 1)[-1])
    if builder in MODELS:
        return MODELS[builder]
    matched = NAME.fullmatch(builder)
    if matched is None:
        return builder.replace("_", "-")
    family = matched["llama"] or matched["qwen"] or matched["other"]
    version = (matched["llama_version"] or matched["qwen_version"] or matched["other_version"] or "").replace("_", ".")
    size = matched["size"]
    dash = "-" if version and family in DASHED else ""
    return f"{family}{dash}{version}-{size.replace('_', '.')}{matched['rest'].replace('_', '-')}"


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of a torchtune file."""
    meaning.say("runtime", "torchtune", "model._component_")
    if not sheet.given("optimizer._component_") and any(sheet.given(key) for key in SERVING):
        key = next(key for key in SERVING if sheet.given(key))
        sheet.refuse(key, "the file is for generation, evaluation or quantization and trains nothing", TRAINING_FILE)
    key = "model._component_" if sheet.given("model._component_") else "policy_model._component_"
    builder = sheet.text(key) or ""
    part = key.partition(".")[0]
    sizes = {ours: sheet.count(f"{part}.{theirs}") for theirs, ours in SIZES.items()}
    family = COMPONENTS.get(re.sub(r"^lora_", "", builder.rsplit(".", 1)[-1]).removesuffix("_classifier"))
    if family and sizes["layers"] and sizes["hidden_size"] and sizes["attention_heads"]:
        meaning.say("model", _built(sheet, family, sizes, part), key, f"{part}.num_layers", f"{part}.embed_dim")
    elif builder:
        meaning.say("model", shape_name(builder), key)
    else:
        meaning.ask("model", "the file has no model._component_")
    _length(sheet, meaning)
    _batch(sheet, meaning)
    steps = "gradient_accumulation_steps"
    meaning.say(steps, sheet.count(steps), steps)
    precision = sheet.word("dtype", DTYPES, "bf16")
    if precision:
        meaning.say("precision", precision, "dtype")
    if sheet.flag("enable_fp8_training"):
        meaning.say("precision", "fp8", "enable_fp8_training")
    _optimizer(sheet, meaning)
    norm = sheet.number("clip_grad_norm")
    if norm:
        meaning.say("max_gradient_norm", norm, "clip_grad_norm")
    _checkpointing(sheet, meaning)
    adapter = _adapter(sheet, meaning, builder)
    if VISION in builder:
        torchtune_images.trained(sheet, meaning, shape_name(builder), adapter)
    _rounding(sheet, meaning)
    _loss(sheet, meaning, adapter)
    _teacher(sheet, meaning)
    if str(sheet.get("compile")).lower() == "true" or sheet.under("compile"):
        meaning.say("compile", True, "compile")
    if sheet.flag("dataset.packed"):
        meaning.say("packing", True, "dataset.packed")
    if sheet.flag("enable_expandable_segments"):
        meaning.say("allocator", "expandable_segments:True", "enable_expandable_segments")
    _devices(sheet, meaning)


def _samples(sheet: Sheet) -> bool:
    """Whether the recipe trains on answers that it samples, those of GRPO or PPO."""
    return any(word in (sheet.text("loss._component_") or "").lower() for word in ("grpo", "ppo"))


def _length(sheet: Sheet, meaning: Meaning) -> None:
    """Say how long samples are; behind a prompt stands the answer that is sampled."""
    key, own = "tokenizer.max_seq_len", "dataset.max_seq_len"  # which datasets had in the releases up to 0.2.1
    length, of_data = sheet.count(key), sheet.count(own)
    if length is None and of_data:
        key, length = own, of_data
    places = ("max_generated_tokens", "inference.max_generated_tokens")
    found = {place: sheet.count(place) for place in places}
    answer = next((place for place in places if found[place]), None) if _samples(sheet) else None
    more = (found[answer] or 0) if answer else 0
    if length:
        meaning.say("sequence_length", length + more, key, *([answer] if answer else []))
    else:
        behind = f", with {more} tokens of its answer" if more else ""
        meaning.ask("sequence_length", f"{key} is null: the longest sample decides{behind} (--seq N)")


def _batch(sheet: Sheet, meaning: Meaning) -> None:
    """Say how many sequences run together.

    GRPO's recipe runs all answers of a batch at once, and PPO's the parts of `ppo_batch_size` between which gradients
    are summed. Source: recipes/dev/grpo_full_finetune_distributed.py, grpo_step; ppo_full_finetune_single_device.py,
    _ppo_backward_batch_size.
    """
    batch, answers, whole = (sheet.count(key) for key in ("batch_size", "grpo_samples", "ppo_batch_size"))
    if whole and _samples(sheet):
        steps = "gradient_accumulation_steps"
        meaning.say("micro_batch_size", max(1, whole // (sheet.count(steps) or 1)), "ppo_batch_size", steps)
    elif batch is None:
        meaning.ask("micro_batch_size", "the file has no batch_size")
    elif answers and _samples(sheet):
        meaning.say("micro_batch_size", batch * answers, "batch_size", "grpo_samples")
    else:
        meaning.say("micro_batch_size", batch, "batch_size")


def _built(sheet: Sheet, family: str, sizes: dict[str, Any], part: str) -> Any:
    """A model of which the file gives the sizes: the name of one with them, or the sizes."""
    width = sizes["hidden_size"]
    if sizes["intermediate_size"] is None:
        sizes["intermediate_size"] = -(-4 * int(2 * width / 3) // 256) * 256  # scale_hidden_dim_for_mlp
    known = {name: value for name, value in sizes.items() if value is not None}
    tied = bool(sheet.flag(f"{part}.tie_word_embeddings")) or "llama3_2" in str(sheet.get(f"{part}._component_"))
    named = sheet.shape_named({"family": family, **known})
    billions = 12 * known["layers"] * width * width / 1e9
    return named or {"name": f"{family}-{billions:.1f}b", "family": family, **known, "tied_embeddings": tied}


def _optimizer(sheet: Sheet, meaning: Meaning) -> None:
    key = "optimizer._component_"
    name = sheet.text(key)
    if name is None:
        return
    word = sheet.word(key, OPTIMIZERS)
    if word is None:
        return
    if word == "sgd" and sheet.number("optimizer.momentum"):
        word = "sgd-momentum"
    meaning.say("optimizer", word, key)
    fused = sheet.flag("optimizer.fused")
    if name.startswith("torch.") and not fused:
        foreach = sheet.flag("optimizer.foreach", True)
        word = "foreach" if foreach else "for-loop"
        meaning.say("optimizer_implementation", word, "optimizer.fused", "optimizer.foreach")
    elif word not in LOOPS_ALONE:
        meaning.say("optimizer_implementation", "fused", "optimizer.fused")
    if name.startswith("torchao."):
        meaning.lack(key, f"the states of {name} are counted as {meaning.job['optimizer'].value}")
    if sheet.flag("optimizer_in_bwd"):
        meaning.say("optimizer_in_backward", True, "optimizer_in_bwd")


def _checkpointing(sheet: Sheet, meaning: Meaning) -> None:
    key = "enable_activation_checkpointing"
    word = "full" if sheet.flag(key) else "none"
    mode, option = sheet.text("ac_mode"), sheet.text("ac_option")
    recipe = _recipe(sheet)
    if mode and "single_device" not in recipe:  # full_finetune_distributed.py: of the two settings one alone acts
        how = "selective-op" if option == "op" else f"selective-layer:{option or 1}"
        own = "none" if word == "full" else "full" if mode == "full" else how
        meaning.say("activation_checkpointing", own, "ac_mode", "ac_option", key)
    else:
        meaning.say("activation_checkpointing", word, key)
    if sheet.flag("enable_activation_offloading"):
        meaning.say("offload", ["activations"], "enable_activation_offloading")


def _adapter(sheet: Sheet, meaning: Meaning, builder: str) -> bool:
    last = builder.rsplit(".", 1)[-1]
    if not last.startswith(("lora_", "qlora_")):
        return False
    targets = [PROJECTIONS.get(name, name) for name in sheet.texts("model.lora_attn_modules") or []]
    if sheet.flag("model.apply_lora_to_mlp"):
        targets += (*MLP, *torchtune_images.ENCODER_MLP) if VISION in builder else MLP
    if sheet.flag("model.apply_lora_to_output"):
        meaning.lack("model.apply_lora_to_output", "an adapter of the head, and that of the other layers is counted")
    dora = sheet.flag("model.use_dora")
    meaning.say("adapter.kind", "dora" if dora else "lora", "model.use_dora" if dora else "model._component_")
    meaning.say("adapter.rank", sheet.count("model.lora_rank"), "model.lora_rank")
    meaning.say("adapter.targets", targets, "model.lora_attn_modules", "model.apply_lora_to_mlp")
    meaning.say("adapter.dropout", sheet.number("model.lora_dropout"), "model.lora_dropout")
    meaning.say("adapter.alpha", sheet.count("model.lora_alpha"), "model.lora_alpha")
    if last.startswith("qlora_") or sheet.flag("model.quantize_base"):
        meaning.say("quantization", "nf4", "model._component_", "model.quantize_base")
    return True


def _rounding(sheet: Sheet, meaning: Meaning) -> None:
    """A quantizer in a file that trains: quantization-aware training.

    Source: torchtune/training/quantization.py; torchao, quantization/qat/linear.py (the groups that are usual).
    """
    key, after = "quantizer._component_", "fake_quant_after_n_steps"
    steps = sheet.count(after)
    name = sheet.text(key)
    if name is None:
        return
    found = QUANTIZERS.get(name.rsplit(".", 1)[-1].removesuffix("ModuleSwap"))
    if found is None:
        sheet.problem(key, f"{name} is no quantizer that trains", "known: " + ", ".join(QUANTIZERS))
        return
    weights, inputs = found
    meaning.say("qat.weights", weights, key)
    if inputs is not None:
        meaning.say("qat.activations", inputs, key)
    meaning.say("qat.group_size", sheet.count("quantizer.groupsize", GROUP), "quantizer.groupsize")
    if steps:
        meaning.note(f"{after}: nothing is rounded before step {steps}, and the answer is of the steps after it")


def _loss(sheet: Sheet, meaning: Meaning, adapter: bool) -> None:
    key = "loss._component_"
    name = sheet.text(key)
    if name is None:
        return
    if "grpo" in name.lower():  # the asynchronous recipe has the reference model on other GPUs
        sampling.ask_loss(meaning, "GRPO", more="" if sheet.given(LEARNERS) else "the reference model")
        return
    if not name.startswith(("torchtune.", "torch.")):
        what = "a loss of somebody's own: what it needs beside the logits is not counted"
        meaning.ask("loss", f"{name} is {what} (--loss standard)")
        for own in [one for one in sheet.written if one.startswith("loss.") and PROGRAM.table.class_of(one) is None]:
            sheet.taken.add(own)
            meaning.lack(own, what)
        return
    word = sheet.word(key, LOSSES)
    if word == "ppo":
        sampling.ask_loss(meaning, "PPO", more="its reference, value and reward models")
        return
    if word == "chunked":
        chunks = sheet.count("loss.num_output_chunks")
        meaning.say("loss", f"chunked:{chunks}", key, "loss.num_output_chunks")
    elif word == "dpo":
        meaning.say("loss", "dpo", key)
        meaning.say("dpo_reference", "adapter-off" if adapter else "model", key)
    elif word:
        meaning.say("loss", word, key)


def _teacher(sheet: Sheet, meaning: Meaning) -> None:
    """The teacher of a distillation, and how the student is compared with it."""
    key, loss = "teacher_model._component_", "kd_loss._component_"
    builder = sheet.text(key)
    divergence = (sheet.text(loss) or "").rsplit(".", 1)[-1]
    sheet.count("kd_loss.num_output_chunks")  # that of the loss, or the recipe stops
    if builder is None:
        return
    meaning.say("teacher", shape_name(builder), key)
    if divergence in DIVERGENCES:
        meaning.say("distillation", DIVERGENCES[divergence], loss)
    elif divergence:
        sheet.problem(loss, f"{divergence} is not understood", ", ".join(DIVERGENCES))


def _recipe(sheet: Sheet) -> str:
    """The recipe that comments of the file name: of the command that runs it, else the first of such a name."""
    runs = [found["recipe"] for found in _RUN.finditer(sheet.source) if _RECIPE.search(found["recipe"])]
    return next((found[1] for text in (*runs, sheet.source) for found in _RECIPE.finditer(text)), "")


def _devices(sheet: Sheet, meaning: Meaning) -> None:
    recipe = _recipe(sheet)
    tensor = sheet.count("tensor_parallel_dim") or 1
    sheet.text("tensor_parallel_plan._component_")
    context = sheet.count("context_parallel_dim") or 1
    shards, replicas = sheet.count("data_parallel_shard_dim"), sheet.count("data_parallel_replicate_dim") or 1
    only_distributed = ("fsdp_cpu_offload", "fsdp.cpu_offload", "custom_sharded_layers", "fsdp_reshard_after_forward")
    distributed = (
        any(word in recipe for word in OF_MANY)
        or sheet.given(LEARNERS)
        or tensor > 1
        or any(sheet.given(key) for key in only_distributed)
    )
    trainer.renamed(sheet, {"cpu_offload": "fsdp_cpu_offload"})  # of March 2024
    offload = sheet.flag("fsdp_cpu_offload") or sheet.flag("fsdp.cpu_offload")
    whole = sheet.flag("fsdp_reshard_after_forward")
    if not distributed:
        if "single_device" not in recipe:
            meaning.ask("parallel.data", "the recipe says how many GPUs there are (--gpus N)")
        return
    if tensor > 1:
        meaning.say("parallel.tensor", tensor, "tensor_parallel_dim")
    if tensor > 1 and context == 1 and sheet.devices == tensor:
        # parallel_dims.dp_shard_enabled is false, and no recipe shards
        meaning.say("parallel.sharding", "none", "tensor_parallel_dim", "the launcher")
        meaning.say("parallel.data", 1, "the launcher")
        sheet.texts("custom_sharded_layers")
        return
    word = "fsdp" if whole else "fsdp-grad-op"
    if replicas > 1 and shards and shards > 0:
        word = f"hsdp:{shards}"
        meaning.say("parallel.data", shards * replicas, "data_parallel_shard_dim", "data_parallel_replicate_dim")
    elif shards and shards > 0:
        meaning.say("parallel.data", shards, "data_parallel_shard_dim")
    meaning.say("parallel.sharding", word, "the recipe")
    meaning.say("parallel.fsdp_version", 2, "the recipe")
    _units(sheet, meaning)
    if context > 1:
        meaning.say("parallel.context", context, "context_parallel_dim")
    if offload:
        before = meaning.job["offload"].value if "offload" in meaning.job else []
        meaning.say("offload", ["parameters", "gradients", "optimizer", *before], "fsdp_cpu_offload")
    if recipe:
        meaning.note(f"the comment of the file names the recipe {recipe}")
    learners = sheet.count(LEARNERS)
    if learners:
        meaning.say("parallel.data", learners, LEARNERS)
    if sheet.devices and sheet.devices % (tensor * context) == 0 and "parallel.data" not in meaning.job:
        meaning.say("parallel.data", sheet.devices // (tensor * context), "the launcher")
    elif "parallel.data" not in meaning.job:
        meaning.ask("parallel.data", "the number of GPUs is the launcher's (--gpus N)")


def _units(sheet: Sheet, meaning: Meaning) -> None:
    key = "custom_sharded_layers"
    apart = sheet.texts(key)
    if not apart:
        return
    word = UNITS.get(tuple(sorted({one.removeprefix("decoder.") for one in apart})))
    if word is None:
        meaning.note(
            f"{key}: a job has units of the embedding and the head alone; the others are counted with the rest"
        )
    elif not _has_units(sheet, meaning, word):
        meaning.lack(key, "units of the embedding or the head, which are counted with those of the blocks' rest")
    else:
        meaning.say("parallel.fsdp_units", word, key)


def _has_units(sheet: Sheet, meaning: Meaning, word: str) -> bool:
    """Whether the code that is replayed has the ends of the model as units."""
    model = meaning.job["model"].value if "model" in meaning.job else None
    shape = sheet.shape_of(model) if isinstance(model, str) else None
    return shape is None or set(OWN_UNITS[word][0]) <= set(own_units(shape.family))


LEARNERS = "orchestration.num_training_workers"
WITHIN = "training."


def prepared(written: dict[str, Written]) -> dict[str, Written]:
    """The settings of the workers that train where other recipes have them, at the top of the file.

    Source: recipes/dev/async_grpo_full_finetune_distributed.py.
    """
    if LEARNERS not in written:
        return written
    return {key.removeprefix(WITHIN): item for key, item in written.items()}


RECIPE = re.compile(r"(^|/)recipes/[\w/]+\.py$")
"""A recipe of a copy of torchtune that Python or torchrun starts."""


def started(words: Words, script: Script, file: str) -> Launched | None:
    """What a command starts with this program; None where it is another."""
    config = option(words, "--config", file)
    its_command = starts_with(words, "tune", "run") or any(word.text == "torchtune._cli.tune" for word in words)
    by_hand = any(RECIPE.search(word.text) for word in words) and config is not None and "yaml" in str(config.value)
    if config is None or not (its_command or by_hand):
        return None
    return Launched(config, assigned(words, file), processes(words))


PROGRAM = Program(
    "torchtune",
    RELEASES,
    Table(UNDERSTOOD, WITHOUT_EFFECT, UNMODELLED, is_extended=True, passes_over=True),
    read,
    recognise,
    started=started,
    prepared=prepared,
    copies="tune cp {} own.yaml",
)
