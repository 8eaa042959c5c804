"""What `vramplan profiles` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from vramplan.catalog import diff as compare
from vramplan.catalog import locate, skeleton
from vramplan.catalog.diff import find
from vramplan.catalog.folders import folders as searched
from vramplan.catalog.lint import files_of
from vramplan.catalog.lint import lint as lint_files
from vramplan.catalog.stacks import with_stack
from vramplan.cli.output import emit, output, write
from vramplan.cli.profiles import KINDS
from vramplan.cli.runs.listings import folders_of
from vramplan.cli.runs.listings import show as show_profile
from vramplan.errors import InputError, UsageError, near_matches
from vramplan.exit_codes import ExitCode
from vramplan.results.profiles import ERROR, WARNING


def lint(
    paths: list[str] | None, strict: bool, profiles: list[str] | None, output_format: str, key: str | None, quiet: bool
) -> None:
    """Run `vramplan profiles lint` with the values of its options."""
    to = output(output_format, key, quiet)
    folders = folders_of(profiles)
    wanted = [Path(path) for path in paths or ()] or list(folders) or locate.searched(())
    answer = lint_files(files_of(wanted), locate.searched(folders))
    emit("profile-lint", answer, to)
    failed = answer.count(ERROR) or (strict and answer.count(WARNING))
    raise typer.Exit(ExitCode.BAD_INPUT if failed else ExitCode.OK)


def new(
    kind: str,
    name: str,
    source: str | None,
    file: str | None,
    force: bool,
    profiles: list[str] | None,
    output_format: str,
    key: str | None,
    quiet: bool,
) -> None:
    """Run `vramplan profiles new` with the values of its options."""
    to = output(output_format, key, quiet)
    if file == "-" and (key is not None or output_format != "text"):
        raise UsageError("- prints the profile itself, in no other format", key="--output", hint="name a file")
    word = _kind(kind)
    copied = None if source is None else find(source, folders_of(profiles), word)[1]
    answer = skeleton.new_profile(word, name, copied)
    if file == "-":
        if not quiet:
            write(answer.text)
        return
    answer = skeleton.write(answer, Path(file) if file else skeleton.default_file(word, name), force=force)
    emit("profile-new", answer, to)


def diff(a: str, b: str | None, profiles: list[str] | None, output_format: str, key: str | None, quiet: bool) -> None:
    """Run `vramplan profiles diff` with the values of its options."""
    to = output(output_format, key, quiet)
    folders = folders_of(profiles)
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


def show(
    name: str, kind: str | None, profiles: list[str] | None, output_format: str, key: str | None, quiet: bool
) -> None:
    """Run `vramplan profiles show` with the values of its options."""
    folders = folders_of(profiles)
    found, profile = find(name, folders, None if kind is None else _kind(kind, "--kind"))
    show_profile(found, with_stack(profile, folders), output_format, key, quiet)


def path(profiles: list[str] | None, output_format: str, key: str | None, quiet: bool) -> None:
    """Run `vramplan profiles path` with the values of its options."""
    to = output(output_format, key, quiet)
    emit("profile-path", searched(folders_of(profiles)), to)


def _alike(compare: Any, a: str, b: str, folders: tuple[Path, ...]) -> tuple[Any, Any, Any, Any] | None:
    """Both as stacks; None where one of them is none."""
    try:
        return *compare.find(a, folders, "stack"), *compare.find(b, folders, "stack")
    except InputError:
        return None


def _kind(word: str, key: str = "KIND") -> Any:
    kind = word.lower().removesuffix("s")  # the folders are called gpus and models
    if kind not in KINDS:
        known = f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
        raise UsageError(f"{word!r} is no kind of profile", key=key, hint=near_matches(word, KINDS) or known)
    return kind
