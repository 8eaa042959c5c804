"""`vramplan gpus` and `vramplan models`: list, filter, show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vramplan.cli.options import Format, Print, Profiles, Quiet

gpus = typer.Typer(rich_markup_mode=None, add_completion=False, invoke_without_command=True)
models = typer.Typer(rich_markup_mode=None, add_completion=False, invoke_without_command=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A profile name, an alias or a file.")]


@gpus.callback()
def list_gpus(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help="Only names and aliases with this text.")
    ] = None,
    min_memory: Annotated[
        str | None, typer.Option("--min-memory", metavar="SIZE", help="At least this capacity, as in '40 GiB'.")
    ] = None,
    architecture: Annotated[
        str | None, typer.Option("--architecture", metavar="NAME", help="volta, ampere, ada, hopper, ...")
    ] = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="Only GPUs with bf16.")] = False,
    flash: Annotated[bool, typer.Option("--flash", help="Only GPUs that run flash attention.")] = False,
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """List the known GPUs, or show one with the source of every field.

    \b
    Examples:
      vramplan gpus --min-memory '40 GiB' --bf16
      vramplan gpus show v100
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    from vramplan.catalog import gpus as catalog
    from vramplan.catalog.locate import origin
    from vramplan.cli.output import emit, output
    from vramplan.errors import InputError
    from vramplan.results.listings import GpuRow
    from vramplan.units import parse_size_bytes

    to = output(output_format, key, quiet)
    try:
        least = 0 if min_memory is None else parse_size_bytes(min_memory, rounding="up", allow_zero=True)
    except InputError as error:
        raise InputError([problem._replace(key="--min-memory") for problem in error.problems]) from None
    known = [(profile, profile.gpu()) for profile in catalog.list_gpus(_folders(profiles))]
    _check_word("--architecture", architecture, {gpu.architecture for _, gpu in known if gpu.architecture})
    rows = []
    for profile, gpu in known:
        if (
            gpu.capacity_bytes < least
            or (name and not _named(profile, name))
            or (architecture and gpu.architecture != architecture.lower())
            or (bf16 and not gpu.bf16)
            or (flash and not gpu.flash_attention)
        ):
            continue
        rows.append(
            GpuRow(
                name=gpu.name,
                capacity_bytes=gpu.capacity_bytes,
                capacity_basis=gpu.capacity_basis,
                title=gpu.title,
                architecture=gpu.architecture,
                compute_capability=gpu.compute_capability,
                bf16=gpu.bf16,
                flash_attention=gpu.flash_attention,
                aliases=profile.aliases,
                origin=origin(profile.file),
            )
        )

    emit("gpus", rows, to)


@models.callback()
def list_models(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help="Only names and aliases with this text.")
    ] = None,
    family: Annotated[str | None, typer.Option("--family", metavar="NAME", help="As in llama, gemma2.")] = None,
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """List the known models, or show one with the source of every field.

    \b
    Examples:
      vramplan models --family llama
      vramplan models show gpt2-xl
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    from vramplan.catalog import models as catalog
    from vramplan.catalog.locate import origin
    from vramplan.cli.output import emit, output
    from vramplan.results.listings import ModelRow

    to = output(output_format, key, quiet)
    known = [(profile, profile.shape()) for profile in catalog.list_models(_folders(profiles))]
    _check_word("--family", family, {shape.family for _, shape in known})
    rows = []
    for profile, shape in known:
        if (name and not _named(profile, name)) or (family and shape.family != family.lower()):
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


@gpus.command("show")
def show_gpu(
    name: Name, profiles: Profiles = None, output_format: Format = "text", key: Print = None, quiet: Quiet = False
) -> None:
    """Show a GPU: every field with its unit and source."""
    from vramplan.catalog.gpus import find_gpu

    _show("gpu", find_gpu(name, _folders(profiles)), output_format, key, quiet)


@models.command("show")
def show_model(
    name: Name, profiles: Profiles = None, output_format: Format = "text", key: Print = None, quiet: Quiet = False
) -> None:
    """Show a model: every field with its unit and source."""
    from vramplan.catalog.models import find_model_profile

    _show("model", find_model_profile(name, _folders(profiles)), output_format, key, quiet)


def _show(kind: str, profile: Any, output_format: str, key: str | None, quiet: bool) -> None:
    from vramplan.cli.output import emit, output
    from vramplan.results.listings import FieldRow, ProfileView, SourceRow

    to = output(output_format, key, quiet)
    fields = []
    for name, field in profile.fields.items():
        source = profile.sources.get(field.source)
        value = (
            field.text
            if field.unit is None
            and isinstance(field.value, (int, float, tuple))
            and field.text is not None
            and not isinstance(field.value, bool)
            else field.value
        )
        fields.append(
            FieldRow(
                key=name,
                value=value,
                unit=field.unit,
                source=None if source is None else SourceRow(title=source.title, url=source.url, date=source.accessed),
                reason=field.reason,
                note=field.note,
                fitted_from=field.fitted_from,
            )
        )
    notes: tuple[str, ...] = (profile.note,) if profile.note else ()
    if profile.stack is not None:
        notes += (f"its software stack is {profile.stack}: `vramplan profiles show {profile.stack} --kind stack`",)
    view = ProfileView(
        kind=kind,
        name=profile.name,
        fields=tuple(fields),
        title=profile.title,
        aliases=profile.aliases,
        file=_file_of(profile.file),
        notes=notes,
    )

    emit("profile", view, to)


def _file_of(file: str) -> str | None:
    """The name of a shipped file, the path of any other; nothing for a card that no file describes."""
    from vramplan.catalog.locate import SHIPPED, origin

    if not file:
        return None
    return Path(file).name if origin(file) == SHIPPED else file


def _refuse_options(context: typer.Context) -> None:
    """Options of the list that stand before a sub-command would be ignored: say where they belong."""
    from vramplan.errors import UsageError

    given = [name for name, value in context.params.items() if value and value != "text"]
    if given:
        option = {"output_format": "--format", "key": "--print"}.get(given[0], "--" + given[0].replace("_", "-"))
        command = context.invoked_subcommand
        message = f"it stands before {command!r} and would be ignored"
        raise UsageError(message, key=option, hint=f"put it after {command}")


def _folders(profiles: list[str] | None) -> tuple[Path, ...]:
    from vramplan.catalog.locate import check_profile_dirs

    return check_profile_dirs(Path(folder) for folder in profiles or ())


def _check_word(option: str, word: str | None, known: set[str]) -> None:
    """A word that nothing here has is a typo, not an empty list."""
    from vramplan.errors import UsageError, near_matches

    if word is not None and word.lower() not in known:
        hint = near_matches(word, sorted(known)) or f"known: {', '.join(sorted(known))}"
        raise UsageError(f"nothing here has {word!r}", key=option, hint=hint)


def _named(profile: Any, text: str) -> bool:
    return any(text.lower() in name.lower() for name in (profile.name, *profile.aliases))
