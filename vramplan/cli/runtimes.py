"""`vramplan runtimes`: list, filter, show."""

from __future__ import annotations

from typing import Annotated

import typer

from vramplan.cli import done_by
from vramplan.cli.catalogue import Name
from vramplan.cli.listed import ListOfProfiles
from vramplan.cli.options import Format, Print, Profiles, Quiet

runtimes = typer.Typer(cls=ListOfProfiles, rich_markup_mode=None, add_completion=False, invoke_without_command=True)


@runtimes.callback()
@done_by("vramplan.cli.runs.runtimes:list_runtimes")
def list_runtimes(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help="Only names and aliases with this text.")
    ] = None,
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """List the known runtimes with what each decides, or show one with the source of every field.

    \b
    Examples:
      vramplan runtimes
      vramplan runtimes show litgpt
    """


@runtimes.command("show")
@done_by("vramplan.cli.runs.runtimes:show_runtime")
def show_runtime(
    name: Name, profiles: Profiles = None, output_format: Format = "text", key: Print = None, quiet: Quiet = False
) -> None:
    """Show a runtime: every default and limit with its source."""
