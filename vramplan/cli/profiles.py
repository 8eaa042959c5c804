"""`vramplan profiles`: lint, new, diff, path."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

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
    from vramplan.catalog import locate
    from vramplan.catalog.lint import files_of
    from vramplan.catalog.lint import lint as lint_files
    from vramplan.cli.output import emit, output
    from vramplan.exit_codes import ExitCode
    from vramplan.results.profiles import ERROR, WARNING

    to = output(output_format, key, quiet)
    folders = _folders(profiles)
    wanted = [Path(path) for path in paths or ()] or list(folders) or locate.searched(())
    answer = lint_files(files_of(wanted), locate.searched(folders))
    emit("profile-lint", answer, to)
    failed = answer.count(ERROR) or (strict and answer.count(WARNING))
    raise typer.Exit(ExitCode.BAD_INPUT if failed else ExitCode.OK)


@profiles.command()
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
    from vramplan.catalog import skeleton
    from vramplan.catalog.diff import find
    from vramplan.cli.output import emit, output, write
    from vramplan.errors import UsageError

    to = output(output_format, key, quiet)
    if file == "-" and (key is not None or output_format != "text"):
        raise UsageError("- prints the profile itself, in no other format", key="--output", hint="name a file")
    word = _kind(kind)
    copied = None if source is None else find(source, _folders(profiles), word)[1]
    answer = skeleton.new_profile(word, name, copied)
    if file == "-":
        if not quiet:
            write(answer.text)
        return
    answer = skeleton.write(answer, Path(file) if file else skeleton.default_file(word, name), force=force)
    emit("profile-new", answer, to)


@profiles.command()
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
    from vramplan.catalog import diff as compare
    from vramplan.cli.output import emit, output
    from vramplan.errors import UsageError

    to = output(output_format, key, quiet)
    folders = _folders(profiles)
    if b is None:
        left, right, kind = compare.shipped_of(a, folders)
    else:
        kind, left = compare.find(a, folders)
        other, right = compare.find(b, folders)
        if other != kind and "stack" in (kind, other):  # a runtime may have the name of its stack
            kind, left, other, right = _alike(compare, a, b, folders) or (kind, left, other, right)
        if kind != other:
            raise UsageError(f"{a} is a {kind} and {b} is a {other}", key="B", hint="compare two of one kind")
    emit("profile-diff", compare.diff(kind, left, right, folders), to)


@profiles.command()
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
    from vramplan.catalog.diff import find
    from vramplan.catalog.stacks import with_stack
    from vramplan.cli.catalogue import _show

    folders = _folders(profiles)
    found, profile = find(name, folders, None if kind is None else _kind(kind, "--kind"))
    _show(found, with_stack(profile, folders), output_format, key, quiet)


@profiles.command()
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
    from vramplan.catalog.folders import folders
    from vramplan.cli.output import emit, output

    to = output(output_format, key, quiet)
    emit("profile-path", folders(_folders(profiles)), to)


def _folders(profiles: list[str] | None) -> tuple[Path, ...]:
    from vramplan.catalog.locate import check_profile_dirs

    return check_profile_dirs(Path(folder) for folder in profiles or ())


def _alike(compare: Any, a: str, b: str, folders: tuple[Path, ...]) -> tuple[Any, Any, Any, Any] | None:
    """Both as stacks; None where one of them is none."""
    from vramplan.errors import InputError

    try:
        return *compare.find(a, folders, "stack"), *compare.find(b, folders, "stack")
    except InputError:
        return None


def _kind(word: str, key: str = "KIND") -> Any:
    from vramplan.errors import UsageError, near_matches

    kind = word.lower().removesuffix("s")  # the folders are called gpus and models
    if kind not in KINDS:
        known = f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
        raise UsageError(f"{word!r} is no kind of profile", key=key, hint=near_matches(word, KINDS) or known)
    return kind
