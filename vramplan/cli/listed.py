"""A list of profiles as a command: a word behind it is a profile to show, or a part of the names to list."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Any

from typer.core import TyperGroup

from vramplan.cli import named
from vramplan.errors import UsageError

EVERYTHING = ("list", "ls", "all")
SHOW = "show"
FILLERS = (
    *("with", "at", "least", "of", "and", "more", "memory", "vram", "gpus", "gpu", "cards", "card"),
    *("models", "the", "that"),
)
"""Words beside those that say which profiles are meant."""
SWITCHES = ("--bf16", "--flash")
UNIT = re.compile(r"[gt]i?b", re.IGNORECASE)


class ListOfProfiles(TyperGroup):
    """`vramplan gpus h100` is `vramplan gpus show h100`, and `vramplan models llama` lists the models named so."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As click does, after a word that is no command has become one or an option."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = _meant(str(self.name), args[0], args[1:], self)
        args = [_named(one, self) for one in args]
        return super().parse_args(ctx, args)


OTHER_NAMES = {
    **dict.fromkeys(("--vram", "--memory", "--mem", "--min-vram", "--min-mem"), "--min-memory"),
    "--arch": "--architecture",
    **dict.fromkeys(("--size", "--filter", "--search", "--grep", "--contains"), "--name"),
}
"""What people call an option of a list."""


def _named(word: str, command: Any) -> str:
    """An option under the name that the command has; any other word as it is."""
    option, equals, value = word.partition("=")
    own = OTHER_NAMES.get(option)
    has_it = own is not None and any(own in one.opts for one in command.params)
    return f"{own}{equals}{value}" if has_it else word


def _meant(kind: str, word: str, rest: list[str], command: Any) -> list[str]:
    """The options, or the sub-command, that words without a dash stand for."""
    if word in EVERYTHING and (not rest or rest[0].startswith("-")):
        return rest
    words = [word, *takewhile(lambda one: not one.startswith("-"), rest)]
    rest = rest[len(words) - 1 :]
    said = words if len(words) == 1 else [one for one in words if one.lower() not in FILLERS]
    if not said:
        return [SHOW, word, *rest]  # which names near matches where there is no such profile
    shipped_called = named("vramplan.catalog.locate:shipped_called")
    for tie in (" ", "-"):
        if shipped_called(kind, tie.join(said)) is not None:
            return [SHOW, tie.join(said), *rest]
    filters = _filters(kind, said, command)
    if filters is not None:
        return [*filters, *rest]
    if len(said) > 1:
        raise UsageError(f"no {kind} are called {' '.join(said)!r}", hint=f"vramplan {kind} lists all of them")
    return [SHOW, *said, *rest]


def _filters(kind: str, words: list[str], command: Any) -> list[str] | None:
    """The options of the list that words stand for; None where one of them is not understood."""
    options = {name for one in command.params for name in one.opts}
    found: list[str] = []
    names: list[str] = []
    while words:
        word, *words = words
        small = word.lower()
        sized = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([gt]i?b?)?\+?", small)
        unit = "" if sized is None else sized[2] or next(filter(UNIT.fullmatch, words[:1]), "")
        if sized and unit and "--min-memory" in options:
            words = words if sized[2] else words[1:]
            found.append(f"--min-memory={sized[1]} {unit if len(unit) > 1 else unit + 'b'}")
        elif f"--{small}" in SWITCHES and f"--{small}" in options:
            found.append(f"--{small}")
        elif "--architecture" in options and small in _architectures():
            found.append(f"--architecture={small}")
        elif named("vramplan.catalog.locate:is_part_of_a_name")(kind, word):
            names.append(word)
        else:
            return None
    if names:
        found.append(f"--name={' '.join(names)}")
    return found


def _architectures() -> set[str | None]:
    """Those of the shipped GPUs."""
    return {profile.gpu().architecture for profile in named("vramplan.catalog.gpus:list_gpus")()}
