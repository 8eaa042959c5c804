"""The file of measured cases: what is in it, and one more behind them. It is whole at every moment."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from vramplan.catalog import document
from vramplan.catalog.text import read_text
from vramplan.errors import UsageError
from vramplan.job import job_to_dict, read_job_file
from vramplan.job.file import VERSION
from vramplan.report.yaml import dumps
from vramplan.results.measure import TRACE, CountedFigures, Predicted
from vramplan.values.job import ResolvedJob
from vramplan.version import __version__

OPTION = "--output"
_GATES = ("expect", "max_utilization", "base_batch_size", "base_learning_rate")  # say nothing of a run
_NAMED = ("pytorch_version", "cuda_module_loading", "bitsandbytes")  # a case has them from its environment


class Known:
    """The cases of a file, by name: what was run, and how."""

    def __init__(self, path: str) -> None:
        self._jobs: dict[str, tuple[dict[str, Any], str | None]] = {}
        if not Path(path).exists():
            return
        for entry in read_job_file(path):
            if entry.job is None:
                self._jobs[entry.name] = ({}, None)
                continue
            keys = job_to_dict(entry.job) if isinstance(entry.job, ResolvedJob) else {}
            self._jobs[entry.name] = (keys, (entry.job.case.get("trace") or {}).get("how"))

    def __contains__(self, name: str) -> bool:
        return name in self._jobs

    def other_than(self, name: str, job: Mapping[str, Any], how: str) -> str | None:
        """The first key in which the case of that name is another run; None if it is the same."""
        keys, kind = self._jobs[name]
        if kind != how:
            return "trace.how"
        silent = {*_GATES, *(key for key in _NAMED if job.get(key) is None)}
        return next((key for key in job if key not in silent and keys.get(key) != job[key]), None)

    def free(self, name: str) -> str:
        """`name`, with a number behind it if there is a case of that name."""
        number, wanted = 2, name
        while wanted in self:
            wanted = f"{name} ({number})"
            number += 1
        return wanted


def case_of(
    job: Mapping[str, Any],
    how: str,
    predicted: Predicted,
    figures: CountedFigures,
    environment: Mapping[str, Any],
    steps: int,
) -> dict[str, Any]:
    """A measured case in the job format, which `vramplan validate` compares."""
    measured: dict[str, Any] = {}
    if figures.outcome == "oom":
        measured, use = {"outcome": "oom"}, ["fit"]
    else:
        measured = {"peak_bytes": figures.allocated_bytes, "metric": "allocated"}
        use = ["peak"]
        if how != TRACE:  # data-less tensors do not run out of memory
            measured["outcome"], use = "fits", ["peak", "fit"]
        tokens = _tokens(job, figures.micro_steps)
        if figures.step_seconds and tokens:
            measured["tokens_per_second"] = round(tokens / figures.step_seconds, 1)
    figure_keys = {key: value for key, value in figures._asdict().items() if value is not None and key != "outcome"}
    return {
        **{
            key: value if key == "model" else _said(value)  # of a model null may be a value of its own
            for key, value in job.items()
            if value is not None and key not in _GATES
        },
        "measured": measured,
        "use": use,
        "trace": {"how": how, "steps": 1 if how == TRACE else steps, **figure_keys},
        "source": {"title": f"vramplan {__version__} measure", "predicted_bytes": predicted.allocated_bytes},
        "confidence": "high",
        "environment": {key: value for key, value in environment.items() if value is not None},
    }


def _tokens(job: Mapping[str, Any], micro_steps: int | None) -> int | None:
    """Tokens of the micro-steps that were timed, on one device; None of images, and where nobody counted them."""
    sizes = (job.get("micro_batch_size"), micro_steps, job.get("sequence_length"))
    if not all(isinstance(size, int) for size in sizes):
        return None
    return prod(size for size in sizes if size is not None)


def _said(value: Any) -> Any:
    """A mapping without what it says nothing of."""
    return {key: one for key, one in value.items() if one is not None} if isinstance(value, Mapping) else value


def append(path: str, case: Mapping[str, Any]) -> None:
    """Add a case behind the others, whose lines stay as they are; a new file if there is none.

    Raises UsageError if the file cannot be written, or is not made of blocks to which one can be added.
    """
    item = dumps({"jobs": [case]}).partition("\n")[2]
    if not Path(path).exists():
        replace(path, f"version: {VERSION}\njobs:\n{item}")
        return
    text = read_text(path)
    before = _jobs(document.parse(text, path).root)
    indent = " " * ((before.column or 1) - 1)
    more = "".join(f"{indent}{line}\n" for line in item.splitlines())
    text = text + ("" if text.endswith("\n") else "\n") + more
    try:
        grown = len(_jobs(document.parse(text, path).root).items) == len(before.items) + 1
    except Exception:
        grown = False
    if not grown:
        hint = "jobs as the last key of the file, one below the other; or name another file"
        raise UsageError(f"{path!r} is not written so that a job can be added at its end", key=OPTION, hint=hint)
    replace(path, text)


def _jobs(root: document.Mapping) -> document.Sequence:
    entry = root.entries.get("jobs")
    return entry.value if entry is not None and isinstance(entry.value, document.Sequence) else document.Sequence()


def replace(path: str, text: str) -> None:
    """Put the text beside the file, on the disk, and rename it: a crash leaves the old file or the new one."""
    target = os.path.realpath(path)
    beside = os.path.join(os.path.dirname(target), f".vramplan-{os.getpid()}-{time.monotonic_ns()}.tmp")
    try:
        if os.path.isdir(target):
            raise IsADirectoryError(None, "it is a folder")
        with open(beside, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(target):
            os.chmod(beside, stat.S_IMODE(os.stat(target).st_mode))
        os.replace(beside, target)
    except OSError as error:
        why = error.strerror or str(error)
        hint = "name a file in a folder that is there and can be written to"
        raise UsageError(f"cannot write {path!r}: {why[0].lower()}{why[1:]}", key=OPTION, hint=hint) from None
    finally:
        if os.path.exists(beside):
            os.unlink(beside)
