"""Notebooks of Jupyter as the scripts that their cells make; nothing is run.

The cells with code are one Python script where they construct a trainer. Else what they start is a shell script: lines
that begin with `!`, cells of `%%bash`, and the files that `%%writefile` makes. Each line keeps its place in the file.

Source: jupyter/nbformat 5.10, docs/format_description.rst (`cells`, `cell_type`, `source`); ipython/ipython 8.30,
IPython/core/inputtransformer2.py (`!`, `%`, `%%`, `?`), magics/osm.py (`%%writefile`, `%cd`, `%env`) and utils/text.py
(`{name}` and `$name` in a command are variables of the notebook).
"""

from __future__ import annotations

import ast
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from vramplan.errors import InputError, Problem
from vramplan.tuples import NamedTuple

SUFFIX = ".ipynb"
PYTHON, SHELL = "python", "shell"

KEPT = re.compile(r"%%(capture|time|timeit|prun|px|wandb)\b")
"""Magics of a whole cell below which Python stands."""

OF_A_SHELL = re.compile(r"%%(bash|sh|script +(/bin/)?(bash|sh))\b")
WRITES = re.compile(r"%%(?:writefile|file)(?: +-a)? +(?P<path>\S+)")
COMMAND = re.compile(r"\s*!(?!=)(?P<command>.*)")
MOVES = re.compile(r"\s*%(?P<command>cd +\S+)")
SETS = re.compile(r"\s*%(?:set_)?env +(?P<name>\w+)[= ](?P<value>\S+)")
MAGIC = re.compile(r"(?P<indent>\s*)([!%?](?!=)|[\w.]+\?{1,2}\s*$)")
CAPTURED = re.compile(r"(?P<name>\s*\w+ *= *)[!%].*")
CONSTANT = re.compile(r"(?P<name>[A-Za-z_]\w*) *= *(?P<value>[\"'][\w./:@+ -]*[\"']|[\d.eE_+-]+) *(#.*)?")
VARIABLE = re.compile(r"\{([A-Za-z_]\w*)\}")
CONSTRUCTS = re.compile(r"Trainer\(")
END = "END_OF_A_CELL"


class NotebookLine(NamedTuple):
    """A line of a cell, with its number in the file; None where the file has it not on a line of its own."""

    number: int | None
    text: str


def script(text: str, file: str) -> tuple[str, str]:
    """The script that a notebook is, and whether it is of Python or of a shell. Raises InputError."""
    cells = _cells(text, file)
    python = _laid_out(text, [line for cell in cells for line in _python(cell)])
    starts = any(COMMAND.match(line.text) or OF_A_SHELL.match(line.text) for cell in cells for line in cell)
    if CONSTRUCTS.search(python) or not starts:
        return python, PYTHON
    return _laid_out(text, [line for cell in cells for line in _shell(cell)]), SHELL


def _cells(text: str, file: str) -> list[list[NotebookLine]]:
    """The lines of the cells with code; cells without any are left out."""
    try:
        notebook: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        line, column = getattr(error, "lineno", None), getattr(error, "colno", None)
        raise InputError([Problem("is no notebook: not JSON", file=file, line=line, column=column)]) from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if cells is None and isinstance(notebook, dict):  # until version 4 of the format
        cells = [cell for sheet in notebook.get("worksheets") or () for cell in sheet.get("cells") or ()]
    if not isinstance(cells, list):
        raise InputError([Problem("is no notebook: it has no cells", file=file)])
    places = _Places(text)
    found = []
    for cell in cells:
        source = cell.get("source", cell.get("input", "")) if isinstance(cell, dict) else ""
        lines = [places.of(str(line)) for line in (source if isinstance(source, list) else [source])]
        split = [
            NotebookLine(line.number if number == 0 else None, part)
            for line in lines
            for number, part in enumerate(line.text.splitlines())
        ]
        if split and isinstance(cell, dict) and cell.get("cell_type") == "code":
            found.append(split)
    return found


class _Places:
    """Where the lines of cells stand in the text of a notebook, each behind the one before."""

    def __init__(self, text: str) -> None:
        self.at = 0
        self.numbers: dict[str, list[int]] = {}
        for number, line in enumerate(text.splitlines(), 1):
            self.numbers.setdefault(line.strip().removesuffix(","), []).append(number)

    def of(self, line: str) -> NotebookLine:
        """The next place of a line."""
        for written in (json.dumps(line, ensure_ascii=False), json.dumps(line)):
            numbers = self.numbers.get(written, [])
            behind = bisect_right(numbers, self.at)
            if behind < len(numbers):
                self.at = numbers[behind]
                return NotebookLine(self.at, line)
        return NotebookLine(None, line)


def _laid_out(text: str, lines: Sequence[NotebookLine]) -> str:
    """Lines at their places in the file; one after the other where a line has none."""
    if any(line.number is None for line in lines):
        return "\n".join(line.text for line in lines) + "\n"
    rows = [""] * (len(text.splitlines()) + 1)
    for number, line in lines:
        rows[(number or 1) - 1] += line
    return "\n".join(rows) + "\n"


def _python(cell: Sequence[NotebookLine]) -> list[NotebookLine]:
    """The Python of a cell, with `pass` for its magics; nothing of a cell that is none of Python."""
    found, continued = [], False
    for at, (number, line) in enumerate(cell):
        if line.startswith("%%") and at == 0:
            if not KEPT.match(line):
                return []
            continue
        magic, captured = MAGIC.match(line), CAPTURED.fullmatch(line)
        if continued:
            kept = ""
        elif captured is not None:
            kept = f"{captured['name']}None"
        else:
            kept = f"{magic['indent']}pass" if magic is not None else line
        continued = (continued or magic is not None or captured is not None) and line.rstrip().endswith("\\")
        found.append(NotebookLine(number, kept))
    try:
        ast.parse("\n".join(line.text for line in found))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return found


def _shell(cell: Sequence[NotebookLine]) -> Iterator[NotebookLine]:
    """What a cell starts, as lines of a shell: its commands, constants that they may name, and files that it writes."""
    first = cell[0]
    writes = WRITES.match(first.text)
    if writes is not None:
        yield NotebookLine(first.number, f"cat > {writes['path']} <<'{END}'")
        yield from cell[1:-1]
        last = cell[-1] if len(cell) > 1 else NotebookLine(first.number, "")
        yield NotebookLine(last.number, f"{last.text}\n{END}")
        return
    if OF_A_SHELL.match(first.text):
        yield from cell[1:]
        return
    continued = False
    for number, line in cell:
        command = COMMAND.match(line) or MOVES.match(line)
        sets, constant = SETS.match(line), CONSTANT.fullmatch(line)
        if continued or command is not None:
            words = line if command is None else command["command"]
            yield NotebookLine(number, VARIABLE.sub(r"${\1}", words))
            continued = words.rstrip().endswith("\\")
        elif sets is not None:
            yield NotebookLine(number, f"export {sets['name']}={sets['value']}")
        elif constant is not None:
            yield NotebookLine(number, f"{constant['name']}={constant['value']}")
