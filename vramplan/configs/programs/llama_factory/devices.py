"""How the devices of a LLaMA-Factory file share the model.

Source: hiyouga/LLaMA-Factory 0.9.6.dev0 (ff6d4d12), src/llamafactory/hparams/{parser,training_args}.py; launcher.py.
Qihoo360/360-LLaMA-Factory, src/llamafactory/hparams/model_args.py (`sequence_parallel_size`: processes that share each
sample), model/model_utils/sequence_parallel.py.
"""

from __future__ import annotations

import math

from vramplan.configs.programs import trainer, zero
from vramplan.configs.programs.megatron.recomputing import whole_blocks
from vramplan.configs.sheet import Meaning, Sheet

OF_ALLOCATOR, EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"
"""What `llamafactory-cli train` sets on several GPUs, over what a script has, unless OPTIM_TORCH is 0.

Source: launcher.py, launch; since 7c61b351 of 2025-04-14, whose first release is 0.9.3.
"""


def devices(sheet: Sheet, meaning: Meaning) -> None:
    """How many GPUs there are, where the file says it."""
    shared_length = sheet.count("sequence_parallel_size")
    if shared_length and shared_length > 1:
        meaning.say("parallel.context", shared_length, "sequence_parallel_size")
        if (sheet.text("sequence_parallel_mode") or "").lower() == "ulysses":
            meaning.lack("sequence_parallel_mode", "Ulysses splits heads within the attention, and a ring is counted")
    sheet.text("sequence_parallel_mode")
    workers = sheet.count("ray_num_workers")  # one GPU each (train/tuner.py)
    started = trainer.devices(sheet) or workers
    if (started or sheet.devices or 1) > 1:
        meaning.launched("llamafactory-cli", OF_ALLOCATOR, EXPANDABLE)
    if started:
        told = [meaning.job.get(f"parallel.{name}") for name in ("tensor", "pipeline", "context")]
        shared = math.prod(one.value for one in told if one is not None)
        keys = ("ray_num_workers", *(key for key in trainer.LAUNCHED if sheet.given(key)))
        meaning.say("parallel.data", max(1, started // shared), *keys)
    else:
        meaning.ask("parallel.data", "the number of GPUs is the launcher's (--gpus N)")


def strategy(sheet: Sheet, meaning: Meaning) -> tuple[int | None, bool]:
    """The stage of ZeRO, and whether FSDP is used."""
    is_named, stage = zero.named_below(sheet, meaning, "LLaMA-Factory")
    if is_named:
        return stage, False
    options = sheet.get("fsdp")
    below = sheet.under("fsdp_config")
    sheet.text("fsdp_transformer_layer_cls_to_wrap")
    words = " ".join(options) if isinstance(options, list) else str(options or "")
    if not words or words.lower() == "false":
        return None, False
    word = "fsdp-grad-op" if "shard_grad_op" in words else "hsdp:8" if "hybrid" in words else "fsdp"
    meaning.say("parallel.sharding", word, "fsdp")
    version = below.get("fsdp_version", below.get("version"))
    if version is not None:
        meaning.say("parallel.fsdp_version", int(version), "fsdp_config")
        trainer.limit_of_gathers(sheet, meaning, below.get("limit_all_gathers"))
    if "offload" in words:
        meaning.say("offload", ["parameters", "gradients", "optimizer"], "fsdp")
    return None, True


def megatron(sheet: Sheet, meaning: Meaning) -> None:
    """The settings of Megatron-core's adapter."""
    sizes = {
        "tensor_model_parallel_size": "parallel.tensor",
        "pipeline_model_parallel_size": "parallel.pipeline",
        "context_parallel_size": "parallel.context",
        "expert_model_parallel_size": "parallel.expert",
    }
    for key, name in sizes.items():
        count = sheet.count(key)
        if count and count > 1:
            meaning.say(name, count, key)
    chunks = sheet.count("virtual_pipeline_model_parallel_size")
    if chunks and chunks > 1:
        meaning.say("parallel.schedule", f"interleaved:{chunks}", "virtual_pipeline_model_parallel_size")
    if sheet.flag("sequence_parallel") and "parallel.tensor" in meaning.job:
        meaning.say("parallel.sequence_parallel", True, "sequence_parallel")
    if sheet.flag("use_distributed_optimizer"):
        meaning.say("parallel.sharding", "distributed-optimizer", "use_distributed_optimizer")
    granularity = sheet.text("recompute_granularity")
    method, count = sheet.text("recompute_method"), sheet.count("recompute_num_layers") or 1
    if granularity == "full":
        layers = sheet.layers_of(sheet.text("model_name_or_path") or "")
        whole_blocks(meaning, method, count, layers, "recompute_granularity", method_key="recompute_method")
    else:
        word = "selective" if granularity == "selective" else "none"
        meaning.say("activation_checkpointing", word, "recompute_granularity")
    meaning.job.pop("checkpoint_reentrant", None)
    meaning.job.pop("attention", None)
    if meaning.job["precision"].value.startswith("amp-"):
        meaning.say("precision", "mixed-" + meaning.job["precision"].value[4:], "bf16", "fp16")
        meaning.job.pop("weight_dtype", None)
    bridge = (sheet.text("mixed_precision") or "").lower()  # of Megatron Bridge: bf16_mixed, bf16_with_fp8_..., fp8
    if bridge:
        half = "fp16" if bridge.startswith("fp16") else "bf16"
        meaning.say("precision", "fp8" if "fp8" in bridge else f"mixed-{half}", "mixed_precision")
