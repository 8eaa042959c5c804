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
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.traces import ao, compiled, ddp, fsdp1, fsdp2, glm, gptq, programs, zero
from tests.traces.drawn import PLAIN, TYPES, Keys, job, shared
from tests.traces.drawn_programs import job_of
from tests.traces.limits import limited
from vramplan.catalog.fields import Fields
from vramplan.errors import InputError, UsageError
from vramplan.job import build_job, job_to_dict
from vramplan.measure import refusals
from vramplan.planner import setups
from vramplan.replay.evaluation import evaluation
from vramplan.replay.step import replay
from vramplan.replay.techniques.adapters import GPTQ
from vramplan.replay.techniques.vocabulary import techniques_of
from vramplan.results.measure import TRACE
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import DDP, ZERO_STAGES

PACKAGES = (
    *("torch", "transformers", "deepspeed", "peft", "bitsandbytes", "liger-kernel", "galore-torch", "lomo-optim"),
    *("torchtune", "torchao", "litgpt", "lightning", "torchtitan", "llm-foundry", "flash-attn"),
)
LIBRARIES = ("bitsandbytes.nn", "peft.utils", "liger_kernel.transformers", "trl", "torchao.quantization.qat")
"""What would look for a GPU and its kernels, were it imported when there seems to be one."""

NOT_KNOWN = (" not modelled", "never traced", "not traced")  # in a refusal of what somebody could model
SETTLED = 8  # times that a draw is looked at again
EVALUATION = "evaluation"
BETWEEN = (EVALUATION, "generation")  # two steps
PLAINEST = {"attention": "eager", "activation_checkpointing": "none"}  # without which an answer would choose
FILES = ("model", "teacher")  # keys that a draw gives the name of a `config.json`
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


def settled(keys: Keys) -> Keys:
    """The same job without what contradicts the rest of it, which would tell nothing.

    What is refused because nobody modelled it stays, and so does what every job has, but for attention that a family
    has no code for.
    """
    for _ in range(SETTLED):
        try:
            build_job(keys)
            return keys
        except InputError as error:
            wrong = [one.key for one in error.problems if one.key and not is_open(f"{one.key}: {one.message}")]
        before, keys = keys, _without(keys, wrong[:1])  # which may be the cause of the others
        if keys == before:
            return keys
    return keys


def _without(keys: Keys, wrong: list[str]) -> Keys:
    found = dict(keys)
    for key in wrong:
        head, _, own = key.partition(".")
        group = found.get(head)
        if key in PLAINEST:
            found[key] = PLAINEST[key]
        elif isinstance(group, dict) and own in group:
            found[head] = {name: one for name, one in group.items() if name != own}
        elif head not in PLAIN:
            found.pop(head, None)
    return found


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
    for name in LIBRARIES:
        if find_spec(name.partition(".")[0]) is not None:
            import_module(name)
    if find_spec("transformers") is not None:  # programs with models of their own do without it
        import transformers

        transformers.logging.set_verbosity_error()
    autocast_believes()
    from vramplan.measure.kernels import fused_on_cuda

    return fused_on_cuda()


def predicted(one: ResolvedJob) -> dict[str, int]:
    """Peaks of the phases that the replay answers."""
    assert one.micro_batch_size is not None
    assert one.activation_checkpointing is not None
    accumulates = (one.gradient_accumulation_steps or 1) > 1
    setup = setups.setup_of(one, one.activation_checkpointing, accumulates)
    record = replay(setup, batch=min(one.micro_batch_size, 2))
    peaks = dict(record.peaks(one.micro_batch_size))
    if one.eval_batch_size is not None:
        beside = evaluation(setup, record, batch=min(one.eval_batch_size, 2), micro=one.micro_batch_size)
        peaks[EVALUATION] = beside.peak_bytes(one.eval_batch_size)
    return peaks


def without_folder(keys: Keys) -> Keys:
    """A job that was not answered, with the name of its `config.json` alone."""
    return keys | {key: Path(keys[key]).name for key in FILES if isinstance(keys.get(key), str)}


def thin(keys: Keys) -> Keys:
    """What is kept of a job, without what it does not say."""
    return {key: one for key, one in keys.items() if one is not None or key == "max_gradient_norm"}


def traced(one: ResolvedJob) -> dict[str, int]:
    """Peaks of the phases of one step of the real libraries."""
    program = programs.program_of(one)
    if program is not None:
        return programs.traced(program).phases
    rig = rig_of(one)
    if rig is not None:
        found: dict[str, int] = rig.traced(one)
        return found
    from vramplan.measure import steps  # which a program with its own models does without

    figures = steps.without_data(one)
    beside = {EVALUATION: figures[f"{EVALUATION}_bytes"]} if one.eval_batch_size is not None else {}
    return {name.removesuffix("_bytes"): level for name, level in figures["phases"].items()} | beside


def traced_row(one: ResolvedJob) -> dict[str, int]:
    """The same of the device that a row is of, where devices differ; of what runs between steps, its peak."""
    if one.eval_batch_size is not None or one.generation_batch_size is not None:
        from vramplan.measure import steps

        figures = steps.without_data(one)
        return {name: figures[f"{name}_bytes"] for name in BETWEEN if f"{name}_bytes" in figures}
    found = None if programs.program_of(one) is not None else getattr(rig_of(one), "traced_row", None)
    return traced(one) if found is None else found(one)


def check(one: ResolvedJob) -> None:
    """Raise InputError for what no rig has a loop for."""
    program = programs.program_of(one)
    if program is not None:
        program.check()
        return
    rig = rig_of(one)
    try:
        refusals.check(one, TRACE)
    except InputError as error:
        known = () if rig is None else rig.OWN_KEYS
        left = [problem for problem in error.problems if problem.key not in known]
        if left or rig is None:
            raise InputError(left or error.problems) from None
    if one.tiled_mlp is not None and "glu" in one.liger_kernels:
        raise UsageError("the rig puts one library in the place of an MLP, and not both", key="tiled_mlp")
    if rig is not None:
        rig.check(one)


def rig_of(one: ResolvedJob) -> Any:
    """What runs the sharding of a job, compiles it, or has its products in 8 bits, its weights from a GPTQ checkpoint
    or the code of its model.

    None of the loop on one device.
    """
    if one.model.transformers_model_type == glm.TYPE:
        return glm
    if one.sharding is None:
        if one.quantization == GPTQ:
            return gptq
        return ao if one.precision == "fp8" else compiled if one.compile else None
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
    names, keys = techniques_of(one), thin(job_to_dict(one)) | _of_refusals(keys, refused)
    try:
        check(one)
    except InputError as error:
        return Result(number, keys, names, "untraced", f"{error.problems[0].key}: {error.problems[0].message}")
    try:
        with limited():
            found = traced(one)
    except Exception as error:
        status = "no-run" if refused and not isinstance(error, TimeoutError) else "untraced"
        return Result(number, keys, names, status, f"{(refused or [''])[0]} {type(error).__name__}: {str(error)[:200]}")
    try:
        answer = predicted(one)
    except Exception as error:
        return Result(number, keys, names, "refused", f"{(refused or [''])[0]} ({type(error).__name__})", None, found)
    if refused:
        return Result(number, keys, names, "refused", refused[0], answer, found)
    return Result(number, keys, names, "exact" if answer == found else "off", "", answer, found)


def _of_refusals(keys: Keys, refused: list[str]) -> Keys:
    """What a job says and was refused, which the job that is built past its refusals may lack."""
    heads = {one.partition(":")[0].partition(".")[0] for one in refused} - {*PLAIN}
    return {head: keys[head] for head in heads if head in keys}


def answer_anew(path: str) -> int:
    """Answer the kept jobs of a file anew, and compare with their traces: no rig is needed for that.

    What was found when they were drawn is kept beside it, under `first`.
    """
    document = json.loads(Path(path).read_text("utf-8"))
    document.setdefault("first", summary(document))
    for one in document["results"]:
        if one["status"] in ("exact", "off", "refused"):
            _compare_anew(one)
    _write(document, path)
    sys.stdout.write("\n".join(summary(document)) + "\n")
    return any(one["status"] == "off" for one in document["results"])


def _compare_anew(one: dict[str, Any]) -> None:
    """A job that was refused may be answered by now, or be refused because the program cannot run it."""
    try:
        job = build_job(thin(one["keys"]))
    except InputError as error:
        said = [f"{problem.key}: {problem.message}" for problem in error.problems]
        one |= {"said": said[0], "status": "refused" if all(map(is_open, said)) else "no-run"}
        return
    result = Result(one["number"], {}, (), "off", "", predicted(job), one["traced"])
    one |= {"said": "", "predicted": result.predicted}
    one["status"] = "exact" if result.predicted == result.traced else "off"
    one.pop("error", None)
    if one["status"] == "off":
        one["error"] = result.error


def _write(document: dict[str, Any], path: str) -> None:
    head = {key: value for key, value in document.items() if key != "results"}
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in document["results"])
    Path(path).write_text(f'{json.dumps(head)[:-1]}, "results": [\n{lines}\n]}}\n', "utf-8")


def traceable(keys: Keys) -> Keys:
    """The same job without techniques that no rig of its program runs, which would leave nothing to compare."""
    for _ in range(SETTLED):
        keys = settled(keys)
        try:
            with past_refusals():
                check(build_job(keys))
            return keys
        except InputError as error:
            wrong = [str(problem.key) for problem in error.problems[:1]]
        before, keys = keys, _without(keys, wrong)
        if keys == before:
            return keys
    return keys


def run(
    seed: int,
    jobs: int,
    output: str | None,
    sharding: str | None = None,
    types: Sequence[str] = (),
    program: str | None = None,
) -> int:
    """Draw, compare, print; the exit code is 1 if an answer is off. `sharding`: under which all of them are.

    `types`: of models, as Transformers calls them; none given are all. `program`: one with models of its own, whose
    jobs are drawn for it.

    The file is whole after each job: what a run that is stopped leaves is that of a smaller number of jobs.
    """
    kept = begin()
    random, results = Random(seed), []
    document: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="vramplan-") as folder:
        for number in range(jobs):
            if program is not None:
                keys = traceable(job_of(random, program, Path(folder)))
            else:
                keys = job(random, Path(folder), types or TYPES)
                keys = settled(keys if sharding is None else shared(random, keys, sharding))
            result = compared(number, keys)
            results.append(result._replace(keys=without_folder(result.keys)))
            if result.status in ("off", "refused", "untraced"):
                right = result.predicted is not None and result.predicted == result.traced
                shown = f"{result.said}{' (the replay is exact)' * right}" or f"{result.predicted} {result.traced}"
                print(f"{number} {result.status} {' + '.join(result.techniques)}: {shown}", flush=True)
            document = _document(seed, results, sharding, types, program)
            if output is not None:
                _write(document, output)
    del kept
    sys.stdout.write("\n".join(summary(document)) + "\n")
    return any(one.status == "off" for one in results)


def _document(
    seed: int, results: list[Result], sharding: str | None, types: Sequence[str], program: str | None
) -> dict[str, Any]:
    """What is kept of the jobs until now."""
    jobs = len(results)
    return {
        "seed": seed,
        "jobs": jobs,
        "command": f"python -m tests.traces compose --seed {seed} --jobs {jobs}"
        + (f" --program {program}" if program else "")
        + (f" --sharding {sharding}" if sharding else "")
        + (f" --types {' '.join(types)}" if types else ""),
        "versions": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "results": [one._asdict() | ({"error": one.error} if one.status == "off" else {}) for one in results],
    }


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
