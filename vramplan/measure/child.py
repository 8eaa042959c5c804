"""The process that runs one job: `python -m vramplan.measure.child REQUEST REPLY`, two files of JSON.

With `--wait` it imports what a job needs, and then reads the two names, a list of JSON, from its standard input.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vramplan.errors import InputError, UsageError
from vramplan.job import build_job
from vramplan.measure.allocator import said
from vramplan.measure.fake_cuda import autocast_believes, pretend
from vramplan.measure.network import HEADS
from vramplan.measure.processes import WAIT
from vramplan.measure.runnable import check_installed
from vramplan.results.measure import TRACE
from vramplan.values.job import Job


def wait() -> None:
    """Import what most jobs need, and run the one that is asked for next; none if nobody asks."""
    import torch
    import transformers

    for name in HEADS.values():
        assert hasattr(transformers, f"AutoModelFor{name}")  # imports it: the classes are imported when they are named
    assert torch.optim
    asked = sys.stdin.readline()
    if asked:
        main(*json.loads(asked))


def main(request: str, reply: str) -> None:
    """Read the request, run it, write the reply: in one piece, so that half of one is never read."""
    asked = json.loads(Path(request).read_text("utf-8"))
    try:
        job = build_job(asked["job"], profile_dirs=[Path(folder) for folder in asked["profiles"]])
        answer: dict[str, Any] = run(job, asked["how"], asked["steps"])
    except InputError as error:
        answer = {"problems": [list(problem) for problem in error.problems]}
    beside = Path(reply + ".part")
    beside.write_text(json.dumps(answer), "utf-8")
    os.replace(beside, reply)


def run(job: Job, how: str, steps: int) -> dict[str, Any]:
    """Figures and environment of a job. Raises InputError where this machine or this job cannot be run."""
    check_installed(job)
    if how == TRACE:
        pretend()
        autocast_believes()
    from vramplan.measure import steps as loop

    if how == TRACE:
        figures = loop.without_data(job)
        device: dict[str, Any] = {}
    else:
        device = _gpu(job)
        figures = loop.on_gpu(job, steps)
    return {"figures": figures, "environment": {**_environment(job), **device}}


def _gpu(job: Job) -> dict[str, Any]:
    """The GPU at hand."""
    import torch

    if not torch.cuda.is_available():
        raise UsageError("PyTorch finds no GPU", key="measure", hint="--trace needs none")
    seen = torch.cuda.get_device_properties(0)
    capability = f"{seen.major}.{seen.minor}"
    if job.gpu.compute_capability not in (None, capability):
        asked = f"{job.gpu.name} has compute capability {job.gpu.compute_capability}"
        said = f"{asked}, and the GPU at hand ({seen.name}) has {capability}"
        raise UsageError(said, key="gpu", hint="local, or leave it out")
    return {
        "gpu": seen.name,
        "compute_capability": capability,
        "total_bytes": seen.total_memory,
        "cuda": torch.version.cuda or torch.version.hip,
    }


def _environment(job: Job) -> dict[str, Any]:
    import torch
    import transformers

    settings = said(os.environ)
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": None if job.adapter is None else version("peft"),
        "platform": platform.platform(terse=True),
        "allocator_settings": None if settings is None else settings[1],
    }


if __name__ == "__main__":
    wait() if sys.argv[1:] == [WAIT] else main(*sys.argv[1:])
