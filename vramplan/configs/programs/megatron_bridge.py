"""Megatron-Bridge: a recipe, a function of a Python file that returns a `ConfigContainer`.

Source: NVIDIA-NeMo/Megatron-Bridge 0.7.0 (067f987d), src/megatron/bridge/recipes/common.py (what a recipe begins with),
recipes/utils/{dataset_utils,optimizer_utils}.py, training/{config,mixed_precision}.py, peft/lora.py; what a model's
keys do: megatron-core, core/transformer/transformer_config.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vramplan.configs import constructed
from vramplan.configs.constructed import CLASS, Constructed
from vramplan.configs.forms import NotConstant
from vramplan.configs.programs import megatron_beside
from vramplan.configs.programs import megatron_bridge_command as command
from vramplan.configs.programs import megatron_bridge_keys as keys
from vramplan.configs.programs.megatron.computing import said
from vramplan.configs.programs.megatron.devices import GROUP_KEY, ends_of, say_group
from vramplan.configs.programs.megatron.recomputing import whole_blocks
from vramplan.configs.programs.megatron_bridge_models import model_of
from vramplan.configs.programs.nemo_recipes import TARGETS
from vramplan.configs.sheet import Meaning, Program, Sheet
from vramplan.configs.table import names
from vramplan.configs.written import Written

PRECISIONS = (
    *(("nvfp4", "fp8"), ("fp8", "fp8"), ("bf16", "mixed-bf16")),
    *(("fp16", "mixed-fp16"), ("16", "mixed-fp16"), ("fp32", "fp32"), ("32", "fp32")),
)
"""What stands in the name of a recipe of precisions; the first that fits counts."""

STRATEGIES = {"optim_grads_params": "fsdp", "optim_grads": "fsdp-grad-op", "optim": "distributed-optimizer"}
OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "sgd": "sgd", "muon": "muon", "dist_muon": "muon"}
OWN_TARGETS = {
    **{name: list(targets) for name, targets in TARGETS.items()},
    "linear_q": ["q_proj"],
    "linear_k": ["k_proj"],
    "linear_v": ["v_proj"],
    "linear_fc1_gate": ["gate_proj"],
    "linear_fc1_up": ["up_proj"],
}
"""Layers by Megatron's names; those of CanonicalLoRA are parts of them."""

DEGREES = {
    "parallel.tensor": "model.tensor_model_parallel_size",
    "parallel.pipeline": "model.pipeline_model_parallel_size",
    "parallel.context": "model.context_parallel_size",
    "parallel.expert": "model.expert_model_parallel_size",
}
LENGTHS = ("dataset.seq_length", "dataset.sequence_length", "model.seq_length")
"""Keys of the length, which have to agree: training/config.py, `ConfigContainer.validate`."""

DIFFUSION = ("Flux", "Wan")
"""How classes of models that draw images begin, and those of their data."""

DRAWN = (f"dataset.{CLASS}", f"model.{CLASS}")
PACKED = "dataset.packed_sequence_specs.packed_sequence_size"
"""The size to which samples are packed before training, as releases before 0.4 have it."""

NUMBER = "recipe.num_gpus"
"""The key of settings for the number of GPUs in the name of a recipe."""


def from_python(
    text: str, file: str, wanted: str | None, beside: constructed.Beside
) -> tuple[dict[str, Written], str] | None:
    """The settings of one recipe of a file, and a note on the others; None where the file has none."""
    if "megatron.bridge" not in text or not re.search(r"\bdef \w*config\(", text) or "ConfigContainer" not in text:
        return None
    module = constructed.Module(text, file, beside, (*keys.BASES, *keys.KEPT))
    name, made, others = constructed.chosen(module, wanted, lambda name: name.endswith("_config"))
    if made.name not in (*keys.BASES, "ConfigContainer"):
        return None
    found = constructed.settings(made, file, _shorter)
    usual = keys.BASES.get(made.name, {})
    place = Written(None, file, made.line)
    # an object that only an assignment to its attribute made known has no name
    found = {key: item for key, item in found.items() if item.value or not key.endswith(CLASS)}
    replaced = {key for key in ("dataset", "peft") if f"{key}.{CLASS}" in found or key in found}
    for key, value in usual.items():
        if key.partition(".")[0] not in replaced:
            found.setdefault(key, place._replace(value=value))
    sized = re.search(r"_(\d+)gpu(_|$)", name)
    if sized:
        found[NUMBER] = Written(int(sized[1]), file, module.functions[name].lineno)
    known = {key: item for key, item in found.items() if not isinstance(item.value, NotConstant)}
    return known, constructed.note_on(file, name, [other for other in others if other.endswith("_config")])


def _shorter(made: Constructed) -> Constructed:
    """`default_peft_config("lora", dim=8)` is `LoRA(dim=8)`, and precisions by their names are what they name."""
    short = made.name.rpartition(".")[2]
    if short == keys.OF_A_SCHEME and made.positional and isinstance(made.positional[0], str | Constructed):
        scheme = made.positional[0]
        if isinstance(scheme, Constructed):
            return scheme
        return replace(made, name=keys.SCHEMES.get(scheme.lower(), scheme), positional=[])
    if short == "get_mixed_precision_config" and made.positional:
        named = made.positional[0]
        if isinstance(named, NotConstant) and str(named).endswith(".mixed_precision"):  # that of what it begins with
            named = keys.PRECISION
        if isinstance(named, str):
            return replace(made, name=named, positional=[])
    return made


def recognise(given: Mapping[str, Any]) -> int:
    """How many keys are Megatron-Bridge's alone."""
    whole = getattr(given.get(CLASS), "value", None)
    sections = {key.partition(".")[0] for key in given}
    sizes = [key for key in OF_A_STEP if key in given]
    if whole is None and sizes and sections <= SECTIONS and len(sections & OF_ITS_OWN) > 1:
        return len(sizes) + len(sections & OF_ITS_OWN)
    return 3 * (whole in (*keys.BASES, "ConfigContainer"))


SECTIONS = names(
    """
    model train optimizer scheduler checkpoint logger dataset ddp rng dist mixed_precision peft tokenizer validation
    comm_overlap profiling ft nvrx_straggler rerun_state_machine inprocess_restart
    """
)
"""Parts of a `ConfigContainer`, which a file of YAML may change: training/utils/omegaconf_utils.py."""

OF_ITS_OWN = names("scheduler checkpoint logger ddp rng dist mixed_precision")
OF_A_STEP = ("train.train_iters", "train.micro_batch_size", "train.global_batch_size")


def read(sheet: Sheet, meaning: Meaning) -> None:
    """The job of a recipe, or of a file that changes one; what such a file leaves out is asked for."""
    changes = CLASS not in sheet.written
    _recipe(sheet, meaning)
    if not changes or sheet.refused:
        return
    for key, told in list(meaning.job.items()):
        if key not in ("runtime", "parallel.data") and not any(sheet.given(name) for name in told.of):
            del meaning.job[key]
            meaning.ask(key, "that of the recipe which the file changes")
    if "model" in meaning.open:
        meaning.open["model"] = "that of the recipe which the file changes (--model NAME)"
    if "parallel.data" in meaning.open and meaning.job.pop("gradient_accumulation_steps", None) is not None:
        total = sheet.count("train.global_batch_size")
        reason = f"train.global_batch_size {total} is shared by the GPUs of the launcher (--gpus N)"
        meaning.ask("gradient_accumulation_steps", reason)
    meaning.note("an adapter, packing and degrees of parallelism that only the recipe has are not counted")


def _recipe(sheet: Sheet, meaning: Meaning) -> None:
    meaning.say("runtime", "megatron", CLASS)
    draws = next((key for key in DRAWN if (sheet.text(key) or "").rpartition(".")[2].startswith(DIFFUSION)), None)
    if draws is not None:
        sheet.refuse(draws, "a job has no word for a model of images alone", "give a recipe that trains on texts")
        return
    model_of(sheet, meaning)
    lengths = {key: sheet.count(key) for key in LENGTHS}
    told = next((key for key, length in lengths.items() if length and sheet.given(key)), LENGTHS[0])
    if lengths[told]:
        meaning.say("sequence_length", lengths[told], told)
    else:
        meaning.ask("sequence_length", "the recipe's data has no seq_length (--seq N)")
    _devices(sheet, meaning)
    _precision(sheet, meaning)
    _optimizer(sheet, meaning)
    _checkpointing(sheet, meaning)
    flags = ("dataset.enable_offline_packing", "dataset.enable_in_batch_packing")
    packs = [key for key in flags if sheet.flag(key)] + [PACKED] * ((sheet.count(PACKED) or 0) > 0)
    if packs:
        meaning.say("packing", True, packs[0])
        meaning.say("attention", "flash", packs[0])  # it takes lengths of sequences alone
    if sheet.text("model.cuda_graph_impl") not in (None, "none"):
        meaning.lack("model.cuda_graph_impl", "CUDA graphs, with buffers of their own")
    _adapter(sheet, meaning)
    if "adapter.kind" not in meaning.job:
        megatron_beside.frozen(sheet, meaning, "model.freeze_language_model")
    sheet.get("model.freeze_language_model")


def _devices(sheet: Sheet, meaning: Meaning) -> None:
    degrees = {}
    for ours, key in DEGREES.items():
        degrees[ours] = sheet.count(key) or 1
        if degrees[ours] > 1:
            meaning.say(ours, degrees[ours], key)
    if sheet.flag("model.sequence_parallel") and degrees["parallel.tensor"] > 1:
        meaning.say("parallel.sequence_parallel", True, "model.sequence_parallel")
    ends_of(sheet, meaning, degrees["parallel.pipeline"], "model.")
    chunks = sheet.count("model.virtual_pipeline_model_parallel_size")
    if chunks and chunks > 1 and degrees["parallel.pipeline"] > 1:
        meaning.say("parallel.schedule", f"interleaved:{chunks}", "model.virtual_pipeline_model_parallel_size")
        say_group(meaning, sheet.count(f"model.{GROUP_KEY}"), degrees["parallel.pipeline"], f"model.{GROUP_KEY}")
    each = degrees["parallel.tensor"] * degrees["parallel.pipeline"] * degrees["parallel.context"]
    whole = sheet.count("model.expert_tensor_parallel_size") == 1
    sharing = degrees["parallel.context"] * (degrees["parallel.tensor"] if whole else 1)
    least = each * max(1, degrees["parallel.expert"] // sharing)
    world = sheet.devices or sheet.count(NUMBER) or 0
    sheet.count(NUMBER)
    data = world // each if world and world % each == 0 else 0
    shares = data * sharing
    if data and shares % degrees["parallel.expert"] == 0:
        meaning.say("parallel.data", data, NUMBER)
    else:
        meaning.ask(
            "parallel.data", f"the launcher says how many GPUs there are, and groups of {each} (--gpus {least})"
        )
        if world:
            meaning.note(f"{world} GPUs are meant by the name, and {least} are needed")
        data = least // each
    micro, total = sheet.count("train.micro_batch_size"), sheet.count("train.global_batch_size")
    if micro:
        meaning.say("micro_batch_size", micro, "train.micro_batch_size")
    if micro and total:
        if total % (micro * data):
            message = f"{total} is no multiple of {micro} samples x {data} data-parallel devices"
            sheet.problem("train.global_batch_size", message)
        else:
            meaning.say("gradient_accumulation_steps", total // (micro * data), "train.global_batch_size")


def _precision(sheet: Sheet, meaning: Meaning) -> None:
    name = sheet.text("mixed_precision") or sheet.text(f"mixed_precision.{CLASS}") or "bf16_mixed"
    word = "fp8" if sheet.text("mixed_precision.fp8") else name.lower()
    half = "fp16" if sheet.flag("mixed_precision.fp16") else "bf16" if sheet.flag("mixed_precision.bf16") else ""
    precision = next(
        (ours for part, ours in PRECISIONS if part in (word if word != "mixedprecisionconfig" else half)), None
    )
    of = ("mixed_precision", f"mixed_precision.{CLASS}", "mixed_precision.fp8")
    if precision is None:
        meaning.ask("precision", f"{name} is made in another file (--precision NAME)")
        return
    meaning.say("precision", precision, *of)
    wide = sheet.flag("mixed_precision.grad_reduce_in_fp32", precision != "mixed-fp16")  # which the other takes over
    usual = precision != "mixed-fp16"
    if precision != "fp32" and wide != usual:
        dtype = "fp32" if wide else "bf16"
        meaning.say("gradient_dtype", dtype, "mixed_precision.grad_reduce_in_fp32")
    if "nvfp4" in word:
        meaning.lack("mixed_precision", "products in 4 bits, and those of 8 bits are counted")


def _optimizer(sheet: Sheet, meaning: Meaning) -> None:
    name = sheet.text("optimizer.optimizer") or sheet.text(f"optimizer.{CLASS}") or "adam"
    word = next((ours for part, ours in OPTIMIZERS.items() if part == name or f"_{part}_" in name), "adam")
    said(meaning, word, "optimizer.optimizer")
    shares = bool(sheet.flag("optimizer.use_distributed_optimizer", word != "muon"))
    shares = bool(sheet.flag("ddp.use_distributed_optimizer")) or shares  # one of the two turns the other on
    strategy = sheet.text("ddp.data_parallel_sharding_strategy") or "no_shard"
    if sheet.flag("ddp.use_megatron_fsdp") and strategy in STRATEGIES:
        of = ("ddp.use_megatron_fsdp", "ddp.data_parallel_sharding_strategy")
        meaning.say("parallel.sharding", STRATEGIES[strategy], *of)
    elif shares:
        meaning.say("parallel.sharding", "distributed-optimizer", "ddp.use_distributed_optimizer")
    clip = sheet.number("optimizer.clip_grad", 1.0)
    meaning.say("max_gradient_norm", clip or None, "optimizer.clip_grad")


def _checkpointing(sheet: Sheet, meaning: Meaning) -> None:
    granularity = sheet.text("model.recompute_granularity")
    each, method = sheet.count("model.recompute_num_layers") or 1, sheet.text("model.recompute_method")
    modules = sheet.texts("model.recompute_modules") or ["core_attn"]
    of = ("model.recompute_granularity", "model.recompute_num_layers")
    if granularity == "full":
        layers = sheet.count("model.num_layers")
        whole_blocks(meaning, method, each, layers, *of, method_key="model.recompute_method")
    elif granularity == "selective":
        word = "selective" if "core_attn" in modules else "none"
        meaning.say("activation_checkpointing", word, of[0], "model.recompute_modules")
        more = [name for name in modules if name != "core_attn"]
        if more:
            meaning.lack("model.recompute_modules", f"{', '.join(more)} recomputed, and counted as kept")
    elif granularity is None:
        meaning.say("activation_checkpointing", "none", of[0])
    else:
        sheet.problem(of[0], f"{granularity!r} is not understood", "full, selective or None")


def _adapter(sheet: Sheet, meaning: Meaning) -> None:
    kind = (sheet.text(f"peft.{CLASS}") or sheet.text("peft") or "").rpartition(".")[2]
    if not kind or (kind == keys.OF_A_SCHEME and not sheet.given("peft.0")):
        return
    if kind == keys.OF_PARTS and sheet.flag("peft.freeze_language_model") is not False:
        kind = "LoRA"
    if kind not in keys.SCHEMES.values():
        sheet.problem(f"peft.{CLASS}", f"{kind!r} is not understood", ", ".join(keys.SCHEMES.values()))
        return
    meaning.say("adapter.kind", "dora" if kind == "DoRA" else "lora", f"peft.{CLASS}")
    meaning.say("adapter.rank", sheet.count("peft.dim"), "peft.dim")
    targets: list[str] = []
    for name in sheet.texts("peft.target_modules") or []:
        last = name.rpartition(".")[2]
        if last not in OWN_TARGETS:
            meaning.lack("peft.target_modules", f"{name}, and no adapter on it is counted")
        targets += OWN_TARGETS.get(last, [])
    meaning.say("adapter.targets", list(dict.fromkeys(targets)), "peft.target_modules")
    meaning.say("adapter.dropout", sheet.number("peft.dropout"), "peft.dropout")
    meaning.say("adapter.alpha", sheet.count("peft.alpha"), "peft.alpha")


PROGRAM = Program("megatron-bridge", keys.RELEASES, keys.TABLE, read, recognise, started=command.started)
