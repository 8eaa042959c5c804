"""The options of a command as its help shows them: under headings, the everyday ones first of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vramplan.cli.typed import HELP_ALL, shortcuts
from vramplan.options import table
from vramplan.options.option import Option
from vramplan.options.shortcuts import OUTPUT, Shortcut

MOST_WORDS = 7  # of a key in the everyday help
SELDOM = (
    *("profiles", "all_stages", "folder", "force"),
    *("program", "version", "ignore_unknown"),
    *("strict", "quiet"),
)
"""What is not everyday of the options that are no keys of a job."""

ORDER = (*table.PANELS, OUTPUT)


def panels(command: Any, context: Any, *, everything: bool) -> dict[str, list[tuple[str, str]]]:
    """Names and help of the options, by heading. Without `everything` those of the table that are everyday."""
    rows = table.parameters()
    declared = {name for parameter in command.params for name in parameter.opts}
    of_job = {"--model", "--gpu"} <= declared
    shown: dict[str, list[tuple[str, str]]] = {}
    shorter = {one: name for name, one in shortcuts(command).items() if one.everyday and name == one.flags[0]}
    hidden = 0
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:
            continue
        row = rows.get(parameter.name)
        if row is not None and getattr(parameter, "rich_help_panel", None) == table.panel_of(row):
            if everything or row.everyday:
                shown.setdefault(table.panel_of(row), []).append(
                    record if everything else (record[0], _short(row, parameter.opts, shorter))
                )
            else:
                hidden += 1
        elif of_job and parameter.name in SELDOM and not everything:
            hidden += 1
        else:
            shown.setdefault(OUTPUT if of_job else "Options", []).append(record)
    if of_job:
        for shortcut in dict.fromkeys(shortcuts(command).values()):
            if everything or (shortcut.everyday and not shortcut.means):
                name = f"{shortcut.flags[0]} {shortcut.metavar}".strip()
                shown.setdefault(shortcut.panel, []).append((name, shortcut.help))
        if hidden:
            line = (HELP_ALL, f"Show all options: {hidden} more.")
            shown.setdefault(OUTPUT, []).append(line)
    return {heading: shown[heading] for heading in sorted(shown, key=_place)}


def _short(row: Option, flags: Sequence[str], shorter: Mapping[Shortcut, str]) -> str:
    """The help of a row with its first words, the rest are in the whole help and at TAB; and what is short for some."""
    told = row.description
    if len(row.words) > MOST_WORDS:
        told = row._replace(words=(*row.words[:MOST_WORDS], "...")).description.removesuffix(".").replace("....", "...")
    names = [f"{name} {one.metavar}".strip() for one, name in shorter.items() if one.means and one.means[0] in flags]
    return f"{told} In short: {', '.join(names)}." if names else told


def _place(heading: str) -> int:
    return ORDER.index(heading) if heading in ORDER else len(ORDER)
