"""What `vramplan gpus` does."""

from __future__ import annotations

import typer

from vramplan.catalog import gpus as catalog
from vramplan.catalog.gpus import find_gpu
from vramplan.catalog.locate import origin
from vramplan.cli.output import emit, output
from vramplan.cli.runs.listings import check_word, end, folders_of, is_named, refuse_options, show, whole
from vramplan.errors import InputError, Problem
from vramplan.results.listings import GpuRow
from vramplan.units import parse_size_bytes


def list_gpus(
    context: typer.Context,
    name: str | None,
    min_memory: str | None,
    architecture: str | None,
    bf16: bool,
    flash: bool,
    profiles: list[str] | None,
    output_format: str,
    key: str | None,
    quiet: bool,
) -> None:
    """Run `vramplan gpus` with the values of its options."""
    if context.invoked_subcommand is not None:
        refuse_options(context)
        return

    to = output(output_format, key, quiet)
    try:
        least = 0 if min_memory is None else parse_size_bytes(min_memory, rounding="up", allow_zero=True)
    except InputError as error:
        raise InputError([problem._replace(key="--min-memory") for problem in error.problems]) from None
    broken: list[Problem] = []
    known = whole(catalog.list_gpus(folders_of(profiles), broken), lambda profile: profile.gpu(), broken)
    check_word("--architecture", architecture, {gpu.architecture for _, gpu in known if gpu.architecture})
    rows = []
    for profile, gpu in known:
        if (
            gpu.capacity_bytes < least
            or (name and not is_named(profile, name))
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
    end(broken)


def show_gpu(name: str, profiles: list[str] | None, output_format: str, key: str | None, quiet: bool) -> None:
    """Run `vramplan gpus show` with the values of its options."""
    show("gpu", find_gpu(name, folders_of(profiles)), output_format, key, quiet)
