"""Which commands there are. A process imports and builds only the one that it runs."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from typer.core import TyperGroup
from typer.main import get_command_from_info, get_group
from typer.models import CommandInfo


class Entry(NamedTuple):
    """Where a command is, and what `vramplan --help` says of it."""

    module: str
    attribute: str  # a function, or a Typer app with sub-commands
    short_help: str


COMMANDS = {
    "fit": Entry("vramplan.cli.fit", "fit", "Does a training run fit, what fills the memory, how to run it?"),
    "check": Entry("vramplan.cli.files", "check", "A gate for CI: does every job have the verdict it expects?"),
    "validate": Entry("vramplan.cli.files", "validate", "Compare predictions with measured cases."),
    "gpus": Entry("vramplan.cli.catalogue", "gpus", "List the known GPUs, or show one."),
    "models": Entry("vramplan.cli.catalogue", "models", "List the known models, or show one."),
}


class Commands(TyperGroup):
    """The commands of the table, in its order, each built when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, as `--help` lists them."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            self.commands[cmd_name] = build(cmd_name)
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As click does; an unknown name is compared with all names."""
        if args and args[0] not in COMMANDS:
            from vramplan.errors import near_matches

            hint = near_matches(args[0], COMMANDS)
            ctx.fail(f"No such command {args[0]!r}." + (f" {hint[0].upper()}{hint[1:]}" if hint else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of `--help`, without building a command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.short_help) for name, entry in COMMANDS.items()])


def build(name: str) -> Any:
    """The command of a name in the table."""
    entry = COMMANDS[name]
    found = getattr(import_module(entry.module), entry.attribute)
    if callable(found) and not hasattr(found, "registered_commands"):
        info = CommandInfo(
            name=name, callback=found, short_help=entry.short_help, context_settings={"help_option_names": HELP}
        )
        return get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode=None)
    group = get_group(found)
    group.name, group.short_help = name, entry.short_help
    group.context_settings = {"help_option_names": HELP}
    return group


HELP = ["--help", "-h"]
