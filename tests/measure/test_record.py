"""`record()` round a step, with counters that stand for those of torch.cuda."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.measure.test_command import JOB
from vramplan.errors import InputError
from vramplan.measure import record

STATS = {"allocated_bytes.all.peak": 2**26, "requested_bytes.all.peak": 2**26 - 9, "reserved_bytes.all.peak": 2**27}


class OutOfMemoryError(RuntimeError):
    pass


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was called, in order."""
    found: list[str] = []
    cuda = SimpleNamespace(
        is_available=lambda: True,
        synchronize=lambda: found.append("synchronize"),
        reset_peak_memory_stats=lambda: found.append("reset"),
        memory_stats=lambda: found.append("read") or STATS,
        get_device_name=lambda: "A card",
        OutOfMemoryError=OutOfMemoryError,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, __version__="2.13.0"))
    return found


def test_peaks_are_reset_before_the_step_and_read_after_it(calls: list[str]) -> None:
    with record() as recorded:
        assert recorded.allocated_bytes is None
        calls.append("step")
    assert calls == ["synchronize", "reset", "step", "synchronize", "read"]
    assert recorded.allocated_bytes == 2**26
    assert recorded.figures is not None
    assert recorded.figures.reserved_bytes == 2**27
    assert recorded.relative_error is None


def test_a_step_of_any_job_is_compared_and_written(calls: list[str], tmp_path: Path) -> None:
    output = str(tmp_path / "measured.yaml")
    job = {**JOB, "adapter": {"kind": "lora", "rank": 4}}
    for _ in range(2):
        with record(job, output=output) as recorded:
            pass
    assert recorded.predicted is not None
    assert recorded.relative_error == (recorded.predicted.allocated_bytes - 2**26) / 2**26
    first, second = yaml.safe_load(Path(output).read_text("utf-8"))["jobs"]
    assert first["adapter"]["rank"] == 4
    assert first["measured"]["peak_bytes"] == 2**26
    assert second["name"] == first["name"] + " (2)"


def test_a_run_out_of_memory_is_recorded_and_raised_again(calls: list[str], tmp_path: Path) -> None:
    output = tmp_path / "measured.yaml"
    with pytest.raises(OutOfMemoryError), record(JOB, output=str(output)) as recorded:
        raise OutOfMemoryError
    assert recorded.figures is not None
    assert recorded.figures.outcome == "oom"
    assert yaml.safe_load(output.read_text("utf-8"))["jobs"][0]["measured"] == {"outcome": "oom"}


def test_another_error_is_raised_and_nothing_is_recorded(calls: list[str], tmp_path: Path) -> None:
    output = tmp_path / "measured.yaml"
    with pytest.raises(ZeroDivisionError), record(JOB, output=str(output)) as recorded:
        raise ZeroDivisionError
    assert recorded.figures is None
    assert not output.exists()


def test_without_a_gpu_or_a_job_it_is_refused(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def enter(**named: Any) -> None:
        with record(**named):
            raise AssertionError("not entered")

    with pytest.raises(InputError, match="needs a job"):
        enter(output="measured.yaml")
    monkeypatch.setattr(sys.modules["torch"].cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="no GPU"):
        enter()
