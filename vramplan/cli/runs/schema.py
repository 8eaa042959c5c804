"""What `vramplan schema` does."""

from __future__ import annotations

from importlib.resources import files

from vramplan.cli.output import write
from vramplan.errors import UsageError, near_matches
from vramplan.report.json import dumps
from vramplan.report.json import schema as document


def schema(name: str) -> None:
    """Run `vramplan schema` with the values of its options."""
    if name not in names():
        hint = near_matches(name, names()) or ", ".join(names())
        raise UsageError(f"there is no schema {name!r}", key="NAME", hint=hint)
    write(dumps(document(name)))  # with the schemas that it refers to


def names() -> list[str]:
    """Those of job files and of answers."""
    folder = files("vramplan.report") / "schemas"
    return sorted(one.name.removesuffix(".json") for one in folder.iterdir() if one.name.endswith(".json"))
