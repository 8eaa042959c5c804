"""`vramplan profiles`: lint, new, diff, path."""

from __future__ import annotations

from typing import Annotated

import typer

from vramplan.cli import done_by
from vramplan.cli.options import Format, Print, Profiles, Quiet

profiles = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True)

KINDS = ("gpu", "model", "runtime", "stack")


@profiles.callback()
def root() -> None:
    """Check the profiles of GPUs, models, runtimes and stacks, begin a new one, compare two, see where they come from.

    \b
    Examples:
      vramplan profiles new gpu my-card --from a100-80gb
      vramplan profiles lint
      vramplan profiles diff a100-40gb a100-80gb
      vramplan profiles path
    """


@profiles.command()
@done_by("vramplan.cli.runs.profiles:lint")
def lint(
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH]...", help="Profile files, or folders of them.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail too (exit 2).")] = False,
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """Check profiles: their form, the source of every value, and whether the figures can be true.

    Without a path, those of --profiles; without that, your own and the shipped ones.

    \b
    Examples:
      vramplan profiles lint my-card.yaml
      vramplan profiles lint --profiles ./profiles --strict

    \b
    Exit codes: 0 nothing is wrong (warnings may be), 2 something is.
    """


@profiles.command()
@done_by("vramplan.cli.runs.profiles:new")
def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="gpu, model, runtime or stack.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is called; also the name of the file.")],
    source: Annotated[
        str | None, typer.Option("--from", metavar="PROFILE", help="Fill it in with a copy of this profile.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; - is standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """Begin a profile: a file with every field and what belongs into it, for you to fill in.

    It goes to your own folder of profiles (`vramplan profiles path`) unless --output names a file.

    \b
    Examples:
      vramplan profiles new gpu my-card
      vramplan profiles new gpu my-card --from a100-80gb --output ./my-card.yaml
      vramplan profiles new model my-model --from llama-3.2-1b
    """


@profiles.command()
@done_by("vramplan.cli.runs.profiles:diff")
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A profile name, an alias or a file.")],
    b: Annotated[
        str | None,
        typer.Argument(metavar="[B]", help="Another; without it, the shipped profile that A shadows."),
    ] = None,
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """Compare two profiles of one kind, field by field, with their sources.

    \b
    Examples:
      vramplan profiles diff a100-40gb a100-80gb
      vramplan profiles diff ./my-card.yaml a100-80gb --format csv
      vramplan profiles diff v100      (your v100 with the shipped one)
    """


@profiles.command()
@done_by("vramplan.cli.runs.profiles:show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A profile name, an alias or a file.")],
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar="KIND", help="gpu, model, runtime or stack, where two have the name."),
    ] = None,
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """Show one profile of any kind: every field with its source, and the runs in sight of which it was chosen.

    \b
    Examples:
      vramplan profiles show v100
      vramplan profiles show pytorch --kind stack
    """


@profiles.command()
@done_by("vramplan.cli.runs.profiles:path")
def path(
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """List the folders in which profiles are looked up, in that order.

    \b
    Examples:
      vramplan profiles path
      vramplan profiles path --print folders.0.path
    """
