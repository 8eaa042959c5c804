"""A plan as the files of a training program: `--emit` of `fit` and `plan`, and `vramplan convert`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vramplan.answers.fit import answered
from vramplan.answers.session import Session, opened
from vramplan.cli.job_options import as_job
from vramplan.cli.output import OutputChoice, say, write
from vramplan.cli.runs.configs import GivenFiles, model_named
from vramplan.cli.save import save
from vramplan.configs.asked import Writer, asked_of
from vramplan.configs.costs import comments_of, header_of
from vramplan.configs.writers import writer_of
from vramplan.configs.writing import ALL_FILES, Unsaid, WrittenFiles, made
from vramplan.errors import InputError, UsageError
from vramplan.options import table
from vramplan.options.words import TEXTBOOK
from vramplan.report.memory import ShownFigures
from vramplan.report.numbers import text_of
from vramplan.results import DOES_NOT_FIT, FitResult
from vramplan.tuples import NamedTuple


class Emission(NamedTuple):
    """Whose files are written, and where: into a folder, or the first of them to standard output."""

    writer: Writer
    folder: str | None
    force: bool
    quiet: bool
    checkpoint: str | None = None  # the model as it was asked for

    def of(self, given: dict[str, Any], folders: Sequence[Path], asked: GivenFiles | None = None) -> Emission:
        """The same for the model that the options or the files name: a copy or a fine-tune of it stays what it is."""
        name = given.get("model")
        if name is None and asked is not None:
            name = model_named(given, folders, asked)
        return self._replace(checkpoint=name)


def emission_of(
    engine: str | None, folder: str | None, force: bool, to: OutputChoice, option: str = "--emit"
) -> Emission | None:
    """The options together, None where no file is wanted. Raises UsageError for what means nothing."""
    if engine is None:
        for name, value in (("--emit-to", folder), ("--force", force)):
            if value:
                raise UsageError("means nothing without the name of a program", key=name, hint=f"{option} axolotl")
        return None
    if to.format != "text" or to.key is not None:
        hint = "leave out --format and --print"
        raise UsageError("it writes a file and nothing beside it", key=option, hint=hint)
    if force and folder is None:
        raise UsageError("means nothing without a folder", key="--force", hint="--emit-to FOLDER")
    return Emission(writer_of(engine, option), folder, force, to.quiet)


def given_for(given: Mapping[str, Any], emission: Emission) -> dict[str, Any]:
    """The options with the runtime whose files are written, where none is named."""
    if given.get("runtime") is not None:
        return dict(given)
    return {**given, "runtime": emission.writer.runtimes[0]}


def emitted(
    result: FitResult,
    emission: Emission,
    folders: Sequence[Path],
    given: Mapping[str, Any],
    again: Callable[[dict[str, Any]], FitResult] | None,
    *,
    strict: bool,
) -> int:
    """Write the files of an answer and return the exit code; where it is not 0, say why there are none.

    What the options leave open is what the program has settings for: `again` answers with options beside `given`, None
    where files have said what they mean.
    """
    taken: dict[str, Any] = {}
    while True:
        code = int(result.exit_code(strict=strict))
        if code:
            figures = ShownFigures(result)
            what = "does not fit" if result.verdict == DOES_NOT_FIT else f"is {result.verdict}"
            need = f"{text_of(figures.device)} of {text_of(figures.usable)} GiB per GPU"
            under = f" with {' '.join(_flags(taken))}, as {emission.writer.name} has it" if taken else ""
            said = f"it {what}{under}, {need}"
            say(f"vramplan: no file is written: {said} (vramplan fit without --emit says what would help)")
            return code
        try:
            files = files_of(result, emission.writer, folders, checkpoint=emission.checkpoint)
        except Unsaid as error:
            more = {} if len(taken) > MOST_TAKEN else left_open(error.nearest, {**given, **taken})
            if again is None or not more:
                raise
            try:
                result = again({**taken, **more})
            except InputError:  # the nearest is no job on this machine
                raise error from None
            taken |= more
            continue
        if taken and not emission.quiet:
            flags = " ".join(_flags(taken))
            say(f"note: {emission.writer.name} has no setting for what fit would choose: {flags} is taken instead")
        out(files, emission)
        return code


def implied(
    given: Mapping[str, Any], emission: Emission, folders: Sequence[Path], looked_for: Iterable[str]
) -> dict[str, Any]:
    """Options that a program decides by itself, before plans are looked for: none of those that are `looked_for`."""
    taken: dict[str, Any] = {}
    while len(taken) <= MOST_TAKEN:
        try:
            files_of(answered(as_job({**given, **taken}), folders), emission.writer, folders)
        except Unsaid as error:
            own = {key: value for key, value in error.nearest.items() if table.find(key).parameter not in looked_for}
            more = left_open(own, {**given, **taken})
            if not more:
                break
            taken |= more
        except InputError:
            break
        else:
            break
    return taken


MOST_TAKEN = 8  # options, of which few settle others


def left_open(nearest: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Options that say what the nearest files do; none where one of the keys was asked for, or has no option."""
    found: dict[str, Any] = {}
    for key, value in nearest.items():
        row = table.find(key)
        is_asked_for = given.get(row.parameter) is not None
        if is_asked_for or not row.option or isinstance(value, list | tuple | dict):
            return {}
        if value is not None:
            found[row.parameter] = value if isinstance(value, bool) else str(value)
    return found


def _flags(taken: Mapping[str, Any]) -> list[str]:
    rows = table.parameters()
    return [
        (rows[name].option if value else rows[name].negation)
        if isinstance(value, bool)
        else f"{rows[name].option} {value}"
        for name, value in taken.items()
    ]


def files_of(
    result: FitResult,
    writer: Writer,
    folders: Sequence[Path],
    option: str = "--emit",
    more: Sequence[str] = (),
    *,
    judged: bool = True,
    checkpoint: str | None = None,
) -> WrittenFiles:
    """The files of an answer; `more` stands among their first lines. Raises InputError with what cannot be said.

    `checkpoint`: the model as it was asked for.
    """
    if result.job["runtime"] == TEXTBOOK:
        raise UsageError("equations have no settings", key=option, hint=f"--runtime {writer.runtimes[0]}")
    with (opened() or Session()).open():  # the profiles are read several times
        asked = asked_of(result.job, folders, checkpoint)
        header = [*header_of(result, asked.devices, judged=judged), *more]
        files = made(asked, writer, folders, header, comments_of(result), option, judged=judged)
        return files._replace(told=tuple(more))


def first_of(
    results: Iterable[tuple[str, Callable[[], FitResult]]], emission: Emission, folders: Sequence[Path]
) -> None:
    """Write the first of several plans that the program has settings for; each with its options.

    Raises InputError with what the first lacks where no plan can be written.
    """
    lacking: InputError | None = None
    for number, (flags, answer) in enumerate(results, 1):
        try:
            more = [f"plan: {flags or 'no option'}"]
            files = files_of(answer(), emission.writer, folders, more=more, checkpoint=emission.checkpoint)
        except InputError as error:
            lacking = lacking or error
            if number == MOST_TRIED:
                break
            continue
        if number > 1 and not emission.quiet:
            say(
                f"note: {emission.writer.name} has no setting for {number - 1} faster plans; this is {flags or 'plain'}"
            )
        out(files, emission)
        return
    if lacking is not None:
        raise lacking
    say("vramplan: no file is written: no plan fits (vramplan plan without --emit says what was tried)")


MOST_TRIED = 50  # plans, of which each takes an answer


def out(files: WrittenFiles, emission: Emission) -> None:
    """Print the first file, or save all of them."""
    if emission.folder is not None:
        _save(files, emission.folder, emission.force)
        if not emission.quiet:
            write("".join(f"{os.path.join(emission.folder, name)}\n" for name in files.texts))
    elif not emission.quiet:
        write(files.first)
    if files.says_launch or emission.quiet:
        return
    for line in files.launch:
        say(f"note: launch: {line}")
    say(f"note: read back: {files.again}")
    for line in (*files.told, *files.yours):
        say(f"note: {line}")
    if len(files.texts) > 1 and emission.folder is None:
        say(f"note: of {len(files.texts)} files: {', '.join(files.texts)} ({ALL_FILES})")


def _save(files: WrittenFiles, folder: str, force: bool) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {folder!r}: {error.strerror}", key="--emit-to", hint="another folder") from None
    there = [name for name in files.texts if os.path.lexists(os.path.join(folder, name))]
    if there and not force:
        raise UsageError(
            f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} in {folder!r} already",
            key="--emit-to",
            hint="--force writes over them",
        )
    for name, text in files.texts.items():
        save(os.path.join(folder, name), text, "--emit-to")
