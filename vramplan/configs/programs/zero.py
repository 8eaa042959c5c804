"""DeepSpeed files that training files name, or have inside: what they say of the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.configs.sheet import Meaning, Sheet, Written
from vramplan.errors import Problem

SIZES = {
    "reduce_bucket_size": "reduce_bucket_size",
    "allgather_bucket_size": "allgather_bucket_size",
    "sub_group_size": "sub_group_size",
    "stage3_max_live_parameters": "stage3_max_live_parameters",
    "max_live_parameters": "stage3_max_live_parameters",
    "stage3_prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold": "stage3_param_persistence_threshold",
    "param_persistence_threshold": "stage3_param_persistence_threshold",
}
"""Sizes of `zero_optimization`, with the old names, and their keys under `parallel`."""

_TEMPLATE: dict[str, Any] = {"fp16": True, "optimizer": "adamw", "gradient_accumulation_steps": 1, "overlap_comm": True}

SHIPPED: dict[str, dict[str, Any]] = {
    # axolotl-ai-cloud/axolotl 0.18.0 (067b021c), deepspeed_configs/
    "deepspeed_configs/zero1.json": {"stage": 1, "overlap_comm": True},
    "deepspeed_configs/zero1_torch_compile.json": {"stage": 1, "overlap_comm": True, "compile": True},
    "deepspeed_configs/zero2.json": {
        "stage": 2,
        "offload_optimizer": "cpu",
        "contiguous_gradients": True,
        "overlap_comm": True,
    },
    "deepspeed_configs/zero2_torch_compile.json": {
        "stage": 2,
        "offload_optimizer": "cpu",
        "contiguous_gradients": True,
        "overlap_comm": True,
        "compile": True,
    },
    "deepspeed_configs/zero3.json": {
        "stage": 3,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 0,
        "max_live_parameters": 0,
    },
    "deepspeed_configs/zero3_bf16.json": {
        "stage": 3,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 0,
        "max_live_parameters": 0,
        "bf16": True,
    },
    "deepspeed_configs/zero3_bf16_cpuoffload_all.json": {
        "stage": 3,
        "offload_optimizer": "cpu",
        "offload_param": "cpu",
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 0,
        "max_live_parameters": 0,
        "bf16": True,
    },
    "deepspeed_configs/zero3_bf16_cpuoffload_params.json": {
        "stage": 3,
        "offload_param": "cpu",
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 0,
        "max_live_parameters": 0,
        "bf16": True,
    },
    # huggingface/accelerate 1.15.0.dev0 (16cb6eb8), examples/deepspeed_config_templates/
    "deepspeed_config_templates/zero_stage1_config.json": {
        **_TEMPLATE,
        "stage": 1,
        "contiguous_gradients": True,
        "allgather_bucket_size": 200_000_000,
    },
    "deepspeed_config_templates/zero_stage2_config.json": {
        **_TEMPLATE,
        "stage": 2,
        "contiguous_gradients": True,
        "allgather_bucket_size": 200_000_000,
    },
    "deepspeed_config_templates/zero_stage2_offload_config.json": {
        **_TEMPLATE,
        "stage": 2,
        "contiguous_gradients": True,
        "allgather_bucket_size": 200_000_000,
        "offload_optimizer": "cpu",
    },
    "deepspeed_config_templates/zero_stage3_config.json": {
        **_TEMPLATE,
        "stage": 3,
        "contiguous_gradients": True,
        "sub_group_size": 10**9,
        "stage3_max_live_parameters": 10**9,
    },
    "deepspeed_config_templates/zero_stage3_offload_config.json": {
        **_TEMPLATE,
        "stage": 3,
        "contiguous_gradients": True,
        "sub_group_size": 10**9,
        "stage3_max_live_parameters": 10**9,
        "offload_optimizer": "cpu",
        "offload_param": "cpu",
    },
    # hiyouga/LLaMA-Factory 0.9.6.dev0 (ff6d4d12), examples/deepspeed/
    "examples/deepspeed/ds_z0_config.json": {
        "stage": 0,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "allgather_bucket_size": 500_000_000,
        "reduce_bucket_size": 500_000_000,
    },
    "examples/deepspeed/ds_z2_config.json": {
        "stage": 2,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "allgather_bucket_size": 500_000_000,
        "reduce_bucket_size": 500_000_000,
    },
    "examples/deepspeed/ds_z2_autotp_config.json": {
        "stage": 2,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "autotp_size": 2,
        "allgather_bucket_size": 500_000_000,
        "reduce_bucket_size": 500_000_000,
    },
    "examples/deepspeed/ds_z2_offload_config.json": {
        "stage": 2,
        "offload_optimizer": "cpu",
        "overlap_comm": False,
        "contiguous_gradients": True,
        "allgather_bucket_size": 500_000_000,
        "reduce_bucket_size": 500_000_000,
    },
    "examples/deepspeed/ds_z3_config.json": {
        "stage": 3,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "sub_group_size": 10**9,
        "stage3_max_live_parameters": 10**9,
    },
    "examples/deepspeed/ds_z3_offload_config.json": {
        "stage": 3,
        "offload_optimizer": "cpu",
        "offload_param": "cpu",
        "overlap_comm": False,
        "contiguous_gradients": True,
        "sub_group_size": 10**9,
        "stage3_max_live_parameters": 10**9,
    },
    "examples/deepspeed/ds_z3_fp8_config.json": {
        "stage": 3,
        "offload_optimizer": "cpu",
        "overlap_comm": False,
        "contiguous_gradients": True,
        "sub_group_size": 10**9,
        "reduce_bucket_size": 12845056,
        "stage3_prefetch_bucket_size": 11560550,
        "stage3_param_persistence_threshold": 35840,
        "stage3_max_live_parameters": 10**9,
    },
}
"""DeepSpeed files that come with a program, so that a file which names one can be read without it."""


def shipped(path: str) -> dict[str, Any] | None:
    """What a file of that path says, if a program has one under that path."""
    tail = "/".join(path.replace("\\", "/").strip("./").split("/")[-3:])
    return next((facts for name, facts in SHIPPED.items() if tail == name or tail.endswith("/" + name)), None)


def facts_of(sheet: Sheet, path: str) -> dict[str, Any] | None:
    """What a DeepSpeed file of that path says: one that is there, else one that comes with a program."""
    written = sheet.opened(path)
    if written is None:
        return shipped(path)
    facts = zero_facts(nested(written))
    place = written.get("zero_optimization.stage")
    if facts["stage"] not in STAGES and place is not None:
        message, key = f"{facts['stage']!r} is no stage of ZeRO", "zero_optimization.stage"
        sheet.problems.append(Problem(message, key, "0, 1, 2 or 3", place.file, place.line, place.column))
        facts["stage"] = 0
    return facts


def inline_facts(sheet: Sheet, key: str) -> dict[str, Any] | None:
    """What a DeepSpeed configuration says that stands in the file itself, below `key`; None where none does."""
    start = key + "."
    below = {name[len(start) :]: item for name, item in sheet.written.items() if name.startswith(start)}
    sheet.under(key)
    return zero_facts(nested(below)) if below else None


def nested(written: Mapping[str, Written]) -> dict[str, Any]:
    """Settings with dotted keys as mappings within mappings."""
    result: dict[str, Any] = {}
    for key, item in written.items():
        place = result
        *above, last = key.split(".")
        for part in above:
            place = place.setdefault(part, {})
        place[last] = item.value
    return result


def zero_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """The flat facts of a DeepSpeed configuration, as `SHIPPED` has them; what is `auto` is left out."""
    zero = config.get("zero_optimization") or {}
    facts: dict[str, Any] = {"stage": zero.get("stage", 0)}
    for name in (*SIZES, "overlap_comm", "contiguous_gradients"):
        if name in zero and zero[name] != "auto":
            facts[name] = zero[name]
    for name in ("offload_optimizer", "offload_param"):
        device = zero.get(name)
        if isinstance(device, Mapping) and device.get("device") not in (None, "none", "auto"):
            facts[name] = device["device"]
    if zero.get("cpu_offload") is True:
        facts["offload_optimizer"] = "cpu"
    for name in ("bf16", "fp16"):
        half = config.get(name)
        if isinstance(half, Mapping) and isinstance(half.get("enabled"), bool):
            facts[name] = half["enabled"]
    size = (config.get("tensor_parallel") or {}).get("autotp_size")
    if isinstance(size, int) and size > 1:
        facts["autotp_size"] = size
    clipping = config.get("gradient_clipping")
    if isinstance(clipping, int | float):
        facts["gradient_clipping"] = clipping
    return facts


STAGES = (0, 1, 2, 3)
USUAL: dict[str, Any] = {
    "contiguous_gradients": True,
    "sub_group_size": 1_000_000_000,
    "stage3_max_live_parameters": 1_000_000_000,
}
"""DeepSpeed's defaults, which a file that another one names need not repeat in the job; the Trainer fills none of them.

Source: deepspeedai/DeepSpeed 0.19.8, deepspeed/runtime/zero/config.py, DeepSpeedZeroConfig.
"""


def deepspeed(meaning: Meaning, facts: Mapping[str, Any], of: str) -> int:
    """Say how a DeepSpeed file shards; the stage."""
    stage = int(facts["stage"])
    facts = {name: value for name, value in facts.items() if name not in USUAL or USUAL[name] != value}
    meaning.say("parallel.sharding", f"zero{stage}" if stage else "ddp", of)
    for name, key in SIZES.items():
        if facts.get(name) and stage:  # 0 means: none at a time, which has no word
            meaning.say(f"parallel.{key}", int(facts[name]), of)
    for name in ("overlap_comm", "contiguous_gradients"):
        if name in facts and stage:
            meaning.say(f"parallel.{name}", bool(facts[name]), of)
    offload: list[str] = []
    if facts.get("offload_optimizer"):
        offload += ["optimizer", "gradients"]
    if facts.get("offload_param"):
        offload.append("parameters")
    if offload:
        meaning.say("offload", offload, of)
    for name, key in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        if facts.get(name) == "nvme":
            meaning.say(f"parallel.offload_{key}_device", "nvme", of)
    if facts.get("autotp_size"):
        meaning.say("parallel.tensor", facts["autotp_size"], of)
    if facts.get("compile"):
        meaning.say("compile", True, of)
    return stage
