"""What somebody means by an option or a command that there is not: only a mistake reads this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.catalog.locate import shipped_called
from vramplan.options.option import WORD, Option
from vramplan.options.spellings import bare
from vramplan.options.table import TABLE

SERVING = (
    "vramplan plans training only; for serving try gguf-parser, `accelerate estimate-memory`, or vLLM itself, "
    "which prints the memory that it profiles at start"
)
SCHEDULE = "it changes neither memory nor the time of a step; the length of a run is --tokens, --samples or --epochs"
FILES = "give the file itself, as in `vramplan fit axolotl.yaml --gpu rtx-4090`; a job of a job file is --job FILE#NAME"

MOST_VALUES = 3  # named instead of an option that is a value
MOST_COMMANDS = 6  # named instead of an option that they have and this one has not

OPTIONS = {
    SERVING: (
        *("inference", "infer", "serve", "serving", "generate", "kv-cache", "kv-cache-dtype", "kvcache", "kv"),
        *("max-model-len", "gpu-memory-utilization", "max-num-seqs", "gguf", "llama-cpp", "ollama", "vllm", "chat"),
    ),
    SCHEDULE: ("lr", "learning-rate", "max-steps", "warmup-steps", "warmup-ratio", "weight-decay", "lr-scheduler-type"),
    "--from-scratch": ("scratch",),
    FILES: ("config", "config-file", "job-file", "file", "yaml-file"),
    "give the file itself, as in `vramplan fit ds_config.json --model M`; or --zero 3 and --offload optimizer": (
        *("deepspeed", "ds-config", "deepspeed-config"),
    ),
    "--offload optimizer,gradients or --offload parameters,gradients,optimizer": (
        *("cpu-offload", "offload-to-cpu", "offload-optimizer", "offload-param", "offload-params", "cpu"),
    ),
    "--offload activations": ("activation-offloading", "offload-activations"),
    "a size stands for a GPU, as in --gpu '24 GiB'": ("vram", "memory", "gpu-memory", "gpu-mem", "mem"),
    "the number of layers belongs to the model: give a config.json, or a job file with model: {...}": (
        *("layers", "num-layers", "n-layer", "hidden-size", "heads"),
    ),
    "the measured steps are --iterations; accumulation is --gradient-accumulation-steps": ("steps",),
    "a model is an architecture: --model llama-2-7b, or --model 7B --runtime textbook for closed forms": (
        *("params", "parameters", "n-params", "num-params", "num-parameters", "param-count", "model-size", "size"),
    ),
    "give the model as --model NAME": ("name", "checkpoint-name"),
    "--precision tf32": ("tf32",),
    "--loss reward": ("rm", "reward-model", "reward-modeling"),
    "--context N shares each sequence": ("sp", "ulysses", "ring-attention", "sequence-parallel-size"),
    "--loss standard counts the step of the policy; GRPO is --loss grpo": ("ppo", "rloo", "rlhf"),
    "--eval-batch-size N": ("eval", "evaluation", "do-eval", "eval-steps"),
    "--optimizer adamw-paged or --optimizer adamw-8bit-paged": ("paged", "paged-adamw", "paged-optimizer"),
    "full fine-tuning is what is planned without --lora or another adapter": (
        "full-finetune",
        "full-finetuning",
        "full",
        "sft",
    ),
    "--optimizer adamw-8bit": ("8bit-adam", "use-8bit-adam", "adam-8bit", "adam8bit", "8bit-optimizer", "bnb"),
    "`vramplan measure` runs real steps of a job": ("measure", "benchmark", "profile"),
    "--format csv": ("csv",),
    "`vramplan check FILE --format junit > OUT.xml` writes it": ("junit", "junit-xml", "xml", "junitxml"),
    "`vramplan check FILE --format github` writes annotations": ("github", "gha", "annotations"),
    "--format markdown": ("markdown", "md"),
    "--format yaml": ("yaml", "yml"),
    "--format json, yaml, csv or markdown says how the answer is written; `> FILE` behind the command, where to": (
        *("o", "output", "out", "outfile", "output-file", "output-format", "save", "fmt"),
    ),
    "the task belongs to the model: --loss classification, or a job file with model: {family: bert, task: cls, ...}": (
        *("task", "model-task"),
    ),
    "--details shows every table": ("verbose", "v", "all"),
    "the cost stands in the answer where --tokens, --samples or --epochs says how long the run is": (
        *("cost", "costs", "money", "rent", "cloud", "spot"),
    ),
    "--deadline 3d is a limit; the hours stand in the answer where --tokens or --samples says how long the run is": (
        *("hours", "days", "duration", "max-hours", "time-limit", "walltime"),
    ),
    "--attention efficient or --attention eager": ("no-flash", "no-flash-attn", "no-flash-attention"),
    "--gradient-accumulation-steps N": ("accumulate",),
    "--checkpointing full": ("checkpoint-activations", "activation-checkpoint", "ckpt"),
}
"""What to do, and the options without their dashes that ask for it."""

COMMANDS = {
    SERVING: ("infer", "inference", "serve", "serving", "generate", "chat", "estimate-inference", "kv-cache"),
    "fit": ("estimate", "predict", "run", "train", "finetune", "fine-tune", "calc", "calculate", "can-i-run"),
    "gpus": ("gpu", "devices", "cards", "hardware", "list-gpus"),
    "models": ("model", "list", "ls", "list-models"),
    "runtimes": ("runtime", "frameworks", "engines"),
    "measure": ("benchmark", "bench", "trace"),
    "timeline": ("plot", "draw", "chart", "graph"),
    "explain": ("why", "breakdown", "detail", "details"),
    "check": ("gate", "ci", "verify", "lint"),
    "--help, or behind a command: vramplan fit --help": ("help", "man", "usage"),
    "--version prints it": ("version",),
}


KINDS = ("gpus", "models", "runtimes", "profiles")
"""Commands that list what there is."""

SUBJECT = ("m", "g", "model", "gpu")
OF_FILES = "a file has the jobs; `vramplan fit -m M -g G --strict` is a gate for one job without a file"


def option(name: str, command: Any) -> str | None:
    """What to do instead of an option that the command does not have; None where nothing better is known."""
    word = name.lstrip("-")
    declared = {one for parameter in command.params for one in parameter.opts}
    if word in SUBJECT and any(one.param_type_name == "argument" for one in command.params):
        return OF_FILES
    for meant, words in OPTIONS.items():
        if word in words:
            first = meant.partition(" ")[0]
            if not first.startswith("--") or first in declared:
                return meant
    if "--runtime" in declared and (runtime := _runtime(word)) is not None:
        return f"--runtime {runtime}"
    return _value(word, declared)


def one_setting(name: str, command: Any) -> tuple[str, str] | None:
    """The option and the value that an option without a value can only mean: `--dpo` is `--loss dpo`.

    None where it may mean several things, or needs a value.
    """
    word, declared = name.lstrip("-"), {one for parameter in command.params for one in parameter.opts}
    for meant, words in OPTIONS.items():
        if word in words:
            setting = meant.split(" ")
            is_one = len(setting) == 2 and setting[0] in declared and setting[1].islower()
            return (setting[0], setting[1]) if is_one else None
    if "--runtime" in declared and (runtime := _runtime(word)) is not None:
        return "--runtime", runtime
    found = [row for row, one in _valued(word, declared) if bare(word) == one]
    if len(found) != 1 or not found[0].everyday or found[0].kind != WORD:
        return None
    return found[0].option, bare(word)


def elsewhere(name: str, above: Any) -> str | None:
    """The commands that have an option, of the group `above` them; None where none has it."""
    if above is None:
        return None
    group = above.command
    having = [
        one
        for one in group.list_commands(above)
        for parameter in group.get_command(above, one).params
        if name in (*parameter.opts, *parameter.secondary_opts)
    ]
    if not having or len(having) > MOST_COMMANDS:
        return None
    *most, last = having
    return f"vramplan {', '.join(most) + ' and ' if most else ''}{last} {'have' if most else 'has'} it"


def _value(word: str, declared: set[str]) -> str | None:
    """The options that have the word among their values, be it as another spelling or as the beginning of one.

    Where everyday options have it, the rest are not named.
    """
    found = _valued(word, declared)
    named = [one for one in found if one[0].everyday] or found
    return " or ".join(f"{row.option} {one}" for row, one in named[:MOST_VALUES]) or None


def _valued(word: str, declared: set[str]) -> list[tuple[Option, str]]:
    """The options that have the word among their values, and the value."""
    word = bare(word)
    rows = [row for row in TABLE if row.option in declared and row.words]
    return (
        [(row, word) for row in rows if word in row.words]
        or [(row, word) for row in rows if word in (row.spellings or {})]
        or [(row, one) for row in rows for one in row.words if one.startswith((f"{word}-", f"{word}:"))]
    )


def _runtime(word: str) -> str | None:
    """The program that is called so."""
    return shipped_called("runtimes", word.removeprefix("use-"))


LISTED = ("list", "ls", "show")
"""What people write before what they want to see."""


def command(name: str, behind: Sequence[str] = ()) -> str | None:
    """What to do instead of a command that there is not; `behind` are the words that follow it."""
    word = name.lower().replace("_", "-")
    if word in LISTED and behind and behind[0].lower() in KINDS:
        return f"did you mean {behind[0].lower()}?"
    if shipped_called("models", name) is not None:
        gpu = behind[0] if behind and not behind[0].startswith("-") else "GPU"
        return f"did you mean vramplan fit -m {name} -g {gpu}?"
    for meant, words in COMMANDS.items():
        if word in words:
            return meant if " " in meant else f"did you mean {meant}?"
    return None
