"""What `vramplan models` does."""

from __future__ import annotations

import typer

from vramplan.catalog import models as catalog
from vramplan.catalog.locate import origin
from vramplan.catalog.models import find_model_profile
from vramplan.cli.output import emit, output
from vramplan.cli.runs.listings import check_word, end, folders_of, is_named, refuse_options, show, whole
from vramplan.errors import Problem
from vramplan.results.listings import ModelRow


def list_models(
    context: typer.Context,
    name: str | None,
    family: str | None,
    profiles: list[str] | None,
    output_format: str,
    key: str | None,
    quiet: bool,
) -> None:
    """Run `vramplan models` with the values of its options."""
    if context.invoked_subcommand is not None:
        refuse_options(context)
        return

    to = output(output_format, key, quiet)
    broken: list[Problem] = []
    known = whole(catalog.list_models(folders_of(profiles), broken), lambda profile: profile.shape(), broken)
    check_word("--family", family, {shape.family for _, shape in known})
    rows = []
    for profile, shape in known:
        if (name and not is_named(profile, name)) or (family and shape.family != family.lower()):
            continue
        rows.append(
            ModelRow(
                name=profile.name,
                family=shape.family,
                parameters=shape.declared_parameters,
                layers=shape.layers,
                hidden_size=shape.hidden_size,
                attention_heads=shape.attention_heads,
                key_value_heads=shape.key_value_heads,
                vocabulary_size=shape.vocabulary_size,
                max_positions=shape.max_positions,
                title=profile.title,
                aliases=profile.aliases,
                origin=origin(profile.file),
            )
        )

    emit("models", rows, to)
    end(broken)


def show_model(name: str, profiles: list[str] | None, output_format: str, key: str | None, quiet: bool) -> None:
    """Run `vramplan models show` with the values of its options."""
    show("model", find_model_profile(name, folders_of(profiles)), output_format, key, quiet)
