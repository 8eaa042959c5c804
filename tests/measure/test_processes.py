"""Processes that wait for their job: each runs one, they come in order, and those that nobody asks are ended."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from vramplan.measure import processes
from vramplan.measure.processes import Ahead

pytestmark = pytest.mark.contract

WAITING = """
import json, os, sys

def main(asked, answered):
    with open(asked) as file, open(answered, "w") as reply:
        json.dump({"asked": file.read(), "process": os.getpid(), "setting": os.environ.get("A_SETTING")}, reply)

if sys.argv[1:] == ["--wait"]:
    line = sys.stdin.readline()
    if line:
        main(*json.loads(line))
else:
    main(*sys.argv[1:])
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that waits as `vramplan.measure.child` does, and needs no PyTorch."""
    (tmp_path / "waiting_child.py").write_text(WAITING, "utf-8")
    monkeypatch.setattr(processes, "_MODULE", "waiting_child")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def asked(folder: Path, name: str, ahead: Ahead, **more: str) -> dict[str, str]:
    request, reply = folder / f"{name}.asked", folder / f"{name}.answered"
    request.write_text(name, "utf-8")
    done = ahead(str(request), str(reply), {**os.environ, **more})
    assert done.returncode == 0, done.stderr
    answer: dict[str, str] = json.loads(reply.read_text("utf-8"))
    return answer


def test_each_job_has_a_process_of_its_own_and_the_next_ones_wait(tmp_path: Path) -> None:
    with Ahead(2) as ahead:
        found = [asked(tmp_path, name, ahead) for name in ("a", "b", "c", "d")]
        waiting = [process.pid for process in ahead._waiting]
        assert len(waiting) == 2
    assert [one["asked"] for one in found] == ["a", "b", "c", "d"]
    assert len({one["process"] for one in found} | set(waiting)) == 6
    for pid in waiting:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_job_with_settings_of_its_own_begins_with_them(tmp_path: Path) -> None:
    with Ahead(1) as ahead:
        assert asked(tmp_path, "a", ahead)["setting"] is None
        (waiting,) = ahead._waiting
        assert asked(tmp_path, "b", ahead, A_SETTING="1")["setting"] == "1"
        assert list(ahead._waiting) == [waiting]


def test_few_cores_are_left_to_the_job_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.os, "cpu_count", lambda: 2)
    with Ahead() as ahead:
        assert asked(tmp_path, "a", ahead)["asked"] == "a"
        assert not ahead._waiting
