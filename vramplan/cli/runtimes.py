"""`vramplan runtimes`: list, filter, show."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vramplan.cli.catalogue import Name, _folders, _named, _refuse_options, _show
from vramplan.cli.options import Format, Print, Profiles, Quiet

runtimes = typer.Typer(rich_markup_mode=None, add_completion=False, invoke_without_command=True)


@runtimes.callback()
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
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    from vramplan.catalog import runtimes as catalog
    from vramplan.cli.output import emit, output

    to = output(output_format, key, quiet)
    known = [profile for profile in catalog.list_runtimes(_folders(profiles)) if not name or _named(profile, name)]
    emit("runtimes", [_row(profile) for profile in known], to)


@runtimes.command("show")
def show_runtime(
    name: Name, profiles: Profiles = None, output_format: Format = "text", key: Print = None, quiet: Quiet = False
) -> None:
    """Show a runtime: every default and limit with its source."""
    from vramplan.catalog.runtimes import find_runtime_profile

    _show("runtime", find_runtime_profile(name, _folders(profiles)), output_format, key, quiet)


def _row(profile: Any) -> Any:
    from vramplan.catalog.locate import origin
    from vramplan.catalog.runtimes import engine_name
    from vramplan.engines import engine_of
    from vramplan.results.listings import RuntimeRow

    engine = engine_name(profile)
    registered = engine_of(engine)
    shardings = profile.value("only_sharding") or ()
    several = profile.value("sharding") or ("ddp" if not shardings or "ddp" in shardings else ", ".join(shardings))
    return RuntimeRow(
        name=profile.name,
        title=profile.title,
        version=profile.value("version"),
        model_code=engine if registered.families or registered.own_code else "transformers",
        precision=profile.value("precision") or "auto",
        optimizer=profile.value("optimizer") or "adamw",
        optimizer_implementation=profile.value("optimizer_implementation"),
        loss=profile.value("head_loss") or "standard",
        sharding=None if profile.value("only_one_device") else several,
        aliases=profile.aliases,
        origin=origin(profile.file),
    )
