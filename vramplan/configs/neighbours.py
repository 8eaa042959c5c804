"""What lies around a file: modules that it imports, scripts that it sources, the script that its command starts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from glob import glob

from vramplan.catalog.text import read_text
from vramplan.configs import data_files, own_arguments
from vramplan.configs.constructed import Beside
from vramplan.configs.shell import unknowns
from vramplan.configs.written import Written
from vramplan.errors import InputError

VERBS = ("sft", "dpo", "kto", "grpo", "reward", "rloo", "rm", "train")
"""What consoles of programs are told to do; any other name without an ending is a module behind `-m`."""

PARENTS = 6  # folders above a file in which what it names or imports may begin


def imported(file: str) -> Beside:
    """What finds a module that a Python file imports: by the part of its dotted name below a folder above the file.

    The farthest counts, as packages within it may have the same names. A module whose name has none of these folders is
    looked for below them, and beside the file by its last name. A file of data is found by its path from the file's
    folder or one above it, or by its name beside the file.
    """
    folder = os.path.dirname(os.path.abspath(file))
    above = [folder]
    while len(above) < PARENTS and os.path.dirname(above[-1]) != above[-1]:
        above.append(os.path.dirname(above[-1]))

    def text_of(module: str) -> tuple[str, str] | None:
        if module.endswith(data_files.SUFFIXES):
            names = [os.path.join(one, module) for one in above]
            names.append(os.path.join(folder, os.path.basename(module)))
            path = next((name for name in names if os.path.isfile(name)), None)
            try:
                return None if path is None else (read_text(path, allow_utf16=True), path)
            except InputError:
                return None
        parts = module.split(".")
        places = [
            (one, parts.index(os.path.basename(one)) + 1) for one in reversed(above) if os.path.basename(one) in parts
        ]
        places += [(one, 0) for one in above]
        for place, at in [*places, (folder, len(parts) - 1)]:
            for end in (".py", "/__init__.py") if parts[at:] else ():
                path = os.path.join(place, *parts[at:]) + end
                try:
                    if os.path.isfile(path):
                        return read_text(path, allow_utf16=True), path
                except InputError:
                    continue
        return None

    return text_of


def started(program: str, file: str) -> tuple[str, str] | None:
    """The text and the path of the script that a command starts, below the file's folder or one above it.

    None where it is not there.
    """
    ends = [program]
    if not program.endswith(".py"):
        if program in VERBS or not re.fullmatch(r"[\w./]+", program):
            return None
        program = program.replace(".", "/") + ".py"  # of `-m`
        ends = [program, os.path.join("src", program)]  # where packages lie that are installed
    folder = os.path.dirname(os.path.abspath(file))
    parts = program.split("/") if os.path.isabs(program) or unknowns(program) else []
    last = max(len(parts) - 1, min(len(parts), 3))  # the name alone only where a folder alone stands before it
    ends += [os.path.join(*parts[at:]) for at in range(1, last)]
    for _ in range(PARENTS):
        places = (os.path.normpath(os.path.join(folder, end)) for end in ends)
        path = next((one for one in places if os.path.isfile(one)), None)
        if path is not None:
            try:
                return read_text(path, allow_utf16=True), path if os.path.isabs(file) else os.path.relpath(path)
            except InputError:
                return None
        folder = os.path.dirname(folder)
    return None


def is_of_hydra(program: str, file: str) -> bool:
    """Whether a script that a command starts is there and takes its settings from Hydra itself, as NeMo's do not."""
    found = started(program, file)
    return found is not None and f"@{data_files.OF_HYDRA}(" in found[0]


def declared(text: str, path: str) -> tuple[Written, Written]:
    """The arguments of a script that a command starts, and whose they are."""
    found = own_arguments.declared(text, path, imported(path))
    return Written(found, path), Written(own_arguments.trainer_of(text, path, imported(path)), path)


def defined_above(file: str, package: str, name: str) -> str | None:
    """`FILE.py:FUNCTION` for a function of a package that lies in a folder above a file, also by an alias of it."""
    folder = os.path.dirname(os.path.abspath(file))
    for _ in range(PARENTS):
        root = os.path.join(folder, *package.split("/"))
        if os.path.isdir(root):
            return _defined_below(root, name)
        folder = os.path.dirname(folder)
    return None


def _defined_below(root: str, name: str) -> str | None:
    texts: dict[str, str] = {}
    for path in sorted(glob(os.path.join(root, "**", "*.py"), recursive=True)):
        try:
            texts[path] = read_text(path)
        except InputError:
            continue
    aliased = (re.search(rf"(?m)^\s*(\w+) as {re.escape(name)},?$", text) for text in texts.values())
    own = next((found[1] for found in aliased if found is not None), name)
    for path, text in texts.items():
        if re.search(rf"(?m)^def {re.escape(own)}\(", text):
            return f"{path}:{own}"
    return None


def sourced(file: str) -> Callable[[str], str | None]:
    """What finds a script by the end of its path, from the folder of the file: `$HERE/../common.sh` is above it."""
    folder = os.path.dirname(file)

    def text_of(name: str) -> str | None:
        parts = name.split("/")
        ends = [os.path.join(folder, *parts[at:]) for at in range(len(parts)) if parts[at]]
        try:
            return next((read_text(path, allow_utf16=True) for path in ends if os.path.isfile(path)), None)
        except InputError:
            return None

    return text_of
