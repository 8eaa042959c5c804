"""Options that stand for others: what people type for a technique, and the options of the table that it means."""

from __future__ import annotations

from vramplan.options.table.sections import ADAPTERS, CHECKPOINTING, DEVICES, MODEL, PRECISION, TUNING
from vramplan.options.words import LIGER_KERNELS
from vramplan.tuples import NamedTuple

OUTPUT = "Output"


class Shortcut(NamedTuple):
    """One of them."""

    flags: tuple[str, ...]  # the first is shown
    means: tuple[str, ...]  # the words that stand in its place; {} is its value
    help: str
    panel: str
    everyday: bool = False
    metavar: str = ""  # of its value; empty where it has none
    value: str = ""  # of a value that may stand behind it, or with a `metavar` has to: a pattern
    unless: str = ""  # the words behind it that deny it: a pattern
    denied: tuple[str, ...] = ()  # the words that stand in its place then, where nothing else decides; () is nothing
    is_weak: bool = False  # it says nothing where the same is said otherwise


NODES = "--nodes"


def _switch(
    flags: tuple[str, ...], means: tuple[str, ...], panel: str, *, denied: tuple[str, ...] = (), value: str = ""
) -> Shortcut:
    """One that may have a truth value behind it, as `--fp16 True` of the Trainer's scripts."""
    help = f"Same as {' '.join(means)}."
    yes = f"true|1|yes|on|{value}" if value else "true|1|yes|on"
    return Shortcut(flags, means, help, panel, value=yes, unless="false|0|no|off|none", denied=denied)


OF_FORMAT = (
    Shortcut(("--json",), ("--format", "json"), "Same as --format json.", OUTPUT),
    Shortcut(("--yaml",), ("--format", "yaml"), "Same as --format yaml.", OUTPUT),
    Shortcut(("--csv",), ("--format", "csv"), "Same as --format csv.", OUTPUT),
    Shortcut(("--markdown", "--md"), ("--format", "markdown"), "Same as --format markdown.", OUTPUT),
)
FORMATS = {flag: one.means for one in OF_FORMAT for flag in one.flags}

SHORTCUTS = (
    Shortcut(("--lora", "--use-lora"), ("--adapter", "lora"), "LoRA: same as --adapter lora.", ADAPTERS, True),
    Shortcut(
        ("--qlora", "--use-qlora"),
        ("--adapter", "qlora"),
        "QLoRA: same as --adapter lora --quantization nf4.",
        ADAPTERS,
        True,
    ),
    _switch(("--use-peft", "--peft"), ("--adapter", "lora"), ADAPTERS),
    _switch(("--dora", "--use-dora"), ("--adapter", "dora"), ADAPTERS),
    _switch(("--4bit", "--load-in-4bit", "--4-bit", "--q4", "--use-4bit"), ("--quantization", "4bit"), ADAPTERS),
    _switch(
        ("--bnb-4bit-use-double-quant", "--double-quant", "--use-double-quant", "--double-quantization"),
        ("--quantization", "nf4-double"),
        ADAPTERS,
    ),
    Shortcut(
        ("--bnb-4bit-compute-dtype",),
        ("--precision", "{}"),
        "Same as --precision bf16, where no option says the precision: what quantized layers compute in.",
        ADAPTERS,
        metavar="DTYPE",
        value=r"(torch\.)?(bf16|bfloat16|fp16|float16|half)",
        is_weak=True,
    ),
    _switch(("--8bit", "--load-in-8bit", "--8-bit", "--q8"), ("--quantization", "8bit"), ADAPTERS),
    _switch(("--bf16", "--bfloat16"), ("--precision", "bf16"), PRECISION, denied=("--precision", "fp32")),
    _switch(("--fp16", "--float16", "--half"), ("--precision", "fp16"), PRECISION, denied=("--precision", "fp32")),
    _switch(("--fp32", "--float32"), ("--precision", "fp32"), PRECISION),
    _switch(("--fp8", "--float8", "--enable-fp8"), ("--precision", "fp8"), PRECISION),
    _switch(
        (
            *("--gradient-checkpointing", "--grad-checkpointing", "--use-gradient-checkpointing", "--grad-ckpt"),
            *(
                "--gc",
                "--remat",
                "--enable-activation-checkpointing",
                "--grad-chckpt",
                "--enable-gradient-checkpointing",
            ),
        ),
        ("--checkpointing", "full"),
        CHECKPOINTING,
        denied=("--checkpointing", "none"),
        value="full",
    ),
    _switch(("--recompute-activations",), ("--checkpointing", "selective"), CHECKPOINTING),
    Shortcut(
        ("--no-gradient-checkpointing", "--no-grad-checkpointing", "--no-gc", "--no-checkpointing"),
        ("--checkpointing", "none"),
        "Same as --checkpointing none.",
        CHECKPOINTING,
    ),
    _switch(
        (
            *("--flash-attention", "--flash-attn", "--flash-attention-2", "--use-flash-attention", "--flash"),
            *("--flash-attn-2", "--use-flash-attn", "--use-flash-attn-2", "--use-flash-attention-2", "--fa2"),
        ),
        ("--attention", "flash"),
        MODEL,
    ),
    _switch(
        ("--use-liger-kernel", "--liger", "--use-liger", "--liger-kernel", "--enable-liger-kernel"),
        ("--loss", "fused", "--liger-kernels", ",".join(LIGER_KERNELS)),
        MODEL,
    ),
    _switch(("--badam", "--use-badam"), ("--trained-blocks", "badam"), TUNING),
    Shortcut(
        ("--fsdp",),
        ("--sharding", "{}"),
        "FSDP: same as --sharding fsdp.",
        DEVICES,
        True,
        value=r"fsdp[12]?|full[_-]shard|shard[_-]grad[_-]op|no[_-]shard|hybrid[_-]shard",
    ),
    Shortcut(
        ("--deepspeed",),
        ("--sharding", "{}"),
        "Same as --sharding zero3; a file of DeepSpeed stands for itself, as in `fit ds_config.json`.",
        TUNING,
        metavar="ZERO",
        value=r"(?:z|zero[-_]?|(?:zero[-_])?stage[-_]?)[123]"
        r"|(?:z|(?:zero|stage)[-_]?)[23](?:[-_](?:cpu[-_])?|\+)offload(?:ing)?",
    ),
    Shortcut(
        ("--task", "--task-type", "--model-task"),
        ("--loss", "{}"),
        "The loss of a task: --task reward is --loss reward.",
        MODEL,
        metavar="TASK",
        value=r"(?:text[-_]|sequence[-_])?classification|seq(?:uence)?[-_]cls|cls|reward|reward[-_]model+ing|rm|dpo|kto|orpo"
        r"|cpo|simpo|grpo|causal[-_]?lm|text[-_]generation|token[-_]classification|ner|qa|question[-_]answering|regression",
    ),
    Shortcut(
        ("--stage",),
        ("--loss", "{}"),
        "The loss of a stage of LLaMA-Factory: --stage dpo is --loss dpo.",
        MODEL,
        metavar="STAGE",
        value=r"sft|pt|rm|reward|dpo|kto|orpo|simpo|grpo",
        unless="sft|pt",
        is_weak=True,
    ),
    Shortcut(
        ("--loss-type", "--pref-loss"),
        ("--loss", "{}"),
        "Which loss of preferences, as TRL and LLaMA-Factory name it: --loss-type sigmoid is --loss dpo.",
        MODEL,
        metavar="LOSS",
        value=r"sigmoid|hinge|ipo|dpo|kto|orpo|simpo|grpo",
    ),
    Shortcut(
        ("--num-labels", "--num-classes", "--n-classes"),
        ("--loss", "classification"),
        "A number of classes: same as --loss classification, whatever the number.",
        MODEL,
        metavar="N",
        value=r"\d+",
        is_weak=True,
    ),
    *(
        _switch(flags, ("--frozen", part), ADAPTERS)
        for part, flags in (
            (
                "vision_encoder",
                ("--freeze-vision", "--freeze-vision-tower", "--freeze-vit", "--freeze-vision-encoder"),
            ),
            ("language_model", ("--freeze-llm", "--freeze-language-model")),
            ("projector", ("--freeze-aligner", "--freeze-projector", "--freeze-multi-modal-projector")),
            ("embeddings", ("--freeze-embeddings", "--freeze-embedding")),
        )
    ),
    _switch(("--fsdp-offload-params", "--fsdp-cpu-offload"), ("--offload", "parameters,gradients,optimizer"), TUNING),
    _switch(("--fsdp-activation-checkpointing",), ("--checkpointing", "full"), TUNING),
    _switch(("--use-distributed-optimizer",), ("--sharding", "distributed-optimizer"), TUNING),
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
        (NODES, "--num-nodes", "--nnodes", "--num-machines"),
        (),
        "Nodes; --gpus are then those of one node. --nodes 2 --gpus 8 is 16 GPUs.",
        DEVICES,
        True,
        metavar="N",
    ),
    *OF_FORMAT,
)
