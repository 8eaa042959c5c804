"""What was typed, in the options that a command has.

Options have other names than ours in other programs, some stand for several of ours, and a model may be named without
`--model`. All that is settled here, word by word, before the command line is parsed; an option that is given twice,
under one name or two, is an error unless it takes several values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from vramplan.cli import named
from vramplan.tuples import NamedTuple

HELP_ALL = "--help-all"


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


OTHERS = {
    "measure": {"--num-steps": "--iterations", "--max-steps": "--iterations"},
    "scale": {"--max-gpus": "--to", "--up-to": "--to", "--until": "--to", "--max-devices": "--to"},
}
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


def own_words(command: Any, context: Any, words: Sequence[str]) -> list[str]:
    """The words with the names of the command's own options, each option once. Raises UsageError."""
    reader = named("vramplan.cli.reader:WordsReader")(command, context, words)
    found = reader.read()
    found = _job_of_its_file(found)
    given = {one.parameter.name for one in found if one.parameter is not None}
    if NODES.name in given:
        found = named("vramplan.cli.replicas:of_all_nodes")(found, command)
    elif DATA in given and not given.isdisjoint(named("vramplan.options.words:SPLITS")):
        named("vramplan.cli.replicas:tell")(found)
    if len(given) < sum(one.parameter is not None for one in found) or not given.isdisjoint(SETTLED):
        found = named("vramplan.cli.settled:settled")(found, command)
    for said in reader.told:
        named("vramplan.cli.output:say")(f"note: {said}")
    result, rest = [], []
    for one in found:
        if one.parameter is None and not one.name:
            rest.append(one.spelling)
        elif one.value is None:
            result.append(one.name or one.spelling)
        elif (one.name or one.spelling).startswith("--"):
            result.append(f"{one.name or one.spelling}={one.value}")
        else:
            result += [one.spelling, one.value]
    return [*result, *(("--", *rest) if any(word.startswith("-") and word != "-" for word in rest) else rest)]


def _job_of_its_file(found: list[TypedOption]) -> list[TypedOption]:
    """`jobs.yaml --job full` is `--job jobs.yaml#full`, as `check` takes it."""
    jobs = [one for one in found if one.parameter is not None and one.parameter.name == "job"]
    files = [one for one in jobs if one.value is not None and is_file(one.value)]
    names = [one for one in jobs if one not in files and "#" not in (one.value or "")]
    if len(files) != 1 or len(names) != 1 or len(jobs) != 2 or getattr(jobs[0].parameter, "multiple", False):
        return found
    whole = files[0]._replace(value=f"{files[0].value}#{names[0].value}")
    return [whole if one is files[0] else one for one in found if one is not names[0]]


_FUNCTION = re.compile(r"((?<=\.py)|(?<=\.ipynb)):\w+$")  # of FILE.py:NAME
FILE = re.compile(r"/|\\|\.(ya?ml|json|toml|sh|bash|slurm|sbatch|py|ipynb|txt|args)$", re.IGNORECASE)
"""What a word has that may be a file: a folder before it, or the ending of a configuration file."""

STDIN = ("-", "/dev/stdin")  # the names in vramplan.catalog.text, which is not loaded for an option


def is_file(word: str) -> bool:
    """Whether a word names a file that is there, or standard input."""
    if word in STDIN:
        return True
    return FILE.search(word) is not None and os.path.isfile(_FUNCTION.sub("", word))


SETTLED = (
    "offload_optimizer_device",
    "offload_parameters_device",
    "adapter",
    "rank",
    "alpha",
    "adapter_dropout",
    "targets",
    "quantization",
)  # what may imply an adapter
COMPARING = ("compare", "plan")
"""Commands that take a list for any option of a job."""
