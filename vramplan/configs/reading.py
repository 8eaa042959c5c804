"""From the settings of a file to the job that they mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vramplan.catalog.text import read_text
from vramplan.configs import naming, registry, shell, texts
from vramplan.configs.catalogue import Catalogue
from vramplan.configs.command import OF_ALLOCATOR
from vramplan.configs.programs.trainer import LAUNCHED
from vramplan.configs.sheet import Meaning, Program, Sheet, sorted_out
from vramplan.configs.written import Written
from vramplan.errors import InputError, Problem
from vramplan.job.machine.allocator import BadSetting, settings_of
from vramplan.results.reading import ReadJob, ReadValue, Source
from vramplan.values.parallel import DDP


@dataclass(frozen=True)
class Wanted:
    """What was asked beside the files.

    `program`: a name of `--from`. `version`: of the program. `devices`: how many GPUs. `ignore_unknown`: settings that
    are not understood are no error. `profiles`: folders of profiles. `beside`: keys of the job that are given beside
    the files, as `parallel.sharding`.
    """

    program: str | None = None
    version: str | None = None
    devices: int | None = None
    ignore_unknown: bool = False
    profiles: Sequence[Any] = field(default_factory=tuple)
    beside: Mapping[str, Any] = field(default_factory=dict)


def read_file(file: str, wanted: Wanted) -> ReadJob:
    """The job that one file means; `-` is standard input. Raises InputError with every problem of the file."""
    return read(read_text(texts.named_in(file)[0], allow_stdin=True, allow_utf16=True), file, wanted)


def read(text: str, file: str, wanted: Wanted) -> ReadJob:
    """The same for a text."""
    written = texts.settings(text, file)
    program = registry.program_of(wanted.program) if wanted.program else registry.recognised(written, file)
    return job_of(program, program.prepared(written), [file], wanted, text)


def nothing_opened(path: str) -> Mapping[str, Written] | None:
    """Of settings that come from no folder: no other file is there."""
    return None


def _allocator(sheet: Sheet, meaning: Meaning) -> None:
    """Take the settings of the caching allocator that a script sets; those that are not modelled are told."""
    for name in OF_ALLOCATOR:
        text = sheet.text(name) if sheet.given(name) else None
        if text is None:
            continue
        try:
            settings_of(text)
        except BadSetting as error:
            meaning.note(f"{name}: {error}, and has no effect here")
            continue
        meaning.say("allocator", text, name)


def job_of(
    program: Program,
    written: Mapping[str, Written],
    files: Sequence[str],
    wanted: Wanted,
    source: str = "",
    opened: Callable[[str], Mapping[str, Written] | None] = nothing_opened,
) -> ReadJob:
    """The job that the settings of one program mean. Raises InputError with every problem of them.

    `opened`: the settings of a file that they name, None where it is not there.
    """
    written = dict(written)
    release = registry.release_of(program, wanted.version or program.release_of(written))
    why = None if wanted.version else program.why_release(written)
    told, declared = written.pop(texts.NOTE, None), written.pop(texts.DECLARED, None)
    written.pop(texts.TRAINER, None)
    written.pop(texts.RELEASE, None)
    known = Catalogue(wanted.profiles)
    sheet = Sheet(
        written,
        release,
        known.layers_of,
        known.linears_of,
        source,
        wanted.devices,
        known.shape_named,
        wanted.beside,
        opened,
        known.shape,
        {} if declared is None else declared.value,
    )
    meaning = Meaning()
    if told is not None:
        meaning.note(told.value)
    if why is not None:
        meaning.note(f"{why}: the defaults of {program.name} {release.version} hold (--engine-version names another)")
    for again in dict.fromkeys(one.again for one in written.values() if one.again is not None):
        meaning.note(f"{again.key} is written twice: line {again.line} replaces line {again.replaced_line}")
    program.read(sheet, meaning)
    _allocator(sheet, meaning)
    _ask_the_caller(sheet, meaning)
    quiet, wordless, strange = sorted_out(sheet, program.table)
    counts = {key for told in meaning.job.values() for key in told.of} | meaning.lacking.keys()
    quiet = [key for key in quiet if key not in counts]  # with another value it has no effect
    own = [key for key in quiet if program.table.is_own(key)]
    if own:
        what = "settings of somebody's own, which say of data, logs or the schedule by their names"
        if program.table.passes_over:
            what = f"no keys of {program.name}, which passes over them"
        meaning.note(f"{', '.join(own)}: {what}")
    hint = f"read as {program.name} {release.version}"
    strange = [one._replace(hint=_passed_over(one.hint or f"{hint};")) for one in strange]
    problems = [*sheet.problems, *([] if wanted.ignore_unknown or sheet.refused else strange)]
    if problems:
        problems = [problem if problem.hint else problem._replace(hint=hint) for problem in problems]
        raise InputError(sorted(problems, key=lambda one: (one.file or "", one.line or 0)))
    fused_over_master(meaning.job)
    naming.name_model(meaning, known)
    naming.targets_of_peft(program.name, meaning, known, wanted.beside.get("model"))
    _of_one_device(meaning)
    values = tuple(
        ReadValue(key, told.value, tuple(_source(sheet, name) for name in told.of)) for key, told in meaning.job.items()
    )
    return ReadJob(
        program=program.name,
        release=release.version,
        released=release.date,
        source=release.source,
        files=tuple(files),
        job=meaning.nested(),
        values=values,
        open={key: shell.shown(reason) for key, reason in meaning.open.items()},
        without_effect=tuple(_source(sheet, key) for key in quiet),
        unmodelled={**meaning.lacking, **wordless},
        not_understood=tuple(_source(sheet, problem.key or "") for problem in strange),
        notes=tuple(shell.shown(note) for note in meaning.notes),
        points_to={key: shell.shown(path) for key, path in meaning.pointed.items()},
        allocator=meaning.allocator,
    )


def _passed_over(hint: str) -> str:
    """The hint of a setting that is not understood, with the option for a program that has it of its own."""
    option = "--ignore-unknown"
    return hint if option in hint else f"{hint} {option} passes over it"


def fused_over_master(job: dict[str, Any]) -> None:
    """Take away how the optimizer steps where it steps over a master copy: DeepSpeed's is one flat tensor."""
    precision = job.get("precision")
    if precision is not None and str(precision.value).startswith("mixed-"):
        job.pop("optimizer_implementation", None)


def _source(sheet: Sheet, key: str) -> Source:
    found = sheet.place(key)
    if found is None:
        return Source(key, sheet.release.defaults.get(key))
    return Source(key, found.value, found.file, found.line, found.column)


BESIDE = ("weight_dtype", "adapter.alpha", "checkpoint_reentrant", "optimizer_implementation", "parallel.fsdp_version")
"""Keys of a job that another key decides with it: nobody is asked for them."""


def _ask_the_caller(sheet: Sheet, meaning: Meaning) -> None:
    """Leave open what settings decide whose values only the caller knows; a setting that decides nothing is wrong."""
    for key, text in sheet.unsaid.items():
        decided = [name for name, told in meaning.job.items() if key in told.of]
        for name in decided:
            del meaning.job[name]
        asked = [name for name, reason in meaning.open.items() if re.search(rf"(?<![\w.]){re.escape(key)}\b", reason)]
        for name in (*(one for one in decided if one not in BESIDE), *asked):
            meaning.open[name] = f"{key} is {text}, which only the caller knows"
        if not decided and not asked and key in LAUNCHED:
            if "parallel.data" not in meaning.job:  # what counts the GPUs of the machine, as nvidia-smi
                meaning.open["parallel.data"] = f"{key} is {text}, which only the caller knows (--gpus N)"
        elif not decided and not asked:
            sheet.problem(key, f"is {text}, which only the caller knows", "write its value")


def _of_one_device(meaning: Meaning) -> None:
    """Take away DDP where one device is meant: no gradients are summed there."""
    told, data = meaning.job.get("parallel.sharding"), meaning.job.get("parallel.data")
    if told is not None and data is not None and told.value == DDP and data.value == 1:
        del meaning.job["parallel.sharding"]
        meaning.note("parallel.sharding: ddp of one device has no gradients to sum")


def problems_of(strange: Sequence[Source]) -> list[Problem]:
    """Settings that are not understood, as problems."""
    return [Problem("is not understood", one.key, None, one.file, one.line, one.column) for one in strange]
