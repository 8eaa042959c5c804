"""From a resolved job to the files of a training program that mean it.

A writer says each setting with the keys of the job that it expresses. Whether the files mean the job is not for the
writer to say: what it wrote is read by the program's reader, the job is resolved again, and each key that came out
otherwise is an error that names what the files can say instead. So a writer and its reader cannot drift apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vramplan.configs.asked import Asked, ProgramFiles, Writer, flat, matching, nested
from vramplan.configs.carried import DROPOUTS, LABELS
from vramplan.configs.catalogue import Catalogue
from vramplan.configs.combine import read_texts
from vramplan.configs.page import SettingLine
from vramplan.configs.reading import Wanted
from vramplan.configs.table import names
from vramplan.errors import InputError, Problem
from vramplan.job import build_job, job_to_dict
from vramplan.options import table
from vramplan.options.option import FLAG, TEXTS
from vramplan.results.reading import ReadJob
from vramplan.tuples import NamedTuple

OF_A_RUN = ("Between the steps", "Length and cost of the run", "Gates only", "Batch advice")
"""Sections of the table whose keys are asked of an answer, and are no setting of a program."""

OF_THE_MACHINE = names(
    """
    name gpu gpu_free pytorch_version transformers_version litgpt_version cuda_module_loading reserve bitsandbytes
    mamba_kernels
    host_memory allocator padding varied_lengths expert_imbalance parallel.devices_per_node parallel.node_bandwidth
    """
)
"""Keys that the machine, its software and the data decide: no file of a program has them."""

ALL_FILES = "--emit-to FOLDER writes all of them"


class Unsaid(InputError):
    """Keys that a program has no setting for. `nearest`: what the files that come closest say of each."""

    def __init__(self, problems: Iterable[Problem], nearest: Mapping[str, Any]) -> None:
        super().__init__(problems)
        self.nearest = dict(nearest)


class WrittenFiles(NamedTuple):
    """Files that mean the job: their texts by name, and how to start them and to ask about them again."""

    texts: Mapping[str, str]
    launch: tuple[str, ...]
    again: str
    yours: tuple[str, ...] = ()
    """What of the first file is for a person to choose."""

    told: tuple[str, ...] = ()
    """What is otherwise than in the job that was asked for."""

    @property
    def first(self) -> str:
        """The text that is printed."""
        return next(iter(self.texts.values()))

    @property
    def says_launch(self) -> bool:
        """Whether that text begins with how to start it; JSON has no comments."""
        return not next(iter(self.texts)).endswith(".json")


def made(
    asked: Asked,
    writer: Writer,
    folders: Sequence[Path],
    header: Sequence[str],
    comment: Callable[[SettingLine], str],
    option: str = "--emit",
    *,
    judged: bool = True,
) -> WrittenFiles:
    """The files that mean the job. Raises InputError with each key that the program has no setting for.

    `header`: more comments behind those that say how to start and to read the files. `comment`: of a setting. `option`:
    who named the program. `judged`: whether the GPU is that of the run.
    """
    asked = replace(asked, alike=writer.alike)
    if asked["sequence_length"] is None:
        message = f"{writer.name} has no setting for model={asked.shape.get('name')}"
        raise InputError([Problem(message, option, "nearest: a model of text, as each file has its length")])
    least: InputError | None = None
    for files in _ways(asked, writer, option):
        beside, told = _beside(asked, files, folders)
        given = options({**beside, "gpu": beside["gpu"] if judged else "GPU"}, told, asked)
        given = _counting_all(given, asked)
        again = " ".join(["vramplan fit", *(page.name for page in files.pages), *given])
        shown = [*files.launch, *header, f"read back: {again}"]
        if len(files.pages) > 1:
            shown.append(f"of {len(files.pages)} files: {', '.join(page.name for page in files.pages)} ({ALL_FILES})")
        texts = {page.name: page.text([*shown, *page.left_to_you()], comment) for page in files.pages}
        lacking = _lacking(asked, writer, files, texts, beside, folders)
        if lacking is None:
            return WrittenFiles(texts, files.launch, again, files.pages[0].left_to_you())
        if least is None or len(lacking.problems) < len(least.problems):
            least = lacking
    least = least or InputError([Problem(f"{writer.name} has no file for this job")])
    problems = [one._replace(key=option) for one in least.problems]
    raise Unsaid(problems, least.nearest) if isinstance(least, Unsaid) else InputError(problems)


def _counting_all(given: Sequence[str], asked: Asked) -> list[str]:
    """Options for files that split the model among GPUs: `--gpu 8xh100` counts all of them.

    `--gpus` counts replicas, which some readers take for the GPUs that a launcher starts.
    """
    words = list(given)
    if asked.devices == (asked["parallel.data"] or 1) or "--gpus" not in words:
        return words
    at = words.index("--gpus")
    del words[at : at + 2]
    name = words.index("--gpu") + 1
    words[name] = f"{asked.devices}x{words[name]}"
    return words


def _ways(asked: Asked, writer: Writer, option: str) -> Iterator[ProgramFiles]:
    """The files of a writer; what it refuses itself is said of the option that named it."""
    try:
        yield from writer.write(asked)
    except InputError as error:
        raise InputError([one._replace(key=option) for one in error.problems]) from None


def _plain(line: SettingLine) -> str:
    return ""


def _texts(files: ProgramFiles) -> dict[str, str]:
    return {page.name: page.text(files.launch, _plain) for page in files.pages}


def _beside(asked: Asked, files: ProgramFiles, folders: Sequence[Path]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys of the job that are given beside the files, and those that the files say.

    Given are those of the machine, and what the files leave open.
    """
    told: dict[str, Any] = {}
    left: set[str] = set()
    keys = {key: asked[key] for key in asked.job if _is_beside(key) and asked[key] is not None}
    texts = _texts(files)
    for _ in range(3):  # what is given may open or settle another key
        try:
            read = _read(asked, texts, keys, folders)
        except InputError:
            break
        told = flat(read.job)
        left |= read.open.keys()  # which a reader says of the launcher once it is given
        more = {key: asked[key] for key in read.open if asked[key] is not None and key not in told}
        if more.get("parallel.data") == 1 and not asked.shards and asked.devices == 1:
            del more["parallel.data"]  # what a launcher starts that says nothing
        if not asked.shards and (asked["parallel.data"] or 1) > 1 and "parallel.sharding" not in told:
            more["parallel.sharding"] = asked["parallel.sharding"]  # the launcher starts several
        if files.is_script:
            try:
                differing = _differing(asked, {**told, **keys, **more}, folders)
            except InputError:  # what the files say contradicts the job, which is told with its keys later
                differing = {}
            more |= {key: asked[key] for key in differing if key not in told}
        if more.keys() <= keys.keys():
            break
        keys |= more
    return keys, {key: value for key, value in told.items() if key not in left}


def _is_beside(key: str) -> bool:
    return key in OF_THE_MACHINE or (key in _SECTIONS and _SECTIONS[key] in OF_A_RUN)


_SECTIONS = {row.key: row.section for row in table.TABLE}


def _read(asked: Asked, texts: Mapping[str, str], beside: Mapping[str, Any], folders: Sequence[Path]) -> ReadJob:
    """The files as a command reads them that has the options `beside`, which count all devices."""
    devices = asked.devices if "parallel.data" in beside else None
    return read_texts(texts, Wanted(devices=devices, profiles=folders, beside=dict(beside)))


def _lacking(
    asked: Asked,
    writer: Writer,
    files: ProgramFiles,
    texts: Mapping[str, str],
    beside: Mapping[str, Any],
    folders: Sequence[Path],
) -> InputError | None:
    """What of the job the files do not mean, None where they mean it."""
    try:
        read = _read(asked, texts, beside, folders)
    except InputError as error:  # a value that the setting does not take
        lines = {key: line for page in files.pages for key, line in page.lines.items()}
        return InputError([_untaken(asked, writer, one, lines.get(one.key or ""), folders) for one in error.problems])
    told = flat(read.job)
    if told.get("runtime") != asked["runtime"]:
        return InputError([unsaid(writer.name, "runtime", asked["runtime"], told.get("runtime"))])
    try:
        differing = _differing(asked, {**told, **beside}, folders)
    except InputError as error:
        differing = {key: told[key] for key in told if not _is_meant(asked, key, told[key])}
        if not differing:
            return InputError([_untaken(asked, writer, one, None, folders) for one in error.problems])
    if not differing:
        return None
    problems = [unsaid(writer.name, key, asked[key], value) for key, value in _causes(asked, differing).items()]
    own = _known_name(asked, folders)
    if own is not None:  # whose sizes a file changes, as those of the other program cannot
        problems = [
            one._replace(hint=nearest_said("model", own)) if (one.hint or "").startswith("nearest: model.") else one
            for one in problems
        ]
    return Unsaid(problems, differing)


def _known_name(asked: Asked, folders: Sequence[Path]) -> str | None:
    """The model of the catalogue that a job's is called, where the job says sizes of its own."""
    name = str(asked.shape.get("name"))
    return name if isinstance(asked["model"], Mapping) and Catalogue(folders).has(name) else None


def _causes(asked: Asked, differing: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that `causes` has, without a model that is another one because of another key alone."""
    left = dict(differing)
    if len(left) > 1 and "model" in left and _name(asked["model"]) == _name(left["model"]):
        del left["model"]  # what another key makes of it, as a loss that puts one number in the place of the head
    return causes(left)


def causes(differing: Mapping[str, Any]) -> dict[str, Any]:
    """The keys without those that differ because another one does: what only one way of sharding has, and the element
    types and the step that a precision decides.
    """
    left = dict(differing)
    for cause, others in _FOLLOW.items():
        if cause in differing:
            left = {key: value for key, value in left.items() if key == cause or not key.startswith(others)}
    return left


_FOLLOW = {
    "parallel.tensor": ("parallel.devices_per_node",),
    "parallel.pipeline": ("parallel.devices_per_node",),
    "parallel.context": ("parallel.devices_per_node",),
    "parallel.sharding": ("parallel.",),
    "adapter.kind": ("adapter.",),
    "qat.weights": ("qat.",),
    "precision": ("weight_dtype", "gradient_dtype", "optimizer_implementation"),
}


def _untaken(
    asked: Asked, writer: Writer, problem: Problem, line: SettingLine | None, folders: Sequence[Path]
) -> Problem:
    if problem.key == "model":  # of sizes that no checkpoint has
        near = Catalogue(folders).nearest_to(asked.shape)
        return unsaid(writer.name, "model", asked.shape, near[0] if near else None)
    most = re.fullmatch(r"use at most (\d+)", problem.hint or "")
    if problem.key == "sequence_length" and most is not None:  # of the model as the program makes it
        message = f"{writer.name} has no setting for sequence_length={asked['sequence_length']}, as {problem.message}"
        own = _known_name(asked, folders)
        model = "" if own is None else f" --model {own}"
        return Problem(message, "--emit", f"{nearest_said('sequence_length', int(most[1]))}{model}")
    if line is None or not line.of:
        return problem._replace(message=f"{writer.name} cannot say this job: {problem.message}")
    key = line.of[0]
    message = f"{writer.name} has no setting for {key}={word_of(asked[key])}"
    if key in MAY_BE_NOTHING:
        nothing: Any = [] if isinstance(asked[key], list | tuple) else None
        return Problem(f"{message}, as {problem.message}", "--emit", nearest_said(key, nothing))
    return Problem(message, "--emit", f"nearest: what {line.key} takes, as {problem.message}")


MAY_BE_NOTHING = frozenset(("quantization", "offload", "frozen", "max_gradient_norm", "adapter.kind"))
"""Keys of which nothing is a value that every program has."""


def _differing(asked: Asked, keys: Mapping[str, Any], folders: Sequence[Path]) -> dict[str, Any]:
    """The keys that come out otherwise of a job of these keys, with what they come out as. Raises InputError."""
    echo = flat(job_to_dict(build_job(nested(keys), profile_dirs=folders)))
    echo["model"] = _dropped(echo["model"], echo.get("dropout"))
    micro, whole = echo["micro_batch_size"], echo["global_batch_size"]
    if echo["gradient_accumulation_steps"] is None and micro and whole:  # they follow, as where a plan is made
        echo["gradient_accumulation_steps"] = whole // (micro * (echo["parallel.data"] or 1))
    return {
        key: echo.get(key)
        for key in dict.fromkeys((*asked.job, *echo))
        if not _same(asked, key, echo.get(key)) and not _is_free(asked, key)
    }


def _dropped(model: Any, share: float | None) -> Any:
    """A shape with the dropout of a job, which goes before the model's own."""
    if share is None or not isinstance(model, Mapping):
        return model
    return {**model, **{key: share for key in DROPOUTS if key in model}}


def _is_meant(asked: Asked, key: str, value: Any) -> bool:
    """Whether a value that a file says may be that of the job, which is not resolved."""
    sdpa = key == "attention" and value == "sdpa" and asked.is_sdpa
    return sdpa or key not in asked.job or _same(asked, key, value) or _is_free(asked, key)


def _same(asked: Asked, key: str, other: Any) -> bool:
    one = asked[key]
    if key == "frozen" and one and other and asked.paths:
        return matching(one, asked.paths) == matching(other, asked.paths)
    if key == "model" and isinstance(one, Mapping) and isinstance(other, Mapping):
        left, right = _unlabelled(_dropped(one, asked["dropout"])), _unlabelled(other)
        return left.keys() == right.keys() and all(
            left[name] == right[name] or all(one[name] in asked.alike.get(f"model.{name}", ()) for one in (left, right))
            for name in left
        )
    if key == "model":
        return True  # a name, of which the shape is compared once it is resolved
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return sorted(map(str, one)) == sorted(map(str, other))
    alike = asked.alike.get(key, ())
    if one == other or (one in alike and other in alike):
        return True
    if key == "dropout":  # left open, it is the model's own
        return not one and not other and not any(map(asked.shape.get, DROPOUTS))
    return not one and not other and key.startswith("adapter.")


def _unlabelled(model: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in model.items() if key not in LABELS}


def _is_free(asked: Asked, key: str) -> bool:
    """Whether any value of a key will do.

    A global batch follows from its parts. Alpha is a factor: where a job leaves it open, any will do, but over experts,
    where scaling takes memory.
    """
    if key == "global_batch_size":
        return True
    return key == "adapter.alpha" and asked[key] is None and not asked.shape.get("experts")


def unsaid(writer: str, key: str, value: Any, nearest: Any) -> Problem:
    """What is said of a key that a program has no setting for."""
    if key == "model" and isinstance(value, Mapping) and _name(value) == _name(nearest):
        name, own, other = next((one, value[one], nearest.get(one)) for one in value if nearest.get(one) != value[one])
        return unsaid(writer, f"model.{name}", own, other)
    if key == "model":
        value, nearest = _name(value), _name(nearest)
    if nearest is None and isinstance(value, bool):
        nearest = not value  # a switch that nothing is said of is as it is by itself
    return Problem(f"{writer} has no setting for {key}={word_of(value)}", "--emit", nearest_said(key, nearest))


def nearest_said(key: str, nearest: Any) -> str:
    """The hint that names a value of a key, and the option that asks for it."""
    row = next((row for row in table.TABLE if row.key == key), None)
    nearest = _name(nearest) if key == "model" else nearest
    group, _, name = key.partition(".")
    shown = group if table.HEADS.get(group) == name else key
    hint = f"nearest: {shown}={word_of(nearest)}"
    if row is None or not row.option or (key == "model" and not Catalogue().has(str(nearest))):
        return hint
    if isinstance(nearest, bool):
        return f"{hint}, {row.option if nearest else row.negation}"
    if row.kind == FLAG:  # which is said or not
        return f"{hint}, {row.negation}"
    if nearest is None and row.kind != TEXTS:
        return f"{hint}, {row.option} null"
    return f"{hint}, {row.option} {word_of(nearest)}"


def _name(model: Any) -> Any:
    return model.get("name") if isinstance(model, Mapping) else model


def word_of(value: Any) -> str:
    """A value of a job as it is typed."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "none"
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def options(beside: Mapping[str, Any], told: Mapping[str, Any], asked: Asked) -> list[str]:
    """What is given beside the files, as options; a default is left out unless the files say another value."""
    words: list[str] = []
    for row in table.TABLE:
        value = beside.get(row.key)
        if value is None or not row.option or value == told.get(row.key):
            continue
        is_usual = value in (row.default, _USUAL.get(row.key), [], False)
        if (
            row.key not in told
            and is_usual
            and not (row.key == "parallel.data" and (asked.shards or asked.devices > 1))
        ):
            continue
        if row.key == "model":
            value = asked.checkpoint
        if row.key == "gpu":
            value = value.get("name") if isinstance(value, Mapping) else value
        if row.key == "parallel.devices_per_node" and value == min(8, asked.devices):
            continue
        if value is True:
            words.append(row.option)
            continue
        text = word_of(value)
        words += [row.option, f"'{text}'" if any(sign in text for sign in " $|&;<>()[]*") else text]
    return words


_USUAL = {"reserve": "0 B", "expect": "fits", "max_utilization": 0.95, "allocator": "estimate", "padding": "none"}
