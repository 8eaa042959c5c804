"""What PEFT is asked for."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.measure.test_command import JOB
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.measure import adapters, runnable

pytestmark = pytest.mark.contract


def job(**adapter: Any) -> Any:
    return build_job({**JOB, "adapter": adapter} if adapter else JOB)


def test_without_peft_an_adapter_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runnable, "find_spec", lambda name: None)
    runnable.check_installed(job())
    with pytest.raises(InputError, match="lora needs peft") as raised:
        runnable.check_installed(job(kind="lora", rank=4))
    problem = raised.value.problems[0]
    assert (problem.key, problem.hint) == ("adapter", "pip install peft")


@pytest.mark.parametrize(
    ("adapter", "expected"),
    [
        (
            {"kind": "lora", "rank": 4, "dropout": 0.1},
            {"target_modules": ["q_proj", "v_proj"], "r": 4, "lora_dropout": 0.1, "use_dora": False},
        ),
        (
            {"kind": "dora", "rank": 2, "alpha": 16, "targets": ["all-linear"], "modules_to_save": ["lm_head"]},
            {
                "target_modules": "all-linear",
                "modules_to_save": ["lm_head"],
                "r": 2,
                "lora_alpha": 16,
                "lora_dropout": 0,
                "use_dora": True,
            },
        ),
        (
            {"kind": "ia3"},
            {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
        ),
    ],
    ids=["lora", "dora", "ia3"],
)
def test_every_key_of_an_adapter_reaches_peft(
    monkeypatch: pytest.MonkeyPatch, adapter: dict[str, Any], expected: dict[str, Any]
) -> None:
    asked: list[Any] = []

    def put_on(model: Any, config: Any, *, autocast_adapter_dtype: bool) -> Any:
        asked.extend((model, config, autocast_adapter_dtype))
        return model

    stub = SimpleNamespace(LoraConfig=dict, IA3Config=dict, get_peft_model=put_on)
    monkeypatch.setitem(sys.modules, "peft", stub)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    model = SimpleNamespace(modules=list)
    assert adapters.adapted(job(**adapter), model) is model
    assert asked == [model, {"modules_to_save": None, **expected}, True]


def test_a_job_without_an_adapter_is_left_alone() -> None:
    assert adapters.adapted(job(), "model") == "model"
