"""The words of a command as settings: `--key value`, `--flag`, `key=value`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from vramplan.configs import forms, shell
from vramplan.configs.table import names
from vramplan.configs.written import Written
from vramplan.errors import InputError, Problem
from vramplan.tuples import NamedTuple

Words = Sequence[shell.Argument]

FILES = (".yaml", ".yml", ".json")


def names_file(text: str, suffixes: tuple[str, ...] = FILES) -> bool:
    """Whether a word names a file of settings, be it one that only the caller knows."""
    return text.endswith((*suffixes, shell.CLOSE))


def left_behind(words: Words, line: int, file: str) -> Problem:
    """What to say of options that the command of a line leaves behind, as the shell takes them for commands."""
    first, *further = words
    more = f", as do {len(further)} more" if further else ""
    message = f"begins a command of its own{more}: that of line {line} ends before it"
    hint = "end each line of a command with a backslash and nothing behind it, and take comments out from between them"
    return Problem(message, first.text, hint, file, first.line)


FURTHER = re.compile(r"(?i)\w*(args?|arguments|opts?|options?|flags?)")
"""What a variable is called that stands for further arguments, as `$EXTRA_ARGS`."""


OF_FILES = re.compile(r"(?i)\w*(config|cfg|file|yaml|recipe)\w*|\d+")
"""What a variable is called that stands for the file of all arguments, where it is the only one of a command."""


class CommandOption(NamedTuple):
    """`--name` and the words behind it, up to the next option; `joined` where it is `--name=value`."""

    name: str
    values: list[str]
    joined: bool
    line: int


COUNTED = ("nproc_per_node", "nnodes", "num_gpus", "num_nodes")
"""Options of torchrun and of DeepSpeed's launcher that say how many processes there are."""


SAID_BY_OTHERS = {"nnodes": ("num_nodes", "num_processes"), "nproc_per_node": ("num_gpus", "num_processes")}
"""Options of the launchers of DeepSpeed and Accelerate that say the same as one of torchrun."""


def options_of(words: Words) -> Iterator[CommandOption]:
    """The options of a command, one after the other."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.text.startswith("--"):
            continue
        name, equals, value = word.text[2:].partition("=")
        values = [value] if equals else []
        while not equals and at < len(words) and not words[at].text.startswith("--"):
            values.append(words[at].text)
            at += 1
        yield CommandOption(name, values, bool(equals), word.line)


def from_script(script: shell.Script, file: str | None) -> dict[str, Written]:
    """The arguments of a script as settings."""
    written = {**arguments(script.arguments, file, script.empty), **allocator_of(script, file)}
    words, counted = _without_srun(without_container(script.launcher), file)
    given = _counted(arguments(_spelled(words), file))
    known = known_counts(given)
    launcher = {**counted, **known}
    for key, item in launcher.items():
        written[f"launcher.{key}"] = item
    if script.program is not None:
        written["program"] = Written(script.program.text, file, script.program.line)
        first = script.arguments[0] if script.arguments else None
        if first is not None and re.fullmatch(r"(?!--).*\.(ya?ml|json)", first.text) and "config" not in written:
            written["config"] = Written(first.text, file, first.line)  # HfArgumentParser and its kin
        elif first is not None and len(script.arguments) == 1 and _may_be_a_file(first.text):
            written["config"] = Written(first.text, file, first.line)
    if known != given:  # of how many processes there are only the caller knows a part
        return written
    if _sees_one(script):
        written["launcher.nproc_per_node"] = Written(1, file, script.values[VISIBLE][0].line)
    world = None if launcher else _world(script)
    if world is not None and shell.unknowns(world.text):
        return written
    if world is not None and world.text.isdecimal():
        written["launcher.nproc_per_node"] = Written(world.text, file, world.line)
        return written
    if any(shell.unknowns(held[0].text) for name in OF_NODES if (held := script.values.get(name))):
        return written
    for name, key in (("NNODES", "nnodes"), ("NUM_NODES", "nnodes"), ("GPUS_PER_NODE", "nproc_per_node")):
        said = any(f"launcher.{one}" in written for one in (key, *SAID_BY_OTHERS[key]))
        held = None if said else script.values.get(name)
        if held and not shell.unknowns(held[0].text):
            written[f"launcher.{key}"] = Written(held[0].text, file, held[0].line)
    return written


OF_NODES = ("NNODES", "NUM_NODES")
OF_MPI = ("mpirun", "mpiexec", "aprun")


def _world(script: shell.Script) -> shell.Argument | None:
    """All processes where none of PyTorch's launchers starts them: those of MPI, or what `WORLD_SIZE` says to each."""
    words = without_container(script.launcher)
    held = [named(word) for word in words]
    if any(name in OF_MPI for name in held):
        return next((words[at + 1] for at, name in enumerate(held[:-1]) if name in ("-np", "-n")), None)
    starts = any(name in held for name in STARTED_BY_SRUN | {"torch.distributed.launch", "torch.distributed.run"})
    said = script.values.get("WORLD_SIZE")
    if not said and "srun" in held:  # a task for each GPU, as the head of the script has them
        tasks, gpus = (script.values.get(name) for name in ("SLURM_NTASKS_PER_NODE", "SLURM_GPUS_ON_NODE"))
        said = script.values.get("SLURM_NTASKS") if tasks and gpus and tasks[0].text == gpus[0].text else None
    return said[0] if said and script.program is not None and not starts else None


def _may_be_a_file(text: str) -> bool:
    """Whether a word that only the caller knows is called as a file of arguments is."""
    return any(OF_FILES.fullmatch(name) for name in shell.unknowns(text))


VISIBLE = "CUDA_VISIBLE_DEVICES"
OF_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Variables with the settings of the caching allocator, the one that PyTorch asks first before the older one.

Source: c10/core/AllocatorConfig.cpp of PyTorch 2.13, AcceleratorAllocatorConfig::instance.
"""


def allocator_of(script: shell.Script, file: str | None) -> dict[str, Written]:
    """What a script sets of them, under the name of the variable."""
    for name in OF_ALLOCATOR:
        held = script.values.get(name)
        if held and not shell.unknowns(held[0].text):
            return {name: Written(held[0].text, file, held[0].line)}
    return {}


def _sees_one(script: shell.Script) -> bool:
    """Whether a script starts one process by itself, which sees one GPU: without a launcher, and told which."""
    seen = script.values.get(VISIBLE, [])
    starts = script.program is not None and bool(script.launcher)
    alone = all(named(word) in ("python", "python3", "-m", "-u") for word in script.launcher)
    return starts and alone and len(seen) == 1 and seen[0].text.isdecimal()


def _spelled(words: Words) -> Words:
    """The words of a launcher without `-m`, and with DeepSpeed's `-i` as the option that it is short for."""
    is_short = any(named(word) in SHORT_INCLUDE for word in words)
    long = [word._replace(text="--include") if is_short and word.text == "-i" else word for word in words]
    return [word for word in long if word.text != "-m"]


def _counted(launcher: dict[str, Written]) -> dict[str, Written]:
    """Options of DeepSpeed's launcher with the number of GPUs that `--include worker-0:0,1@worker-1:2` names.

    Source: deepspeedai/DeepSpeed 0.19.8, deepspeed/launcher/runner.py, parse_resource_filter.
    """
    item = launcher.get("include")
    nodes = [] if item is None else str(item.value).split("@")
    slots = [node.partition(":")[2] for node in nodes]
    if item is None or not all(re.fullmatch(r"\d+(,\d+)*", one) for one in slots):
        return launcher
    kept = {key: one for key, one in launcher.items() if key not in ("include", "num_gpus", "num_nodes")}
    return {
        **kept,
        "num_gpus": item._replace(value=sum(len(one.split(",")) for one in slots)),
        "num_nodes": item._replace(value=1),
    }


def other_runs(script: shell.Script) -> str | None:
    """What to say of a script that starts more than the program that is read, None where it does not."""
    line = script.program.line if script.program is not None else None
    others = [(at, name) for at, name in script.runs.items() if at != line]
    if line not in script.runs or not others:
        return None
    starts = ", ".join(f"{name.rsplit('/', 1)[-1]} in line {at}" for at, name in others[:3])
    return f"the script also starts {starts}; the command of line {line} is read"


def handed_on(script: shell.Script) -> str | None:
    """What to say of a script that hands on the arguments it is called with, None where it does not."""
    has = any(name[:1] in ("@", "*") for word in script.arguments for name in shell.unknowns(word.text))
    return "it hands on the arguments that it is called with, which are taken as none" if has else None


SHORT_INCLUDE = names("deepspeed")  # launchers whose `--include` may be `-i`
STARTED_BY_SRUN = names("torchrun deepspeed accelerate")


def _without_srun(words: Words, file: str | None) -> tuple[Words, dict[str, Written]]:
    """The words of a launcher without those of `srun`, and how many GPUs the options of `srun` hand out.

    It starts a process for each task; what it starts makes one for each GPU where it is a launcher itself.
    """
    held = [named(word) for word in words]
    if "srun" not in held:
        return words, {}
    start = held.index("srun")
    behind = next((at for at in range(start, len(held)) if held[at] in STARTED_BY_SRUN | INTERPRETERS), len(held))
    given = arguments(words[start + 1 : behind], file)
    each = "gpus_per_node" if any(name in held[behind:] for name in STARTED_BY_SRUN) else "ntasks_per_node"
    found = {}
    for name, key in ((each, "nproc_per_node"), ("nodes", "nnodes")):
        item = given.get(name)
        count = None if item is None else re.fullmatch(r"(\w+:)?(\d+)", str(item.value))
        if item is not None and count is not None:
            found[key] = item._replace(value=int(count[2]))
    return [*words[:start], *words[behind:]], found if "nproc_per_node" in found else {}


CONTAINERS = names("apptainer singularity docker podman enroot")
WITHIN = names("llamafactory-cli axolotl tune litgpt composer trl deepspeed torchrun accelerate srun")


def without_container(words: Words) -> Words:
    """The words of a command without those of the program that starts it in a container, whose options say nothing."""
    held = [named(word) for word in words]
    start = next((at for at, name in enumerate(held) if name in CONTAINERS), None)
    if start is None:
        return words
    behind = next((at for at in range(start + 1, len(held)) if held[at] in WITHIN | INTERPRETERS - CONTAINERS), None)
    return [*words[:start], *(words[behind:] if behind is not None else ())]


INTERPRETERS = names("python python3 bash sh uv singularity apptainer")


def arguments(words: Words, file: str | None, empty: list[str] | None = None) -> dict[str, Written]:
    """The options as argparse takes them, `_` for `-`; the last of several wins.

    `empty` takes the names of variables that nothing sets and that stand where further arguments do: they are none.
    """
    written: dict[str, Written] = {}
    empty = [] if empty is None else empty
    for option in options_of(words):
        values = option.values
        for place in range(len(values) - 1, -1, -1):
            unset = shell.unknowns(values[place])
            further = len(unset) == 1 and values[place] == f"{shell.OPEN}{unset[0]}{shell.CLOSE}"
            if further and not option.joined and (place > 0 or FURTHER.fullmatch(unset[0])):
                empty += [name for name in unset if name not in empty]
                values.pop(place)
        written[option.name.replace("-", "_").lower()] = Written(_plain(values), file, option.line)
    return written


def _plain(values: Sequence[str]) -> Any:
    """The value of an option: one that is there and empty, as `--model ''`, is an empty text, and no switch."""
    texts = [value for value in values if value]
    if not texts:
        return "" if values else True
    return texts[0] if len(texts) == 1 else " ".join(texts)


def assigned(words: Words, file: str) -> dict[str, Written | None]:
    """`key=value`, `+key=value` and `~key` of OmegaConf and Hydra."""
    found: dict[str, Written | None] = {}
    for word in words:
        if re.fullmatch(r"~[\w.]+", word.text):
            found[word.text[1:]] = None
        matched = re.fullmatch(r"\+{0,2}(?P<key>[A-Za-z_][\w.]*)=(?P<value>.*)", word.text, re.DOTALL)
        if matched:
            found[matched["key"]] = Written(_value(matched["value"]), file, word.line)
    return found


def options(words: Words, file: str) -> dict[str, Written]:
    """`--key value`, `--key=value`, `--key` and `--no-key`, with the dots of the key and the type of the value."""
    found: dict[str, Written] = {}
    for option in options_of(words):
        key = option.name
        before, _, last = key.rpartition(".")
        if not option.values and re.match(r"no[-_]", last):
            key, value = f"{before}.{last[3:]}".lstrip("."), False
        else:
            value = _value(option.values[0]) if option.values else True
        found[key.replace("-", "_")] = Written(value, file, option.line)
    return found


def _value(text: str) -> Any:
    """A value as YAML has it; what only the caller knows stays a text."""
    if shell.unknowns(text):
        return shell.shown(text)
    try:
        found = forms.from_yaml(f"value: {text}", None)
    except InputError:
        return text
    return found["value"].value if set(found) == {"value"} else text


def named(word: shell.Argument) -> str:
    """A word without the folder before it."""
    return word.text.rsplit("/", 1)[-1]


def starts_with(words: Words, *names: str) -> bool:
    """Whether the words hold these names one behind the other, as behind `srun` and `nsys profile`."""
    held = [named(word) for word in words]
    return any(held[place : place + len(names)] == list(names) for place in range(len(held)))


def option(words: Words, name: str, file: str) -> Written | None:
    """The value of `--name value` or `--name=value`."""
    for place, word in enumerate(words):
        if word.text == name and place + 1 < len(words):
            return Written(words[place + 1].text, file, words[place + 1].line)
        if word.text.startswith(f"{name}="):
            return Written(word.text.partition("=")[2], file, word.line)
    return None


def processes(words: Words) -> int | None:
    """How many processes a launcher starts, on all nodes; None where only the caller knows a part of it."""
    found = {}
    for name in ("--nproc_per_node", "--nproc-per-node", "--nproc", "-n", "--nnodes"):
        value = option(words, name, "")
        if value is not None and shell.unknowns(str(value.value)):
            return None
        if value is not None and str(value.value).isdecimal():
            found[name] = int(value.value)
    nodes = found.pop("--nnodes", 1)
    return nodes * next(iter(found.values())) if found else None


def launcher_of(words: Words, file: str) -> dict[str, Written]:
    """The options of torchrun or `accelerate launch`, which stand before the program, but for the caller's counts."""
    inner = without_container(words)
    found = known_counts(_counted(arguments(_spelled(inner), file)))
    return {f"launcher.{key}": item for key, item in found.items()}


def known_counts(launcher: dict[str, Written]) -> dict[str, Written]:
    """Options of a launcher without how many processes there are, where only the caller knows all of it."""
    told = [str(launcher[key].value) for key in COUNTED if key in launcher]
    if not any(shell.unknowns(text) or text in ("gpu", "auto") for text in told):
        return launcher
    return {key: item for key, item in launcher.items() if key not in COUNTED}
