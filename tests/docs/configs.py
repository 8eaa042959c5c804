"""docs/configs-keys.md, made from the tables of the readers: `python -m tests.docs.configs` writes it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from vramplan.configs.registry import MODULES, program_of

PAGE = Path(__file__).parents[2] / "docs" / "configs-keys.md"

HEAD = """\
# Keys of training programs

For people who wonder what became of a setting of their [configuration file](configs.md).

This page is made from the tables of the readers.
A name that ends in `*` stands for every key that begins so.
"""


def page() -> str:
    """The page."""
    return HEAD + "".join(_section(name) for name in MODULES)


def _section(name: str) -> str:
    program = program_of(name)
    table = program.table
    releases = "".join(f"- {release.version}, {release.date}: {release.source}\n" for release in program.releases)
    unmodelled: dict[str, list[str]] = {}
    for key, what in table.unmodelled.items():
        unmodelled.setdefault(what, []).append(key)
    rows = "".join(f"| {_keys(keys)} | {what} |\n" for what, keys in unmodelled.items())
    grid = f"\nWithout a word in a job:\n\n| Keys | What they change |\n|---|---|\n{rows}" if rows else ""
    return (
        f"\n## {name}\n\nReleases whose defaults are known:\n\n{releases}"
        f"\nUnderstood: {_keys(sorted(table.understood))}.\n{grid}"
        f"\nOf no effect: {_keys(sorted(table.without_effect))}.\n"
    )


def _keys(keys: Iterable[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
