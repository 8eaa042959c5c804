"""The training programs whose files are read, by name; each is imported when files are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

from vramplan.configs.command import allocator_of, left_behind
from vramplan.configs.constructed import Beside
from vramplan.configs.sheet import Launched, Program
from vramplan.configs.shell import Script, commands_among
from vramplan.configs.table import ProgramRelease
from vramplan.configs.written import Written
from vramplan.errors import InputError, Problem, UsageError, near_matches

MODULES = {
    "training-arguments": "arguments",
    "trl": "arguments:TRL",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "axolotl": "axolotl",
    "llama-factory": "llama_factory",
    "torchtune": "torchtune",
    "torchtitan": "torchtitan",
    "litgpt": "litgpt",
    "llm-foundry": "llm_foundry",
    "megatron-lm": "megatron",
    "nanogpt": "nanogpt",
    "nemo": "nemo",
    "megatron-bridge": "megatron_bridge",
    "open-instruct": "open_instruct",
    "ms-swift": "ms_swift",
    "verl": "verl",
}
"""Names of `--from`, and the files in `programs/`."""

CONSTRUCTED = ("torchtitan_registry", "megatron_bridge", "nemo_recipes", "arguments.calls")
"""Files in `programs/` that read what functions of a Python file construct."""

OTHER_NAMES = {
    "transformers": "training-arguments",
    "hf": "training-arguments",
    "trainer": "training-arguments",
    "hf-training-arguments": "training-arguments",
    "megatron": "megatron-lm",
    "llamafactory": "llama-factory",
    "llama_factory": "llama-factory",
    "lit-gpt": "litgpt",
    "foundry": "llm-foundry",
    "composer": "llm-foundry",
    "tune": "torchtune",
    "titan": "torchtitan",
    "swift": "ms-swift",
}
FOREIGN = {
    "nanotron": frozenset(["general", "parallelism", "tokens", "model", "optimizer"]),
    "kohya's sd-scripts (diffusion models)": frozenset(["pretrained_model_name_or_path", "network_module"]),
    "SimpleTuner (diffusion models)": frozenset(["data_backend_config", "model_family"]),
}
"""Programs whose files are told from others and not read, by keys of which a file has all, at its top or in a section.

Source: huggingface/nanotron, src/nanotron/config/config.py; kohya-ss/sd-scripts, library/train_util.py and
train_network.py; bghira/SimpleTuner, OPTIONS.md.
"""

FOREIGN_COMMANDS = {
    "Megatron-SWIFT": re.compile(
        r"(\S*/)?megatron (sft|pt|rlhf|dpo|grpo|rm)( .*)?|.*\bswift\.cli\._megatron\.\w+ .*", re.DOTALL
    ),
    "another trainer of verl": re.compile(r".*\bverl\.trainer\.(?!(fsdp_sft_trainer|main_ppo)\b)\w+( .*)?", re.DOTALL),
    "OpenRLHF": re.compile(r".*\bopenrlhf\.cli\.train_\w+( .*)?", re.DOTALL),
    "XTuner": re.compile(r"(\S*/)?xtuner train .*", re.DOTALL),
    "OLMo-core": re.compile(r"(.*\s)?(\S*/)?src/scripts/train/\S+\.py( .*)?", re.DOTALL),
    "a trainer of diffusion models": re.compile(
        r"(?=.*\s--pretrained_model_name_or_path[= ])(?=.*\s--(resolution|network_module|instance_\w+|snr_gamma)\b).*"
        r"|(.*[\s/])?((sdxl|flux|sd3)_)?train_(network|text_to_image|dreambooth|controlnet)\w*\.py( .*)?",
        re.DOTALL,
    ),
}
"""Programs whose commands are told from others and not read: they take arguments of the Trainer, and mean others.

Source: modelscope/ms-swift, swift/cli/main.py; OpenRLHF/OpenRLHF, openrlhf/cli; InternLM/xtuner, xtuner/entry_point.py;
allenai/OLMo-core, src/scripts/train; huggingface/diffusers, examples; kohya-ss/sd-scripts.
"""

ENOUGH = 2  # keys that are a program's alone, to take a file for its


@cache
def program_of(name: str) -> Program:
    """The program of a name. Raises UsageError, with near matches."""
    name = OTHER_NAMES.get(name.lower(), name.lower())
    if name not in MODULES:
        hint = near_matches(name, [*MODULES, *OTHER_NAMES]) or ", ".join(MODULES)
        raise UsageError(f"{name!r} is no program whose files are read", key="--from", hint=hint)
    module, _, attribute = MODULES[name].partition(":")
    found: Program = getattr(import_module(f"vramplan.configs.programs.{module}"), attribute or "PROGRAM")
    return found


def strongest(keys: Mapping[str, Any]) -> str | None:
    """The program that most keys are of alone, without the file's sake; None where they are too few."""
    found = max((program_of(name).recognise(keys), name) for name in MODULES)
    return found[1] if found[0] >= ENOUGH else None


def recognised(keys: Mapping[str, Any], file: str | None) -> Program:
    """The program whose keys a file has. Raises InputError where it is none, or two alike."""
    scores = sorted(((program_of(name).recognise(keys), name) for name in MODULES), reverse=True)
    best, second = scores[0], scores[1]
    hint = "name it: --from " + ", ".join(sorted(MODULES))
    parts = {part.lstrip("-") for key in keys for part in (key.split(".", 1)[0], key.rpartition(".")[2])}
    other = next((name for name, own in FOREIGN.items() if own <= parts), None)
    if best[0] < ENOUGH and other is not None:
        raise InputError([_foreign(other, file)])
    if best[0] < ENOUGH:
        if {"model", "gpu"} <= keys.keys():  # the keys of a job of ours, which are no file of their own
            hint = "a job stands in a job file: version: 1, and under jobs: a name with these keys"
        if "program" in keys:  # a command, whose arguments are those of its script
            hint = (
                f"say what it runs: vramplan fit MODEL GPU --seq N --micro-batch N, and --lora where it is; or {hint}"
            )
        raise InputError([Problem("is of no training program that is known here", file=file, hint=hint)])
    if best[0] == second[0]:
        message = f"may be of {best[1]} or of {second[1]}"
        raise InputError([Problem(message, file=file, hint=f"name it: --from {best[1]} or --from {second[1]}")])
    return program_of(best[1])


def started_by(script: Script, file: str) -> tuple[Program, Launched] | None:
    """What the first command of a script starts that starts a program with a file; None where there is none."""
    found: tuple[Program, Launched] | None = None
    others: dict[int, None] = {}
    unread: tuple[str, ...] = ()
    foreign: tuple[str, int] | None = None
    read = script.program.line if script.program is not None else None
    for words, values in zip(script.commands, script.held, strict=True):
        line = " ".join(word.text for word in words)
        name = next((name for name, how in FOREIGN_COMMANDS.items() if how.fullmatch(line)), None)
        if name is not None:
            of_it = read is None or words[0].line <= read <= words[-1].line
            foreign = foreign or ((name, words[0].line) if of_it else None)
            continue
        for program in map(program_of, MODULES):
            as_there = replace(script, values=values)
            launched = program.started(words, as_there, file)
            if launched is not None and found is None:
                around = {**allocator_of(as_there, file), **launched.launcher}
                found, unread = (program, launched._replace(launcher=around)), commands_among(words)
            elif launched is not None:
                others[words[0].line] = None
            if launched is not None:
                break
    heads = [words[0] for words in script.commands if words]  # one of an empty variable has no words
    behind = [head for head in heads if re.match(r"--[a-z]", head.text)]
    if found is not None and behind:
        starts = max((head.line for head in heads if head.line < behind[0].line), default=1)
        raise InputError([left_behind(behind, starts, file)])
    if found is None and foreign is not None:
        raise InputError([_foreign(foreign[0], file, foreign[1])])
    if found is None:
        return None
    return found[0], found[1]._replace(others=tuple(others), loops=script.loops, unread=unread)


def _foreign(name: str, file: str | None, line: int | None = None) -> Problem:
    """What to say of a file of another program."""
    hint = f"files of these are read: {', '.join(sorted(MODULES))}"
    return Problem(f"is of {name}, whose runs are not modelled", file=file, hint=hint, line=line)


def started_on_platform(written: Mapping[str, Written], file: str) -> tuple[Program, Launched] | None:
    """What the specification of a run on a platform starts; None where it is none."""
    for program in map(program_of, MODULES):
        found = program.on_platform(written, file)
        if found is not None:
            return program, found
    return None


def constructed(text: str, file: str, wanted: str | None, beside: Beside) -> tuple[dict[str, Written], str] | None:
    """The settings that a function of a Python file constructs, with a note on which; None where it is of no program.

    `wanted`: the name of the function. Raises InputError.
    """
    for name in CONSTRUCTED:
        found = import_module(f"vramplan.configs.programs.{name}").from_python(text, file, wanted, beside)
        if found is not None:
            settings: tuple[dict[str, Written], str] = found
            return settings
    return None


def release_of(program: Program, version: str | None) -> ProgramRelease:
    """The release of a version, the newest without one. Raises UsageError for one that is not known."""
    if version is None:
        return program.releases[0]
    for release in program.releases:
        if release.version == version or release.version.removeprefix("core ") == version.removeprefix("v"):
            return release
    known = [release.version for release in program.releases]
    hint = near_matches(version, known) or f"known are {', '.join(known)}"
    raise UsageError(f"the defaults of {program.name} {version} are not known", key="--engine-version", hint=hint)
