"""What is made of the table of options and checked in: `python -m tests.options.made` writes it, a test holds it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.docs import glossary
from tests.options import pairs
from vramplan.job.file import VERSION
from vramplan.options import table, words
from vramplan.options.option import COUNT, FLAG, MAPPING, NUMBER, PARAMETERS, SIZE, TEXT, TEXTS, WORD, Option

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, DOCS = ROOT / "vramplan", ROOT / "docs"
COMMAND = "python -m tests.options.made"

HELD = {TEXT: "str", WORD: "str", FLAG: "bool", COUNT: "int", PARAMETERS: "int", NUMBER: "float", SIZE: "int"}
"""Types of the draft, by the kind of the key."""


def draft() -> str:
    """vramplan/options/draft.py: the attributes of a job that is not resolved yet."""
    lines = [
        '"""Made from the table of options by `python -m tests.options.made`: the values of a job before defaults."""',
        "",
        "from __future__ import annotations",
        "",
        "",
        "class Values:",
        '    """One attribute for each key, by the kind of its row. None: absent, null or wrong."""',
        "",
    ]
    return "\n".join([*lines, *(f"    {one.attribute}: {_held(one)}" for one in _kept())]) + "\n"


def _kept() -> list[Option]:
    return [one for one in table.TABLE if one.attribute and one.kind != MAPPING]


def _held(option: Option) -> str:
    kind = "tuple[str, ...]" if option.kind == TEXTS else HELD[option.kind]
    return kind if option.absent is not None else f"{kind} | None"


KEYS_HEAD = '''\
"""Made from the table of options by `python -m tests.options.made`: the keys of a job for type checkers and editors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Required, TypeAlias, TypedDict

PathText: TypeAlias = str | os.PathLike[str]


class JobKeys(TypedDict, total=False):
    """The keys of a job, as keyword arguments; docs/job-format.md says what each means and what it defaults to."""

'''
FIELDS_HEAD = '''

@dataclass(frozen=True, slots=True, init=False, repr=False)
class JobFields:
    """The same as attributes of a job; a key that is None is left out."""

'''
SUBJECTS = ("model", "gpu")  # which every job has


def keys() -> str:
    """vramplan/job/given/keys.py: the keywords and the attributes of the API's `Job`."""
    rows = sorted(table.inside().values(), key=lambda one: one.name not in SUBJECTS)  # those first, as people write
    given = [f"    {one.name}: {_given(one)}\n" for one in rows]
    kept = [f"    {one.name}: {_given(one, kept=True)}\n" for one in rows]
    return KEYS_HEAD + "".join(given) + FIELDS_HEAD + "".join(kept)


def _given(option: Option, *, kept: bool = False) -> str:
    """The type of a value as Python has it, or as a frozen job keeps it."""
    mapping = "Mapping[str, Any]"
    if option.key in SUBJECTS:
        return f"str | {mapping} | None" if kept else f"Required[PathText | {mapping}]"
    if option.key == "activation_checkpointing":
        return f"str | {mapping} | None"
    types = {
        MAPPING: mapping,
        TEXTS: "tuple[str, ...]" if kept else "Sequence[str]",
        SIZE: "str",
        PARAMETERS: "int | str",
    }
    return f"{types.get(option.kind) or HELD[option.kind]} | None"


# Reference pages


def value_of(option: Option) -> str:
    """What a key takes, in Markdown."""
    if option.kind in (WORD, TEXTS, COUNT) and option.words:
        listed = ", ".join(f"`{word}`" for word in option.words)
        return f"list of {listed}" if option.kind == TEXTS else listed
    if option.examples:
        return f"{VALUES[option.kind]}, such as {', '.join(f'`{word}`' for word in option.examples)}"
    return VALUES[option.kind] + _range(option) if option.key not in SUBJECTS else "text or mapping"


VALUES = {
    TEXT: "text",
    WORD: "text",
    FLAG: "boolean",
    COUNT: "whole number",
    PARAMETERS: "count",
    NUMBER: "number",
    SIZE: "size",
    TEXTS: "list",
    MAPPING: "mapping",
}


def _range(option: Option) -> str:
    if option.kind not in (COUNT, NUMBER):
        return ""
    least = 1 if option.kind == COUNT and option.minimum is None else option.minimum
    parts = []
    if least == 0 and option.zero:
        parts.append("above 0")
    elif least is not None and (option.kind, least) != (COUNT, 1):
        parts.append(f"from {least:g}")
    if option.below is not None:
        parts.append(f"below {option.below:g}")
    elif option.maximum is not None and option.maximum <= MOST_TOLD:
        parts.append(f"at most {option.maximum:g}")
    return f"{',' * parts[0].startswith('at')} {', '.join(parts)}" if parts else ""


MOST_TOLD = 100_000  # greater bounds are guards against what was pasted wrongly


def default_of(option: Option) -> str:
    """What is taken where a key is left out, in Markdown."""
    if option.usual or option.default is None:
        return option.usual
    return f"`{json.dumps(list(option.default) if option.kind == TEXTS else option.default).strip(QUOTE)}`"


QUOTE = '"'


def options_of(option: Option) -> str:
    """Its options on the command line, in Markdown."""
    names = [*option.options, *([option.negation] if option.kind == FLAG else [])]
    return ", ".join(f"`{name}`" for name in names) or "none"


def meaning_of(option: Option) -> str:
    """The help without the words, which have a column, and what more there is to say."""
    help = re.sub(r"([*|\\])", r"\\\1", option.help)
    return f"{help} {option.note}".strip()


def job_format() -> str:
    """docs/job-format.md: the tables of keys, each under the heading of its section."""
    text = (DOCS / "job-format.md").read_text("utf-8")
    for section in table.SECTIONS:
        rows = [
            f"| `{one.key}` | {options_of(one)} | {value_of(one)} | {default_of(one)} | {meaning_of(one)} |"
            for one in table.TABLE
            if one.section == section
        ]
        made = "\n".join(["| Key | Option | Value | Default | Meaning |", "|---|---|---|---|---|", *rows])
        before, heading, rest = text.partition(f"\n### {section}\n")
        assert heading, section
        before_table, *_, after_table = re.split(r"^(\|.*\n)+", rest, maxsplit=1, flags=re.MULTILINE)
        text = f"{before}{heading}{before_table}{made}\n{after_table}"
    before, heading, rest = text.partition("\n### What goes with what\n")
    before_table, *_, after_table = re.split(r"^(\|.*\n)+", rest, maxsplit=1, flags=re.MULTILINE)
    return f"{before}{heading}{before_table}{pairs.table()}\n{after_table}"


# JSON Schema


def schema() -> dict[str, Any]:
    """What a job file may have, for editors and for programs that write one: draft 2020-12."""
    job = {"type": "object", "additionalProperties": False, "properties": _properties("")}
    job["properties"] |= {key: {"description": "Of a validation case."} for key in words.CASE_KEYS}
    job["properties"]["matrix"] = _matrix()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:vramplan:schema:job-file:1",
        "title": "A job file of vramplan check and vramplan validate",
        "type": "object",
        "required": ["version", "jobs"],
        "additionalProperties": False,
        "properties": {
            "version": {"const": VERSION},
            "defaults": {"$ref": "#/$defs/job"},
            "jobs": {
                "type": "array",
                "minItems": 1,
                "items": {"allOf": [{"$ref": "#/$defs/job"}, {"required": ["name"]}]},
            },
        },
        "$defs": {"job": job},
    }


def _matrix() -> dict[str, Any]:
    """Lists of values by key, nested or with a dot, and combinations that are left out."""
    lists: dict[str, Any] = {}
    for name, one in table.inside("").items():
        if name == "name":
            continue
        inside = table.inside(name)
        each = {key: _list_of(inner) for key, inner in inside.items()}
        nested = {"type": "object", "additionalProperties": False, "properties": each}
        lists[name] = {"anyOf": [nested, _list_of(one)]} if each else _list_of(one)
    lists |= {one.key: _list_of(one) for one in table.TABLE if one.group}
    lists["exclude"] = {"type": "array", "items": {"type": "object"}, "description": "Combinations that are left out."}
    text = "One job for each combination of the values of these keys."
    return {"description": text, "type": ["object", "null"], "additionalProperties": False, "properties": lists}


def _list_of(option: Option) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": _schema_of(option)}


def _properties(group: str) -> dict[str, Any]:
    return {name: {"description": one.help, **_schema_of(one)} for name, one in table.inside(group).items()}


def _schema_of(option: Option) -> dict[str, Any]:
    inside = table.inside(option.name) if not option.group else {}
    if inside:
        nested = {"type": ["object", "null"], "additionalProperties": False, "properties": _properties(option.name)}
        kind = table.inside(option.name).get("kind")
        return nested if kind is None else {"anyOf": [nested, *_of_words(kind)]}
    if option.words and option.kind != TEXTS:
        return {"anyOf": [*_of_words(option), *OTHER_FORMS.get(option.key, [])]}
    if option.kind == TEXTS:
        item: dict[str, Any] = {"enum": list(option.words)} if option.words else {"type": "string"}
        return {"anyOf": [item, {"type": "array", "items": item}, {"type": "null"}]}
    return {"type": [*TYPES[option.kind], "null"], **_limits(option)}


def _of_words(option: Option) -> list[dict[str, Any]]:
    plain = [word for word in option.words if ":" not in word]
    heads = [word.partition(":")[0] for word in option.words if re.search(":[A-Z]", word)]
    values = [int(word) for word in plain] if option.kind == COUNT else plain
    found: list[dict[str, Any]] = [{"enum": [*values, *(map(str.upper, plain) if option.any_case else ()), None]}]
    if heads:
        found.append({"type": "string", "pattern": f"^({'|'.join(heads)}):[1-9][0-9]{{0,8}}$"})
    return found


OTHER_FORMS: dict[str, list[dict[str, Any]]] = {
    "activation_checkpointing": [
        {"type": "string", "pattern": "^layers:"},
        {"type": "object", "required": ["layers"], "properties": {"layers": {"type": "array"}}},
    ],
}
TYPES = {
    TEXT: ["string", "number"],  # 2.1 is a text too
    FLAG: ["boolean"],
    COUNT: ["integer"],
    PARAMETERS: ["integer", "string"],
    NUMBER: ["number"],
    SIZE: ["string", "integer"],
    MAPPING: ["string", "object"],
}


def _limits(option: Option) -> dict[str, Any]:
    if option.kind not in (COUNT, NUMBER):
        return {}
    least = 1 if option.kind == COUNT and option.minimum is None else option.minimum
    found = {"exclusiveMinimum" if least == 0 and option.zero else "minimum": least}
    found |= {"exclusiveMaximum": option.below, "maximum": option.maximum}
    return {name: value for name, value in found.items() if value is not None}


MADE: dict[Path, Callable[[], str]] = {
    PACKAGE / "options" / "draft.py": draft,
    PACKAGE / "job" / "given" / "keys.py": keys,
    DOCS / "job-format.md": job_format,
    DOCS / "glossary.md": glossary.page,
    PACKAGE / "report" / "schemas" / "job-file.json": lambda: json.dumps(schema(), indent=2) + "\n",
}


if __name__ == "__main__":
    for path, make in MADE.items():
        path.write_text(make(), "utf-8")
