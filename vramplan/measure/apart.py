"""A job in a process of its own: what it allocates, and how it ends, is nobody else's."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vramplan.catalog.local import find
from vramplan.errors import InputError, Problem
from vramplan.measure.allocator import environment_for
from vramplan.measure.processes import Run, at_once
from vramplan.results.measure import GPU, TRACE, CountedFigures
from vramplan.tuples import NamedTuple

NEEDED = {"torch": "PyTorch", "transformers": "Transformers"}
OPTION = {TRACE: "--trace"}


class Request(NamedTuple):
    """What the process is asked for."""

    job: Mapping[str, Any]  # with every choice made, in the words of the job format
    how: str  # gpu | trace
    steps: int
    profiles: tuple[str, ...] = ()


class Reply(NamedTuple):
    """What it found, and on what."""

    figures: CountedFigures
    environment: Mapping[str, Any]


def check_installed() -> None:
    """Raise InputError if what the process imports is not there."""
    missing = [name for module, name in NEEDED.items() if find_spec(module) is None]
    if missing:
        hint = "pip install 'vramplan[measure]', with the build of PyTorch for your GPU"
        raise InputError([Problem(f"needs {' and '.join(missing)}", "measure", hint)])


def run_apart(request: Request, run: Run = at_once) -> Reply:
    """Run a job. Raises InputError if the process says what it cannot do, or ends without an answer.

    `run` is the process of two files, the request's and the reply's, in the environment that it is given.
    """
    used = used_bytes() if request.how == GPU else None
    with tempfile.TemporaryDirectory(prefix="vramplan-") as folder:
        asked, answered = Path(folder, "request.json"), Path(folder, "reply.json")
        asked.write_text(json.dumps(request._asdict()), "utf-8")
        done = run(str(asked), str(answered), _environment(request))
        if not answered.exists():
            raise InputError([_died(done.returncode, (done.stderr or b"").decode("utf-8", "replace").splitlines())])
        reply: dict[str, Any] = json.loads(answered.read_text("utf-8"))
    if "problems" in reply:
        raise InputError(Problem(*problem) for problem in reply["problems"])
    return _reply(reply, used)


def _environment(request: Request) -> Mapping[str, str]:
    """Of a real run with the job's allocator; a trace has none."""
    return environment_for(request.job.get("allocator")) if request.how == GPU else dict(os.environ)


def _reply(reply: Mapping[str, Any], used_before: int | None) -> Reply:
    said = dict(reply["figures"])
    phases = said.pop("phases", {})
    used = said.pop("used_bytes", None)
    known = {key: said[key] for key in CountedFigures._fields if key in said}
    device = used - used_before if used is not None and used_before is not None else None
    return Reply(CountedFigures(**known | phases | {"device_bytes": device}), reply["environment"])


def _died(code: int, said: Sequence[str]) -> Problem:
    hint = "VRAMPLAN_TRACEBACK=1 shows all that it says"
    if code < 0:
        name = signal.Signals(-code).name
        why = " (the host may have run out of memory)" if name == "SIGKILL" else ""
        return Problem(f"the run was ended by {name}{why}", hint=hint)
    last = next((line.strip() for line in reversed(said) if line.strip()), "it says nothing")
    return Problem(f"the run failed: {last[:200]}", hint=hint)


def used_bytes() -> int | None:
    """Bytes of the GPU that others use; None where no tool says it."""
    try:
        gpu, _ = find("local")
    except InputError:
        return None
    if gpu.total_bytes is None or gpu.free_bytes is None:
        return None
    return gpu.total_bytes - gpu.free_bytes - (gpu.reserved_bytes or 0)
