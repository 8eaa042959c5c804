"""What holds for the answer to every job. Each oracle gives a sentence where it does not, and None where it does."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.cli.running import VALIDATORS, run
from tests.fuzz import draws
from tests.fuzz.draws import Keys
from vramplan import FitResult, InputError
from vramplan.cli.runs.emit import files_of
from vramplan.configs.writers import MODULES as WRITERS
from vramplan.configs.writers import writer_of
from vramplan.configs.writing import WrittenFiles
from vramplan.job.evidence.cells import own_cells
from vramplan.job.length import OF_A_RUN
from vramplan.options import table, words
from vramplan.options.flags import arguments_of

RANK = {"fits": 0, "tight": 1, "does-not-fit": 2}
# warnings about a name or a value that was overruled, and about choices that an echo pins
OVERRULED = (
    " is answered as ",
    " changes nothing",
    " is more than the ",
    "no open choice surely fits: ",
    ", and fp32 is counted: ",
)


class Asker:
    """Answers jobs as `vramplan.fit` does, and remembers nothing but replays."""

    def __init__(self) -> None:
        self.session = draws.SESSION

    def __call__(self, keys: Mapping[str, Any]) -> FitResult:
        """The answer. Raises InputError for what is refused."""
        return self.session.fit(_thin(keys))

    def accepted(self, keys: Mapping[str, Any]) -> FitResult | None:
        """The same, or None for what is refused."""
        try:
            return self(keys)
        except InputError:
            return None


Oracle = Callable[[Asker, Keys, FitResult], str | None]


def _thin(keys: Mapping[str, Any]) -> Keys:
    """Without nulls, which the API takes as absent keys."""
    return {key: value for key, value in keys.items() if value is not None}


def schema(ask: Asker, keys: Keys, result: FitResult) -> str | None:
    """The document is one of the published schema."""
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    problem = next(VALIDATORS["fit"].iter_errors(document), None)
    return None if problem is None else f"{problem.json_path}: {problem.message[:200]}"


def sums(ask: Asker, keys: Keys, result: FitResult) -> str | None:
    """Components make the peak, and with what is added to it the figure of the device."""
    peak = result.peak
    components, overheads = (sum(one.bytes for one in part) for part in (result.components, result.overheads))
    if components != peak.allocated_bytes:
        return f"components are {components}, and the peak {peak.allocated_bytes}"
    if peak.allocated_bytes + overheads != peak.device_bytes:
        return f"peak and overheads are {peak.allocated_bytes + overheads}, and the device has {peak.device_bytes}"
    if not peak.low_bytes <= peak.device_bytes <= peak.high_bytes:
        return f"{peak.device_bytes} is not within {peak.low_bytes} to {peak.high_bytes}"
    return None


def round_trip(ask: Asker, keys: Keys, result: FitResult) -> str | None:
    """The job that is echoed has the same answer, with its warnings and the largest micro-batch."""
    try:
        again = ask(result.job)
    except InputError as error:
        return f"the echo is refused: {error}"
    for name in ("verdict", "peak", "components", "overheads", "recommended", "checkpoints", "host", "job"):
        if getattr(again, name) != getattr(result, name):
            return f"{name} of the echo is {_short(again, name)}, and was {_short(result, name)}"
    said = [{one for one in part.warnings if not any(word in one for word in OVERRULED)} for part in (result, again)]
    lost, new = said[0] - said[1], said[1] - said[0]
    return f"warnings of the echo: lost {lost}, new {new}" if lost or new else None


def _short(result: FitResult, name: str) -> str:
    return str(getattr(result, name))[:300]


def pinned(ask: Asker, keys: Keys, result: FitResult) -> str | None:
    """What is recommended, typed beside the rest, has the same verdict and bytes."""
    best = result.recommended
    if best.micro_batch_size is None:
        return None
    chosen = {
        "micro_batch_size": best.micro_batch_size,
        "gradient_accumulation_steps": best.gradient_accumulation_steps,
        "activation_checkpointing": best.activation_checkpointing,
    }
    rest = {key: value for key, value in keys.items() if key != "global_batch_size"}
    try:
        again = ask(rest | chosen)
    except InputError as error:
        return f"the recommendation is refused: {error}"
    if (again.verdict, again.peak) != (result.verdict, result.peak):
        return f"pinned it is {again.verdict}, {again.peak}; recommended it was {result.verdict}, {result.peak}"
    return None


def largest(ask: Asker, keys: Keys, result: FitResult) -> str | None:
    """The largest micro-batch is within the usable memory, and one more is not."""
    most, job = result.recommended.largest_micro_batch_size, dict(result.job)
    steps = job["gradient_accumulation_steps"]
    if not most or steps is None or job["runtime"] == words.TEXTBOOK or result.host is not None:
        return None
    for micro, fits in ((most, True), (most + 1, False)):
        try:
            again = ask(job | {"micro_batch_size": micro, "global_batch_size": None})
        except InputError as error:
            return f"micro-batch {micro} is refused: {error}" if fits else None
        within = again.peak.device_bytes <= again.usable_bytes
        simulated = again.allocator is not None and again.allocator.out_of_memory is not None
        if within is not fits and not (simulated and not fits):
            verb = "needs more than is usable" if fits else "fits too"
            return f"the largest micro-batch is {most}, and {micro} {verb}: {again.peak.device_bytes}"
    return None


def remedies(ask: Asker, keys: Keys, result: FitResult) -> str | None:
    """A remedy typed back has the verdict and the bytes that it promises."""
    for remedy in result.remedies:
        change = {key: dict(part) if isinstance(part, Mapping) else part for key, part in remedy.change.items()}
        for group in table.GROUPS:
            if group in change and isinstance(keys.get(group), dict) and isinstance(change[group], dict):
                change[group] = keys[group] | change[group]
        drop = {"global_batch_size"} if "gradient_accumulation_steps" in change else set()
        try:
            again = ask({key: value for key, value in keys.items() if key not in drop} | change)
        except InputError as error:
            return f"the remedy {change} is refused: {error}"
        if again.verdict != remedy.verdict:
            return f"the remedy {change} promises {remedy.verdict} and is {again.verdict}"
        if again.time is not None and again.time.samples_per_second != remedy.samples_per_second:
            return f"the remedy {change} promises {remedy.samples_per_second} samples/s and has another rate"
        saved = result.peak.device_bytes - again.peak.device_bytes
        if saved != remedy.saves_bytes:
            return f"the remedy {change} promises to save {remedy.saves_bytes} and saves {saved}"
    return None


def larger_gpu(ask: Asker, keys: Keys, result: FitResult) -> str | None:
    """The same run on a card with more memory has the same figures and no worse verdict."""
    job = dict(result.job)
    if job.get("gpu_free") is not None:
        return None
    card = dict(job["gpu"]) | {"memory": f"{result.capacity_bytes * 3 // 2} B"}
    try:
        again = ask(job | {"gpu": card})
    except InputError as error:
        return f"a larger card is refused: {error}"
    if RANK[again.verdict] > RANK[result.verdict]:
        return f"{result.verdict}, and on a larger card {again.verdict}"
    return None


def more_work(ask: Asker, keys: Keys, result: FitResult) -> str | None:
    """A bigger micro-batch and a longer sequence never need less."""
    job = dict(result.job)
    micro, length = job["micro_batch_size"], job.get("sequence_length")
    if micro is None or job.get("activation_checkpointing") == words.OPTIMAL:
        return None
    simulated = result.allocator is not None  # what is reserved may shrink where blocks are cut otherwise
    changes: list[Keys] = [{"micro_batch_size": micro + 1, "global_batch_size": None}]
    if length is not None:
        changes.append({"sequence_length": 2 * length})
    for change in changes:
        again = ask.accepted(job | change)
        if again is None:
            continue
        if again.peak.allocated_bytes < result.peak.allocated_bytes:
            return f"with {change} {again.peak.allocated_bytes} instead of {result.peak.allocated_bytes} are allocated"
        if again.peak.device_bytes < result.peak.device_bytes and not simulated:
            return f"with {change} the device has {again.peak.device_bytes} instead of {result.peak.device_bytes}"
    return None


def echo(ask: Asker, keys: Keys, result: FitResult) -> str | None:
    """An accepted value is echoed, or something is said of its key."""
    told = {one.key for one in result.assumptions}
    said = " ".join(result.warnings)
    flat = {key: value for key, value in keys.items() if key not in ("model", "gpu", *table.GROUPS, "name")}
    for group in table.GROUPS:
        flat |= {f"{group}.{key}": value for key, value in (keys.get(group) or {}).items()}
    for key, given in flat.items():
        group, _, name = key.rpartition(".")
        inside: Any = result.job.get(group) if group else result.job
        echoed = None if inside is None else inside.get(name)
        option = table.find(key)
        if key in told or name in said or (option.words == words.CELL_WORDS and "precision" in said):
            continue
        if not _same(key, given, echoed, result):
            return f"{key} {given} was given, is echoed as {echoed}, and nothing is said of it"
    return None


def _same(key: str, given: Any, echoed: Any, result: FitResult) -> bool:
    option, job = table.find(key), result.job
    if given in (None, [], False, option.default) and echoed in (None, (), False, option.default):
        return True  # the same as leaving it out
    if isinstance(given, list):
        return set(given) <= set(echoed or ())
    if key == "precision":
        return given in (words.AUTO, echoed) or words.PRECISIONS.get(given) in (echoed, None)
    if option.words == words.CELL_WORDS:
        own = own_cells(str(job["precision"]))  # which says the others
        follows = key in ("gradient_dtype", "optimizer_state_dtype") and given == result.weight_dtype
        return follows or given in (echoed, own.get(key)) or (key == "weight_dtype" and job.get("adapter") is not None)
    if key == "epochs":
        return given == (1 if echoed is None else echoed)  # once, where nobody says how often
    if key == "attention":
        return given == "sdpa" or given == echoed
    if key == "parallel.limit_all_gathers":
        return echoed in (None, given)  # None: as the program does by itself, which is the same where it is not said
    if option.kind == "size" or key == "parallel.node_bandwidth" or option.name in (*OF_A_RUN, "data_rate"):
        return echoed is not None
    if key in ("allocator", "runtime", "cuda_module_loading"):
        return echoed is not None
    if key == "parallel.sharding" and str(given).startswith("hsdp:") and echoed == "fsdp":
        return bool(given == f"hsdp:{job['parallel']['shards']}")  # one group of all devices
    if key == "loss":
        return given == echoed or (given == "classification" and dict(job["model"])["task"] in ("cls", "image"))
    if isinstance(given, int | float) and isinstance(echoed, int | float):
        return given == echoed
    return bool(str(given) == str(echoed))


COMMANDS = ("explain", "timeline", "checkpoints")


def commands(ask: Asker, keys: Keys, result: FitResult) -> str | None:
    """The other commands that take a job end as their pages say, and `fit` on the command line agrees."""
    if not isinstance(keys["model"], str) or not isinstance(keys["gpu"], str):
        return None
    for command in ("fit", *COMMANDS):
        ran = run(command, *line(keys), "--quiet")
        if ran.code not in (0, 2, 3):
            return f"{command} ends with {ran.code}: {ran.err[:300]}"
        if command == "fit" and ran.code == 2:
            return f"fit refuses what the API takes: {ran.err[:300]}"
        if ran.code == 2 and "error: " not in ran.err:
            return f"{command} refuses without a word"
    return None


def line(keys: Keys) -> list[str]:
    """The job as options of a command line."""
    return arguments_of({key: value for key, value in keys.items() if table.find(key).options or key in GROUPS})


GROUPS = table.GROUPS


def written(ask: Asker, keys: Keys, result: FitResult) -> str | None:
    """The files that a program's writer makes of the plan, read with the command that they name, are the same job."""
    for name in WRITERS:
        writer = writer_of(name)
        if result.job["runtime"] not in writer.runtimes:
            continue
        try:
            with ask.session.open():
                files = files_of(result, writer, ())
        except InputError as error:
            if any("nearest: " not in str(problem) and "cannot say" not in str(problem) for problem in error.problems):
                return f"{name}: {error}"
            continue
        with ask.session.open():
            found = read_again(files)
        if isinstance(found, str):
            return f"{name}: {found}"
        for part in ("verdict", "peak", "components"):
            wanted = json.loads(json.dumps(result.to_dict()[part]))
            if found[part] != wanted:
                return f"{name}: {part} is {str(found[part])[:300]}, and was {str(wanted)[:300]}"
    return None


def read_again(files: WrittenFiles) -> str | Any:
    """The answer about files, with the command that they name; the error where it is none."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.texts.items():
            (Path(folder) / name).write_text(text, "utf-8")
        words = [str(Path(folder) / word) if word in files.texts else word for word in shlex.split(files.again)[1:]]
        ran = run(*words, "--format", "json")
    return ran.document if ran.code in (0, 3) else ran.err


ALWAYS: tuple[Oracle, ...] = (schema, sums, round_trip, echo)
ONE_OF: tuple[Oracle, ...] = (pinned, largest, larger_gpu, more_work, commands, remedies, written)
