"""The process that runs one job: `python -m vramplan.measure.child REQUEST REPLY`, two files of JSON.

With `--wait` it imports what a job needs, and then reads the two names, a list of JSON, from its standard input.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.measure.fake_cuda import autocast_believes, pretend
from vramplan.measure.processes import WAIT
from vramplan.measure.runnable import check_installed
from vramplan.results.measure import TRACE
from vramplan.values.job import ResolvedJob


def wait() -> None:
    """Import what most jobs need, and run the one that is asked for next; none if nobody asks."""
    _with_pytorch().get_ready()
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


def run(job: ResolvedJob, how: str, steps: int) -> dict[str, Any]:
    """Figures and environment of a job. Raises InputError where this machine or this job cannot be run."""
    check_installed(job)
    if how == TRACE:
        pretend()
        autocast_believes()
    here = _with_pytorch()
    if how == TRACE:
        figures = here.without_data(job)
        device: dict[str, Any] = {}
    else:
        device = here.gpu(job)
        figures = here.on_gpu(job, steps)
    return {"figures": figures, "environment": {**here.environment(job), **device}}


def _with_pytorch() -> ModuleType:
    """What imports it, which a trace has to prepare first."""
    from vramplan.measure import here

    return here


if __name__ == "__main__":
    wait() if sys.argv[1:] == [WAIT] else main(*sys.argv[1:])
