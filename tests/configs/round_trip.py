"""What written files mean as jobs when the command that they name reads them, and where that differs from another job.

Nothing here is shared with what decides, while files are written, whether they mean the job.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from tests.cli.running import Ran, run
from vramplan.job import build_job, job_to_dict

Job = dict[str, Any]
LABELS = ("name", "recipe_global_batch_size", "parameters", "dtype")
READ_BACK = re.compile(r"read back: vramplan (.+)")


class _Resolved:
    """Takes the keys of a job in place of its answer, which would be replayed."""

    job: Job | None = None

    def __call__(self, keys: Mapping[str, Any], folders: Any, largest: Any = None, **_: Any) -> Any:
        self.job = job_to_dict(build_job(dict(keys), profile_dirs=folders))
        raise SystemExit(0)


def resolved(*words: str) -> tuple[Job | None, str]:
    """The job of `vramplan fit WORDS` with every default explicit, None where it is refused; and what was said."""
    taken = _Resolved()
    with mock.patch("vramplan.cli.runs.configs.answered", taken), mock.patch("vramplan.cli.runs.fit.answered", taken):
        ran = run("fit", *words)
    return taken.job, ran.err


def read_back(folder: Path, texts: Mapping[str, str], said: str, gpu: str) -> tuple[Job | None, str]:
    """The job that files mean, by the command that stands in them or in what was said."""
    told = READ_BACK.search(next(iter(texts.values()))) or READ_BACK.search(said)
    assert told is not None, said
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    words = [str(folder / word) if word in texts else word for word in shlex.split(told[1])]
    assert words.pop(0) == "fit"
    return resolved(*(re.sub(r"^(\d+x)?GPU$", rf"\g<1>{gpu}", word) for word in words))


def written(ran: Ran, folder: Path) -> dict[str, str]:
    """The texts that `--emit-to` left in a folder, in the order of the command."""
    return {Path(line).name: (folder / Path(line).name).read_text("utf-8") for line in ran.out.splitlines()}


def differences(one: Job, other: Job) -> dict[str, tuple[Any, Any]]:
    """What differs between two jobs whose defaults are explicit, but for labels, and a batch that follows."""
    left, right = (_with_steps(_flat(job)) for job in (one, other))
    keys = [key for key in {**left, **right} if key not in ("name", "global_batch_size")]
    return {key: (left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)}


def _with_steps(job: Job) -> Job:
    """With the steps that follow from a batch of all devices."""
    micro, whole = job["micro_batch_size"], job["global_batch_size"]
    if job["gradient_accumulation_steps"] is None and micro and whole:
        job["gradient_accumulation_steps"] = whole / (micro * (job.get("parallel.data") or 1))
    return job


def _flat(job: Job, before: str = "") -> dict[str, Any]:
    """A job with dotted keys, lists in order, without labels of models."""
    found: dict[str, Any] = {}
    for key, value in job.items():
        if isinstance(value, Mapping):
            inner = {name: item for name, item in value.items() if key != "model" or name not in LABELS}
            found |= _flat(inner, f"{before}{key}.")
        else:
            found[before + key] = sorted(map(str, value)) if isinstance(value, list | tuple) else value
    return found
