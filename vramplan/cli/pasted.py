"""The command of a training program that stands on the command line itself: `fit h100 -- torchrun train.py --bf16`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

from vramplan.catalog.text import paste
from vramplan.cli.reader import MAY_BE_PASTED, WordsReader
from vramplan.cli.typed import FILE, TypedOption
from vramplan.errors import UsageError
from vramplan.options.shortcuts import FORMATS

_ASSIGNED = re.compile(r"([A-Za-z_]\w*=)(.*)", re.DOTALL)
_OPTION = re.compile("--[a-z]")
ESTIMATE = ("accelerate", "estimate-memory")
GPU = ("-g", "--gpu")
MODULES, SCRIPTS = ("-m", "--module"), (".py", ".sh")  # what a launcher starts, behind its own options


def pasted(reader: WordsReader, word: str, found: Sequence[TypedOption]) -> list[TypedOption]:
    """The options that a command beginning with the word stands for: its text in the place of a file, and a GPU behind
    it. None where it begins no command. Raises UsageError.
    """
    words = _command(reader, word)
    if not words:
        return []
    first = words if len(words) > 1 else words[0].split()
    if tuple(first[: len(ESTIMATE)]) == ESTIMATE:
        meant = " ".join(map(shlex.quote, first[len(ESTIMATE) :]))
        raise UsageError(
            "estimates models, and is no run", key=" ".join(ESTIMATE), hint=f"did you mean vramplan fit {meant}?"
        )
    takes_files = "--model" not in reader.declared
    if "--config" not in reader.declared and not takes_files:
        raise UsageError(f"{reader.command.name} takes no command of a training program", key=words[0])
    is_open = "--gpu" in reader.declared and not any(one.parameter is reader.declared["--gpu"] for one in found)
    gpu = _gpu_behind(words, lambda one: is_open and reader.names_a_gpu(one, behind=True))
    name = paste(words[0] if len(words) == 1 else written(words))
    if takes_files:
        return [TypedOption(None, name, None)]
    options = {"--config": name, **({} if gpu is None else {"--gpu": gpu})}
    return [TypedOption(reader.declared[option], option, value) for option, value in options.items()]


def _command(reader: WordsReader, word: str) -> list[str]:
    """The words of the command that begins with the word, none if none does; those behind are taken from the reader."""
    if word != "--" and re.search(r"\s", word):
        return [word] if " --" in word or _starts_a_program(word.split()) else []
    words = list(reader.words) if word == "--" else [word, *reader.words]
    if not _starts_a_program(words) and not (word == "--" and any(map(_OPTION.match, words))):
        return []
    reader.words = []
    return words


def _starts_a_program(words: Sequence[str]) -> bool:
    """Whether the words start a program, behind variables that are set for it."""
    rest = [word for word in words if _ASSIGNED.fullmatch(word) is None]
    if len(rest) < len(words) and rest and rest[0].endswith(".sh"):
        return True
    if len(rest) < 2 or MAY_BE_PASTED.fullmatch(rest[0]) is None:
        return False
    if not any(map(_is_of_a_run, rest[1:])):
        return False  # the name of a program alone: `trl sft packing`
    return not rest[1].startswith("-") or any(word in MODULES or word.endswith(SCRIPTS) for word in rest[1:])


def _is_of_a_run(word: str) -> bool:
    """Whether a word is a setting or a file of a training program, and no option for how the answer is printed."""
    name = word.partition("=")[0]
    return FILE.search(word) is not None or (name.startswith("-") and name not in (*FORMATS, "--format", "--print"))


def _gpu_behind(words: list[str], names_a_gpu: Callable[[str], bool]) -> str | None:
    """What can only be the GPU behind a command, taken from its words: `-g h100`, or a last word of no option."""
    places = [at for at, word in enumerate(words[:-1]) if word in GPU and names_a_gpu(words[at + 1])]
    if places:
        gpu = words[places[-1] + 1]
        del words[places[-1] : places[-1] + 2]
        return gpu
    if len(words) > 2 and not words[-2].startswith("-") and names_a_gpu(words[-1]):
        return words.pop()
    return None


def written(words: Sequence[str]) -> str:
    """The words as a shell reads them again; those before the program may set variables."""
    found, is_before = [], True
    for word in words:
        assigned = _ASSIGNED.fullmatch(word) if is_before else None
        is_before = assigned is not None
        found.append(shlex.quote(word) if assigned is None else f"{assigned[1]}{shlex.quote(assigned[2])}")
    return " ".join(found)
