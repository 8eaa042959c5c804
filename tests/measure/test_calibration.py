"""`vramplan calibrate`, with readings in place of a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import run, valid
from tests.measure.readings import MIB, readings
from vramplan.answers.fit import describe
from vramplan.catalog.stacks import load_stack_profile
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.measure import calibration
from vramplan.measure.calibration import calibrate, shipped
from vramplan.planner.decision import decide
from vramplan.results import FitResult

pytestmark = pytest.mark.contract
JOB = {"model": "gpt2", "micro_batch_size": 4, "global_batch_size": 4, "gradient_accumulation_steps": 1}


def written(folder: Path, **other: Any) -> Path:
    found = calibrate(lambda: readings(**other), load_stack_profile(shipped()))
    (folder / "stacks").mkdir(parents=True)
    (folder / "stacks" / "pytorch.yaml").write_text(found.text, "utf-8")
    return folder


def fit(folder: Path | None, gpu: str = "a100-80gb", **keys: Any) -> FitResult:
    job = build_job({**JOB, "gpu": gpu, **keys}, profile_dirs=() if folder is None else [folder])
    return describe(decide(job, whole_ladder=False), with_remedies=False)


def test_the_figures_are_those_of_the_steps_less_what_others_use() -> None:
    found = calibrate(readings, load_stack_profile(shipped()))
    assert (found.architecture, found.context_bytes, found.first_context_bytes) == ("ampere", 512 * MIB, 420 * MIB)
    assert (found.workspace_bytes, found.process_group_bytes, found.allocator_agrees) == (8320 * 1024, None, True)
    assert found.reserved_bytes == found.simulated_bytes > 0


def test_the_profile_has_the_rest_of_the_shipped_one(tmp_path: Path) -> None:
    mine = load_stack_profile(written(tmp_path) / "stacks" / "pytorch.yaml")
    theirs = load_stack_profile(shipped())
    assert {key: field.value for key, field in mine.fields.items() if key in theirs.fields} == {
        key: field.value for key, field in theirs.fields.items()
    }
    assert mine.value("context_ampere") == 512 * MIB
    assert mine.fields["context_ampere"].source == "calibration"
    assert "A100" in mine.sources["calibration"].title


def test_it_narrows_the_range_on_its_architecture_and_says_so(tmp_path: Path) -> None:
    shipped_answer, own = fit(None), fit(written(tmp_path))
    context = 512 * MIB
    assert own.peak.device_bytes - own.peak.reserved_bytes == context
    assert own.peak.low_bytes == own.peak.allocated_bytes + -(-context * 95 // 100)
    assert own.peak.high_bytes - own.peak.low_bytes < shipped_answer.peak.high_bytes - shipped_answer.peak.low_bytes
    (said,) = (one.why for one in own.assumptions if one.key == "context")
    assert said.startswith("calibrated on this machine (NVIDIA A100-SXM4-80GB, PyTorch 2.9.1)")
    assert fit(tmp_path, "h100").peak == fit(None, "h100").peak


def test_ranges_of_several_devices_are_narrower_where_a_communicator_was_measured(tmp_path: Path) -> None:
    one, two = written(tmp_path / "one"), written(tmp_path / "two", process_group=700 * MIB)
    keys = {"parallel": {"data": 2}, "global_batch_size": 8}
    assert not [said for said in fit(one, **keys).assumptions if said.key == "context"]
    own = fit(two, **keys)
    assert [said.key for said in own.assumptions if said.key == "context"]
    assert own.peak.device_bytes - own.peak.reserved_bytes == (512 + 700) * MIB


def test_the_command_writes_the_profile_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(calibration, "probe", readings)
    file = tmp_path / "stacks" / "pytorch.yaml"
    ran = run("calibrate", "--output", file)
    assert (ran.code, "context" in ran.out, "pytorch.yaml" in ran.out) == (0, True, True)
    again = run("calibrate", "--output", file)
    assert (again.code, "there is such a file" in again.err) == (2, True)
    document = valid("calibrate", run("calibrate", "--output", file, "--force", "--format", "json").document)
    assert (document["context_bytes"], document["file"]) == (512 * MIB, str(file))
    assert run("calibrate", "--output", "-").out == file.read_text("utf-8")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"problem": "PyTorch finds no GPU"}, "PyTorch finds no GPU"),
        ({"compute_capability": "3.5"}, "no GPU generation of compute capability 3.5"),
        ({"used_before": 700 * MIB}, "less in use than before"),
    ],
)
def test_what_cannot_be_calibrated_is_said(other: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        calibrate(lambda: readings(**other), load_stack_profile(shipped()))


def test_without_pytorch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "find_spec", lambda name: None)
    ran = run("calibrate", "--output", "-")
    assert (ran.code, "needs PyTorch" in ran.err, "pip install" in ran.err) == (2, True, True)
