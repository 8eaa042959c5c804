"""docs/glossary.md, made from the keys of a job and the public types: `python -m tests.options.made` writes it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator

import vramplan.results
import vramplan.values
from vramplan.options import table

HEAD = """\
# Glossary

For people who meet a word in a job, in an answer or in the code and want to know what it stands for.
This page is made from the keys of a job and from the types of jobs and answers.

What takes part in a job is a type of `vramplan.values`; what an answer consists of is a type of `vramplan.results`.
Words that a key takes are in [the job format](job-format.md#keys-of-a-job).

"""


def types() -> Iterator[type]:
    """Every type of a resolved job and of an answer."""
    rooms = (vramplan.values, vramplan.results)
    names = [f"{room.__name__}.{module.name}" for room in rooms for module in pkgutil.iter_modules(room.__path__)]
    for module in (vramplan.results, *map(importlib.import_module, names)):
        for found in vars(module).values():
            if inspect.isclass(found) and found.__module__ == module.__name__ and hasattr(found, "_fields"):
                yield found


def page() -> str:
    """The whole page, in alphabetical order."""
    rows = []
    for option in table.TABLE:
        anchor = re.sub(r"[^\w\- ]", "", option.section.lower()).replace(" ", "-")
        place = f"[{option.section}](job-format.md#{anchor})"
        rows.append((option.key, "key of a job", _cell(option.help), place))
    for found in types():
        first = _cell(inspect.cleandoc(found.__doc__ or "").split("\n\n")[0])
        fields = ", ".join(f"`{name}`" for name in found._fields)  # type: ignore[attr-defined]
        rows.append((found.__name__, "type", f"{first} Fields: {fields}.", f"`{found.__module__}`"))
    lines = ["| Term | What it is | Meaning | Where |", "|---|---|---|---|"]
    rows.sort(key=lambda row: (row[0].lower(), row))
    lines += [f"| `{term}` | {what} | {meaning} | {where} |" for term, what, meaning, where in rows]
    return HEAD + "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """One line, with what Markdown would take for itself outside of code."""
    parts = " ".join(text.split()).split("`")
    parts[::2] = [re.sub(r"([*|\[\]])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)
