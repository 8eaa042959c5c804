"""From the text of a file to the job that it means."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vramplan.catalog import model_names
from vramplan.catalog.text import PASTED, read_text
from vramplan.configs import command, forms, notebooks, records, registry, sections, shell, sky
from vramplan.configs.catalogue import Catalogue
from vramplan.configs.neighbours import declared as declared_by
from vramplan.configs.neighbours import imported, is_of_hydra, sourced
from vramplan.configs.neighbours import started as script_started
from vramplan.configs.own_arguments import WRAPPING
from vramplan.configs.programs import trainer
from vramplan.configs.programs.arguments import calls, recognising, scripts
from vramplan.configs.programs.megatron import options
from vramplan.configs.sheet import Launched, Meaning, Program, Sheet, sorted_out
from vramplan.configs.written import Written
from vramplan.errors import InputError, Problem
from vramplan.job.trained.adapter_targets import is_of_all_experts, passed_over
from vramplan.results.reading import ReadJob, ReadValue, Source
from vramplan.values.parallel import DDP

NOTE = "_note"
"""The key of settings for what a reader of the answer should know of them."""

DECLARED = "_declared"
"""The key of settings for the arguments that the script declares which a command starts, with their defaults."""

TRAINER = recognising.TRAINER

_COMMAND = (
    r"(?m)^\s*(\w+=\S* +)*(\./\S+\.sh$|(torchrun|deepspeed|accelerate launch|python3?|export|axolotl|llamafactory-cli|"
    r"lmf|trl|tune run|swift|litgpt|composer|srun|mpirun|bash|sh|uv run|nohup) )"
)
"""How a line of a script begins that no file of settings has."""

_NAMED = re.compile(r"(?P<file>.+\.(?:py|ipynb)):(?P<name>[A-Za-z_]\w*)")
SHELL, PYTHON, TOML, JSON, YAML, PAGE = notebooks.SHELL, notebooks.PYTHON, "toml", "json", "yaml", "markdown"
NOTEBOOK = "notebook"
SUFFIXES = {
    ".sh": SHELL,
    ".bash": SHELL,
    ".slurm": SHELL,
    ".sbatch": SHELL,
    ".py": PYTHON,
    notebooks.SUFFIX: NOTEBOOK,
    ".toml": TOML,
    ".json": JSON,
    ".yaml": YAML,
    ".yml": YAML,
    ".md": PAGE,
}


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
    return read(read_text(named_in(file)[0], allow_stdin=True, allow_utf16=True), file, wanted)


def read(text: str, file: str, wanted: Wanted) -> ReadJob:
    """The same for a text."""
    written = settings(text, file)
    program = registry.program_of(wanted.program) if wanted.program else registry.recognised(written, file)
    return job_of(program, program.prepared(written), [file], wanted, text)


def form_of(text: str, file: str) -> str:
    """Which form a text has: by the ending of its file, else by how it begins."""
    suffix = os.path.splitext(named_in(file)[0])[1].lower()
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    start = text.lstrip()
    if start.startswith("{"):
        return JSON
    if records.is_page(text):
        return PAGE
    if file == PASTED or start.startswith(("#!", "--")) or re.search(_COMMAND, start):
        return SHELL
    if re.search(r"(?m)^\s*\[[\w.]+\]\s*$", start):
        return TOML
    if re.search(r"(?m)^(import |from \w+ import |\w+ *= *\S)", start) and not re.search(r"(?m)^[\w.]+:", start):
        return PYTHON
    return YAML


def unfolded(text: str, file: str) -> tuple[str, str]:
    """A text with its form; in the place of a notebook the script that its cells make, in that of a task its script.

    Raises InputError.
    """
    form = form_of(text, file)
    if form == NOTEBOOK:
        return notebooks.script(text, file)
    task = sky.script(text) if form == YAML else None
    return (text, form) if task is None else (task, SHELL)


def settings(text: str, file: str) -> dict[str, Written]:
    """The settings of a text of any form, each with its place. Raises InputError."""
    text, form = unfolded(text, file)
    if not text.strip():
        raise InputError([Problem("is empty", file=file)])
    if form == SHELL:
        if text.lstrip().startswith("--"):
            return command.arguments(shell.words_of(text), file)
        script = _script(text, file)
        written = command.from_script(script, file)
        if not options.recognise(written) and script.notes and "program" not in written:
            hint = "give that file beside it: a script is parsed with the files that it sources"
            raise InputError([Problem(note, file=file, hint=hint) for note in script.notes])
        left = any(shell.unknowns(str(item.value)) and not _is_quiet(key, written) for key, item in written.items())
        if script.notes and not options.recognise(written):
            told = "what only that file says is asked for" if left else "the command takes nothing from there"
            written[NOTE] = Written("; ".join(script.notes) + f", and {told}", file)
        elif script.empty and options.recognise(written):
            names = ", ".join(f"${name}" for name in sorted(script.empty))
            written[NOTE] = Written(f"nothing sets {names}: no arguments are read from there", file)
            if script.undecided:
                written[options.UNDECIDED] = Written(script.undecided, file)
        branches = supposed(script.supposed) if script.supposed else None
        others = "; ".join(filter(None, [*looped(script.loops), branches, command.other_runs(script)])) or None
        if others is not None:
            before = written.pop(NOTE, None)
            written[NOTE] = Written(others if before is None else f"{before.value}; {others}", file)
        own = script_started(str(written["program"].value), file) if "program" in written else None
        if own is not None:
            declared, trainer_of = declared_by(*own)
            if is_of_hydra(str(written["program"].value), file):
                changed = command.assigned(script.arguments, file)
                written |= {key: item or Written(None, file) for key, item in changed.items()}
            made = None if scripts.of(written, declared.value) is not None else _constructed_by(*own, written)
            if made is not None:
                return made
            written[DECLARED], written[TRAINER] = declared, trainer_of
        return written
    if form == PYTHON:
        path, name = named_in(file)
        found = registry.constructed(text, path, name, imported(path))
        if found is None:
            return forms.from_python(text, file)
        written, note = found
        return {**written, NOTE: Written(note, path)}
    if form == TOML:
        return forms.from_toml(text, file)
    if form == PAGE:
        return records.from_page(text, file, forms.from_yaml)
    written = forms.from_yaml(text, file, json=form == JSON)
    for record in (records.of_wandb, records.of_peft):
        if (kept := record(written)) is not None:
            return kept
    return _started_by(written, text, file) or _of_sections(written, file) or written


OF_TRAINER = ("trl", "training-arguments")
"""Programs of which somebody's own may have a few keys at its top, and the others in a section."""

WHOLE = ("axolotl", "llama-factory", "ms-swift", "open-instruct")
"""Programs whose whole file may be a section of another file."""


def _of_sections(written: Mapping[str, Written], file: str) -> dict[str, Written] | None:
    """The settings of a file of somebody's own program, by its sections; None for a file of a known program."""
    if not any("." in key for key in written):
        return None
    known = registry.strongest(written)
    inside = sections.BATCH not in written and any(key.endswith(f".{sections.BATCH}") for key in written)
    if known is not None and not (inside and known in OF_TRAINER):
        return None

    def whose(inside: Mapping[str, Written]) -> str | None:
        program = registry.strongest(inside)
        return program if program in WHOLE else None

    found = sections.unwrapped(written, file, whose)
    if found is None:
        return None
    place = next(iter(written.values()))
    own = dict.fromkeys(found.own)
    return {**found.settings, NOTE: place._replace(value=found.note), DECLARED: place._replace(value=own)}


def _constructed_by(text: str, path: str, written: Mapping[str, Written]) -> dict[str, Written] | None:
    """The settings of a script that constructs its trainer's arguments itself, of what its command hands it.

    None for a script that parses them, or whose text does not say them.
    """
    outside = {key: item for key, item in written.items() if key.startswith("launcher.") or key in (NOTE, "program")}
    given = {key: item for key, item in written.items() if key not in outside}
    idle_by = scripts.idle_switch(given)
    if idle_by is not None:
        raise InputError([Problem(scripts.IDLE, idle_by, scripts.GIVE, given[idle_by].file, given[idle_by].line)])
    try:
        found = calls.from_python(text, path, None, imported(path), given)
    except InputError:
        return None
    if found is None:
        return None
    settings, note = found
    for key, item in given.items():  # which reaches the script in a way that its text does not show
        if key in settings and shell.unknowns(str(settings[key].value)):
            settings[key] = item
    declared, _ = declared_by(text, path)
    told = {key: item for key, item in declared.value.items() if key != WRAPPING}  # which the settings decide
    outside[DECLARED] = declared._replace(value=told)
    before = [str(outside[NOTE].value)] if NOTE in outside else []
    outside[NOTE] = Written("; ".join([*before, f"{os.path.basename(path)}: {note}"]), path)
    return {**outside, **settings}


def _script(text: str, file: str) -> shell.Script:
    """A script, read; options that its command leaves behind are an error, as the shell takes them for commands."""
    script = shell.read(text, sourced(file))
    if script.cut_off and script.program is not None:
        raise InputError([command.left_behind(script.cut_off, script.program.line, file)])
    return script


def supposed(decided: Collection[tuple[str, str]]) -> str:
    """What to say of variables that a branch sets whose test needs one that nothing sets, and sees it empty."""
    told, tested = (", ".join(f"${name}" for name in sorted(set(names))) for names in zip(*decided, strict=True))
    return f"nothing sets {tested}, which decides {told}: the branch without it is read"


def looped(loops: Mapping[str, Sequence[str]]) -> list[str]:
    """What to say of loops, of whose values the first is taken."""
    return [f"${name} is {held[0]} first, of {', '.join(held)}" for name, held in loops.items()]


def _is_quiet(key: str, written: Mapping[str, Written]) -> bool:
    """Whether a setting changes nothing, whatever a file that is not here makes of it."""
    try:
        return registry.recognised(written, None).table.class_of(key) == "without_effect"
    except InputError:
        return False


def started_by(text: str, file: str) -> tuple[Program, Launched] | None:
    """The program that a command in a script or in the specification of a platform starts with a file."""
    text, form = unfolded(text, file)
    if form == SHELL:
        return registry.started_by(_script(text, file), file)
    if form != YAML:
        return None
    return registry.started_on_platform(forms.from_yaml(text, file), file)


def written_by(file: str) -> Mapping[str, str]:
    """The texts of the files that a script writes before it starts a program with them, by their paths."""
    if form_of("", file) not in (SHELL, NOTEBOOK):
        return {}
    text, form = unfolded(read_text(named_in(file)[0], allow_stdin=True, allow_utf16=True), file)
    if form != SHELL:
        return {}
    return shell.read(text, sourced(file)).files if "<<" in text else {}


def _started_by(written: Mapping[str, Written], text: str, file: str) -> dict[str, Written]:
    """The settings of the command that a specification of Beaker starts, `tasks: [{arguments: [COMMAND]}]`."""
    tasks = written["tasks"].value if "tasks" in written else None
    first = tasks[0] if isinstance(tasks, list) and tasks and isinstance(tasks[0], Mapping) else {}
    words = first.get("arguments") or first.get("command")
    if not isinstance(words, list) or not any("--" in str(word) for word in words):
        return {}
    found = command.from_script(shell.read(" ".join(map(str, words)), sourced(file)), file)
    lines = text.splitlines()
    count = (first.get("resources") or {}).get("gpuCount")
    is_of_deepspeed = any(re.search(r"(^|\s)deepspeed\s", str(word)) for word in words)  # it takes all that it sees
    if isinstance(count, int) and is_of_deepspeed and not any(key.startswith("launcher.num") for key in found):
        found["launcher.num_gpus"] = Written(count, file)
    places = {
        key: next((number for number, line in enumerate(lines, 1) if f"--{key}" in line), written["tasks"].line)
        for key in found
    }
    return {key: item._replace(line=places[key]) for key, item in found.items()}


def named_in(file: str) -> tuple[str, str | None]:
    """`FILE.py:NAME` as the file and the name of a function of it."""
    found = _NAMED.fullmatch(file)
    return (file, None) if found is None or os.path.isfile(file) else (found["file"], found["name"])


def nothing_opened(path: str) -> Mapping[str, Written] | None:
    """Of settings that come from no folder: no other file is there."""
    return None


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
    told, declared = written.pop(NOTE, None), written.pop(DECLARED, None)
    written.pop(TRAINER, None)
    release = registry.release_of(program, wanted.version or program.release_of(written))
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
    for again in dict.fromkeys(one.again for one in written.values() if one.again is not None):
        meaning.note(f"{again.key} is written twice: line {again.line} replaces line {again.replaced_line}")
    program.read(sheet, meaning)
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
    _name_model(meaning, known)
    _targets_of_peft(program.name, meaning, known, wanted.beside.get("model"))
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


_ENDS_WITH_SIZE = re.compile(r"\d[bm]$")
"""Of a name that says how many parameters there are: what is shorter still may be another model's."""

_ON_ANOTHER_MACHINE = re.compile(
    r"\.{0,2}/|~|[A-Za-z]:\\\\|\$|path[/_]to\b|(your|my)[_-]|.*/.*/|<"
    r"|((base|pretrained)[_-])?(model|checkpoint|ckpt)[_-](path|name|dir|id)$"
    r"|[A-Z][A-Z_]{3,}$|(placeholder|todo|changeme|x{3,})$|\{[\w ]+\}$"
)
"""How a folder begins, or a name that is to be filled in; a name on the hub has one slash."""


def _name_model(meaning: Meaning, known: Catalogue) -> None:
    """The catalogue's name in the place of a checkpoint's, and what was taken from the name told."""
    told = meaning.job.get("model")
    if told is None or not isinstance(told.value, str):
        return
    if shell.unknowns(told.value):
        del meaning.job["model"]
        meaning.ask("model", f"{shell.shown(told.value)} is known to the caller alone (--model NAME)")
        return
    name = known.name_of(told.value)
    if name is None and _ON_ANOTHER_MACHINE.match(told.value) and not known.cached(told.value):
        del meaning.job["model"]
        meaning.ask("model", f"{told.value} is a folder of the machine that trains (--model NAME)")
        return
    if name is None and "/" in told.value and not known.cached(told.value):
        asked = told.value.strip().rstrip("/").rsplit("/", 1)[-1]
        shorter = [one for one in model_names.candidates(asked.lower()) if _ENDS_WITH_SIZE.search(one)]
        meaning.job["model"] = told._replace(value=min(shorter, key=len, default=asked))
        meaning.note(f"model: {told.value} is not in the catalogue; its config.json here would tell its shape")
    if name and name != told.value:
        meaning.job["model"] = told._replace(value=name)
        if not known.has(told.value):
            meaning.note(f"model: {told.value} has the shape of {name}, by its name")


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
        if not decided and not asked:
            sheet.problem(key, f"is {text}, which only the caller knows", "write its value")


def _of_one_device(meaning: Meaning) -> None:
    """Take away DDP where one device is meant: no gradients are summed there."""
    told, data = meaning.job.get("parallel.sharding"), meaning.job.get("parallel.data")
    if told is not None and data is not None and told.value == DDP and data.value == 1:
        del meaning.job["parallel.sharding"]
        meaning.note("parallel.sharding: ddp of one device has no gradients to sum")


WITH_PEFT = ("axolotl", "llama-factory", "training-arguments", "trl")
"""Programs whose adapters are PEFT's."""


def _targets_of_peft(program: str, meaning: Meaning, known: Catalogue, other: Any) -> None:
    """Take away the targets that name no layer of the model beside others that do, as PEFT passes over them.

    `other`: the model that is given beside the file.
    """
    told, of_file = meaning.job.get("adapter.targets"), meaning.job.get("model")
    model = other if other is not None or of_file is None else of_file.value
    if program not in WITH_PEFT or model is None:
        return
    shape = known.shape(model) if isinstance(model, str) else None
    if shape is None:
        return
    trainer.name_modules(meaning, shape.family)
    if told is None or not isinstance(told.value, list):
        return
    shared = [word for word in told.value if is_of_all_experts(shape, word)]
    if shared:
        meaning.note(f"adapter.targets: PEFT takes {', '.join(shared)} for tensors of all experts, by the last word")
    strange = passed_over(shape, told.value)
    if strange:
        left = [word for word in told.value if word not in strange]
        meaning.job["adapter.targets"] = told._replace(value=left)
        meaning.note(f"adapter.targets: {', '.join(strange)} names no layer of {model}, and PEFT passes over it")


def problems_of(strange: Sequence[Source]) -> list[Problem]:
    """Settings that are not understood, as problems."""
    return [Problem("is not understood", one.key, None, one.file, one.line, one.column) for one in strange]
