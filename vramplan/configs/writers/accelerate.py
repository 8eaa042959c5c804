"""The file of `accelerate launch --config_file`, beside the training arguments of TRL.

Source: huggingface/accelerate 1.15.0, src/accelerate/commands/config/config_args.py (ClusterConfig),
utils/dataclasses.py (FullyShardedDataParallelPlugin, DeepSpeedPlugin); docs/source/usage_guides/deepspeed.md: with
`deepspeed_config_file` the file has nothing that the DeepSpeed file says.
"""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.configs.asked import Asked, ProgramFiles, Writer
from vramplan.configs.page import JSON, Page
from vramplan.configs.programs import accelerate
from vramplan.configs.programs.accelerate import DEEPSPEED, FSDP, PARALLEL
from vramplan.configs.writers import words
from vramplan.configs.writers.arguments import page_of, task_of

KINDS = {"fsdp": "FSDP", "zero": "DEEPSPEED", "ddp": "MULTI_GPU"}
STRATEGIES = {"fsdp": "FULL_SHARD", "fsdp-grad-op": "SHARD_GRAD_OP", "hsdp": "HYBRID_SHARD"}
"""Of FSDP 1, by `programs/accelerate.py`, SHARDINGS."""


def write(asked: Asked) -> Iterator[ProgramFiles]:
    """The settings of DeepSpeed in the file itself, else in a file of their own."""
    yield _files(asked, in_file=False)
    if asked.zero is not None:
        yield _files(asked, in_file=True)


def _files(asked: Asked, *, in_file: bool) -> ProgramFiles:
    page = Page("accelerate.yaml")
    pages = [page]
    row = accelerate.strategy_of(str(asked["parallel.sharding"]))
    shares = asked.devices > 1 or asked.shards
    page.put("compute_environment", "LOCAL_MACHINE")
    page.put("distributed_type", KINDS[row] if shares else "NO", "parallel.sharding")
    word = _mixed(asked, row)
    if not in_file:
        page.put("mixed_precision", word, "precision")
    page.put("num_machines", asked.nodes)
    page.put("num_processes", asked.devices, "parallel.data")
    page.put("machine_rank", 0)
    if asked.nodes > 1:
        page.yours("main_process_ip", "HOST")
        page.yours("main_process_port", 29500)
    page.put("main_training_function", "main")
    if row == "fsdp":
        _fsdp(page, asked)
    elif row == "zero" and in_file:
        page.put(f"{DEEPSPEED}.deepspeed_config_file", "ds_config.json", *words.STATES)
        zero = Page("ds_config.json", JSON)
        words.put_zero(zero, asked, filled=True)
        pages.append(zero)
    elif row == "zero":
        _zero(page, asked)
    arguments = page_of(asked, "trl.yaml", is_trl=True)
    if word == "fp8":
        del arguments.lines["bf16"]
    pages.append(arguments)
    rank = "--machine_rank RANK " * (asked.nodes > 1)
    launcher = f"{asked.environment(hides=True)}accelerate launch {rank}--config_file {page.name}"
    launch = f"{launcher} -m trl.scripts.{task_of(asked)} --config {arguments.name}"
    return ProgramFiles(tuple(pages), (launch,))


def _mixed(asked: Asked, row: str) -> str:
    """What `mixed_precision` has for a precision, by how the devices share the model."""
    found = words.turned(accelerate.PRECISIONS[row]).get(str(asked["precision"]))
    return found or "no"


def _fsdp(page: Page, asked: Asked) -> None:
    version = asked["parallel.fsdp_version"] or 1
    page.put(f"{FSDP}.fsdp_version", version, "parallel.fsdp_version")
    page.put(f"{FSDP}.fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
    key = f"{FSDP}.fsdp_reshard_after_forward"
    if version == 1:
        page.put(key, STRATEGIES[asked.kind], *words.STATES)
    else:
        page.put(key, asked.kind != "fsdp-grad-op", *words.STATES)
    page.put(f"{FSDP}.fsdp_offload_params", asked.offloads("parameters"), "offload")
    page.put(f"{FSDP}.fsdp_state_dict_type", "SHARDED_STATE_DICT")
    sizes = {"tp": asked["parallel.tensor"] or 1, "cp": asked["parallel.context"] or 1}
    each = (asked["parallel.data"] or 1) * sizes["cp"]  # the devices of a context shard the model too, and count apart
    shards = asked["parallel.shards"] or each
    if version == 2 and (asked.kind == "hsdp" or max(sizes.values()) > 1):
        prefix = f"{PARALLEL}.{PARALLEL}_"
        page.put(f"{prefix}dp_replicate_size", max(1, each // shards), *words.STATES)
        page.put(f"{prefix}dp_shard_size", max(1, shards // sizes["cp"]), *words.STATES)
        for name, ours in (("tp", "parallel.tensor"), ("cp", "parallel.context")):
            page.put(f"{prefix}{name}_size", sizes[name], ours)


def _zero(page: Page, asked: Asked) -> None:
    page.put(f"{DEEPSPEED}.zero_stage", asked.zero, *words.STATES)
    for name, part in (("optimizer", "optimizer"), ("param", "parameters")):
        device = asked[f"parallel.offload_{part}_device"] or "cpu" if asked.offloads(part) else "none"
        page.put(f"{DEEPSPEED}.offload_{name}_device", device, "offload")
    steps = asked["gradient_accumulation_steps"]
    page.put(f"{DEEPSPEED}.gradient_accumulation_steps", steps, "gradient_accumulation_steps")
    page.put(f"{DEEPSPEED}.gradient_clipping", asked["max_gradient_norm"] or 0.0, "max_gradient_norm")
    page.put(f"{DEEPSPEED}.zero3_init_flag", asked.zero == 3)


WRITER = Writer("accelerate", ("transformers",), write)
