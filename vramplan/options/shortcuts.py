"""Options that stand for others: what people type for a technique, and the options of the table that it means."""

from __future__ import annotations

from typing import NamedTuple

from vramplan.options.table import ADAPTERS, CHECKPOINTING, DEVICES, MODEL, PRECISION, TUNING

OUTPUT = "Output"


class Shortcut(NamedTuple):
    """One of them."""

    flags: tuple[str, ...]  # the first is shown
    means: tuple[str, ...]  # the words that stand in its place; {} is its value
    help: str
    panel: str
    everyday: bool = False
    metavar: str = ""  # of its value; empty where it has none
    value: str = ""  # of a value that may stand behind it: a pattern
    unless: str = ""  # the word behind it with which it says nothing


SWITCH = {"value": "true|1|yes", "unless": "false|0|no"}  # as `--fp16 True` of the Trainer's scripts
NODES = "--nodes"

SHORTCUTS = (
    Shortcut(("--lora",), ("--adapter", "lora"), "LoRA: same as --adapter lora.", ADAPTERS, True),
    Shortcut(("--qlora",), ("--adapter", "qlora"), "QLoRA: same as --adapter lora --quantization nf4.", ADAPTERS, True),
    Shortcut(("--dora", "--use-dora"), ("--adapter", "dora"), "DoRA: same as --adapter dora.", ADAPTERS),
    Shortcut(
        ("--4bit", "--load-in-4bit", "--4-bit"),
        ("--quantization", "4bit"),
        "Same as --quantization nf4.",
        ADAPTERS,
        **SWITCH,
    ),
    Shortcut(
        ("--8bit", "--load-in-8bit", "--8-bit"),
        ("--quantization", "8bit"),
        "Same as --quantization int8.",
        ADAPTERS,
        **SWITCH,
    ),
    Shortcut(("--bf16",), ("--precision", "bf16"), "Same as --precision bf16.", PRECISION, **SWITCH),
    Shortcut(("--fp16",), ("--precision", "fp16"), "Same as --precision fp16.", PRECISION, **SWITCH),
    Shortcut(("--fp32",), ("--precision", "fp32"), "Same as --precision fp32.", PRECISION, **SWITCH),
    Shortcut(
        ("--gradient-checkpointing", "--grad-checkpointing", "--use-gradient-checkpointing", "--gc"),
        ("--checkpointing", "full"),
        "Same as --checkpointing full.",
        CHECKPOINTING,
        **SWITCH,
    ),
    Shortcut(
        ("--flash-attention", "--flash-attn", "--flash-attention-2", "--use-flash-attention", "--flash"),
        ("--attention", "flash"),
        "Same as --attention flash.",
        MODEL,
        **SWITCH,
    ),
    Shortcut(
        ("--fsdp",),
        ("--sharding", "{}"),
        "FSDP: same as --sharding fsdp.",
        DEVICES,
        True,
        value=r"fsdp[12]?|full[_-]shard|shard[_-]grad[_-]op|no[_-]shard|hybrid[_-]shard",
    ),
    Shortcut(("--ddp",), ("--sharding", "ddp"), "Same as --sharding ddp.", DEVICES),
    Shortcut(
        ("--zero", "--zero-stage", "--deepspeed-stage"),
        ("--sharding", "zero{}"),
        "ZeRO stage 1, 2 or 3: same as --sharding zero3.",
        DEVICES,
        True,
        metavar="STAGE",
    ),
    *(
        Shortcut((f"--zero{stage}", f"--zero-{stage}"), ("--sharding", f"zero{stage}"), f"As --zero {stage}.", TUNING)
        for stage in (1, 2, 3)
    ),
    Shortcut(
        (NODES, "--num-nodes", "--nnodes"),
        (),
        "Nodes; --gpus are then those of one node. --nodes 2 --gpus 8 is 16 GPUs.",
        DEVICES,
        True,
        metavar="N",
    ),
    Shortcut(("--json",), ("--format", "json"), "Same as --format json.", OUTPUT, True),
    Shortcut(("--yaml",), ("--format", "yaml"), "Same as --format yaml.", OUTPUT),
)
