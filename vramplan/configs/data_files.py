"""Files of data that a Python script reads its settings from: which call reads one, where it is, and what is in it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from vramplan.catalog import document
from vramplan.configs.forms import NotConstant, plain
from vramplan.errors import InputError

SUFFIXES = (".yaml", ".yml", ".json")
LOADERS = {
    *(f"yaml.{name}" for name in ("safe_load", "load", "full_load", "unsafe_load")),
    *("json.load", "json.loads", "OmegaConf.load", "omegaconf.OmegaConf.load", "hydra.main"),
}
WRAPPERS = {"OmegaConf.create", "EasyDict", "edict", "AttrDict", "Box", "DotMap", "dict", "munchify"}
"""What makes an object with attributes of a dictionary."""


OF_HYDRA = "hydra.main"
"""What hands a function the file that its arguments name. Source: facebookresearch/hydra 1.3, hydra/main.py."""


def of_hydra(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[ast.arg, ast.expr] | None:
    """The parameter of a function that Hydra fills, with a call that reads its file; None where Hydra does not."""
    marks = [one for one in function.decorator_list if isinstance(one, ast.Call) and ast.unparse(one.func) == OF_HYDRA]
    if not marks or not function.args.args:
        return None
    words = {one.arg: one.value.value for one in marks[0].keywords if isinstance(one.value, ast.Constant)}
    folder, name = words.get("config_path"), words.get("config_name")
    if not isinstance(folder, str) or not isinstance(name, str):
        return None
    file = f"{folder}/{name.removesuffix('.yaml')}.yaml".removeprefix("./")
    call = ast.Call(marks[0].func, [ast.Constant(file)], [])
    return function.args.args[0], ast.fix_missing_locations(ast.copy_location(call, function))


OF_HYDRAS_COMMAND = ("config_name", "config_path")
"""Options of a script that Hydra starts."""


def of_command(path: str, changes: Mapping[str, Any]) -> str:
    """The path of the file of Hydra that a command may name in the place of the script's."""
    folder, _, name = path.rpartition("/")
    folder, name = str(changes.get("config_path", folder)), str(changes.get("config_name", name))
    return f"{folder}/{name.removesuffix('.yaml')}.yaml"


def composed(content: Any, changes: Mapping[str, Any]) -> Any:
    """The content of a file of Hydra as a command changes it: None where it takes others in.

    What the command must say is not constant.
    """
    others = content.get("defaults") if isinstance(content, dict) else None
    if others and others != ["_self_"]:
        return None
    if not isinstance(content, dict):
        return None
    found = _copied(content)
    for key, value in changes.items():
        *above, last = key.split(".")
        place: Any = found
        for part in above:
            place = place.get(part) if isinstance(place, dict) else None
        if isinstance(place, dict) and key not in OF_HYDRAS_COMMAND:
            place[last] = value
    return found


def _copied(content: dict[str, Any]) -> dict[str, Any]:
    return {key: _copied(item) if isinstance(item, dict) else _filled(item) for key, item in content.items()}


def _filled(item: Any) -> Any:
    return NotConstant(item) if isinstance(item, str) and ("${" in item or item == "???") else item


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
