"""From the text of a file of any form to its settings, each with its place."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from vramplan.catalog.text import PASTED, read_text
from vramplan.configs import command, forms, notebooks, readme, records, registry, sections, shell, sky
from vramplan.configs.neighbours import declared as declared_by
from vramplan.configs.neighbours import imported, is_of_hydra, sourced
from vramplan.configs.neighbours import started as script_started
from vramplan.configs.own_arguments import WRAPPING
from vramplan.configs.programs.arguments import calls, idle, recognising, scripts
from vramplan.configs.programs.megatron import options
from vramplan.configs.sheet import Launched, Program
from vramplan.configs.written import Written
from vramplan.errors import InputError, Problem

NOTE = "_note"
"""The key of settings for what a reader of the answer should know of them."""

DECLARED = "_declared"
"""The key of settings for the arguments that the script declares which a command starts, with their defaults."""

TRAINER, RELEASE = recognising.TRAINER, recognising.RELEASE

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
    if form == PAGE and not records.is_page(text) and (commands := readme.script(text, _trains)) is not None:
        return commands, SHELL
    task = sky.script(text) if form == YAML else None
    return (text, form) if task is None else (task, SHELL)


def settings(text: str, file: str) -> dict[str, Written]:
    """The settings of a text of any form, each with its place. Raises InputError."""
    page, (text, form) = text, unfolded(text, file)
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
        further = readme.others(page, _trains) if form_of(page, file) == PAGE else None
        told_of = [*looped(script.loops), branches, command.other_runs(script), command.handed_on(script), further]
        others = "; ".join(filter(None, told_of)) or None
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


@lru_cache(maxsize=64)
def _trains(block: str) -> bool:
    """Whether a block of a page has a command of a program whose commands are read, or one that its program refuses."""
    try:
        script = shell.read(block)
        return (
            registry.started_by(script, "") is not None
            or registry.strongest(command.from_script(script, "")) is not None
        )
    except InputError:
        return True


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
    idle_by = idle.idle_switch(given)
    if idle_by is not None:
        raise InputError([Problem(idle.IDLE, idle_by, idle.GIVE, given[idle_by].file, given[idle_by].line)])
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
