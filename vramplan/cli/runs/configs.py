"""Files of training programs in the place of a job: what they mean, and the options that replace it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from vramplan.answers.fit import answered
from vramplan.catalog import model_names, scope
from vramplan.catalog.fields import Sink
from vramplan.catalog.text import STDIN_NAMES, read_text
from vramplan.cli.divided import counted_gpus, gpus_of_replica, is_group, replicas_of, without_divided
from vramplan.cli.job_options import REQUIRED, as_job
from vramplan.cli.output import say
from vramplan.cli.replaced import meaningless, precision_for
from vramplan.cli.runs.jobs import flat, left_open
from vramplan.cli.written import sharding_in
from vramplan.configs.combine import groups, read_files
from vramplan.configs.reading import Wanted
from vramplan.configs.registry import recognised
from vramplan.configs.texts import JSON, YAML, form_of, settings
from vramplan.errors import InputError, Problem, UsageError
from vramplan.job import JobEntry, build_any_job, build_job
from vramplan.job.given.keyed import root_of
from vramplan.job.lookup import Catalog
from vramplan.job.machine.allocator import offer
from vramplan.options import table
from vramplan.results import FitResult
from vramplan.results.reading import ReadJob
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import DDP

CHOSEN = frozenset(["micro_batch_size", "gradient_accumulation_steps", "activation_checkpointing", "eval_batch_size"])
"""What a file may leave open: it is chosen, or only told of."""

COUNTS = "numbers of GPUs that are named are those of `vramplan compare MODEL GPU --gpus 8,16,32`"
VOCABULARY = "model.vocabulary_size"
"""What a tokenizer that is not here decides: what is counted is told."""

LENGTH, CALLERS = "sequence_length", "only the caller knows"
_OPTION = re.compile(r" \((--[a-z-]+( [\w.-]+| '[^']+')?)\)$")  # of a reason: the hint has it, with a value
_SETTING = re.compile(r"[\w.*:/-]+")
"""What a key of a file may be; what else gives a value is said in words, as `pretrain.py compiles the model`."""

MODEL, JOB, CONFIG = "model", "job", "config"
_JOBS = re.compile(r'(?m)^\s*"?jobs"?\s*:')
_PROFILE = re.compile(r"(?m)^kind\s*:\s*model\b")
_MODEL = re.compile(r'(?m)^\s*[{,]?\s*"?(kind"?\s*:\s*"?model\b|model_type"?\s*:|architectures"?\s*:)')


_BATCH = '"per_device_train_batch_size"'


def is_known(path: str) -> bool:
    """Whether the keys of a file are those of a training program."""
    try:
        recognised(settings(read_text(path, allow_stdin=True), path), path)
    except InputError:
        return False
    return True


class GivenFiles(NamedTuple):
    """The files, and how they are to be read."""

    files: Sequence[str]
    program: str | None
    version: str | None
    ignore_unknown: bool
    quiet: bool


def kind_of(path: str) -> str:
    """What a file is that stands where a model may be named: a model, a job file, or a program's configuration."""
    try:
        text = read_text(path, allow_stdin=True)
    except InputError:
        return CONFIG  # said where it is read
    if path.lower().endswith((".yaml", ".yml", ".json")) or (
        path in STDIN_NAMES and form_of(text, path) in (YAML, JSON)
    ):
        if _JOBS.search(text):
            return JOB
        is_json = path.lower().endswith(".json") and _is_model(text)
        if _MODEL.search(text) and (is_json or _PROFILE.search(text) or not is_known(path)):
            return MODEL  # `model_type` is a key of training programs too
    return CONFIG


def _is_model(text: str) -> bool:
    """Whether the keys that tell a model stand at the top of a JSON text: DeepSpeed has some further below."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return True  # said where it is read
    if not isinstance(found, Mapping) or (_BATCH in text and not found.keys() & {"kind", "architectures"}):
        return False  # `model_type: seq2seq` of somebody's own program
    return bool(found.keys() & {"kind", "model_type", "architectures"})


def asked_of(
    config: Sequence[str] | None, job: str | None, program: str | None, version: str | None, rest: tuple[bool, bool]
) -> GivenFiles | None:
    """The options together, None where no file is given. Raises UsageError for what means nothing. `rest`: whether
    unknown settings are ignored, and whether nothing is said.
    """
    ignore_unknown, quiet = rest
    if config:
        if job is not None:
            raise UsageError(f"{config[0]} describes the job already", key="--job", hint="use one of them")
        return GivenFiles(config, program, version, ignore_unknown, quiet)
    for name, value in (("--from", program), ("--engine-version", version), ("--ignore-unknown", ignore_unknown)):
        if value:
            hint = COUNTS if str(value).isdecimal() else "--config FILE"
            raise UsageError("means nothing without a file of a training program", key=name, hint=hint)
    return None


def answer_of(
    given: dict[str, Any],
    folders: Sequence[Path],
    asked: GivenFiles,
    largest: str | None,
    enough: int | None = None,
    opening: Callable[[FitResult], None] | None = None,
) -> FitResult:
    """The answer about the job of the files.

    `enough`: how many remedies are of use. `opening`: who is told the answer without them first.
    """
    over = over_of(given)
    read = read_of(over, folders, asked)
    keys = keys_of(read, over, assumes=True)
    has_opened = False

    def opened(result: FitResult) -> None:
        nonlocal has_opened
        has_opened = True
        tell(read, asked, keys)
        if opening is not None:
            opening(result)

    with placed(read, over):
        told = None if opening is None else opened
        result = answered(keys, folders, largest, enough=enough, at_once=True, opening=told)
    if not has_opened:
        tell(read, asked, keys)
    return result


def job_of(given: dict[str, Any], folders: Sequence[Path], asked: GivenFiles) -> ResolvedJob:
    """The job of the files, to be replayed."""
    over = over_of(given)
    read = read_of(over, folders, asked)
    keys = keys_of(read, over, assumes=True)
    with placed(read, over):
        job = build_job(keys, profile_dirs=folders)
    tell(read, asked, keys)
    return job


def run_of(given: dict[str, Any], folders: Sequence[Path], asked: GivenFiles) -> dict[str, Any]:
    """What the files train, without how: the batch of a step over all devices is kept, its parts are open."""
    over = over_of(given)
    read = read_of(over, folders, asked)
    keys = keys_of(read, over, assumes=True)
    with placed(read, over):
        job = build_job(keys, profile_dirs=folders)
    left_open(keys, job, flat(over))
    tell(read, asked, keys)
    return keys


def entries_of(
    files: Sequence[str], over: dict[str, Any], folders: Sequence[Path], asked: GivenFiles
) -> list[JobEntry]:
    """The jobs that files of training programs describe, for `check`: what is wrong with one is in its entry."""
    wanted = Wanted(asked.program, asked.version, None, asked.ignore_unknown, folders)
    return [_entry(group, over, folders, asked._replace(files=group)) for group in groups(files, wanted)]


def _entry(files: Sequence[str], over: dict[str, Any], folders: Sequence[Path], asked: GivenFiles) -> JobEntry:
    name = Path(files[-1]).stem
    try:
        read = read_of(over, folders, asked)
        keys = keys_of(read, over)
        with placed(read, over):
            job = build_any_job(keys, profile_dirs=folders)
        tell(read, asked)
    except InputError as error:
        return JobEntry(name, None, error.problems, 1)
    if isinstance(job, ResolvedJob):
        job = job._replace(name=name)
    root = root_of({"name": name, **keys}, Sink(None))
    return JobEntry(name, job, (), 1, root, Catalog(folders))


def over_of(given: dict[str, Any]) -> dict[str, Any]:
    """The keys that options replace; `null` takes one away, and with an adapter what else was typed of it."""
    over = as_job(given)
    rows = table.parameters()
    for name, value in given.items():
        if value == "null" and name in rows:
            place = over.setdefault(rows[name].group, {}) if rows[name].group else over
            place[rows[name].name] = None
    for group, head in table.HEADS.items():
        place = over.get(group)
        if isinstance(place, dict) and place.get(head, ...) is None:
            over[group] = dict.fromkeys(place)
    return over


def read_of(over: dict[str, Any], folders: Sequence[Path], asked: GivenFiles) -> ReadJob:
    """What the files mean beside the options."""
    beside = {key: value for key, value in flat(over).items() if value is not None}
    named = str(beside.get("parallel.data", ""))
    devices = int(named) if named.isdecimal() else counted_gpus(over)
    wanted = Wanted(asked.program, asked.version, devices, asked.ignore_unknown, folders, beside)
    read = read_files(asked.files, wanted)
    own, each = gpus_of_replica(read), gpus_of_replica(read, beside)
    if each != own:  # the batch of a step stays, and the GPUs where none are typed
        replicas = int(named) if named.isdecimal() else replicas_of(read, devices, each)
        return read if replicas is None else read_files(asked.files, replace(wanted, devices=replicas * own))
    whole = named.isdecimal() and int(named) % own == 0
    if own > 1 and named.isdecimal() and not whole and "parallel.data" in read.open:  # the number of replicas
        return read_files(asked.files, replace(wanted, devices=int(named) * own))
    return read


def model_named(given: dict[str, Any], folders: Sequence[Path], asked: GivenFiles) -> str | None:
    """The model as the files name it."""
    values = read_of(over_of(given), folders, asked).values
    found = [value.sources[0].value for value in values if value.key == MODEL and value.sources]
    return found[0] if found and isinstance(found[0], str) else None


def tell(read: ReadJob, asked: GivenFiles, keys: Mapping[str, Any] | None = None) -> None:
    """How the files were read, and what of them is not in the job; of `keys` that were judged what was assumed."""
    if asked.quiet:
        return
    say(f"note: {', '.join(read.files)} is read as {read.program} {read.release} (vramplan read shows every value)")
    model = read.job.get("model")
    if VOCABULARY in read.open and isinstance(model, Mapping):
        say(f"note: {model.get('vocabulary_size')} tokens are counted: {_OPTION.sub('', read.open[VOCABULARY])}")
    if keys is not None and LENGTH not in keys and _may_be_assumed(read, LENGTH):
        reason = _OPTION.sub("", read.open[LENGTH])
        tokens = _tokens_of(keys.get("model"))
        say(f"note: the length of a sequence is left open ({reason}): {tokens} tokens are assumed (--seq N)")
    if read.unmodelled:
        say(f"note: settings that change memory or time and that a job has no key for: {', '.join(read.unmodelled)}")
    if read.not_understood:
        say(f"note: not understood and ignored: {', '.join(source.key for source in read.not_understood)}")


def keys_of(read: ReadJob, over: dict[str, Any], *, assumes: bool = False) -> dict[str, Any]:
    """The keys of the job with those of the options; what is still open and needed is asked for by its option.

    `assumes`: what no file says and has a default without a file is not asked for.
    """
    keys: dict[str, Any] = {key: dict(value) if is_group(key, value) else value for key, value in read.job.items()}
    over = without_divided(read, over)
    for key, value in over.items():
        if is_group(key, value):
            place = keys.setdefault(key, {})
            for name, item in value.items():
                _put(place, name, item)
        else:
            _put(keys, key, value)
    of_files, typed = flat(read.job), flat(over)
    if (precision := precision_for(of_files, typed)) is not None:
        keys["precision"] = precision
    for key in meaningless(of_files, typed):
        group, _, name = key.rpartition(".")
        (keys[group] if group else keys).pop(name, None)
    if read.allocator is not None and "allocator" not in {**of_files, **typed}:
        keys["allocator"] = offer(read.allocator)
    if flat(keys).get("parallel.sharding") == DDP and "parallel.sharding" not in typed and _is_of_one(read, over):
        keys["parallel"].pop("sharding")  # one device has no gradients to sum
    keys = {key: value for key, value in keys.items() if value or not is_group(key, value)}
    given = flat(keys)
    given |= {key: None for key, value in flat(over).items() if value is None}  # taken away is said too
    if counted_gpus(over) is not None and "parallel.data" not in flat(over):  # as typed, and not as the file has it
        given["parallel.data"] = None
        if is_group("parallel", keys.get("parallel")):
            keys["parallel"].pop("data", None)
    missing: list[Problem] = []
    file = read.files[-1]
    for key, reason in read.open.items():
        if key in given or key in CHOSEN or key == VOCABULARY or not _is_needed(key, given):
            continue
        if key.startswith("model.") and "model" in over:
            continue
        if assumes and _may_be_assumed(read, key):
            continue
        said = _OPTION.search(reason)
        names_value = said is not None and ((said[2] or "").islower() or "'" in said[0])  # (--sharding zero3)
        asked = "parallel.data" if said is not None and said[1] == "--gpus N" else key  # the GPUs decide it too
        hint = said[1] if said is not None and names_value else _value_of(asked, given, reason)
        missing.append(Problem(f"leaves {key} open, {_OPTION.sub('', reason)}", None, hint, file))
    if "gpu" not in given:
        missing.append(Problem("is missing", "--gpu", REQUIRED["gpu"]))
    if missing:
        raise InputError(_with_all(missing))
    return keys


def _is_of_one(read: ReadJob, over: Mapping[str, Any]) -> bool:
    """Whether neither the files nor the options say how many devices there are, so that one is taken."""
    return "parallel.data" in read.open and "parallel.data" not in flat(over) and counted_gpus(over) is None


def _with_all(missing: list[Problem]) -> list[Problem]:
    """The problems, the last of them with the options of all, to be pasted behind the command."""
    hints = [problem.hint for problem in missing]
    options = [hint.partition(",")[0] for hint in hints if hint is not None and hint.startswith("--")]
    if len(options) < 2 or any(option.endswith(("VALUE", "sizes")) for option in options):
        return missing
    *before, last = missing
    return [*before, last._replace(hint=f"{last.hint}; all of them: {' '.join(dict.fromkeys(options))}")]


def _put(place: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        place.pop(name, None)
    else:
        place[name] = value


def _may_be_assumed(read: ReadJob, key: str) -> bool:
    """Whether nobody has said a key that has a default without files too, be it as a variable."""
    return key == LENGTH and key in read.open and CALLERS not in read.open[key]


def _is_needed(key: str, given: Mapping[str, Any]) -> bool:
    """A count of devices is needed only where they share something."""
    if key == "parallel":
        return not any(one.startswith("parallel.") for one in given)
    if key == "global_batch_size":
        return "gradient_accumulation_steps" not in given
    if key == "parallel.data":
        return "parallel.expert" in given or str(given.get("parallel.sharding", "none")) not in ("none", "ddp")
    return key not in ("parallel", "parallel.fsdp_version")


def _value_of(key: str, given: Mapping[str, Any], reason: str) -> str:
    """The option that gives a key, with a value that goes with what is given, and with the reason why it is open."""
    if key == "parallel.sharding" and (said := sharding_in(reason)) is not None:
        return said
    if key == "precision" and str(given.get("parallel.sharding")).startswith(("fsdp", "hsdp")):
        return "--precision fsdp-bf16"
    if key == "sequence_length":
        return f"--seq {_tokens_of(given.get('model'))}"
    row = next((row for row in table.TABLE if row.key == key), None)
    return EXAMPLES.get(key) or (f"{row.option} VALUE" if row is not None else "--model FILE with all of its sizes")


MOST_TOKENS = 2048


def _tokens_of(model: Any) -> int:
    """Tokens of an example: no more than the model has positions for."""
    try:
        known = Catalog().model(model)[0].max_positions if isinstance(model, str) else 0
    except InputError:  # said where it is read
        known = 0
    return min(known or MOST_TOKENS, MOST_TOKENS)


EXAMPLES = {
    "optimizer": "--optimizer adamw",
    "adapter.rank": "--rank 16",
    "parallel": "--gpus 8 --sharding zero3",
    "model": "--model llama-3-8b",
    "micro_batch_size": "--micro-batch 4",
    "gradient_accumulation_steps": "--gradient-accumulation-steps 4",
    "activation_checkpointing": "--checkpointing full",
    "precision": "--precision mixed-bf16, or mixed-fp16 where the GPU has no bf16",
    "parallel.data": "--gpus 8",
    "parallel.sharding": "--sharding zero3",
}


@contextmanager
def placed(read: ReadJob, over: dict[str, Any]) -> Iterator[None]:
    """Problems of a job with the file, the line and the key that gave the value."""
    try:
        yield
    except InputError as error:
        values = {value.key: value for value in read.values}
        typed = flat(over)
        problems = []
        for problem in error.problems:
            value = values.get(problem.key or "")
            if problem.file is not None or value is None or problem.key in typed:
                problems.append(problem)
                continue
            source = next((one for one in value.sources if not one.is_default), None)
            if source is None:
                of = value.sources[0].key if value.sources else value.key
                program = f"{read.program} {read.release}"
                told = f"is the default of {of} in {program}" if _SETTING.fullmatch(of) else f"is of {program}: {of}"
                message = f"{problem.message}; it {told}"
                problems.append(problem._replace(message=message, file=read.files[-1]))
                continue
            key = source.key if source.key == problem.key else f"{source.key}: {problem.key}"
            found = problem._replace(key=key, file=source.file, line=source.line, column=source.column)
            repository = str(source.value)
            if problem.key == "model" and "/" in repository and model_names.profile_by(repository) is None:
                fetch = f"hf download {repository} config.json, and --model {repository}"
                base = model_names.begun_from(repository)
                fetch = f"--model {base} if it has the sizes of that; or {fetch}" if base else fetch
                found = found._replace(hint=scope.out_of("models", repository) or fetch)
            elif problem.key == "model" and isinstance(value.value, str) and "--model" not in (problem.hint or ""):
                found = found._replace(hint="; ".join(filter(None, (problem.hint, "--model NAME goes before it"))))
            problems.append(found)
        raise InputError(problems) from None
