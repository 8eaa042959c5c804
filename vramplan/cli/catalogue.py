"""`vramplan gpus` and `vramplan models`: list, filter, show."""

from __future__ import annotations

from typing import Annotated

import typer

from vramplan.cli import done_by
from vramplan.cli.listed import ListOfProfiles
from vramplan.cli.options import Format, Print, Profiles, Quiet

gpus = typer.Typer(cls=ListOfProfiles, rich_markup_mode=None, add_completion=False, invoke_without_command=True)
models = typer.Typer(cls=ListOfProfiles, rich_markup_mode=None, add_completion=False, invoke_without_command=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A profile name, an alias or a file.")]


@gpus.callback()
@done_by("vramplan.cli.runs.gpus:list_gpus")
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
      vramplan gpus a100
      vramplan gpus show v100
    """


@models.callback()
@done_by("vramplan.cli.runs.models:list_models")
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
      vramplan models qwen2.5
      vramplan models --family llama
      vramplan models show gpt2-xl
    """


@gpus.command("show")
@done_by("vramplan.cli.runs.gpus:show_gpu")
def show_gpu(
    name: Name, profiles: Profiles = None, output_format: Format = "text", key: Print = None, quiet: Quiet = False
) -> None:
    """Show a GPU: every field with its unit and source."""


@models.command("show")
@done_by("vramplan.cli.runs.models:show_model")
def show_model(
    name: Name, profiles: Profiles = None, output_format: Format = "text", key: Print = None, quiet: Quiet = False
) -> None:
    """Show a model: every field with its unit and source."""
