"""A list of profiles as a command: a word behind it is a profile to show, or a part of the names to list."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from vramplan.cli import named

EVERYTHING = ("list", "ls", "all")
SHOW = "show"


class ListOfProfiles(TyperGroup):
    """`vramplan gpus h100` is `vramplan gpus show h100`, and `vramplan models llama` lists the models named so."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As click does, after a word that is no command has become one or an option."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = _meant(str(self.name), args[0], args[1:])
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


def _meant(kind: str, word: str, rest: list[str]) -> list[str]:
    if word in EVERYTHING and (not rest or rest[0].startswith("-")):
        return rest
    is_one = named("vramplan.catalog.locate:shipped_called")(kind, word) is not None
    if not is_one and named("vramplan.catalog.locate:is_part_of_a_name")(kind, word):
        return ["--name", word, *rest]
    return [SHOW, word, *rest]  # which names near matches where there is no such profile
