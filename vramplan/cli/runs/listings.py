"""What the lists of GPUs, models and runtimes have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import typer

from vramplan.catalog.locate import SHIPPED, check_profile_dirs, is_in_a_name, origin
from vramplan.cli.output import emit, output, say
from vramplan.errors import InputError, Problem, UsageError, near_matches
from vramplan.exit_codes import ExitCode
from vramplan.results.listings import FieldRow, ProfileView, SourceRow

P = TypeVar("P")
T = TypeVar("T")


def whole(profiles: Iterable[P], made: Callable[[P], T], broken: list[Problem]) -> list[tuple[P, T]]:
    """Each profile with what is made of it; `broken` takes the problems of those that make nothing."""
    found = []
    for profile in profiles:
        try:
            found.append((profile, made(profile)))
        except InputError as error:
            broken += error.problems
    return found


def end(broken: Sequence[Problem]) -> None:
    """Tell of the files that are not in the list, and end as bad input does where there are some."""
    for problem in broken:
        say(f"error: {problem}")
    if broken:
        raise typer.Exit(ExitCode.BAD_INPUT)


def show(kind: str, profile: Any, output_format: str, key: str | None, quiet: bool) -> None:
    """Write one profile: every field with its unit and source."""
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
    if not file:
        return None
    return Path(file).name if origin(file) == SHIPPED else file


def refuse_options(context: typer.Context) -> None:
    """Options of the list that stand before a sub-command would be ignored: say where they belong."""
    given = [name for name, value in context.params.items() if value and value != "text"]
    if given:
        option = {"output_format": "--format", "key": "--print"}.get(given[0], "--" + given[0].replace("_", "-"))
        command = context.invoked_subcommand
        message = f"it stands before {command!r} and would be ignored"
        raise UsageError(message, key=option, hint=f"put it after {command}")


def folders_of(profiles: list[str] | None) -> tuple[Path, ...]:
    """The folders of `--profiles`. Raises InputError for one that is not there."""
    return check_profile_dirs(Path(folder) for folder in profiles or ())


def check_word(option: str, word: str | None, known: set[str]) -> None:
    """A word that nothing here has is a typo, not an empty list."""
    if word is not None and word.lower() not in known:
        hint = near_matches(word, sorted(known)) or f"known: {', '.join(sorted(known))}"
        raise UsageError(f"nothing here has {word!r}", key=option, hint=hint)


def is_named(profile: Any, text: str) -> bool:
    """Whether the name or an alias of a profile has the text."""
    return is_in_a_name(text, (profile.name, *profile.aliases))
