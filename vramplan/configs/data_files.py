"""Files of data that a Python script reads its settings from: which call reads one, where it is, and what is in it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from vramplan.catalog import document
from vramplan.configs.forms import plain
from vramplan.errors import InputError

SUFFIXES = (".yaml", ".yml", ".json")
LOADERS = {
    *(f"yaml.{name}" for name in ("safe_load", "load", "full_load", "unsafe_load")),
    *("json.load", "json.loads", "OmegaConf.load", "omegaconf.OmegaConf.load"),
}
WRAPPERS = {"OmegaConf.create", "EasyDict", "edict", "AttrDict", "Box", "DotMap", "dict", "munchify"}
"""What makes an object with attributes of a dictionary."""


def place_in(node: ast.expr, behind: Callable[[ast.expr | None], ast.expr | None], value: Callable[..., Any]) -> str:
    """The path of the file that an expression is, opens or reads; empty where no text says it.

    `behind`: what a name stands for. `value`: of an expression. Of a path that is put together the last part counts.
    """
    found = behind(node)
    while isinstance(found, ast.Call):
        if isinstance(found.func, ast.Attribute) and found.func.attr in ("read", "read_text", "open"):
            found = behind(found.func.value)
        elif found.args and ast.unparse(found.func) in (
            "open",
            "Path",
            "pathlib.Path",
            "io.open",
            "codecs.open",
            "str",
        ):
            found = behind(found.args[0])
        else:
            break
    if found is None:
        return ""
    text = value(found)
    if isinstance(text, str) and text.endswith(SUFFIXES):
        return text
    words = [one.value for one in ast.walk(found) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return next((word for word in reversed(words) if word.endswith(SUFFIXES)), "")


def content(text: str, path: str) -> Any:
    """The content of a YAML or JSON file as plain Python; None where it cannot be read."""
    is_json = path.endswith(".json")
    try:
        parsed = document.parse(text, path, json=is_json, as_pyyaml=not is_json)
    except InputError:
        return None
    return None if parsed.problems else plain(parsed.root)
