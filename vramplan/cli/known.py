"""An option as it was typed, and the names that a command has for its options."""

from __future__ import annotations

from typing import Any

from vramplan.cli import named
from vramplan.tuples import NamedTuple


class TypedOption(NamedTuple):
    """One option as it was typed, or a word beside the options."""

    parameter: Any | None  # None: a word, or nothing that the command knows
    spelling: str
    value: str | None
    name: str = ""  # of the option in the command, where the spelling is another
    is_shortcut: bool = False
    is_weak: bool = False  # it says nothing where the same is said otherwise

    @property
    def shown(self) -> str:
        """As it was typed."""
        return self.spelling if self.value is None or self.is_shortcut else f"{self.spelling} {self.value}"


def names_of(command: Any) -> dict[str, Any]:
    """Every name of an option that the command declares."""
    return {
        name: one
        for one in command.params
        if one.param_type_name == "option"
        for name in (*one.opts, *one.secondary_opts)
    }


def other_names(command: Any) -> dict[str, str]:
    """Names of other programs for options of the command, and the name that the command has."""
    declared = names_of(command)
    found = dict(OTHERS.get(command.name, {}))
    for row in named("vramplan.options.table:parameters")().values():
        if getattr(declared.get(row.option), "name", None) == row.parameter:
            found |= dict.fromkeys(row.also, row.option)
    taken = NOT_IN.get(command.name, ())
    return {name: option for name, option in found.items() if name not in declared and name not in taken}


def shortcuts(command: Any) -> dict[str, Any]:
    """The options that stand for others of the command, by their names."""
    declared = names_of(command)
    return {
        name: one
        for one in named("vramplan.options.shortcuts:SHORTCUTS")
        if all(word in declared for word in one.means if word.startswith("--")) and (one.means or "--gpus" in declared)
        for name in one.flags
        if name not in declared
    }


OTHERS = {"measure": {"--num-steps": "--iterations", "--max-steps": "--iterations"}}
NOT_IN = {"measure": ("--steps",)}  # which would be read as measured steps, and is accumulation in every other command


class NODES:
    """Stands for the option --nodes, which no command declares: it multiplies --gpus."""

    name, multiple, is_flag = "nodes", False, False
    opts: tuple[str, ...] = ("--nodes",)
    secondary_opts: tuple[str, ...] = ()


DATA = "data"


def is_quiet(found: list[TypedOption]) -> bool:
    """Whether nothing is to be said beside the exit code."""
    return any(one.parameter is not None and one.parameter.name == "quiet" for one in found)
