"""A job in a process of its own: every way in which the process can end."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from vramplan.errors import InputError
from vramplan.measure import apart, processes
from vramplan.measure.apart import Request, run_apart
from vramplan.results.measure import CountedFigures

REQUEST = Request({"name": "a"}, "trace", 3, ("profiles",))


def ends(monkeypatch: pytest.MonkeyPatch, code: int, said: bytes = b"", reply: Any = None) -> list[Any]:
    """The next process writes the reply, says something and ends."""
    asked: list[Any] = []

    def process(words: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        asked.append(json.loads(Path(words[-2]).read_text("utf-8")))
        if reply is not None:
            Path(words[-1]).write_text(json.dumps(reply), "utf-8")
        return subprocess.CompletedProcess(words, code, b"", said)

    monkeypatch.setattr(processes.subprocess, "run", process)
    return asked


def test_a_reply_becomes_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"outcome": "fits", "allocated_bytes": 7, "phases": {"forward_bytes": 7, "step_bytes": 5}}
    asked = ends(monkeypatch, 0, reply={"figures": figures, "environment": {"torch": "2"}})
    reply = run_apart(REQUEST)
    assert reply.figures == CountedFigures("fits", 7, forward_bytes=7, step_bytes=5)
    assert reply.environment == {"torch": "2"}
    assert asked == [{"job": {"name": "a"}, "how": "trace", "steps": 3, "profiles": ["profiles"]}]


def test_the_device_figure_is_without_what_others_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "used_bytes", lambda: 100)
    ends(monkeypatch, 0, reply={"figures": {"outcome": "fits", "used_bytes": 350}, "environment": {}})
    assert run_apart(REQUEST._replace(how="gpu")).figures.device_bytes == 250


@pytest.mark.parametrize(
    ("code", "said", "expected"),
    [
        (1, b"Traceback\nRuntimeError: boom\n\n", "the run failed: RuntimeError: boom"),
        (1, b"", "the run failed: it says nothing"),
        (-9, b"", "SIGKILL (the host may have run out of memory)"),
        (-11, b"", "SIGSEGV"),
    ],
)
def test_an_end_without_a_reply_is_an_error(
    monkeypatch: pytest.MonkeyPatch, code: int, said: bytes, expected: str
) -> None:
    ends(monkeypatch, code, said)
    with pytest.raises(InputError) as raised:
        run_apart(REQUEST)
    assert expected in str(raised.value)


def test_problems_of_the_process_are_those_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    ends(monkeypatch, 0, reply={"problems": [["PyTorch finds no GPU", "measure", "--trace", None, None, None]]})
    with pytest.raises(InputError, match="PyTorch finds no GPU") as raised:
        run_apart(REQUEST)
    assert raised.value.problems[0].key == "measure"
