"""The arguments of a command in the place of the options, the fields or the parameters of its script."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from vramplan.configs import data_files
from vramplan.configs.evaluated import STARTERS, UNKNOWN, ScriptNames
from vramplan.configs.noted_names import as_parsed, name_of

OF_CLASSES = "HfArgumentParser"
"""What fills data classes from a command."""


def handed(names: ScriptNames, values: Mapping[str, Any]) -> set[str]:
    """Take the arguments of a command for the options of the script; those that it does not take.

    They are options of `argparse`, fields of the one data class that a parser makes, or parameters of the one
    function that Fire calls.
    """
    left = set(values)
    if any(data_files.of_hydra(function) for function in names.functions.values()):
        names.changes = {key: item for key, item in values.items() if key in data_files.OF_HYDRAS_COMMAND}
        changed = {key: item for key, item in values.items() if key not in names.changes and _is_set(names, key)}
        left -= names.changes.keys() | changed.keys()
        names.changes |= changed
    for name in [one for one in left if one.startswith("no_") and values[one] is True and not _is_field(names, one)]:
        on = name.removeprefix("no_")  # HfArgumentParser has it for each switch that is on by default
        if _is_field(names, on):
            next(fields for fields in names.fields.values() if on in fields)[on] = ast.Constant(False)
            left.discard(name)
    for name in [one for one in left if _is_field(names, one)]:
        fields = next(fields for fields in names.fields.values() if name in fields)
        fields[name] = ast.Constant(as_parsed(values[name], ast.Call(fields[name], [], [])))
        left.discard(name)
    for name in list(left):
        full = [one for one in names.options if one == name or one.startswith(name)]  # argparse takes the beginning
        if name in full or len(full) == 1:
            key, option = names.options[name if name in full else full[0]]
            names.arguments[key] = ast.Constant(as_parsed(values[name], option))
            left.discard(name)
    for call in names.calls():
        function = names.functions.get(ast.unparse(call.args[0])) if call.args else None
        if name_of(call) not in STARTERS or function is None:
            continue
        for one in (*function.args.args, *function.args.kwonlyargs):
            if one.arg in left:
                constant = ast.Constant(as_parsed(values[one.arg], call))
                told = names.assigned.setdefault((function, one.arg), [])
                told[:1] = [(function.lineno, ast.copy_location(constant, one))]
                left.discard(one.arg)
    return left


def _is_set(names: ScriptNames, key: str) -> bool:
    """Whether the file of Hydra has a setting, which a command then changes."""
    for function in names.functions.values():
        filled = data_files.of_hydra(function)
        found: Any = names.value(filled[1]) if filled is not None else None
        for part in key.split("."):
            found = found.get(part, UNKNOWN) if isinstance(found, Mapping) else UNKNOWN
        if filled is not None and found is not UNKNOWN:
            return True
    return False


def _is_field(names: ScriptNames, name: str) -> bool:
    """Whether an argument is a field of one data class of the script, and of no library's, that a parser fills."""
    made = [call for call in names.calls() if name_of(call).rpartition(".")[2] == OF_CLASSES]
    parsed = {ast.unparse(one) for call in made for part in call.args for one in ast.walk(part)}
    holding = [kind for kind, fields in names.fields.items() if name in fields and kind in parsed]
    return len(holding) == 1
