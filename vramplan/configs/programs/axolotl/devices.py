"""How the devices of an Axolotl file share the model.

Source: axolotl-ai-cloud/axolotl 0.18.0 (067b021c), src/axolotl/utils/schemas/fsdp.py, utils/distributed.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.configs.programs import trainer, zero
from vramplan.configs.sheet import Meaning, Sheet
from vramplan.errors import near_matches

SHARDINGS = {
    "FULL_SHARD": "fsdp",
    "1": "fsdp",
    "SHARD_GRAD_OP": "fsdp-grad-op",
    "2": "fsdp-grad-op",
    "NO_SHARD": "ddp",
    "3": "ddp",
    "HYBRID_SHARD": "hsdp",
    "4": "hsdp",
    "HYBRID_SHARD_ZERO2": "hsdp",
    "5": "hsdp",
}


UNQUANTIZED = ("dpo", "kto", "orpo", "ipo")
"""Losses that quantized weights do not go with under FSDP2: schemas/validation.py, check_fsdp2_base_model_quant_rl."""


def strategy(sheet: Sheet, meaning: Meaning) -> tuple[int | None, bool]:
    """The stage of ZeRO, and whether FSDP is used."""
    is_named, stage = zero.named_below(sheet, meaning, "Axolotl")
    if is_named:
        return stage, False
    below = {key.removeprefix("fsdp_") if key != "fsdp_version" else key: v for key, v in _fsdp(sheet).items()}
    options = sheet.texts("fsdp") or []
    if not below and not options:
        return None, False
    version = sheet.get("fsdp_version") or below.get("fsdp_version") or below.get("version") or 1
    strategy = str(below.get("sharding_strategy") or "")
    word = SHARDINGS.get(strategy.upper(), "fsdp")
    if not strategy:
        words = " ".join(options)
        word = "fsdp-grad-op" if "shard_grad_op" in words else "hsdp" if "hybrid" in words else "fsdp"
        word = "ddp" if "no_shard" in words else word
    if str(below.get("reshard_after_forward")).lower() == "false":
        word = "fsdp-grad-op"
    replicas = sheet.count("dp_replicate_size") or 1
    together = (sheet.count("dp_shard_size") or 1) * _context(sheet)  # the devices of a context shard the model too
    if replicas > 1 and together > 1:
        word = f"hsdp:{together}"
    elif word == "hsdp":
        word = "hsdp:8"
        meaning.note("HYBRID_SHARD shards within a node; a node of 8 GPUs is assumed")
    quantized = next((key for key in ("load_in_8bit", "load_in_4bit") if sheet.flag(key)), None)
    if int(version) == 2 and quantized and sheet.text("rl") in UNQUANTIZED:
        message = f"is on beside FSDP2 and rl: {sheet.text('rl')}, which Axolotl refuses"
        sheet.problem(quantized, message, "fsdp_version: 1, or deepspeed")
    meaning.say("parallel.sharding", word, "fsdp_config", "fsdp")
    meaning.say("parallel.fsdp_version", int(version), "fsdp_version")
    trainer.limit_of_gathers(sheet, meaning, below.get("limit_all_gathers"))
    for before in ("fsdp_config.", "fsdp_config.fsdp_"):
        trainer.wrapping(sheet, meaning, f"{before}auto_wrap_policy", f"{before}transformer_layer_cls_to_wrap")
    offload = str(below.get("offload_params")).lower() == "true" or "offload" in options
    if offload:
        meaning.say("offload", ["parameters", "gradients", "optimizer"], "fsdp_config.offload_params")
    if str(below.get("activation_checkpointing")).lower() == "true":
        meaning.say("activation_checkpointing", "full", "fsdp_config.activation_checkpointing")
    return None, True


def _fsdp(sheet: Sheet) -> dict[str, Any]:
    whole = sheet.get("fsdp_config")
    below = sheet.under("fsdp_config")
    known = {
        *("version", "fsdp_version", "activation_checkpointing", "offload_params", "sync_module_states"),
        *("cpu_ram_efficient_loading", "cpu_offload_pin_memory", "use_orig_params", "state_dict_type"),
        *("final_state_dict_type", "auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params"),
        *("reshard_after_forward", "mixed_precision_policy", "sharding_strategy", "limit_all_gathers"),
        *("backward_prefetch", "backward_prefetch_policy", "forward_prefetch", "save_optimizer_state_on_cpu"),
    }

    for key in below:
        if key.removeprefix("fsdp_") not in known and key not in known:
            sheet.problem(f"fsdp_config.{key}", "is not understood", near_matches(key, known))
    return dict(whole) if isinstance(whole, Mapping) else below


def _context(sheet: Sheet) -> int:
    """Among how many devices a sequence is split; the second key is the older one."""
    return sheet.count("context_parallel_size") or sheet.count("sequence_parallel_degree") or 1


def devices(sheet: Sheet, meaning: Meaning) -> None:
    """How many GPUs there are, where the file says it."""
    tensor = sheet.count("tensor_parallel_size")
    if tensor and tensor > 1:
        meaning.say("parallel.tensor", tensor, "tensor_parallel_size")
    context = _context(sheet)
    if context > 1:
        keys = [key for key in ("context_parallel_size", "sequence_parallel_degree") if sheet.given(key)]
        meaning.say("parallel.context", context, *keys)
    shards, replicas = sheet.count("dp_shard_size"), sheet.count("dp_replicate_size")
    world = sheet.count("world_size")
    experts = sheet.count("expert_parallel_size") or 1
    if experts > 1:  # its devices have data of their own, as those of Megatron's experts
        meaning.say("parallel.expert", experts, "expert_parallel_size")
    started, workers = trainer.devices(sheet), sheet.count("ray_num_workers", 1)
    if started:
        started = max(1, started // ((tensor or 1) * context))
    if (shards or replicas) and (shards or 0) != -1:
        told = ("dp_shard_size", "dp_replicate_size", *(("expert_parallel_size",) if experts > 1 else ()))
        meaning.say("parallel.data", (shards or 1) * (replicas or 1) * experts, *told)
    elif world:
        meaning.say("parallel.data", world, "world_size")
    elif started:
        meaning.say("parallel.data", started, *(key for key in trainer.LAUNCHED if sheet.given(key)))
    elif sheet.flag("use_ray") and workers:
        meaning.say("parallel.data", workers, "ray_num_workers")  # cli/train.py, ScalingConfig: one GPU each
    else:
        meaning.ask("parallel.data", "the number of GPUs is the launcher's (--gpus N)")
