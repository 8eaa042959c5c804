"""The v1 schema of LLaMA-Factory: other names, a global batch, plug-ins as mappings.

Source: hiyouga/LLaMA-Factory 0.9.6.dev0 (ff6d4d12), src/llamafactory/v1/config/*.py,
v1/core/{model_engine,base_trainer}.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.configs.programs import trainer, zero
from vramplan.configs.programs.llama_factory import devices, tuning
from vramplan.configs.programs.llama_factory.computing import ATTENTIONS
from vramplan.configs.programs.llama_factory.keys import TABLE
from vramplan.configs.sheet import Meaning, Sheet
from vramplan.configs.written import Written

ATTENTIONS_V1 = {**ATTENTIONS, **trainer.ATTENTIONS}


def _plugin(sheet: Sheet, key: str) -> dict[str, Any]:
    """A plug-in of v1; what it does not know stays behind, and is not understood."""
    start = key + "."
    below = {name: item.value for name, item in sheet.written.items() if name.startswith(start)}
    sheet.taken.update(name for name in below if TABLE.class_of(name) == "understood")
    whole = sheet.get(key)
    return dict(whole) if isinstance(whole, Mapping) else {name[len(start) :]: value for name, value in below.items()}


MOVED = ("cp_size", "cp_mode", "dp_size", "mp_replicate_size", "mp_shard_size")
"""Degrees that stood below `dist_config` until summer 2026, where FSDP took its precision from there too.

Source: hiyouga/LLaMA-Factory of April 2026, src/llamafactory/v1/accelerator/interface.py, DistributedInterface;
v1/plugins/trainer_plugins/distributed/fsdp2.py, FSDP2Engine (`mixed_precision`, bf16 by default; nothing reads `bf16`).
"""


def _lift(sheet: Sheet) -> bool:
    """Take degrees of a file of that time as those of today; whether it is of that time."""
    below = [name for name in MOVED if f"dist_config.{name}" in sheet.written]
    for name in below:
        sheet.written.setdefault(name, sheet.written[f"dist_config.{name}"])
    return bool(below) or "dist_config.mixed_precision" in sheet.written


def read_v1(sheet: Sheet, meaning: Meaning) -> None:
    """The v1 schema: other names, a global batch, plug-ins as mappings."""
    is_old = _lift(sheet)
    meaning.say("runtime", "transformers", "model")
    peft = sheet.written.get("peft_config", Written({})).value
    merges = sheet.given("peft_config.export_dir") or (isinstance(peft, Mapping) and bool(peft.get("export_dir")))
    if merges and not sheet.given("train_dataset"):
        message = "the file merges an adapter and trains nothing"
        sheet.refuse("peft_config.export_dir", message, "give the file of a training run")
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
        meaning.say("frozen", tuning.resolve_frozen(frozen, sheet.layers_of(sheet.text("model") or "")), "peft_config")
    quant = _plugin(sheet, "quant_config")
    if quant.get("name"):
        bits = int(quant.get("quantization_bit") or quant.get("bits") or 4)
        double = str(quant.get("double_quantization", True)).lower() != "false"
        word = "int8" if bits == 8 else "nf4-double" if double else "nf4"
        meaning.say("quantization", word, "quant_config.name")
    if is_old and kind == "fsdp2":
        sheet.get("bf16")
        half = str(dist.get("mixed_precision") or "bf16")
        meaning.say("precision", "fp32" if half == "fp32" else f"fsdp-{half}", "dist_config.mixed_precision")
        if name in ("lora", "qlora"):
            meaning.say("weight_dtype", "bf16", "model")
    else:
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
        devices.devices(sheet, meaning)


def _v1_precision(sheet: Sheet, meaning: Meaning, adapter: bool) -> None:
    sharding = meaning.job["parallel.sharding"].value if "parallel.sharding" in meaning.job else None
    if "parallel.sharding" in meaning.open:  # of a DeepSpeed file that is not here
        sharding = "ddp"
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
