"""Several files that make one job, and files that name others.

An Accelerate file and a DeepSpeed file say how devices share the work; one file beside them says what is trained. The
options of `accelerate launch` in a script are an Accelerate file of their own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from glob import glob
from math import prod
from typing import Any

from vramplan.catalog.text import read_text
from vramplan.configs import reading, registry, texts
from vramplan.configs.neighbours import PARENTS
from vramplan.configs.programs import accelerate
from vramplan.configs.reading import Wanted
from vramplan.configs.sheet import DEVICES, Program
from vramplan.configs.shell import shown, unknowns
from vramplan.configs.written import Written
from vramplan.errors import InputError, Problem
from vramplan.results.reading import ReadJob, ReadValue
from vramplan.tuples import NamedTuple

MUST_MATCH = ("micro_batch_size", "gradient_accumulation_steps", "max_gradient_norm")
"""What the Trainer refuses where a DeepSpeed file says otherwise.

Source: huggingface/transformers 5.23.0, src/transformers/integrations/deepspeed.py, trainer_config_process.
"""
OF_TORCHRUN = tuple(
    f"launcher.{name}" for name in ("nproc_per_node", "node_rank", "master_addr", "rdzv_id", "rdzv_endpoint")
)
"""Options that `accelerate launch` has not, or calls otherwise."""

OF_CONFIG = "launcher.config_file"  # which it alone has

Opened = Callable[[str], Mapping[str, Written] | None]


class FilePart(NamedTuple):
    """The settings of one program in one file."""

    program: Program
    written: Mapping[str, Written]
    file: str
    text: str
    devices: int | None = None

    @property
    def is_how(self) -> bool:
        """Whether it says how devices share the work."""
        return self.program.says_how


def read_files(files: Sequence[str], wanted: Wanted) -> ReadJob:
    """The job that files mean together; `-` is standard input. Raises InputError with every problem of a file."""
    parts: list[FilePart] = []
    problems: list[Problem] = []
    started: set[str] = set()
    for file in files:
        try:
            parts += _parts(file, wanted, alone=len(files) == 1, files=files, started=started)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    parts = [part for part in parts if part.file not in started]  # what a command among them starts with
    _one_of_each(parts)
    return _together(parts, files, wanted, opener(files))


def read_texts(given: Mapping[str, str], wanted: Wanted) -> ReadJob:
    """The same for texts that are in no file, by the names that they would have. Raises InputError."""

    def find(path: str) -> Mapping[str, Written] | None:
        name = os.path.basename(path)
        return texts.settings(given[name], name) if name in given else None

    parts = [
        part for name, text in given.items() for part in _parts_of(text, name, find, wanted, alone=len(given) == 1)
    ]
    _one_of_each(parts)
    return _together(parts, list(given), wanted, find)


def groups(files: Sequence[str], wanted: Wanted) -> list[list[str]]:
    """The files of each job: one that says what is trained, and all that say how devices share the work.

    A file that cannot be read is a job of its own, which says so when it is read.
    """
    how: list[str] = []
    what: list[str] = []
    for file in files:
        try:
            shares = all(part.is_how for part in _parts(file, wanted, alone=False))
        except InputError:
            shares = False
        (how if shares else what).append(file)
    return [[*how, file] for file in what] or [how]


def _parts(
    file: str, wanted: Wanted, alone: bool, files: Sequence[str] = (), started: set[str] | None = None
) -> Iterator[FilePart]:
    """What a file says. `files`: all that are given; `started` takes those that a command in this one names."""

    def find(path: str) -> Mapping[str, Written] | None:
        others = [one for one in files if one != file]
        made = texts.written_by(file).get(path)
        if made is not None:
            return texts.settings(made, os.path.basename(shown(path)))
        place = others[0] if unknowns(path) and len(others) == 1 else _place_of(path, [*others, file])
        if place is not None and place != file and started is not None:
            started.add(place)
        return None if place is None else _settings_at(place, path)

    yield from _parts_of(
        read_text(texts.named_in(file)[0], allow_stdin=True, allow_utf16=True), file, find, wanted, alone
    )


def _parts_of(text: str, file: str, find: Opened, wanted: Wanted, alone: bool) -> Iterator[FilePart]:
    command = texts.started_by(text, file)
    if command is not None:
        program, started = command
        named_file = started.config
        how = None if named_file is None else program.how_to_get(str(named_file.value))
        found = {} if named_file is None else _named_by("--config", named_file, find, how)
        written = started.over(found)
        told = texts.looped(started.loops)
        if started.others:
            lines = f"line{'s' * (len(started.others) > 1)} {', '.join(map(str, started.others))}"
            told.append(f"the script trains in {lines} too; the first command is read")
        told += [f"what {one} prints is not known: no arguments are read from there" for one in started.unread]
        if told:
            written[texts.NOTE] = Written("; ".join(told), file)
        _lift_counts(written)
        yield from _launching(written, file, text, find)
        named = registry.program_of(wanted.program) if wanted.program else program
        yield FilePart(named, written, file, text, started.devices)
        return
    written = texts.settings(text, file)
    config = written.get("config")
    if "program" in written and config is not None:  # TrlParser: what is typed wins over the file of --config
        del written["config"]
        written = _over(_named_by("--config", config, find), written)
    if alone:
        _lift_counts(written)
    yield from _launching(written, file, text, find)
    program = _program_of(written, file, wanted, alone)
    yield FilePart(program, program.prepared(written), file, text)


def _over(inside: Mapping[str, Written], written: Mapping[str, Written]) -> dict[str, Written]:
    """The settings of a file under those of the command that starts with it, and what is to say of both."""
    both = {**inside, **written}
    if texts.DECLARED in inside and texts.DECLARED in written:
        own = {**inside[texts.DECLARED].value, **written[texts.DECLARED].value}
        both[texts.DECLARED] = written[texts.DECLARED]._replace(value=own)
    if texts.NOTE in inside and texts.NOTE in written:
        notes = f"{inside[texts.NOTE].value}; {written[texts.NOTE].value}"
        both[texts.NOTE] = written[texts.NOTE]._replace(value=notes)
    return both


def _program_of(written: Mapping[str, Written], file: str, wanted: Wanted, alone: bool) -> Program:
    """The program that is asked for, but for a file among several that says how devices share the work."""
    named = registry.program_of(wanted.program) if wanted.program else None
    if named is not None and alone:
        return named
    try:
        program = registry.recognised(written, file)
    except InputError:
        if named is None:
            raise
        return named
    return program if named is None or program.says_how else named


COUNTS = ("num_processes", "num_machines")
"""Options of `accelerate launch` that say how many processes there are."""


def _lift_counts(written: dict[str, Written]) -> None:
    """Take counts of processes in a file of TRL as options of the launcher, where that is told none.

    Source: huggingface/trl 1.16.0, trl/cli/commands/training.py: what its arguments have not is `accelerate launch`'s.
    """
    held = [name for name in COUNTS if name in written]
    launched = any(key.startswith("launcher.") for key in written)
    if held and not launched and "accelerate_config" not in written and registry.strongest(written) in OF_TRAINER:
        for name in held:
            written[f"launcher.{name}"] = written.pop(name)


OF_TRAINER = ("trl", "training-arguments")


def _launching(written: dict[str, Written], file: str, text: str, find: Opened) -> Iterator[FilePart]:
    """The part of `accelerate launch` among settings: its options, and the file that it or TRL names.

    What it takes is no longer among them.
    """
    others = OF_CONFIG not in written and any(key in written for key in OF_TORCHRUN)
    launch = {} if others else accelerate.from_launcher(written)
    asked = [
        key for key in (f"launcher.{name}" for name in COUNTS) if key in written and unknowns(str(written[key].value))
    ]
    for key in asked:  # what only the caller knows is asked for
        del written[key]
    for name in (
        "num_gpus",
        "nnodes",
        "nproc_per_node",
    ):  # of a script's variables and of the program that hands out machines
        launch.pop(name, None)
    named, option = launch.pop("config_file", None), "--config_file"
    if "accelerate_config" in written:
        named, option = written.pop("accelerate_config"), "accelerate_config"
        launch |= {name: written.pop(name) for name in COUNTS if name in written}
    if named is not None:
        own = accelerate.shipped(named) if option == "accelerate_config" else None
        hint = None if option == "--config_file" else f"one of {', '.join(accelerate.SHIPPED)}, or a file beside it"
        if own is None and option == "--config_file" and find(str(named.value)) is None:
            own = {accelerate.NAMED: named}  # what the file says is asked for
        launch = {**(_named_by(option, named, find, hint) if own is None else own), **launch}
    for key in asked:  # and what is typed wins over the file
        launch.pop(key.removeprefix("launcher."), None)
    if accelerate.recognise(launch):
        for key in [key for key in written if key.startswith("launcher.")]:
            del written[key]
        yield FilePart(registry.program_of("accelerate"), launch, file, text)


def _named_by(option: str, item: Written, find: Opened, hint: str | None = None) -> dict[str, Written]:
    found = find(str(item.value))
    if found is None:
        message, hint = f"{shown(str(item.value))} is not here", hint or "give that file beside it"
        if unknowns(str(item.value)):
            message = f"{shown(str(item.value))} is known to the caller alone"
        raise InputError([Problem(message, option, hint, item.file, item.line, item.column)])
    return dict(found)


def _one_of_each(parts: Sequence[FilePart]) -> None:
    """Two files of one program would contradict each other."""
    seen: dict[str, FilePart] = {}
    for part in parts:
        kind = part.program.name if part.is_how else "what is trained"
        if kind in seen:
            other = seen[kind]
            message = f"and {other.file} both say {kind}" if not part.is_how else f"and {other.file} are both of {kind}"
            raise InputError([Problem(message, file=part.file, hint="one job has one of them")])
        seen[kind] = part


def opener(files: Sequence[str]) -> Opened:
    """What finds the settings of a file that one of `files` names: one of them, or beside them, or above."""

    def settings_of(path: str) -> Mapping[str, Written] | None:
        made = next((made[path] for made in map(texts.written_by, files) if path in made), None)
        if made is not None:
            return texts.settings(made, os.path.basename(shown(path)))
        place = _place_of(path, files)
        return None if place is None else _settings_at(place, path)

    return settings_of


def _settings_at(place: str, path: str) -> Mapping[str, Written]:
    """The settings of a file where it lies, and of the function that a path names, as `registry.py:llama3_8b`."""
    name = texts.named_in(path)[1]
    return texts.settings(read_text(place, allow_utf16=True), place if name is None else f"{place}:{name}")


def _place_of(path: str, files: Sequence[str]) -> str | None:
    """Paths are mostly relative to the root of a repository, which is a folder above the file.

    Of a path on another machine, or behind a variable, the end below one of these folders counts: its last two parts
    or more. `*` is a folder of any name.
    """
    name = texts.named_in(path)[0].replace("\\", "/").rstrip("/")
    for file in files:
        if os.path.basename(file) == os.path.basename(name):
            return file
    candidates = [name]
    elsewhere = os.path.isabs(name) or bool(unknowns(name))
    parts = name.split("/") if elsewhere else []
    for file in files:
        folder = os.path.dirname(os.path.abspath(file))
        candidates.append(os.path.join(folder, os.path.basename(name)))
        for _ in range(PARENTS):
            candidates.append(os.path.join(folder, name))
            candidates += [os.path.join(folder, *parts[at:]) for at in range(1, len(parts) - 1)]
            folder = os.path.dirname(folder)
    if "*" in name:
        candidates = [one for pattern in candidates for one in sorted(glob(pattern))]
    return next((one for one in candidates if os.path.isfile(one)), None)


def _together(parts: Sequence[FilePart], files: Sequence[str], wanted: Wanted, find: Opened) -> ReadJob:
    """Read how first, and then what, which looks at how."""
    read: dict[str, ReadJob] = {}
    beside = dict(wanted.beside)
    devices = wanted.devices
    for part in sorted((one for one in parts if one.is_how), key=lambda one: not one.program.file_keys):
        if _is_named(part, parts):
            continue
        alone = wanted if len(parts) == 1 else replace(wanted, version=None)
        found = reading.job_of(
            part.program, part.written, [part.file], replace(alone, devices=devices), part.text, find
        )
        read[part.program.name] = found
        told = {value.key: value.value for value in found.values}
        typed = wanted.beside
        beside |= {key: value for key, value in told.items() if key not in typed and key != "precision"}
        more = part.program.tells(part.written, told)
        of_it = more.pop(DEVICES, None)
        devices = of_it if devices is None else devices
        beside |= more
        precision = str(told.get("precision", ""))
        if precision.startswith("mixed-") and ("mixed_precision" not in more):
            beside["zero_precision"] = precision.removeprefix("mixed-")
    what = next((one for one in parts if not one.is_how), None)
    if what is not None:
        asked = replace(wanted, beside=beside, devices=what.devices if devices is None else devices)
        read[what.program.name] = reading.job_of(what.program, what.written, [what.file], asked, what.text, find)
    one = next(iter(read.values())) if len(read) == 1 else merged(list(read.values()), files)
    if what is not None and len(read) == 1:
        one = _under_typed(one, str(wanted.beside.get("parallel.sharding") or ""))
    named = (source.file for value in one.values for source in value.sources if source.file is not None)
    return one._replace(files=tuple(dict.fromkeys([*files, *named])))


def _is_named(part: FilePart, parts: Sequence[FilePart]) -> bool:
    """Whether the file of a part is read already, as the one that another file names."""
    others = (one for one in parts if one is not part)
    named = [str(one.written[key].value) for one in others for key in one.program.file_keys if key in one.written]
    return any(_place_of(name, [part.file]) == part.file for name in named)


def merged(read: Sequence[ReadJob], files: Sequence[str]) -> ReadJob:
    """One job of several that are read after each other: a later one wins. Raises InputError where they contradict."""
    main = read[-1]
    values: dict[str, ReadValue] = {}
    problems: list[Problem] = []
    for one in read:
        for value in one.values:
            before = values.get(value.key)
            if before is not None and value.key in MUST_MATCH and before.value != value.value:
                problems.append(_contradiction(before, value))
            if before is not None and value.key == "offload":
                more = [part for part in value.value if part not in before.value]
                value = ReadValue("offload", [*before.value, *more], (*before.sources, *value.sources))
            values[value.key] = value
    problems += _whole_replicas(values, read)
    if problems:
        raise InputError(problems)
    _precision(values, main)
    reading.fused_over_master(values)
    opened = {key: reason for one in read for key, reason in one.open.items() if key not in values}
    notes = [f"{', '.join(one.files)} is read as {one.program} {one.release}" for one in read]
    return main._replace(
        files=tuple(files),
        job=_nested(values.values()),
        values=tuple(values.values()),
        open=opened,
        without_effect=tuple(source for one in read for source in one.without_effect),
        unmodelled={key: what for one in read for key, what in one.unmodelled.items()},
        not_understood=tuple(source for one in read for source in one.not_understood),
        notes=tuple(dict.fromkeys([*notes, *(note for one in read for note in one.notes)])),
        points_to={key: path for one in read for key, path in one.points_to.items()},
        allocator=next((one.allocator for one in reversed(read) if one.allocator is not None), None),
    )


def _whole_replicas(values: dict[str, ReadValue], read: Sequence[ReadJob]) -> list[Problem]:
    """Divide the processes that a launcher starts among the devices of each replica that a file after it splits."""
    data = values.get("parallel.data")
    of = next((one for one in reversed(read) if data in one.values), None)
    if data is None or of is None:
        return []
    own = {value.key for value in of.values}
    split = [values[key] for key in SPLITS if key in values and key not in own]
    each = prod(value.value for value in split)
    if each == 1:
        return []
    if data.value % each:
        message = f"are {data.value}, of which {each} make a replica"
        source = data.sources[0]
        return [Problem(message, source.key, f"a multiple of {each}", source.file, source.line, source.column)]
    sources = (*data.sources, *(source for value in split for source in value.sources))
    values["parallel.data"] = ReadValue("parallel.data", data.value // each, sources)
    return []


SPLITS = ("parallel.tensor", "parallel.pipeline", "parallel.context")


def _contradiction(before: ReadValue, after: ReadValue) -> Problem:
    place = next((source for source in (*after.sources, *before.sources) if source.line is not None), None)
    other = next((source for source in before.sources if source.line is not None), None)
    where = f"{other.file}:{other.line}: {other.key}" if other else "another file"
    key = place.key if place else after.key
    message = f"is {after.value}, and {where} says {before.value}, which the Trainer refuses"
    if place is None:
        return Problem(message, key, "write one of them in both")
    return Problem(message, after.sources[0].key, "write one of them in both", place.file, place.line, place.column)


def _precision(values: dict[str, ReadValue], main: ReadJob) -> None:
    """What autocast of the training file means where another file shards the model."""
    told, sharding = values.get("precision"), values.get("parallel.sharding")
    program = registry.program_of(main.program)
    if told is None or sharding is None or program.decides_precision:
        return
    row = accelerate.strategy_of(str(sharding.value))
    half = next((half for half in ("bf16", "fp16") if str(told.value) in (f"amp-{half}", f"pure-{half}")), None)
    if half is None or row == "ddp" or any(value.key == "parallel.sharding" for value in main.values):
        return
    if (
        row == "fsdp"
        and str(told.value).startswith("pure-")
        and "adapter.kind" not in values
        and program.casts_whole_models
    ):
        return
    word = accelerate.PRECISIONS[row][half]
    values["precision"] = ReadValue("precision", word, (*told.sources, *sharding.sources))
    if row == "zero":  # its engine casts the weights and scales the loss by itself
        values.pop("weight_dtype", None)
        values.pop("grad_scaler", None)


def _under_typed(read: ReadJob, sharding: str) -> ReadJob:
    """A job whose devices share the model as the caller says: autocast is then what the program makes of it there."""
    values = {value.key: value for value in read.values}
    if not sharding or "parallel.sharding" in values:
        return read
    values["parallel.sharding"] = ReadValue("parallel.sharding", sharding, ())
    _precision(values, read)
    del values["parallel.sharding"]
    return read._replace(job=_nested(values.values()), values=tuple(values.values()))


def _nested(values: Any) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for value in values:
        *above, last = value.key.split(".")
        place = result
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value.value
    return result
