"""The words of one command: the program that only the caller names, and what is written to files or handed on."""

from __future__ import annotations

import re

from vramplan.configs.shell.expanding import CLOSE, OPEN, Argument, unknowns

_WRITTEN = re.compile(r"(?:\d|&)?>{1,2}(?P<target>.*)", re.DOTALL)  # of a command that a variable held
LAUNCHERS = ("torchrun", "python", "python3", "deepspeed", "accelerate", "srun", "uv", "bash", "sh")


MANY_PROCESSES = ("torchrun", "deepspeed", "accelerate")
_TRAINING = re.compile(r"train|tun(e|ing)|(^|[_/-])(sft|dpo|kto|orpo|grpo)([_.-]|$)")


def is_training(program: str, launcher: list[Argument]) -> bool:
    """Whether a program trains by its name, or as it is started: one process for each device."""
    names = [item.text.rsplit("/", 1)[-1] for item in launcher]
    return bool(_TRAINING.search(program.lower())) or any(name in MANY_PROCESSES for name in names)


def named_by_caller(arguments: list[Argument]) -> int | None:
    """The place of a program that only the caller names, `torchrun --nproc_per_node 8 $SCRIPT --lr 1`; else None."""
    texts = [item.text for item in arguments]
    starts = next((at for at, text in enumerate(texts) if text.rsplit("/", 1)[-1] in LAUNCHERS), None)
    if starts is None or "-m" in texts:
        return None
    for at in range(starts + 1, len(texts) - 1):
        before, after = texts[at - 1], texts[at + 1]
        is_value = before.startswith("-") and "=" not in before
        alone = unknowns(texts[at]) and texts[at] == f"{OPEN}{unknowns(texts[at])[0]}{CLOSE}"
        if alone and not is_value and after.startswith("--"):
            return at
    return None


OF_TRAINERS = ("--model_name_or_path", "--per_device_train_batch_size")


def installed(arguments: list[Argument]) -> int | None:
    """The place of a program that somebody's package installs, `own-train --model_name_or_path NAME`; else None."""
    names = [item.text.partition("=")[0].replace("-", "_").replace("__", "--", 1) for item in arguments]
    first = next((at for at, item in enumerate(arguments) if item.text.startswith("-")), 0)
    is_one = first > 0 and all(name in names for name in OF_TRAINERS)
    starts = any(item.text.rsplit("/", 1)[-1] in LAUNCHERS for item in arguments[:first])
    return first - 1 if is_one and not starts and "-m" not in names else None


def without_redirections(arguments: list[Argument]) -> list[Argument]:
    """The arguments of a command that was the text of a variable, up to a pipe."""
    kept: list[Argument] = []
    target = False
    for item in arguments:
        if item.text in ("|", "|&"):
            break
        found = _WRITTEN.fullmatch(item.text)
        if found is None and not target:
            kept.append(item)
        target = found is not None and not found["target"]
    return kept
