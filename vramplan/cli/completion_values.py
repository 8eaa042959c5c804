"""What may stand behind an option or in the place of an argument: words of the job format, profiles, keys, files."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from vramplan.options.option import TEXTS

FILES, DIRECTORIES = "\tfiles", "\tdirectories"


class Word(NamedTuple):
    """One word to offer."""

    text: str
    help: str = ""


class Line(NamedTuple):
    """What stands before the cursor."""

    path: tuple[str, ...]  # the names of the commands
    command: Any  # the last of them
    options: dict[str, list[str]]  # given so far, by the name of the parameter
    arguments: tuple[str, ...]
    pending: Any | None  # the option whose value is next


def values(line: Line, parameter: Any, current: str) -> Iterator[Word]:
    """Values of an option or of an argument."""
    name = parameter.name
    if name in ("model", "gpu"):
        yield from _profiles(f"{name}s", line, current)
        if name == "gpu":
            yield from _matching([Word("local", "the GPU of this machine")], current)
        yield Word(FILES)
    elif name == "name" and line.path[0] in ("gpus", "models", "runtimes"):
        yield from _profiles(line.path[0], line, current)
        if parameter.param_type_name == "argument":
            yield Word(FILES)
    elif line.path == ("profiles", "show") and name == "name":
        for kind in _KINDS:
            yield from _profiles(f"{kind}s", line, current)
        yield Word(FILES)
    elif name in ("a", "b", "source") and line.path[0] == "profiles":
        kinds = [f"{kind}s" for kind in line.arguments[:1] if kind in _KINDS] if name == "source" else []
        for kind in kinds or [f"{kind}s" for kind in _KINDS]:
            yield from _profiles(kind, line, current)
        yield Word(FILES)
    elif name == "kind" and line.path[0] == "profiles":
        yield from _matching(_KINDS, current)
    elif name == "architecture":
        yield from _matching(_field_words("gpus", name, line), current)
    elif name == "family":
        yield from _matching(_field_words("models", name, line), current)
    elif name == "targets":
        yield from _targets(line, current)
    elif name == "key":
        yield from _matching(_answer_keys(line.path), current)
    elif name in ("show_completion", "install_completion"):
        from vramplan.cli.shells import SHELLS

        yield from _matching(SHELLS, current)
    elif name == "output_format":
        from vramplan.cli.output import FORMATS, GATE_FORMATS

        yield from _matching(GATE_FORMATS if line.path == ("check",) else FORMATS, current)
    elif _shown(parameter) == "DIR":
        yield Word(DIRECTORIES)
    elif _shown(parameter) in ("FILE", "PATH", "PATHS"):
        yield Word(FILES)
    else:
        yield from _words(line, parameter, current)


def _shown(parameter: Any) -> str:
    """What stands for the value in the help."""
    return (parameter.metavar or parameter.name or "").strip("[].").upper()


def _words(line: Line, parameter: Any, current: str) -> Iterator[Word]:
    """The words of a key of the job format; none for a number or a size. In a list also after a comma."""
    from vramplan.options import table, words

    option = table.parameters().get(parameter.name)
    if option is None:
        return
    known = _runtimes() if option.key == "runtime" else option.words or option.examples
    if (line.options.get("runtime") or [""])[-1] == words.TEXTBOOK and option.textbook is not True:
        known = option.textbook or ()
    offered = (word if ":" not in word else word.partition(":")[0] + ":" for word in known)  # the rest is typed
    yield from _listed(offered, current) if option.kind == TEXTS else _matching(offered, current)


def _listed(words: Iterable[str], current: str) -> Iterator[Word]:
    """Words of a list that is separated by commas: those that it does not have yet."""
    before, comma, _ = current.rpartition(",")
    yield from _matching((before + comma + word for word in words if word not in before.split(",")), current)


def _runtimes() -> tuple[str, ...]:
    """The shipped runtimes, those of the user's folders, and those of other packages."""
    from vramplan.catalog.runtimes import names_of_runtimes
    from vramplan.options.words import RUNTIMES

    return tuple(dict.fromkeys((*RUNTIMES, *names_of_runtimes())))


def _matching(words: Iterable[Word | str], current: str) -> Iterator[Word]:
    for word in words:
        offered = word if isinstance(word, Word) else Word(word)
        if offered.text.startswith(current):
            yield offered


# Layers of the model


def _targets(line: Line, current: str) -> Iterator[Word]:
    """What an adapter of the kind may sit on, also after a comma; without a model what every model has."""
    from vramplan.catalog.counting import in_code
    from vramplan.catalog.models import find_model
    from vramplan.errors import InputError
    from vramplan.job.adapter_targets import known_targets
    from vramplan.replay.techniques.adapters import ALL_LINEAR, leaf
    from vramplan.replay.techniques.trained import names_of

    known: tuple[str, ...] = (ALL_LINEAR,)
    folders = [Path(folder).expanduser() for folder in line.options.get("profiles", ())]
    for name in line.options.get("model", ())[-1:]:
        with contextlib.suppress(InputError, OSError):
            model, _ = find_model(name, folders)
            model = in_code(model)
            names = known_targets(model, names_of(model), (line.options.get("adapter") or ["lora"])[-1])
            known = tuple(dict.fromkeys((*names, *map(leaf, names))))  # ends of names will do
    yield from _listed(known, current)


# Profiles, by their files


_KINDS = ("gpu", "model", "runtime", "stack")
_TITLE = re.compile(r"^\s*[\"']?title[\"']?:\s*[\"']?(.*?)[\"']?,?\s*$", re.MULTILINE)


def _profiles(kind: Any, line: Line, current: str) -> Iterator[Word]:
    """Names of profiles and, once something is typed, aliases, which are many."""
    from vramplan.catalog.aliases import aliases_in
    from vramplan.catalog.locate import slug

    wanted = slug(current)
    for name, text in _texts(kind, line):
        title = _TITLE.search(text)
        described = title[1] if title else ""
        if name.startswith(wanted):
            yield Word(name, described)
        elif wanted:
            for alias in aliases_in(text):
                if slug(alias).startswith(wanted):
                    yield Word(slug(alias), described)


def _field_words(kind: Any, field: str, line: Line) -> list[str]:
    """The words that a field has in the profiles of a kind."""
    pattern = re.compile(rf"^\s+{field}:\s*(?:{{\s*value:\s*)?([a-z]\w*)", re.MULTILINE)
    found = (pattern.search(text) for _, text in _texts(kind, line))
    return sorted({match[1] for match in found if match})


def _texts(kind: Any, line: Line) -> Iterator[tuple[str, str]]:
    """Name and text of every profile of a kind that can be read."""
    from vramplan.catalog.locate import files

    for name, path in files(kind, [Path(folder).expanduser() for folder in line.options.get("profiles", ())]).items():
        with contextlib.suppress(OSError, ValueError):
            yield name, path.read_text("utf-8")


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
