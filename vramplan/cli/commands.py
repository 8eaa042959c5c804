"""Which commands there are. A process imports and builds only the one that it runs."""

from __future__ import annotations

from functools import cache
from typing import Any

from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info, get_group
from typer.models import CommandInfo

from vramplan.cli import named
from vramplan.cli.typed import HELP_ALL, own_words
from vramplan.errors import near_matches
from vramplan.tuples import NamedTuple


class CommandEntry(NamedTuple):
    """Where a command is, and what `vramplan --help` says of it."""

    module: str
    attribute: str  # a function, or a Typer app with sub-commands
    short_help: str


COMMANDS = {
    "fit": CommandEntry("vramplan.cli.fit", "fit", "Does a training run fit, what fills the memory, how to run it?"),
    "checkpoints": CommandEntry(
        "vramplan.cli.checkpoints", "checkpoints", "Where to put checkpoints under a budget, every way side by side."
    ),
    "timeline": CommandEntry("vramplan.cli.timeline", "timeline", "Draw live memory over one training step."),
    "explain": CommandEntry(
        "vramplan.cli.explain", "explain", "Derive the peak: every operator, what it saves and why, what is alive."
    ),
    "plan": CommandEntry("vramplan.cli.plan", "plan", "Search for the fastest way to run a job, and for a simple one."),
    "compare": CommandEntry(
        "vramplan.cli.compare", "compare", "Runs side by side: which fits, is fastest, is cheapest?"
    ),
    "scale": CommandEntry("vramplan.cli.compare", "scale", "The same run on more and more GPUs, and where to stop."),
    "walkthrough": CommandEntry(
        "vramplan.cli.walkthrough", "walkthrough", "The textbook's four steps to fit a model, each beside its replay."
    ),
    "read": CommandEntry("vramplan.cli.read", "read", "What job does a configuration file of a training program mean?"),
    "convert": CommandEntry(
        "vramplan.cli.convert", "convert", "Write the file of one training program as that of another."
    ),
    "check": CommandEntry("vramplan.cli.files", "check", "A gate for CI: does every job have the verdict it expects?"),
    "validate": CommandEntry("vramplan.cli.files", "validate", "Compare predictions with measured cases."),
    "measure": CommandEntry("vramplan.cli.measure", "measure", "Run real steps of a job beside its prediction."),
    "calibrate": CommandEntry(
        "vramplan.cli.calibrate", "calibrate", "Measure the software stack of this machine, once."
    ),
    "gpus": CommandEntry("vramplan.cli.catalogue", "gpus", "List the known GPUs, or show one."),
    "models": CommandEntry("vramplan.cli.catalogue", "models", "List the known models, or show one."),
    "runtimes": CommandEntry("vramplan.cli.runtimes", "runtimes", "List the known runtimes, or show one."),
    "profiles": CommandEntry("vramplan.cli.profiles", "profiles", "Check profiles, begin a new one, compare two."),
    "schema": CommandEntry("vramplan.cli.schema", "schema", "The JSON Schema of job files and of answers."),
}

OTHER_NAMES = {"textbook": "walkthrough", "recompute": "checkpoints", "accuracy": "validate"}
"""Names that a command has beside its own."""


class Commands(TyperGroup):
    """The commands of the table, in its order, each built when it is asked for."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As click does; the completion options may be the last word, without the name of a shell."""
        if args[:1] == ["help"] and len(args) == 2 and OTHER_NAMES.get(args[1], args[1]) in COMMANDS:
            args = [args[1], HELP[0]]
        first = args[0].partition("=")[0] if args else ""
        if first.startswith("-") and first not in (*HELP, "--version", *SHELL_OPTIONS) and not ctx.resilient_parsing:
            hint = named("vramplan.cli.meant:at_the_top")(args)
            if hint is not None:
                ctx.fail(f"No such option: {first} ({hint})")
        return super().parse_args(ctx, _with_shell(args))

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, as `--help` lists them."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; None if there is none."""
        cmd_name = OTHER_NAMES.get(cmd_name, cmd_name)
        return build(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As click does; an unknown name is compared with all names."""
        if args:
            args = [OTHER_NAMES.get(args[0], args[0]), *args[1:]]
        if args and args[0] not in COMMANDS:
            hint = named("vramplan.cli.meant:command")(args[0], args[1:]) or near_matches(
                args[0], [*COMMANDS, *OTHER_NAMES]
            )
            ctx.fail(f"no such command {args[0]!r}" + (f" ({hint})" if hint else ""))
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, TyperGroup):  # whose commands read their options as click does
            rest = [word for one in rest for word in named("vramplan.options.shortcuts:FORMATS").get(one, (one,))]
        return name, command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of `--help`, without building a command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.short_help) for name, entry in COMMANDS.items()])


class Command(TyperCommand):
    """One command: what is typed is read in its options, and its help has them under their headings."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As click does, after other names and shortcuts have become options of the command."""
        if not ctx.resilient_parsing:
            args = own_words(self, ctx, args)
        if HELP_ALL in args:
            args = [HELP[0] if word == HELP_ALL else word for word in args]
            ctx.meta[HELP_ALL] = True
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """As click does, heading by heading: everyday options, or all with `--help-all`."""
        shown = named("vramplan.cli.panels:panels")(self, ctx, everything=bool(ctx.meta.get(HELP_ALL)))
        for heading, records in shown.items():
            with formatter.section(heading):
                formatter.write_dl(records)


@cache  # a program may invoke commands many times, as the tests do
def build(name: str) -> Any:
    """The command of a name in the table."""
    entry = COMMANDS[name]
    found = named(f"{entry.module}:{entry.attribute}")
    if callable(found) and not hasattr(found, "registered_commands"):
        info = CommandInfo(
            name=name,
            cls=Command,
            callback=found,
            short_help=entry.short_help,
            context_settings={"help_option_names": HELP},
        )
        return get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode=None)
    group = get_group(found)
    group.name, group.short_help = name, entry.short_help
    group.context_settings = {"help_option_names": HELP}
    return group


HELP = ["--help", "-h"]
SHELL_OPTIONS = ("--install-completion", "--show-completion")


def _with_shell(args: list[str]) -> list[str]:
    """An empty word behind an option that names a shell where none is named."""
    if args and args[0] in SHELL_OPTIONS and (len(args) == 1 or args[1].startswith("-")):
        return [args[0], "", *args[1:]]
    return args
