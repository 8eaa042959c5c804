"""What may stand behind an option or in the place of an argument: words of the job format, profiles, keys, files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vramplan.cli import named
from vramplan.cli.output import FORMATS, GATE_FORMATS
from vramplan.options.option import TEXTS, Option
from vramplan.tuples import NamedTuple

OFFERED = {
    "profiles": "vramplan.cli.completion_profiles:names",
    "field words": "vramplan.cli.completion_profiles:field_words",
    "targets": "vramplan.cli.completion_targets:targets",
    "runtimes": "vramplan.cli.completion_profiles:runtimes",
    "options": "vramplan.options.table:parameters",
    "textbook": "vramplan.options.words:TEXTBOOK",
    "shells": "vramplan.cli.shells:SHELLS",
    "schemas": "vramplan.cli.runs.schema:names",
    "writers": "vramplan.configs.writers:MODULES",
    "unknowns": "vramplan.options.words:UNKNOWNS",
    "every runtime": "vramplan.options.words:EVERY_RUNTIME",
    "every GPU": "vramplan.options.words:EVERY_GPU",
}
"""What knows the words that may stand somewhere. A key press imports the one that it needs."""

_TAKE_LISTS = ("compare", "plan")  # commands whose options take several values, separated by commas
_KINDS = ("gpu", "model", "runtime", "stack")

FILES, DIRECTORIES = "\tfiles", "\tdirectories"


class OfferedWord(NamedTuple):
    """One word to offer."""

    text: str
    help: str = ""


class TypedLine(NamedTuple):
    """What stands before the cursor."""

    path: tuple[str, ...]  # the names of the commands
    command: Any  # the last of them
    options: dict[str, list[str]]  # given so far, by the name of the parameter
    arguments: tuple[str, ...]
    pending: Any | None  # the option whose value is next


def values(line: TypedLine, parameter: Any, current: str) -> Iterator[OfferedWord]:
    """Values of an option or of an argument; behind a comma the next of several."""
    before, comma, last = current.rpartition(",")
    if comma and line.path[0] in _TAKE_LISTS and parameter.param_type_name == "option":
        given = before.split(",")
        offered = (one for one in _values(line, parameter, last) if one.text not in (FILES, DIRECTORIES))
        yield from (one._replace(text=f"{before},{one.text}") for one in offered if one.text not in given)
    else:
        yield from _values(line, parameter, current)


def _values(line: TypedLine, parameter: Any, current: str) -> Iterator[OfferedWord]:
    name = parameter.name
    if name in ("model", "gpu"):
        yield from _offered("profiles", f"{name}s", line, current)
        if name == "gpu":
            yield from _matching([OfferedWord("local", "the GPU of this machine")], current)
            if line.path == ("compare",):
                yield from _matching([OfferedWord(named(OFFERED["every GPU"]), "every GPU with a price")], current)
        yield OfferedWord(FILES)
    elif name == "name" and line.path[0] in ("gpus", "models", "runtimes"):
        yield from _offered("profiles", line.path[0], line, current)
        if parameter.param_type_name == "argument":
            yield OfferedWord(FILES)
    elif line.path == ("profiles", "show") and name == "name":
        for kind in _KINDS:
            yield from _offered("profiles", f"{kind}s", line, current)
        yield OfferedWord(FILES)
    elif name in ("a", "b", "source") and line.path[0] == "profiles":
        kinds = [f"{kind}s" for kind in line.arguments[:1] if kind in _KINDS] if name == "source" else []
        for kind in kinds or [f"{kind}s" for kind in _KINDS]:
            yield from _offered("profiles", kind, line, current)
        yield OfferedWord(FILES)
    elif name == "kind" and line.path[0] == "profiles":
        yield from _matching(_KINDS, current)
    elif name == "architecture":
        yield from _matching(_offered("field words", "gpus", name, line), current)
    elif name == "family":
        yield from _matching(_offered("field words", "models", name, line), current)
    elif name == "targets":
        yield from _listed(_offered("targets", line), current)
    elif name == "largest":
        yield from _matching(named(OFFERED["unknowns"]), current)
    elif name == "engine":
        yield from _matching(_named_writers(), current)
    elif name == "key":
        yield from _matching(_answer_keys(line.path), current)
    elif name in ("show_completion", "install_completion"):
        yield from _matching(named(OFFERED["shells"]), current)
    elif name == "output_format":
        yield from _matching(GATE_FORMATS if line.path == ("check",) else FORMATS, current)
    elif _shown(parameter) == "DIR":
        yield OfferedWord(DIRECTORIES)
    elif line.path == ("schema",) and name == "name":
        yield from _matching(_offered("schemas"), current)
    elif _shown(parameter) in ("FILE", "PATH", "PATHS", "FILE[#NAME"):
        yield OfferedWord(FILES)
    else:
        yield from _words(line, parameter, current)


def _named_writers() -> Iterable[str]:
    found: Iterable[str] = named(OFFERED["writers"])
    return found


def _offered(what: str, *given: Any) -> Any:
    """The answer of a function of the table."""
    return named(OFFERED[what])(*given)


def _shown(parameter: Any) -> str:
    """What stands for the value in the help."""
    return (parameter.metavar or parameter.name or "").strip("[].").upper()


def _words(line: TypedLine, parameter: Any, current: str) -> Iterator[OfferedWord]:
    """The words of a key of the job format; none for a number or a size. In a list also after a comma."""
    option: Option | None = _offered("options").get(parameter.name)
    if option is None:
        return
    known = _offered("runtimes") if option.key == "runtime" else option.words or option.examples
    if option.key == "runtime" and line.path == ("plan",):
        known = (*known, named(OFFERED["every runtime"]))
    if (line.options.get("runtime") or [""])[-1] == named(OFFERED["textbook"]) and option.textbook is not True:
        known = option.textbook or ()
    offered = (word if ":" not in word else word.partition(":")[0] + ":" for word in known)  # the rest is typed
    yield from _listed(offered, current) if option.kind == TEXTS else _matching(offered, current)


def _listed(words: Iterable[str], current: str) -> Iterator[OfferedWord]:
    """Words of a list that is separated by commas: those that it does not have yet."""
    before, comma, _ = current.rpartition(",")
    yield from _matching((before + comma + word for word in words if word not in before.split(",")), current)


def _matching(words: Iterable[OfferedWord | str], current: str) -> Iterator[OfferedWord]:
    for word in words:
        offered = word if isinstance(word, OfferedWord) else OfferedWord(word)
        if offered.text.startswith(current):
            yield offered


# Keys of an answer


def _answer_keys(path: tuple[str, ...]) -> Iterator[str]:
    """The keys that `--print` takes, from the schema of the command's answer; into lists only their own names."""
    import json

    kind = f"{path[0].removesuffix('s')}-profile" if path[1:] == ("show",) else "-".join(path)
    folder = Path(__file__).parents[1] / "report" / "schemas"
    try:
        schema = json.loads((folder / f"{kind}.json").read_text("utf-8"))
    except OSError:
        return
    yield from _properties(schema, schema, "")


def _properties(schema: Any, root: Any, prefix: str) -> Iterator[str]:
    reference = schema.get("$ref", "")
    if reference.startswith("#/$defs/"):
        schema = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})
    for key, inner in schema.get("properties", {}).items():
        yield prefix + key
        yield from _properties(inner, root, f"{prefix}{key}.")
