"""What `vramplan plan` does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import typer

from vramplan.answers.candidates import PLAIN, open_axes
from vramplan.answers.fit import answered
from vramplan.answers.plans import check_ranked, searched
from vramplan.answers.processes import usable
from vramplan.catalog.runtimes import list_runtimes
from vramplan.cli import named
from vramplan.cli.job_options import as_job, require
from vramplan.cli.output import emit, output
from vramplan.cli.runs.compare import flag_of, values_of
from vramplan.cli.runs.jobs import asked_of, run_of
from vramplan.cli.save import check_picture, save
from vramplan.engines import engine_of
from vramplan.errors import InputError, UsageError, near_matches
from vramplan.exit_codes import ExitCode
from vramplan.job import build_any_job
from vramplan.options import table
from vramplan.options.option import FLAG, Option
from vramplan.options.words import EVERY_RUNTIME, SPLITS
from vramplan.report.plans import picture
from vramplan.results.compared import Cell
from vramplan.tuples import NamedTuple
from vramplan.values.textbook import TextbookJob

RUNTIME = "runtime"
BETWEEN_LINES = 0.1  # seconds, of the progress on a terminal


def plan(
    given: dict[str, Any],
    exclude: list[str] | None,
    within: float,
    job: str | None,
    config: list[str] | None,
    program: str | None,
    version: str | None,
    ignore_unknown: bool,
    profiles: list[str] | None,
    output_format: str,
    key: str | None,
    quiet: bool,
    svg: str | None,
    engine: str | None,
    folder: str | None,
    force: bool,
) -> None:
    """Run `vramplan plan` with the values of its options."""
    to = output(output_format, key, quiet)
    check_picture(svg, "--svg")
    folders = [Path(one) for one in profiles or ()]
    emission = None
    if job is not None and (engine or folder or force):
        hint = "the options of the job, or a file of the program"
        raise UsageError("a plan of a job file is not written as another file", key="--emit", hint=hint)
    if engine or folder or force:
        emission = named("vramplan.cli.runs.emit:emission_of")(engine, folder, force, to)
        if not config:
            given = named("vramplan.cli.runs.emit:given_for")(given, emission)
    asked = asked_of(config, job, program, version, (ignore_unknown, quiet))
    if job is not None:
        base: dict[str, Any] = run_of(given, folders, job)
    elif asked is None:
        require(given)
        base = {}
    else:
        base = named("vramplan.cli.runs.configs:run_of")(given, folders, asked)
    lists = {name: tuple(values_of(name, value)) for name, value in given.items() if value is not None}
    lists = _with_every_runtime(lists, base, folders)
    first = {name: values[0] for name, values in lists.items()}
    parameters = {row.option[2:]: name for name, row in table.parameters().items()}
    machines = [
        _machine(_over(base, as_job({**first, **({} if one is None else {RUNTIME: one})})), folders)
        for one in lists.get(RUNTIME, (None,))
    ]
    devices, splits = machines[0].devices, any(one.splits for one in machines)
    opened = open_axes(devices, splits=splits, experts=machines[0].experts, attention=machines[0].attention)
    axes = {flag_of(name): values for name, values in lists.items() if len(values) > 1}
    axes |= {option: values for option, values in opened.items() if parameters[option] not in lists}
    pinned = {name: values[0] for name, values in lists.items() if len(values) == 1}
    if emission is not None and asked is None:
        looked_for = {parameters[option] for option in axes}
        pinned |= named("vramplan.cli.runs.emit:implied")(pinned, emission, folders, looked_for)
    axes = _without(axes, list(dict.fromkeys(exclude or [])))
    base = _left_open(base, [table.parameters()[parameters[option]] for option in axes])
    data = table.find("parallel.data").parameter

    def changed(one: Mapping[str, str]) -> dict[str, Any]:
        change: dict[str, Any] = {}
        for option, value in one.items():
            if value != PLAIN:
                name = parameters[option]
                change[name] = value == "true" if table.parameters()[name].kind == FLAG else value
        return change

    def keys_of(one: Mapping[str, str]) -> dict[str, Any]:
        change = changed(one)
        both = {**pinned, **change}
        replica = 1
        for degree in SPLITS:
            replica *= int(both.get(degree) or 1)
        return _over(base, as_job({**both, data: str(devices // replica)}))

    def flags_of(one: Mapping[str, str]) -> str:
        words = [
            f"--{option}" + ("" if value == "true" else f" {value}") for option, value in one.items() if value != PLAIN
        ]
        return " ".join(words)

    def answer_of(cell: Cell) -> Callable[[], Any]:
        batch = {key: getattr(cell, key) for key in ("micro_batch_size", "gradient_accumulation_steps")}
        return lambda: answered({**keys_of(cell.options), **batch}, folders)

    found = searched(axes, devices, keys_of, flags_of, folders, _progress(to.quiet), within / 100, usable())
    while emission is not None:
        places = sorted(range(len(found.plans)), key=lambda place: place != found.fastest)
        tried = [(found.plans[place].flags, answer_of(found.plans[place].cell)) for place in places]
        try:
            named("vramplan.cli.runs.emit:first_of")(tried, emission.of(given, folders, asked), folders)
            break
        except named("vramplan.configs.writing:Unsaid") as error:  # of all plans near the fastest
            nearest = error.nearest
            fewer = _without_unsaid(axes, found.plans[0].cell.options, nearest)
            own = {key: value for key, value in nearest.items() if table.find(key).option[2:] not in axes}
            more = named("vramplan.cli.runs.emit:left_open")(own, pinned) if asked is None else {}
            if not found.complete or (fewer == axes and not more):
                raise
            axes = fewer
            pinned |= more
            found = searched(axes, devices, keys_of, flags_of, folders, _progress(to.quiet), within / 100, usable())
    if svg is not None:
        save(svg, picture(found), "--svg")
    if emission is None:
        emit("plan", found, to)
    if not found.complete:
        raise typer.Exit(ExitCode.INTERRUPTED)
    raise typer.Exit(ExitCode.OK if found.plans else ExitCode.DOES_NOT_FIT)


def _over(base: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a job with others over them; those of a group one by one."""
    result = dict(base)
    for key, value in keys.items():
        before = result.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[key] = {**before, **value} if both else value  # type: ignore[dict-item]
    return result


def _left_open(base: Mapping[str, Any], varied: Iterable[Option]) -> dict[str, Any]:
    """The keys of a job without those that are looked for, which a choice that leaves an option out has not either."""
    result = dict(base)
    for row in varied:
        if row.group and isinstance(result.get(row.group), Mapping):
            result[row.group] = {key: value for key, value in result[row.group].items() if key != row.name}
        elif not row.group:
            result.pop(row.name, None)
    return result


class Machine(NamedTuple):
    """What a job has to be laid out on."""

    runtime: str
    devices: int  # in all
    splits: bool  # whether the program splits models over them
    attention: str
    experts: int  # in a block of the model, among which devices may share; 0: none


def _machine(keys: dict[str, Any], folders: list[Path]) -> Machine:
    job = build_any_job(keys, profile_dirs=folders)
    if isinstance(job, TextbookJob):
        raise UsageError("equations have no plans to choose from", key="--runtime", hint="another runtime")
    check_ranked(job)
    split, experts = job.split, job.model.experts
    replica = 1 if split is None else split.tensor * split.pipeline * split.context
    splits = bool(engine_of(job.runtime.engine).families)
    routed = 0 if experts is None else experts.routed
    return Machine(job.runtime.name, job.data_parallel_size * replica, splits, job.attention, routed)


def _with_every_runtime(
    lists: dict[str, tuple[Any, ...]], base: dict[str, Any], folders: list[Path]
) -> dict[str, tuple[Any, ...]]:
    """`--runtime all` as the list of those that have the model, the default first."""
    if lists.get(RUNTIME) != (EVERY_RUNTIME,):
        return lists
    first = {name: values[0] for name, values in lists.items() if name != RUNTIME}
    usual = _machine(_over(base, as_job(first)), folders).runtime
    able = [usual]
    for name in (profile.name for profile in list_runtimes(folders) if profile.name != usual):
        try:
            _machine(_over(base, as_job({**first, RUNTIME: name})), folders)
        except InputError:
            continue
        able.append(name)
    return {**lists, RUNTIME: tuple(able)}


def _without(axes: dict[str, tuple[str, ...]], excluded: list[str]) -> dict[str, tuple[str, ...]]:
    """The choices without those that nobody wants."""
    for text in excluded:
        option, _, value = text.removeprefix("--").partition("=")
        if option not in axes:
            hint = near_matches(option, tuple(axes)) or f"open: {', '.join(axes)}"
            raise UsageError(f"{text!r} names no open choice", key="--exclude", hint=hint)
        if not value and PLAIN in axes[option]:  # none of them
            axes = {**axes, option: (PLAIN,)}
            continue
        if value not in axes[option]:
            raise UsageError(f"{text!r} names no value of it", key="--exclude", hint=f"of: {', '.join(axes[option])}")
        left = tuple(one for one in axes[option] if one != value)
        axes = {**axes, option: left} if left else {name: one for name, one in axes.items() if name != option}
    return axes


def _without_unsaid(
    axes: dict[str, tuple[str, ...]], chosen: Mapping[str, str], nearest: Mapping[str, Any]
) -> dict[str, tuple[str, ...]]:
    """The choices without the values of a plan that a program has no setting for."""
    for key in nearest:
        option = table.find(key).option[2:]
        left = tuple(one for one in axes.get(option, ()) if one != chosen.get(option))
        if left:
            axes = {**axes, option: left}
    return axes


def _progress(quiet: bool) -> Callable[[int, int, int], None]:
    """Says how far the search is, on a terminal alone, and takes the line away when it ends."""
    if quiet or not sys.stderr.isatty():
        return lambda done, of, found: None
    said = 0.0

    def show(done: int, of: int, found: int) -> None:
        nonlocal said
        now = monotonic()
        if done < of and now - said < BETWEEN_LINES:
            return
        said = now
        words = f"{done:,} of {of:,} combinations are settled, {found:,} fit" if done < of else ""
        sys.stderr.write(f"\r{words}\x1b[K")
        sys.stderr.flush()

    return show
