"""What `vramplan compare` and `vramplan scale` do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import typer

from vramplan.answers.compared import compared, compared_jobs, scaled
from vramplan.answers.processes import usable
from vramplan.catalog.prices import rented
from vramplan.cli import named
from vramplan.cli.job_options import as_job, require
from vramplan.cli.output import OutputChoice, emit, output, say
from vramplan.cli.runs.jobs import any_job_of, asked_of, place_of
from vramplan.cli.save import check_picture, save
from vramplan.errors import InputError, UsageError
from vramplan.exit_codes import ExitCode
from vramplan.job import build_any_job, read_job_file
from vramplan.job.given.spelled import counted
from vramplan.options import table
from vramplan.options.option import FLAG, TEXTS
from vramplan.options.words import EVERY_GPU, SPLITS
from vramplan.report.compared import picture
from vramplan.results.compared import Comparison
from vramplan.values.textbook import AnyJob

MOST_GPUS = 64
MOST_LOOKED_AT = 1000  # runs that may all be refused for one reason
DATA = "gpus"  # the option of parallel.data
PRICES = ("price", "purchase_price")
TAKEN_AWAY = "null"  # of a key that a file has


def compare(
    given: dict[str, Any],
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
) -> None:
    """Run `vramplan compare` with the values of its options."""
    to = output(output_format, key, quiet)
    check_picture(svg, "--svg")
    folders = _folders(profiles)
    asked = asked_of(config, job, program, version, (ignore_unknown, quiet))
    typed = {name: value for name, value in given.items() if value is not None}
    if job is not None and not typed and place_of(job)[1] is None:
        _answer(compared_jobs(read_job_file(job, folders), folders), to, svg)
    if job is None and asked is None:
        require(given)
    lists = _with_every_gpu({name: values_of(name, value) for name, value in typed.items()}, folders)
    paired = _of_each_gpu(lists)
    axes = {flag_of(name): values for name, values in lists.items() if len(values) > 1 and name not in paired}
    if not axes:
        _one_run({name: values[0] for name, values in lists.items()}, job, asked, folders)
        hint = "a list, as in --gpu a100-80gb,h100" + ("" if job is None else "; or the file alone, with all its jobs")
        raise UsageError("there is nothing to compare", key="compare", hint=hint)
    single = {name: values[0] for name, values in lists.items() if len(values) == 1}
    gpu = table.find("gpu").parameter
    if paired and not quiet:
        of_each = " and ".join(flag_of(name) for name in paired)
        say(f"note: each value of --{of_each} is that of the GPU in the same place")
    names = {flag_of(name): name for name in lists}

    def given_of(one: Mapping[str, str]) -> dict[str, Any]:
        varied = {names[flag]: value for flag, value in one.items()}
        return {**single, **varied, **{name: each[varied[gpu]] for name, each in paired.items()}}

    combinations = (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))
    every = map(given_of, islice(combinations, MOST_LOOKED_AT))
    if job is None and asked is None:
        _refuse_once(every, _job_of_options(folders))
        _answer(compared(axes, lambda one: as_job(given_of(one)), folders, usable()), to, svg)
    first = given_of({flag: values[0] for flag, values in axes.items()})
    job_of = _varied_job(job, folders, first) if job is not None else _varied_files(asked, folders, first)
    _refuse_once(every, job_of)
    _answer(compared(axes, given_of, folders, usable(), job_of), to, svg)


def _of_each_gpu(lists: Mapping[str, Sequence[Any]]) -> dict[str, dict[Any, Any]]:
    """Prices of which there is one for each of several GPUs, by the GPU: no GPU costs what another does."""
    gpus = lists.get(table.find("gpu").parameter, ())
    names = [table.find(key).parameter for key in PRICES]
    return {
        name: dict(zip(gpus, lists[name], strict=True))
        for name in names
        if 1 < len(lists.get(name, ())) == len(set(gpus)) == len(gpus)
    }


def _one_run(given: dict[str, Any], job: str | None, asked: Any, folders: list[Path]) -> None:
    """Raise InputError for what is wrong with the only run: a list that is spelled wrongly is no list."""
    if asked is not None:
        _varied_files(asked, folders, given)(given)
    elif job is None or place_of(job)[1] is not None:
        any_job_of(given, folders, job)


def _varied_job(written: str, folders: list[Path], first: dict[str, Any]) -> Callable[[dict[str, Any]], AnyJob]:
    """What makes a job of a job file with options over it. Raises InputError where there is no such job.

    `first` are the options of the first run. What is wrong with these is said in its row.
    """
    try:
        any_job_of(first, folders, written)
    except InputError as error:
        if any(problem.key in (None, "--job") for problem in error.problems):
            raise
    return lambda given: any_job_of(given, folders, written)


def _varied_files(asked: Any, folders: list[Path], first: dict[str, Any]) -> Callable[[dict[str, Any]], AnyJob]:
    """The same of files of a training program; how they are read is told once."""
    read = named("vramplan.cli.runs.configs:read_of")(named("vramplan.cli.runs.configs:over_of")(first), folders, asked)
    named("vramplan.cli.runs.configs:tell")(read, asked)
    one_of_files, silent = named("vramplan.cli.runs.configs:job_of"), asked._replace(quiet=True)
    return lambda given: one_of_files(given, folders, silent)


def _with_every_gpu(lists: dict[str, list[Any]], folders: list[Path]) -> dict[str, list[Any]]:
    """`all` among the GPUs as each that is rented out, `8xall` as eight of each; which are the cheapest comes first."""
    gpu = table.find("gpu").parameter
    found: list[Any] = []
    for value in lists.get(gpu, ()):
        number, name = (counted(value) if isinstance(value, str) else None) or (None, value)
        if name == EVERY_GPU:
            found += [one if number is None else f"{number}x{one}" for one in rented(folders)]
        else:
            found.append(value)
    return {**lists, gpu: list(dict.fromkeys(found))} if found else lists


def scale(
    given: dict[str, Any],
    job: str | None,
    config: list[str] | None,
    program: str | None,
    version: str | None,
    ignore_unknown: bool,
    to: int | None,
    profiles: list[str] | None,
    output_format: str,
    key: str | None,
    quiet: bool,
    svg: str | None,
) -> None:
    """Run `vramplan scale` with the values of its options."""
    out = output(output_format, key, quiet)
    check_picture(svg, "--svg")
    asked = asked_of(config, job, program, version, (ignore_unknown, quiet))
    of_file = job is not None or asked is not None
    if not of_file:
        require(given)
    name = table.find("parallel.data").parameter
    rest = {one: value for one, value in given.items() if value is not None and one != name}
    gpu = table.find("gpu").parameter
    several, least = counted(rest.get(gpu)), 1
    if several is not None:  # `8xh100` has the last number, of all GPUs; or the first, where another is the last
        own, rest[gpu] = max(1, several[0] // _replica(rest)), several[1]
        to, least = (own, 1) if to is None and given.get(name) is None else (to, own)
    counts, folders = _counts(given.get(name), to, least), _folders(profiles)
    first = {**rest, name: str(counts[0])}
    if asked is not None:
        job_of = _varied_files(asked, folders, first)
    elif job is not None:
        job_of = _varied_job(job, folders, first)
    else:
        job_of = _job_of_options(folders)
    alone, several_words = _ways(rest, job_of, name, max(counts[-1], 2), of_file=of_file)

    def given_of(one: Mapping[str, str]) -> dict[str, Any]:
        count = one[DATA]
        return {**(alone if count == "1" else several_words), name: count}

    _refuse_once((given_of({DATA: str(count)}) for count in counts), job_of)
    shared_by = several_words.get(table.find("parallel.sharding").parameter)
    if of_file:
        _answer(scaled(counts, given_of, folders, shared_by, job_of), out, svg)
    _answer(scaled(counts, lambda one: as_job(given_of(one)), folders, shared_by), out, svg)


def _ways(
    rest: dict[str, Any], job_of: Callable[[dict[str, Any]], AnyJob], name: str, most: int, *, of_file: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of a run on one GPU and on several. `name`: the parameter of their number.

    Several share the states by FSDP where nothing says how, unless the program has none: a file says how.
    """
    sharding = table.find("parallel.sharding").parameter
    several_words = rest if sharding in rest or of_file else {**rest, sharding: "fsdp"}
    if not _is_built(job_of, {**several_words, name: str(most)}):
        several_words = rest
    without = {key: value for key, value in rest.items() if key != sharding}
    if of_file:
        without[sharding] = TAKEN_AWAY
    ways = (rest, without, several_words)  # some are for several devices alone, and some options need one
    alone = next((one for one in ways if _is_built(job_of, {**one, name: "1"})), rest)
    return alone, several_words


def _job_of_options(folders: list[Path]) -> Callable[[dict[str, Any]], AnyJob]:
    return lambda given: build_any_job(as_job(given), profile_dirs=folders)


def _refuse_once(every: Iterable[dict[str, Any]], job_of: Callable[[dict[str, Any]], AnyJob]) -> None:
    """Raise the InputError of runs that are all refused for the same reasons: a table would say it row by row."""
    found: InputError | None = None
    for given in every:
        try:
            job_of(given)
        except InputError as error:
            if found is not None and error.problems != found.problems:
                return
            found = error
        else:
            return
    if found is not None:
        raise found


def _is_built(job_of: Callable[[dict[str, Any]], AnyJob], given: dict[str, Any]) -> bool:
    """Whether there is a job of these options; else they are refused."""
    try:
        job_of(given)
    except InputError:
        return False
    return True


def _replica(given: Mapping[str, Any]) -> int:
    """The GPUs that share a replica of the model."""
    degrees = (str(given.get(table.find(f"parallel.{split}").parameter) or 1) for split in SPLITS)
    return prod(int(one) for one in degrees if one.isdecimal() and int(one))  # others are told where jobs are read


def _counts(listed: str | None, to: int | None, least: int) -> list[int]:
    """The numbers of GPUs: those of a list, else 1, 2, 4, ... up to the one number that is given, which is the last.

    `least` is where these begin.
    """
    if listed is None:
        return _doubled(to or MOST_GPUS, least)
    if to is not None:
        raise UsageError("--gpus names the counts already", key="--to", hint="leave one of the two out")
    parts = [part.strip() for part in listed.split(",")]
    if not all(part.isdecimal() and 0 < int(part) <= table.MAX_DEVICES for part in parts):
        raise UsageError(
            f"{listed!r} is no list of numbers of GPUs", key="--gpus", hint="as in 1,2,4,8; --to N ends at it"
        )
    return _doubled(int(parts[0]), least) if len(parts) == 1 else sorted({int(part) for part in parts})


def _doubled(most: int, least: int) -> list[int]:
    if least > most:
        hint = f"the number before the GPU is the first of them: leave it out, or go beyond {least}"
        raise UsageError(f"{least} GPUs are more than the last number, {most}", key="--gpus", hint=hint)
    found = [least]
    while found[-1] * 2 < most:
        found.append(found[-1] * 2)
    return found if most == least else [*found, most]


def values_of(name: str, value: Any) -> list[Any]:
    """The values of an option: it is a list where it has semicolons, or commas that no value of it has."""
    row = table.parameters().get(name)
    if row is None or row.kind == FLAG or not isinstance(value, str):
        return [value]
    separator = ";" if ";" in value or row.kind == TEXTS or "[" in value else ","
    return list(dict.fromkeys(part.strip() for part in value.split(separator) if part.strip())) or [value]


def flag_of(name: str) -> str:
    """The option without its dashes: the head of a column."""
    return table.parameters()[name].option[2:]


def _folders(profiles: list[str] | None) -> list[Path]:
    return [Path(folder) for folder in profiles or ()]


def _answer(found: Comparison, to: OutputChoice, svg: str | None) -> NoReturn:
    if svg is not None:
        save(svg, picture(found), "--svg")
    emit("compare", found, to)
    code = ExitCode.OK if any(cell.is_likely for cell in found.cells) else None
    if code is None:
        all_refused = all(cell.error is not None for cell in found.cells)
        code = ExitCode.BAD_INPUT if all_refused else ExitCode.DOES_NOT_FIT
    raise typer.Exit(code)
