"""What a shell offers after TAB: commands, options and values. The scripts of the shells are in `shells.py`.

A shell calls the program with the environment variable `_VRAMPLAN_COMPLETE` set to its name and the words up to the
cursor as arguments, the last one unfinished. Each line of the answer is a word, in zsh and fish with a tab and a
description behind it; `<tab>files` and `<tab>directories` ask the shell for its own.

A person waits for it at every key: no profile is parsed, no context of a command line is built, no engine is loaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from vramplan.cli.commands import COMMANDS, HELP
from vramplan.cli.completion_values import OfferedWord, TypedLine, values
from vramplan.cli.typed import other_names, shortcuts

BREAKS = frozenset("=:")  # bash takes a word apart at these, and wants only what stands behind the last


def answer(shell: str, words: Sequence[str], root: Any) -> str:
    """The lines for a shell; empty if there is nothing to offer."""
    shell = shell.removeprefix("complete_")  # `complete_bash`, as scripts made by Typer ask
    words = words or _of_environment()
    strip = 0
    if shell == "bash":
        words, strip = _rejoined(words)
    offered = complete(root, words or [""])
    if shell == "bash":
        lines = [word.text if word.text[:1] == "\t" else word.text[strip:] for word in offered]
    else:
        lines = [f"{word.text}\t{word.help}" if word.help else word.text for word in offered]
    return "".join(f"{line}\n" for line in dict.fromkeys(lines))


def complete(root: Any, words: Sequence[str]) -> list[OfferedWord]:
    """What may stand in the place of the last of `words`, which begin after the name of the program."""
    *before, current = words
    line = _read(root, before)
    if line is None:
        return []
    if line.pending is not None:
        return list(values(line, line.pending, current))
    option, equals, value = current.partition("=")
    if current.startswith("--") and equals:
        found = _option(line.command, option)
        found_values = [] if found is None or not _takes_value(found) else list(values(line, found, value))
        return [word if word.text[:1] == "\t" else word._replace(text=f"{option}={word.text}") for word in found_values]
    if current.startswith("-"):
        return list(_options(line, current))
    if _is_group(line.command):
        return list(_commands(line, current))
    arguments = [one for one in line.command.params if one.param_type_name == "argument"]
    if arguments:
        given = len(line.arguments)
        index = min(given, len(arguments) - 1)
        if given <= index or arguments[index].nargs == -1:
            return list(values(line, arguments[index], current))
    if not current:
        return list(_options(line, current))
    model = _option(line.command, "--model")  # which needs no option
    return [] if arguments or model is None or "model" in line.options else list(values(line, model, current))


# What stands there


def _of_environment() -> list[str]:
    """The words as scripts made by Typer hand them over: in variables."""
    if "COMP_WORDS" in os.environ:
        words, end = os.environ["COMP_WORDS"].split(), os.environ.get("COMP_CWORD", "")
        return [*words, ""][1 : int(end) + 1 if end.isdigit() else None]
    text = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return [*text.split()[1:], *([""] if text.endswith(" ") or not text else [])]


def _rejoined(pieces: Sequence[str]) -> tuple[list[str], int]:
    """The words that bash took apart, and how much of the last one it does not want back."""
    words: list[str] = []
    glued = False
    for piece in pieces:
        breaks = bool(piece) and BREAKS.issuperset(piece)
        if words and (breaks or glued):
            words[-1] += piece
        else:
            words.append(_unquoted(piece))
        glued = breaks
    last = pieces[-1] if pieces else ""
    kept = "" if last and BREAKS.issuperset(last) else _unquoted(last)
    return words, len(words[-1]) - len(kept) if words else 0


def _unquoted(word: str) -> str:
    """`'my files` and `my\\ files` as they are meant; the closing quote may not be there yet."""
    if word[:1] in ("'", '"'):
        return word[1:].removesuffix(word[0])
    return re.sub(r"\\(.)", r"\1", word)


def _read(root: Any, words: Sequence[str]) -> TypedLine | None:
    """The finished words; None if a command is misspelt."""
    line = TypedLine((), root, {}, (), None)
    for word in words:
        if line.pending is not None:
            line.options.setdefault(line.pending.name, []).append(word)
            line = line._replace(pending=None)
        elif word.startswith("-") and len(word) > 1:
            name, equals, value = word.partition("=")
            option = _option(line.command, name)
            if option is None:
                continue
            if _takes_value(option) and not equals:
                line = line._replace(pending=option)
            else:
                line.options.setdefault(option.name, []).append(value)
        elif _is_group(line.command):
            command = line.command.get_command(None, word)
            if command is None:
                return None
            line = TypedLine((*line.path, word), command, {}, (), None)
        else:
            line = line._replace(arguments=(*line.arguments, word))
    return line


def _is_group(command: Any) -> bool:
    return hasattr(command, "list_commands")


def _option(command: Any, name: str) -> Any | None:
    """The option of a name, hidden ones too."""
    for parameter in command.params:
        if parameter.param_type_name == "option" and name in (*parameter.opts, *parameter.secondary_opts):
            return parameter
    if name.startswith("--") and not _is_group(command):
        other = other_names(command).get(name.replace("_", "-"))
        return None if other is None else _option(command, other)
    return None


def _takes_value(option: Any) -> bool:
    return not (option.is_flag or option.count)


# What may stand there


def _commands(line: TypedLine, current: str) -> Iterator[OfferedWord]:
    for name in line.command.list_commands(None):
        if not name.startswith(current):
            continue
        if not line.path:  # the short help is in the table: no command is built for it
            yield OfferedWord(name, COMMANDS[name].short_help)
        else:
            yield OfferedWord(name, line.command.get_command(None, name).get_short_help_str(80))


def _options(line: TypedLine, current: str) -> Iterator[OfferedWord]:
    """Names of options that can still be given: until somebody types on, the first long one of each."""
    for parameter in line.command.params:
        if parameter.param_type_name != "option" or parameter.hidden or "--help" in parameter.opts:
            continue
        if parameter.name in line.options and not parameter.multiple:
            continue
        names = [*parameter.opts, *parameter.secondary_opts]
        if current in ("", "--"):
            names = [name for name in names if name.startswith("--")][:1]
        for name in names:
            if name.startswith(current):
                yield OfferedWord(name, " ".join((parameter.help or "").split()))
    if current not in ("", "--") and not _is_group(line.command):
        others = {**other_names(line.command), **{name: one.help for name, one in shortcuts(line.command).items()}}
        for name, told in others.items():
            if name.startswith(current):
                yield OfferedWord(name, f"The same as {told}." if told.startswith("--") else told)
    for name in HELP if current not in ("", "--") else HELP[:1]:
        if name.startswith(current):
            yield OfferedWord(name, "Show what the command does, and its options.")
