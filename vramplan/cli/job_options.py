"""The options that describe a job: the keys of the job format with dashes, shared by every command that takes one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from vramplan.cli import named
from vramplan.errors import InputError, Problem
from vramplan.options import table
from vramplan.options.option import FLAG, TEXTS, Option


def _parameter(option: Option) -> inspect.Parameter:
    """A row of the table as a parameter of a command."""
    if option.kind == FLAG:
        kind: Any = bool | None
        shown = typer.Option(
            f"{option.option}/{option.negation}", help=option.description, rich_help_panel=table.panel_of(option)
        )
    else:
        kind = str | None  # which the reader of job files takes as it takes a value in YAML
        shown = typer.Option(
            *option.options, metavar=option.shown, help=option.description, rich_help_panel=table.panel_of(option)
        )
    return inspect.Parameter(
        option.parameter, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, shown]
    )


class with_job:
    """`command(given, ...)` as a command line: the options of a job, collected in `given`, then its own.

    `given` has every option by its name; None is "left out". `as_job` makes a job of it. The parameters are made when
    a command line is built and not when its module is imported: that is when Typer asks for the signature.
    """

    def __init__(self, command: Callable[..., None]) -> None:
        self.command = command
        self.__name__, self.__doc__ = command.__name__, command.__doc__
        _, *self.own = inspect.signature(command, eval_str=True).parameters.values()
        self.made: tuple[dict[str, Option], inspect.Signature] | None = None
        self.taken = {option.name for option in self.own}  # `explain --tensor` is a name, no degree of parallelism

    def __call__(self, **words: Any) -> None:
        """Run the command with the values of its options."""
        given = {name: None if name in self.taken else words.pop(name) for name in table.parameters()}
        self.command(given, **words)

    @property
    def __signature__(self) -> inspect.Signature:
        rows = table.parameters()
        if self.made is None or self.made[0] is not rows:  # Typer asks several times
            options = [_parameter(row) for name, row in rows.items() if name not in self.taken]
            own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in self.own]
            self.made = rows, inspect.Signature([*options, *own])
        return self.made[1]

    @property
    def __annotations__(self) -> dict[str, Any]:  # type: ignore[override]
        return {one.name: one.annotation for one in self.__signature__.parameters.values()}


def _listed(value: str) -> str:
    """A list with commas, however it is written; names alone need no reader."""
    return value if value.replace(",", "").replace("_", "").isalnum() else str(named(WRITTEN)(value))


WRITTEN = "vramplan.cli.written:listed"


def require(given: dict[str, Any], keys: Sequence[str] = ("model", "gpu")) -> None:
    """Raise InputError if options that a command needs are left out."""
    missing = [Problem("is missing", f"--{key}", REQUIRED[key]) for key in keys if given[key] is None]
    if missing:
        model = given.get("model")
        if model is not None and named("vramplan.catalog.locate:is_missing_file")(model):
            missing = [named("vramplan.catalog.text:missing")(model)]  # it may say what else is missing
        raise InputError(missing)


REQUIRED = {
    "model": "a profile name, a profile file or a config.json; `vramplan models` lists the names, "
    "and `vramplan compare -m A,B,C -g G` says which of several fit",
    "gpu": "a profile name, a profile file, a size as in '24 GiB', or local; `vramplan gpus` lists the names, "
    "and `vramplan compare -g all` looks for the cheapest that fits",
}


def as_job(given: dict[str, Any]) -> dict[str, Any]:
    """Options as the keys of a job, nested where the job format nests."""
    job: dict[str, Any] = {}
    rows = table.parameters()
    for name, value in given.items():
        option = rows.get(name)
        if value is None or option is None or (value == "null" and not option.nullable):
            continue  # null in the job format: as if it were left out
        if value == "null":  # which no default of a runtime replaces
            value = None
        elif option.kind == TEXTS:
            value = [part.strip() for part in _listed(value).split(",") if part.strip()] or ""  # which is refused
        place = job.setdefault(option.group, {}) if option.group else job
        place[option.name] = value
    return job
