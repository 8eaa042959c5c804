"""What `vramplan fit` does."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import typer

from vramplan.answers.fit import answered
from vramplan.cli import named
from vramplan.cli.job_options import as_job, require
from vramplan.cli.output import OutputChoice, emit, output, terminal_width, write_lines
from vramplan.errors import UsageError
from vramplan.exit_codes import ExitCode
from vramplan.results import FitResult

LOOKED_FOR = frozenset({"remedies", "warnings"})  # keys of the answer that say something of remedies


def fit(
    given: dict[str, Any],
    job: str | None,
    config: list[str] | None,
    program: str | None,
    version: str | None,
    ignore_unknown: bool,
    largest: str | None,
    profiles: list[str] | None,
    output_format: str,
    key: str | None,
    quiet: bool,
    strict: bool,
    all_stages: bool,
    details: bool,
    engine: str | None,
    folder: str | None,
    force: bool,
) -> None:
    """Run `vramplan fit` with the values of its options."""
    to = output(output_format, key, quiet)
    folders = [Path(one) for one in profiles or ()]
    emission, asked = None, None
    if engine or folder or force:
        emission = named("vramplan.cli.runs.emit:emission_of")(engine, folder, force, to)
        if not config and job is None:
            given = named("vramplan.cli.runs.emit:given_for")(given, emission)
    enough = _remedies_of_use(to, details=details) if emission is None else None
    opening = Opening() if emission is None and not (details or all_stages) and Opening.is_of_use(to) else None
    try:
        if config or program or version or ignore_unknown:
            asked = named("vramplan.cli.runs.configs:asked_of")(config, job, program, version, (ignore_unknown, quiet))
            answer_of = named("vramplan.cli.runs.configs:answer_of")
            result = answer_of(given, folders, asked, largest, enough, opening)
        elif job is None:
            require(given)
            result = answered(as_job(given), folders, largest, enough=enough, at_once=True, opening=opening)
        else:
            answer_of = named("vramplan.cli.runs.jobs:answer_of")
            result = answer_of(given, folders, job, largest, enough, opening)
    except KeyboardInterrupt:
        if opening is None or opening.result is None:
            raise
        emit("fit", opening.result, to, written=opening.end())
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    code = result.exit_code(strict=strict)
    if all_stages:
        if result.stages is None:
            raise UsageError("there is no pipeline", key="--all-stages", hint="--pipeline 4")
        result = result._replace(lists_stages=True)
    if emission is not None:
        emission = emission.of(given, folders, asked)
        again = None
        if asked is None and job is None:  # a file has said what it means

            def again(more: dict[str, Any]) -> FitResult:
                return answered(as_job({**given, **more}), folders, largest)

        write = named("vramplan.cli.runs.emit:emitted")
        raise typer.Exit(write(result, emission, folders, given, again, strict=strict))
    written = () if opening is None else opening.end()
    emit("fit", result, to, details=details or all_stages, written=written, exit_code=code)
    raise typer.Exit(code)


class Opening:
    """The first lines of an answer on a terminal, where to look for remedies takes longer than all the rest."""

    def __init__(self) -> None:
        self.result: FitResult | None = None
        self.written: list[Any] = []

    @staticmethod
    def is_of_use(to: OutputChoice) -> bool:
        """Whether somebody reads along."""
        return to.format == "text" and not to.quiet and to.key is None and sys.stdout.isatty()

    def __call__(self, result: FitResult) -> None:
        """Write them, and under them what is being done."""
        self.result = result
        self.written = named("vramplan.report.summary:render_opening")(result, width=terminal_width())
        write_lines(self.written)
        sys.stdout.flush()
        self._under("looking for what would make it fit ...")

    def end(self) -> list[Any]:
        """Take away what is under them; they stay, and are returned."""
        if self.written:
            self._under("\r\x1b[K")
        return self.written

    def _under(self, words: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(words)
            sys.stderr.flush()


def _remedies_of_use(to: OutputChoice, *, details: bool) -> int | None:
    """How many of the remedies are shown, which take longer than all the rest; None: all."""
    if to.quiet:
        return 0
    if to.key is not None:
        roots = {re.split(r"\W", key.strip(), maxsplit=1)[0] for key in to.key.split(",")}
        return None if roots & LOOKED_FOR else 0
    if to.format != "text" or details:
        return None
    shown: int = named("vramplan.report.summary:REMEDIES")
    return shown
