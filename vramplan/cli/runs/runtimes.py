"""What `vramplan runtimes` does."""

from __future__ import annotations

from typing import Any

import typer

from vramplan.catalog import runtimes as catalog
from vramplan.catalog.locate import origin
from vramplan.catalog.runtimes import engine_name, find_runtime_profile
from vramplan.cli.output import emit, output
from vramplan.cli.runs.listings import end, folders_of, is_named, refuse_options, show, whole
from vramplan.engines import engine_of
from vramplan.errors import Problem
from vramplan.results.listings import RuntimeRow


def list_runtimes(
    context: typer.Context,
    name: str | None,
    profiles: list[str] | None,
    output_format: str,
    key: str | None,
    quiet: bool,
) -> None:
    """Run `vramplan runtimes` with the values of its options."""
    if context.invoked_subcommand is not None:
        refuse_options(context)
        return

    to = output(output_format, key, quiet)
    broken: list[Problem] = []
    listed = catalog.list_runtimes(folders_of(profiles), broken)
    rows = whole([one for one in listed if not name or is_named(one, name)], _row, broken)
    emit("runtimes", [row for _, row in rows], to)
    end(broken)


def show_runtime(name: str, profiles: list[str] | None, output_format: str, key: str | None, quiet: bool) -> None:
    """Run `vramplan runtimes show` with the values of its options."""
    show("runtime", find_runtime_profile(name, folders_of(profiles)), output_format, key, quiet)


def _row(profile: Any) -> Any:
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
