"""How many devices a Megatron command has, how they share the model, and what a batch is on them.

Source: NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), megatron/training/arguments.py, validate_args;
megatron/core/num_microbatches_calculator.py.
"""

from __future__ import annotations

import re

from vramplan.configs.programs import megatron_beside as beside
from vramplan.configs.programs.megatron.asked import MegatronMeaning
from vramplan.configs.programs.megatron.options import DEVICES_OF_THE_TESTS
from vramplan.configs.sheet import Meaning, Sheet
from vramplan.configs.shell import unknowns

FSDP_STRATEGIES = {"optim_grads_params": "fsdp", "optim_grads": "fsdp-grad-op", "optim": "distributed-optimizer"}

PER_NODE = 8

OF_NODES = ("launcher.nnodes", "launcher.nodes", "launcher.num_nodes")
OF_A_NODE = ("launcher.nproc_per_node", "launcher.nproc-per-node", "launcher.num_gpus")
"""Options of launchers that say how many nodes there are, and how many GPUs each has."""
OF_ALL = "world_size"
"""All GPUs, which copies of Megatron for mpirun are told beside `--rank` and `--dist-url`."""


def batch_of(asked: MegatronMeaning) -> None:
    """Say the micro-batch and the accumulation steps."""
    sheet, meaning = asked.sheet, asked.meaning
    micro = asked.count("micro_batch_size", "micro_batch_size")
    if micro is None:
        micro = asked.count("batch_size", "micro_batch_size")
    if micro is not None:
        meaning.say("micro_batch_size", micro, "micro_batch_size")
    else:
        meaning.ask("micro_batch_size", "--micro-batch-size is missing")
    data = data_parallel(asked)
    total, of = asked.count("global_batch_size", "global_batch_size"), "global_batch_size"
    sheet.get("rampup_batch_size")
    steps = _last_of_schedule(asked)
    if steps is not None:
        total, of = steps, "step_batch_size_schedule"
    key = "gradient_accumulation_steps"
    if sheet.flag("decrease_batch_size_if_needed") and total and micro and total > micro * data:
        total -= total % (micro * data)
    if total and micro and data:
        if total % (micro * data) and supposed(asked):
            meaning.job.pop("parallel.data", None)
            meaning.ask("parallel.data", f"{total} samples are not those of {DEVICES_OF_THE_TESTS} GPUs (--gpus N)")
        elif total % (micro * data):
            asked.sheet.problem(of, f"{total} is no multiple of {micro} samples x {data} data-parallel devices")
        else:
            meaning.say(key, total // (micro * data), of, "micro_batch_size")
    elif micro and of not in sheet.written:
        meaning.say(key, 1, "global_batch_size")  # the default is one micro-batch per data-parallel device


def _last_of_schedule(asked: MegatronMeaning) -> int | None:
    """The batch that a schedule ends with, as of `0:384 200B:768`; None where there is none."""
    key = "step_batch_size_schedule"
    text = asked.sheet.text(key)
    if not text or unknowns(text):
        return None
    steps = [re.fullmatch(r"[\d.]+[KMBT]?:(\d+)", step) for step in text.split()]
    last = steps[-1]
    if last is None or not all(steps):
        asked.sheet.problem(key, f"{text!r} is not understood", "THRESHOLD:BATCH ..., as 0:384 200B:768")
        return None
    if len(steps) > 1:
        asked.meaning.note(f"{key}: the batch of a step grows to {last[1]}, which is counted")
    return int(last[1])


def supposed(asked: MegatronMeaning) -> bool:
    """Whether nobody says how many GPUs there are: Megatron's tests run on one node unless a list says so."""
    place = asked.sheet.written.get("launcher.nproc_per_node")
    return asked.sheet.devices is None and place is not None and place.file is None


def data_parallel(asked: MegatronMeaning) -> int:
    """Data-parallel devices; sizes of every kind of parallelism are said here."""
    meaning = asked.meaning
    key = "model_parallel_size" if asked.sheet.given("model_parallel_size") else "tensor_model_parallel_size"
    tensor = asked.count(key, "parallel.tensor") or 1
    asked.count("model_parallel_size")
    stages = asked.count("pipeline_model_parallel_size", "parallel.pipeline") or 1
    context = asked.count("context_parallel_size", "parallel.context") or 1
    expert = asked.count("expert_model_parallel_size", "parallel.expert") or 1
    expert = asked.count("moe_expert_parallel_size", "parallel.expert") or expert
    heads = asked.count("ds_sequence_parallel_size", "parallel.context") or 1
    if heads > 1:
        context = heads
        meaning.lack("ds_sequence_parallel_size", "Ulysses splits heads within the attention, and a ring is counted")
    for name, value, of in (
        ("parallel.tensor", tensor, key),
        ("parallel.pipeline", stages, "pipeline_model_parallel_size"),
        ("parallel.context", context, "context_parallel_size" if heads == 1 else "ds_sequence_parallel_size"),
        ("parallel.expert", expert, "expert_model_parallel_size"),
    ):
        if value > 1:
            meaning.say(name, value, of)
    if asked.sheet.flag("sequence_parallel") and tensor > 1:
        meaning.say("parallel.sequence_parallel", True, "sequence_parallel")
    schedule_of(asked, stages)
    parts = asked.sheet.text("pp_partition_method")
    if stages > 1 and parts is not None and "embedding" in parts:
        meaning.say("parallel.pipeline_split", "embedding-and-head", "pp_partition_method")
    each, world = tensor * stages * context, world_of(asked)
    sharing = context * (tensor if asked.count("expert_tensor_parallel_size") == 1 else 1)
    if world is not None and world % each == 0 and world // each >= 1:
        data = world // each
        if data * sharing % expert == 0:
            keys = tuple(key for key in (*OF_NODES, *OF_A_NODE, OF_ALL) if asked.sheet.given(key))
            meaning.say("parallel.data", data, *(keys or ("launcher.nproc_per_node",)))
            return data
    if world is not None:
        meaning.note(f"the script starts {world} GPUs, and {each * max(1, expert // sharing)} are needed")
    least = each * max(1, expert // sharing)
    many = f", and groups of {least} share a model" if least > 1 else ""
    meaning.ask("parallel.data", f"the launcher says how many GPUs there are{many} (--gpus N)")
    return max(1, expert // sharing)


def world_of(asked: MegatronMeaning) -> int | None:
    """All GPUs: what was named beside the file, or what the launcher starts."""
    if asked.sheet.devices is not None:
        return asked.sheet.devices
    world = asked.sheet.text(OF_ALL) or ""
    if world.isdigit():
        return int(world)
    nodes = None
    for key in OF_NODES:
        text = asked.sheet.text(key)
        if text and text.split(":")[0].isdigit():
            nodes = int(text.split(":")[0])
    for key in OF_A_NODE:
        text = asked.sheet.text(key)
        if text and text.isdigit():
            return int(text) * (nodes or 1)
    if nodes:
        asked.meaning.note(f"{nodes} nodes are taken to have {PER_NODE} GPUs each")
        return nodes * PER_NODE
    return None


def ends_of(sheet: Sheet, meaning: Meaning, stages: int, before: str = "") -> None:
    """Say that the embedding and the head count as a block each where stages are cut; `before`: of their keys."""
    keys = tuple(f"{before}account_for_{end}_in_pipeline_split" for end in ("embedding", "loss"))
    counted = [bool(sheet.flag(key)) for key in keys]
    if stages > 1 and all(counted):
        meaning.say("parallel.pipeline_split", "embedding-and-head", *keys)
    elif stages > 1 and any(counted):
        meaning.lack(keys[counted.index(True)], "one of both ends counts as a block, and stages are cut evenly")


GROUP = "parallel.microbatch_group_size"
GROUP_KEY = "microbatch_group_size_per_vp_stage"  # of TransformerConfig, and of what is built around it


def say_group(meaning: Meaning, group: int | None, stages: int, of: str) -> None:
    """Say how many micro-batches go through a part of an interleaved schedule in a row: by itself as many as stages."""
    if group and group != stages:
        meaning.say(GROUP, group, of)


def schedule_of(asked: MegatronMeaning, stages: int) -> None:
    """Say an interleaved schedule."""
    per_stage = asked.count("num_layers_per_virtual_pipeline_stage", "parallel.schedule")
    chunks = asked.count("num_virtual_stages_per_pipeline_rank", "parallel.schedule")
    layers = asked.count("num_layers")
    ends_of(asked.sheet, asked.meaning, stages)
    of = "num_virtual_stages_per_pipeline_rank"
    if per_stage and layers and stages > 1:
        chunks, of = layers // stages // per_stage, "num_layers_per_virtual_pipeline_stage"
    group_of = "microbatch_group_size_per_virtual_pipeline_stage"
    group = asked.count(group_of, GROUP)
    if chunks and chunks > 1 and stages > 1:
        asked.meaning.say("parallel.schedule", f"interleaved:{chunks}", of)
        say_group(asked.meaning, group, stages, group_of)


def sharding_of(asked: MegatronMeaning) -> None:
    """Say how data-parallel devices share the states, and what is on the host."""
    sheet, meaning = asked.sheet, asked.meaning
    sheet.flag("overlap_param_gather")
    sheet.flag("overlap_grad_reduce")
    strategy = sheet.text("data_parallel_sharding_strategy")
    if beside.sharding(sheet, meaning):
        pass
    elif sheet.flag("use_megatron_fsdp") and strategy in FSDP_STRATEGIES:
        meaning.say("parallel.sharding", FSDP_STRATEGIES[strategy], "data_parallel_sharding_strategy")
        meaning.lack("use_megatron_fsdp", "Megatron's FSDP is counted as that of PyTorch")
    elif sheet.flag("use_torch_fsdp2"):
        meaning.say("parallel.sharding", "fsdp", "use_torch_fsdp2")
        meaning.say("parallel.fsdp_version", 2, "use_torch_fsdp2")
    elif sheet.flag("use_distributed_optimizer"):
        meaning.say("parallel.sharding", "distributed-optimizer", "use_distributed_optimizer")
    sheet.flag("use_torch_fsdp2")
    sheet.flag("use_distributed_optimizer")
    fraction = asked.part("optimizer_offload_fraction")
    if sheet.flag("optimizer_cpu_offload"):
        meaning.say("offload", ["optimizer"], "optimizer_cpu_offload")
        if fraction != 1:
            meaning.lack("optimizer_offload_fraction", f"{fraction}, and the whole optimizer is counted on the host")
