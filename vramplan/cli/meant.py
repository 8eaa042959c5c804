"""What somebody means by an option or a command that there is not: only a mistake reads this."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from vramplan.catalog.locate import Kind, shipped_called
from vramplan.cli import named
from vramplan.cli.typed import TIMES, names_of, other_names, shortcuts
from vramplan.configs.programs.trainer import ARGUMENTS
from vramplan.options.flags import quoted
from vramplan.options.option import WORD, Option
from vramplan.options.spellings import OTHER_RUNTIMES, bare
from vramplan.options.table import TABLE, has_the_word

SERVING = (
    "vramplan plans training only; for serving try gguf-parser, `accelerate estimate-memory`, or vLLM itself, "
    "which prints the memory that it profiles at start"
)
SCHEDULE = "it changes neither memory nor the time of a step; the length of a run is --tokens, --samples or --epochs"
WAYS = "what is trained is --lora, --qlora or --full, the loss --dpo or --grpo; --from-scratch loads no weights"
FILES = "give the file itself, as in `vramplan fit axolotl.yaml --gpu rtx-4090`; a job of a job file is --job FILE#NAME"

MOST_VALUES = 3  # named instead of an option that is a value
MOST_COMMANDS = 6  # named instead of an option that they have and this one has not

OPTIONS = {
    SERVING: (
        *("inference", "infer", "serve", "serving", "generate", "kv-cache", "kv-cache-dtype", "kvcache", "kv"),
        *("max-model-len", "gpu-memory-utilization", "max-num-seqs", "gguf", "llama-cpp", "ollama", "vllm", "chat"),
    ),
    SCHEDULE: ("max-steps", "max-train-steps", "total-steps", "train-steps", "num-steps", "max-iters", "train-iters"),
    WAYS: ("method", "mode", "stage", "train-mode", "training-mode", "training-type", "task-type"),
    FILES: ("config", "config-file", "job-file", "file", "yaml-file"),
    "give the file itself, as in `vramplan fit ds_config.json --model M`; or --zero 3 and --offload optimizer": (
        *("deepspeed", "ds-config", "deepspeed-config"),
    ),
    "--offload optimizer,gradients or --offload parameters,gradients,optimizer": (
        *("cpu-offload", "offload-to-cpu", "offload-optimizer", "offload-param", "offload-params", "cpu"),
        *("zero-offload", "zero2-offload", "zero3-offload", "zero-3-offload", "offload-parameters"),
    ),
    "--offload activations": ("activation-offloading", "offload-activations"),
    "a size stands for a GPU, as in --gpu '24 GiB'": ("memory", "mem", "max-memory", "ram"),
    "--attention sdpa": ("sdpa",),
    "--attention eager": ("eager", "eager-attention"),
    "--attention fa3": ("fa3", "flash-attn-3", "flash-attention-3"),
    "--weight-dtype bf16": ("weights-bf16", "bf16-weights"),
    "--quantization nf4": ("int4", "fp4", "q4", "nf4-4bit"),
    "--quantization int8": ("int8", "q8"),
    "--weight-dtype T is the element type of the weights that are loaded": ("weights", "weights-dtype", "weight-type"),
    "--sharding fsdp or zero3 shares states, --tensor, --pipeline and --context split the model": (
        *("parallel", "parallelism", "distributed", "dist", "sharded", "shard", "multi-gpu"),
    ),
    "--emit PROGRAM": ("export", "write", "generate-config", "gen-config", "write-config", "to"),
    "--reserve SIZE keeps free what vLLM takes of each GPU beside training; with GPUs of its own it takes none": (
        *("vllm-gpu-memory-utilization", "vllm-memory", "use-vllm", "colocate", "vllm-mode", "vllm-colocate"),
    ),
    "--reserve SIZE is memory that is kept free": ("margin", "headroom", "safety", "safety-margin", "buffer"),
    "--strict": ("fail-on-tight", "fail-on", "exit-code"),
    "--svg FILE": ("png", "html", "pdf", "plot", "image", "picture", "chart"),
    "--gpus N": ("n", "count", "num"),
    "--gpus auto": ("min-gpus", "how-many-gpus", "how-many", "fewest-gpus", "gpus-needed"),
    "--max sequence": ("longest", "longest-sequence", "max-context", "max-tokens"),
    "--max micro-batch": ("max-batch", "max-bs", "max-batch-size", "max-micro-batch", "largest-batch"),
    "--max rank": ("max-rank", "largest-rank"),
    "`vramplan compare -m A,B,C -g GPU` says which of several models fit": (
        *("largest", "largest-model", "max-model", "biggest", "biggest-model", "fits"),
    ),
    "an option replaces what a file says, as in `vramplan fit FILE -g GPU --micro-batch 4`": (
        *("set", "override", "overrides", "opts", "param"),
    ),
    "--samples N says how many it has; nothing else of it matters": ("dataset", "data-path", "dataset-name"),
    "NO_COLOR=1 before the command turns colours off": ("no-color", "no-colour", "color", "colour", "nocolor"),
    "the sizes of a model belong to it: give a config.json, or a job file with model: {...}": (
        *("layers", "num-layers", "n-layer", "n-layers", "num-hidden-layers", "hidden-size", "hidden", "n-embd", "dim"),
        *("d-model", "heads", "n-head", "n-heads", "num-heads", "num-attention-heads", "ffn-hidden-size"),
        *("intermediate-size", "vocab", "vocab-size", "vocabulary-size", "padded-vocab-size"),
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
    "--adapter none": (
        *("full", "full-ft", "fft", "full-finetune", "full-finetuning", "full-fine-tune", "full-fine-tuning"),
        *("full-parameter", "full-parameters", "full-param", "no-lora", "no-peft", "no-adapter"),
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
    "`vramplan fit` with the same options prints the short answer": ("summary", "brief", "short", "summarize"),
    "the cost stands in the answer where --tokens, --samples or --epochs says how long the run is": (
        *("cost", "costs", "money", "rent", "cloud", "spot"),
    ),
    "--deadline 3d is a limit; the hours stand in the answer where --tokens or --samples says how long the run is": (
        *("hours", "days", "duration", "max-hours", "max-time", "max-days", "time-limit", "walltime"),
    ),
    "--attention efficient or --attention eager": ("no-flash", "no-flash-attn", "no-flash-attention"),
    "--gradient-accumulation-steps N": ("accumulate",),
    "--checkpointing full": ("checkpoint-activations", "activation-checkpoint", "ckpt"),
}
"""What to do, and the options without their dashes that ask for it."""

NO_EFFECT = frozenset(
    (
        *("lr", "warmup", "wd", "betas", "beta1", "beta2", "eps", "scheduler", "lr-scheduler", "lr-warmup-steps"),
        *("min-lr", "lr-decay-iters", "lr-decay-style", "warmup-iters", "lr-warmup-iters", "lr-warmup-fraction"),
        *("wandb", "wandb-project", "wandb-run-name", "wandb-entity", "tensorboard", "tensorboard-dir", "workers"),
        *("num-workers", "log-interval", "save-interval", "eval-interval", "save", "save-dir", "log-dir", "plot-loss"),
        *("overwrite-cache", "preprocessing-num-workers", "dataset-num-proc", "max-train-samples", "val-size"),
        *("deterministic", "random-seed", "init-seed", "exp-name", "experiment-name", "trust-remote-code", "use-wandb"),
        *("adam-beta-1", "adam-beta-2", "logging", "val-set-size", "pin-memory", "use-rslora", "bnb-4bit-quant-type"),
        *("num-generations", "reward-funcs", "temperature", "top-p", "top-k", "beta", "epsilon", "reward-weights"),
    )
)
"""Options of training programs, beside the Trainer's, that change neither memory nor the time of a step."""

OF_EFFECT = (
    "max-steps",
    "tf32",
    "use-cpu",
    "no-cuda",
    "use-mps-device",
    "fp16-opt-level",
    "per-device-eval-batch-size",
)
"""Arguments that a file may have without effect, and that a person types to some."""

SWITCHES = frozenset(
    (
        *("do-train", "do-eval", "do-predict", "overwrite-output-dir", "overwrite-cache", "load-best-model-at-end"),
        *("push-to-hub", "remove-unused-columns", "full-determinism", "prediction-loss-only", "logging-first-step"),
        *("logging-nan-inf-filter", "log-on-each-node", "save-only-model", "save-on-each-node", "save-safetensors"),
        *("eval-on-start", "batch-eval-metrics", "include-tokens-per-second", "include-inputs-for-metrics"),
        *("greater-is-better", "ignore-data-skip", "dataloader-drop-last", "dataloader-pin-memory", "disable-tqdm"),
        *("dataloader-persistent-workers", "dataloader-in-order", "group-by-length", "skip-memory-metrics"),
        *("ddp-find-unused-parameters", "ddp-broadcast-buffers", "ddp-static-graph", "predict-with-generate"),
        *("hub-private-repo", "hub-always-push", "bf16-full-eval", "fp16-full-eval", "enable-jit-checkpoint"),
        *("jit-mode-eval", "split-batches", "dispatch-batches", "sortish-sampler", "plot-loss", "wandb", "use-wandb"),
        *("pin-memory", "use-rslora"),
        *("tensorboard", "deterministic", "trust-remote-code", "use-ipex", "eval-do-concat-batches", "debug"),
        *("restore-callback-states-from-checkpoint", "average-tokens-across-devices", "eval-use-gather-object"),
    )
)
"""Of these the ones that say something without a value."""

ALWAYS_SO = {
    **dict.fromkeys(
        ("sft", "train", "training", "finetune", "fine-tune", "finetuning", "fine-tuning", "supervised"),
        "is what is planned where no option says another",
    ),
    **dict.fromkeys(
        ("auto-find-batch-size", "find-batch-size", "auto-batch", "auto-batch-size"),
        "is what is done where no batch is given",
    ),
}
"""Options that ask for what is planned without them."""

COMMANDS = {
    SERVING: ("infer", "inference", "serve", "serving", "generate", "chat", "estimate-inference", "kv-cache"),
    "fit": (
        *("estimate", "predict", "run", "train", "finetune", "fine-tune", "calc", "calculate", "can-i-run", "fits"),
        *("mem", "memory", "vram", "check-fit", "estimate-memory", "memory-estimate", "estimate-vram"),
    ),
    "plan": ("optimize", "optimise", "recommend", "best", "tune", "autotune", "suggest", "advise", "fastest", "search"),
    "`vramplan fit -m M -g G --gpus auto` finds the fewest GPUs": (
        *("gpus-needed", "how-many", "how-many-gpus", "howmany", "min-gpus", "ngpus", "num-gpus"),
    ),
    "`vramplan fit -m M -g G --max sequence` finds the largest, as do micro-batch, rank and layers": (
        *("solve", "maximize", "maximise", "largest-fit"),
    ),
    "`vramplan fit -m M -g G --max sequence` finds the longest sequence": (
        *("max-seq", "max-sequence", "longest", "max-length", "max-context", "context", "seq"),
    ),
    "`vramplan fit -m M -g G --max micro-batch` finds the largest batch": ("max-batch", "batch", "batch-size", "bs"),
    "`vramplan compare -m A,B,C -g G` says which of several models fit": ("largest", "biggest", "max-model", "max"),
    "`vramplan compare -m M -g all` finds the cheapest GPU that fits": ("cheapest", "which-gpu", "cloud", "rent"),
    "`vramplan fit -m M -g G --tokens N` says how long a run takes and what it costs": (
        *("cost", "costs", "price", "budget", "time", "duration", "hours", "days", "throughput", "speed"),
    ),
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

OF_GATES = ("check", "validate")
SUBJECT = ("m", "g", "model", "gpu")
OF_FILES = (
    "a file has the jobs; `vramplan fit FILE#NAME -g G` judges one of them on another GPU, and "
    "`vramplan fit -m M -g G --strict` is a gate for one job without a file"
)


def option(name: str, command: Any) -> str | None:
    """What to do instead of an option that the command does not have; None where nothing better is known."""
    word = name.lstrip("-")
    declared = {one for parameter in command.params for one in parameter.opts}
    takes_files = "--model" not in declared and any(one.param_type_name == "argument" for one in command.params)
    if takes_files and command.name in OF_GATES and (word in SUBJECT or _has_it("fit", f"--{word}")):
        return OF_FILES
    for meant, words in OPTIONS.items():
        if word in words:
            first = meant.partition(" ")[0]
            if not first.startswith("--") or first in declared:
                return meant
    if "--runtime" in declared and (runtime := _runtime(word)) is not None:
        return f"--runtime {runtime}"
    if "--runtime" in declared and word.removeprefix("use-") in OTHER_RUNTIMES:
        return OTHER_RUNTIMES[word.removeprefix("use-")]
    return _value(word, declared)


def _has_it(called: str, name: str) -> bool:
    """Whether a command has an option, under any name."""
    found = named("vramplan.cli.commands:build")(called)
    return name in {**names_of(found), **other_names(found), **shortcuts(found)}


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


def without_effect(name: str, behind: str | None) -> tuple[str, bool] | None:
    """What is said of an option that changes nothing, and whether the word `behind` it is its value.

    None where it may change something. What is said of those that change neither memory nor time is empty: they are
    told of together.
    """
    word = name.lstrip("-")
    if word in ALWAYS_SO:
        return ALWAYS_SO[word], behind is not None and behind.lower() in TRUTHS
    if word in OF_EFFECT or (word not in NO_EFFECT and word.replace("-", "_") not in ARGUMENTS):
        return None
    if any(word in words for words in OPTIONS.values()):
        return None
    if behind is None or re.match(r"-\D", behind):
        return "", False
    return "", behind.lower() in TRUTHS or word not in SWITCHES


TRUTHS = ("true", "false", "yes", "no", "on", "off", "1", "0")


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


LISTED = ("list", "ls", "show", "info", "describe", "search", "find", "get")
"""What people write before what they want to see."""


ASKED = (
    (r"how many .*gpus?|gpus? .*(need|required)", "`vramplan fit -m M -g G --gpus auto` finds the fewest GPUs"),
    (r"(longest|max\w*|how long).*(seq|context|ctx|tokens)", "`vramplan fit -m M -g G --max sequence`"),
    (r"batch", "`vramplan fit -m M -g G --max micro-batch`"),
    (r"(which|largest|biggest) .*(model|fits?)", "`vramplan compare -m A,B,C -g G` says which of several models fit"),
    (r"cheap|cost|price", "`vramplan compare -m M -g all` finds the cheapest GPU that fits"),
    (r"fast|best", "`vramplan plan -m M -g G` searches for the fastest way"),
)
"""What the words of a question are about, and the command that answers it."""
BEGINS_A_QUESTION = re.compile(
    r"(how|what|which|can|could|will|would|does|do|is|i|should|longest|largest|biggest|cheapest|fastest|best)\s"
)


def _question(text: str) -> str | None:
    """The command that answers what was asked in plain words, where they say what it is about."""
    if BEGINS_A_QUESTION.match(text) is None:
        return None
    return next((meant for about, meant in ASKED if re.search(about, text)), None)


TIES = ("and", "vs", "vs.", "versus", "or")
"""Words between two that are compared, which no model and no GPU is called."""


def second_word(model: str, word: str, behind: list[str], command_name: str) -> str | None:
    """What a second word may be, with others `behind` it, as more of the model's name; None where it is a GPU's."""
    if word.lower() in TIES:
        return f"leave {word!r} out: vramplan {command_name} MODEL GPU, with 8xh100 for eight of them"
    several: tuple[tuple[Kind, str], ...] = (("models", f"-m {model},{word} -g G"), ("gpus", f"-m {model} -g G,{word}"))
    for kind, options in several:
        if shipped_called(kind, word) is not None:
            return f"one model and one GPU are judged; vramplan compare {options} has several"
    words = [model, word]
    words += takewhile(lambda one: not one.startswith("-"), behind)
    for count in range(len(words), 1, -1):
        joined = "-".join(words[:count]).lower()
        if shipped_called("models", joined) is not None:
            return f"a model is one word: {joined}"
    if word.isdecimal():
        return f"a number belongs to an option, such as --gpus {word} or --micro-batch {word}"
    counted = f"{word}{behind[0]}" if word.lower() in TIMES and behind else word
    times = re.fullmatch(r"[x*\u00d7]([1-9]\d*)|([1-9]\d*)x", counted.lower())
    if times is not None:
        return f"how many GPUs there are is --gpus {times[1] or times[2]}"
    other = has_the_word(word)
    if other is not None and other.options:
        return f"it is a value of {other.option}"
    return None


def at_the_top(words: Sequence[str]) -> str | None:
    """What to do with an option before the command; None where no command has it."""
    all_commands = named("vramplan.cli.commands:COMMANDS")  # whose module reads this one for a mistake alone
    first = words[0].partition("=")[0]
    if first in ("-V", "-v", "--v"):
        return "--version prints it"
    called = next((word for word in words if word in all_commands), "fit")
    found = named("vramplan.cli.commands:build")(called)
    if first not in {**names_of(found), **other_names(found), **shortcuts(found)}:
        return None
    rest = list(words)
    if called in rest:
        rest.remove(called)
    return f"options stand behind the command: vramplan {' '.join(map(quoted, (called, *rest)))}"


def command(name: str, behind: Sequence[str] = ()) -> str | None:
    """What to do instead of a command that there is not; `behind` are the words that follow it."""
    word = name.lower().replace("_", "-")
    if word in LISTED and behind and behind[0].lower() in KINDS:
        return f"did you mean {behind[0].lower()}?"
    kinds: tuple[Kind, ...] = ("gpus", "models")
    for kind in kinds:
        if word in LISTED and behind and shipped_called(kind, behind[0]) is not None:
            return f"did you mean vramplan {kind} {behind[0]}?"
    asked = _question(" ".join((name, *behind)).lower())
    if asked is not None:
        return asked
    if shipped_called("models", name) is not None:
        gpu = behind[0] if behind and not behind[0].startswith("-") else "GPU"
        return f"did you mean vramplan fit -m {name} -g {gpu}?"
    for meant, words in COMMANDS.items():
        if word in words:
            return meant if " " in meant else f"did you mean {meant}?"
    if BEGINS_A_QUESTION.match(" ".join((word, *behind))):
        return "`vramplan fit -m M -g G` says whether it fits: a model and a GPU"
    return None
