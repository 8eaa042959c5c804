"""Answers of random jobs beside their traces: `python -m tests.traces compose --seed N --jobs N`.

Runs where the libraries of a rig are installed. A job that is refused is traced all the same, past the refusals, if
they say that something is not modelled or was not traced: what the libraries then run could have been answered.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.traces import ddp, fsdp1, fsdp2, zero
from tests.traces.drawn import Keys, job, shared
from vramplan.catalog.fields import Fields
from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict
from vramplan.measure import refusals
from vramplan.planner import setups
from vramplan.replay.step import replay
from vramplan.replay.techniques.vocabulary import techniques_of
from vramplan.results.measure import TRACE
from vramplan.values.job import Job
from vramplan.values.parallel import DDP, ZERO_STAGES

PACKAGES = ("torch", "transformers", "deepspeed", "peft", "bitsandbytes", "liger-kernel", "galore-torch", "lomo-optim")
NOT_KNOWN = (" not modelled", "never traced", "not traced")  # in a refusal of what somebody could model
OPEN = (*NOT_KNOWN, " is modelled ", " are modelled ")


class Result(NamedTuple):
    """What became of a job."""

    number: int
    keys: Keys
    techniques: tuple[str, ...]
    status: (
        str  # exact | off | refused: the libraries run it | no-run: they do not, or it contradicts itself | untraced
    )
    said: str = ""
    predicted: dict[str, int] | None = None
    traced: dict[str, int] | None = None

    @property
    def error(self) -> float:
        """Of the peak, relative."""
        assert self.predicted is not None
        assert self.traced is not None
        traced = max(self.traced.values())
        return abs(max(self.predicted.values()) - traced) / traced


def is_open(said: str) -> bool:
    """Whether a refusal is of what libraries run: a loss of causal models no library puts over another task."""
    return any(word in said for word in OPEN) and "not for the task" not in said


@contextlib.contextmanager
def past_refusals() -> Iterator[list[str]]:
    """Build a job as if nothing were refused; the messages are noted."""
    said: list[str] = []

    def refuse(self: Fields, name: str | None, message: str, **_: Any) -> None:
        said.append(f"{name}: {message}")

    with patch.object(Fields, "refuse", refuse):
        yield said


def begin() -> Any:
    """Make a PyTorch without CUDA take tensors for those of a GPU. What is returned has to be kept."""
    from vramplan.measure.fake_cuda import autocast_believes, pretend

    pretend()
    import transformers

    autocast_believes()
    transformers.logging.set_verbosity_error()
    from vramplan.measure.kernels import fused_on_cuda

    return fused_on_cuda()


def predicted(one: Job) -> dict[str, int]:
    """Peaks of the phases that the replay answers."""
    assert one.micro_batch_size is not None
    assert one.activation_checkpointing is not None
    accumulates = (one.gradient_accumulation_steps or 1) > 1
    record = replay(setups.setup_of(one, one.activation_checkpointing, accumulates), batch=min(one.micro_batch_size, 2))
    return dict(record.peaks(one.micro_batch_size))


def without_folder(keys: Keys) -> Keys:
    """A job that was not answered, with the name of its `config.json` alone."""
    model = keys["model"]
    return {**keys, "model": Path(model).name} if isinstance(model, str) else keys


def thin(keys: Keys) -> Keys:
    """What is kept of a job, without what it does not say."""
    return {key: one for key, one in keys.items() if one is not None or key == "max_gradient_norm"}


def traced(one: Job) -> dict[str, int]:
    """Peaks of the phases of one step of the real libraries."""
    from vramplan.measure import steps

    if one.sharding is not None:
        return rig_of(one).traced(one)
    phases = steps.without_data(one)["phases"]
    return {name.removesuffix("_bytes"): level for name, level in phases.items()}


def traced_row(one: Job) -> dict[str, int]:
    """The same of the device that a row is of, where devices differ."""
    found = None if one.sharding is None else getattr(rig_of(one), "traced_row", None)
    return traced(one) if found is None else found(one)


def check(one: Job) -> None:
    """Raise InputError for what no rig has a loop for."""
    try:
        refusals.check(one, TRACE)
    except InputError as error:
        known = () if one.sharding is None else rig_of(one).OWN_KEYS
        left = [problem for problem in error.problems if problem.key not in known]
        if left or one.sharding is None:
            raise InputError(left or error.problems) from None
    if one.sharding is not None:
        rig_of(one).check(one)


def rig_of(one: Job) -> Any:
    """The module that runs the sharding of a job."""
    assert one.sharding is not None
    if one.sharding.kind in ZERO_STAGES:
        return zero
    return ddp if one.sharding.kind == DDP else fsdp1 if one.sharding.version == 1 else fsdp2


def compared(number: int, keys: Keys) -> Result:
    """Answer, trace, compare."""
    refused: list[str] = []
    try:
        one = build_job(keys)
    except InputError as error:
        refused = [f"{problem.key}: {problem.message}" for problem in error.problems]
        if not all(is_open(said) for said in refused):
            return Result(number, keys, (), "no-run", refused[0])
        try:
            with past_refusals():
                one = build_job(keys)
        except Exception as inner:
            return Result(number, keys, (), "no-run", f"{refused[0]} ({type(inner).__name__})")
    names = techniques_of(one)
    try:
        check(one)
    except InputError as error:
        return Result(number, keys, names, "untraced", f"{error.problems[0].key}: {error.problems[0].message}")
    try:
        found = traced(one)
    except Exception as error:
        status = "no-run" if refused else "untraced"
        return Result(number, keys, names, status, f"{(refused or [''])[0]} {type(error).__name__}: {str(error)[:200]}")
    try:
        answer = predicted(one)
    except Exception as error:
        return Result(number, keys, names, "refused", f"{(refused or [''])[0]} ({type(error).__name__})", None, found)
    if refused:
        return Result(number, keys, names, "refused", refused[0], answer, found)
    return Result(number, thin(job_to_dict(one)), names, "exact" if answer == found else "off", "", answer, found)


def run(seed: int, jobs: int, output: str | None, sharding: str | None = None) -> int:
    """Draw, compare, print; the exit code is 1 if an answer is off. `sharding`: under which all of them are."""
    kept = begin()
    random, results = Random(seed), []
    with tempfile.TemporaryDirectory(prefix="vramplan-") as folder:
        for number in range(jobs):
            keys = job(random, Path(folder))
            result = compared(number, keys if sharding is None else shared(random, keys, sharding))
            results.append(result._replace(keys=without_folder(result.keys)))
            if result.status in ("off", "refused", "untraced"):
                right = result.predicted is not None and result.predicted == result.traced
                shown = f"{result.said}{' (the replay is exact)' * right}" or f"{result.predicted} {result.traced}"
                print(f"{number} {result.status} {' + '.join(result.techniques)}: {shown}", flush=True)
    del kept
    document = {
        "seed": seed,
        "jobs": jobs,
        "command": f"python -m tests.traces compose --seed {seed} --jobs {jobs}"
        + (f" --sharding {sharding}" if sharding else ""),
        "versions": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "results": [one._asdict() | ({"error": one.error} if one.status == "off" else {}) for one in results],
    }
    if output is not None:
        lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in document.pop("results"))
        Path(output).write_text(f'{json.dumps(document)[:-1]}, "results": [\n{lines}\n]}}\n', "utf-8")
        document = json.loads(Path(output).read_text("utf-8"))
    sys.stdout.write("\n".join(summary(document)) + "\n")
    return any(one.status == "off" for one in results)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def summary(document: dict[str, Any]) -> list[str]:
    """Shares answered and exact, and the worst error."""
    counts = Counter(one["status"] for one in document["results"])
    can_run = counts["exact"] + counts["off"] + counts["refused"]
    answered = counts["exact"] + counts["off"]
    worst = max((one["error"] for one in document["results"] if one["status"] == "off"), default=0.0)
    return [
        f"{document['jobs']} jobs of seed {document['seed']}: the libraries run {can_run}"
        f" ({counts['no-run']} contradict themselves or end with an error, {counts['untraced']} no rig traces)",
        f"answered {answered} of {can_run} ({answered / max(can_run, 1):.1%}), exact to the byte {counts['exact']}"
        f" of {answered} ({counts['exact'] / max(answered, 1):.1%}), worst error {worst:.3%}",
    ]


def by_pair(document: dict[str, Any]) -> list[tuple[str, str, int, int, int, float]]:
    """Of each pair of keys that met: jobs that the libraries run, answered, exact, and the worst error."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in document["results"]:
        if one["status"] in ("exact", "off", "refused"):
            for pair in combinations(sorted({name.partition(": ")[0] for name in one["techniques"]}), 2):
                found.setdefault(pair, []).append(one)
    rows = []
    for (first, second), jobs in sorted(found.items()):
        answered = [one for one in jobs if one["status"] != "refused"]
        exact = sum(one["status"] == "exact" for one in answered)
        rows.append((first, second, len(jobs), len(answered), exact, max([one.get("error", 0.0) for one in jobs])))
    return rows


PAGE = Path(__file__).parents[2] / "docs" / "accuracy-composed.md"
KEPT = Path(__file__).with_name("composed.json")
KEPT_SHARDED = Path(__file__).with_name("composed_fsdp2.json")
KEPT_REPLICATED = Path(__file__).with_name("composed_ddp.json")

HEAD = """\
# Composed jobs

For people whose job has several techniques at once, which no traced row has together.

Small jobs on one device under Transformers and PyTorch, drawn out of the table of options: each technique on its own
with a small probability, so that two to five meet.
Each was answered, and traced on the libraries' own code; a job that is refused was traced past its refusal.
"""

TABLE = """\
## By pair of techniques

Of the jobs in which two keys met and that the libraries run: how many are answered, how many of these are exact to the
byte in all three phases, and the worst error of the peak.

| Keys | Jobs | Answered | Exact | Worst error |
|---|---:|---:|---:|---:|
"""


SHARDED = """
## Under FSDP2

The same draws on two to five devices, each block wrapped by PyTorch's `fully_shard`; what is compared is the first
device.
"""


REPLICATED = """
## Under DDP

The same draws on two to five devices, the model in PyTorch's `DistributedDataParallel`.
"""


def page() -> str:
    """The page of the results that are kept."""
    document = json.loads(KEPT.read_text("utf-8"))
    versions = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    said = "".join(f"- {line[0].upper()}{line[1:]}.\n" for line in summary(document))
    how = f"The command is `{document['command']}`, with {versions}; [traces](traces.md) says how to run it.\n"
    rows = "".join(
        f"| {first}, {second} | {jobs} | {answered} | {exact} | {worst:.3%} |\n"
        for first, second, jobs, answered, exact, worst in by_pair(document)
    )
    return f"{HEAD}\n{said}\n{how}{_rest(document)}\n{TABLE}{rows}{_sharded()}{_replicated()}"


def _sharded() -> str:
    """The section of the jobs under FSDP2."""
    document = json.loads(KEPT_SHARDED.read_text("utf-8"))
    said = "".join(f"- {line[0].upper()}{line[1:]}.\n" for line in summary(document))
    rest = _rest(document).replace("\n## ", "\n### ")
    return f"{SHARDED}\n{said}\nThe command is `{document['command']}`.\n{rest}"


def _replicated() -> str:
    """The section of the jobs under DDP."""
    document = json.loads(KEPT_REPLICATED.read_text("utf-8"))
    said = "".join(f"- {line[0].upper()}{line[1:]}.\n" for line in summary(document))
    rest = _rest(document).replace("\n## ", "\n### ")
    return f"{REPLICATED}\n{said}\nThe command is `{document['command']}`.\n{rest}"


def _rest(document: dict[str, Any]) -> str:
    """What was refused or off, job by job."""
    found = [one for one in document["results"] if one["status"] in ("refused", "off")]
    if not found:
        return ""
    lines = ["\n## Refused, or off\n\n| Techniques | What |\n|---|---|\n"]
    for one in found:
        what = one["said"] if one["status"] == "refused" else f"off by {one['error']:.3%} of the peak"
        lines.append(f"| {', '.join(one['techniques']) or 'none'} | {what} |\n")
    return "".join(dict.fromkeys(lines))  # two jobs may have the same techniques
