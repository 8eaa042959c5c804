"""What `vramplan schema` does."""

from __future__ import annotations

from importlib.resources import files

from vramplan.cli.output import write
from vramplan.errors import UsageError, near_matches


def schema(name: str) -> None:
    """Run `vramplan schema` with the values of its options."""
    folder = files("vramplan.report") / "schemas"
    names = sorted(one.name.removesuffix(".json") for one in folder.iterdir() if one.name.endswith(".json"))
    if name not in names:
        hint = near_matches(name, names) or ", ".join(names)
        raise UsageError(f"there is no schema {name!r}", key="NAME", hint=hint)
    write((folder / f"{name}.json").read_text("utf-8"))
