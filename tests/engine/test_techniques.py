"""CONTRACT: techniques take part in the phases of a step, observers see what is recorded and change nothing."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from tests.engine.draws import shape
from vramplan import engines
from vramplan.engines import FOLDERS, OWNERS, brought_for, engine_of, imported
from vramplan.replay import techniques
from vramplan.replay.inputs import Objective
from vramplan.replay.models.modules import OUTSIDE_LOSSES, Segment
from vramplan.replay.observers import EVENTS, Observer, Sharding
from vramplan.replay.precision import precision_of
from vramplan.replay.recorder import Tape
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.replay.techniques import OBJECTIVES, TECHNIQUES, Technique, techniques_of
from vramplan.replay.tensors import Parameter
from vramplan.values.engine import Engine

pytestmark = pytest.mark.contract

LAYERS = 5
PLAIN = Setup(
    model=shape("gpt2", LAYERS, 2, 2, 32, 512, True, "lm", 0.0),
    precision="amp-fp16",
    sequence_length=16,
    attention="efficient",
    segments=(Segment(LAYERS, 1, True),),
    optimizer="adamw",
    optimizer_implementation="foreach",
    accumulating=False,
    hold_outputs=False,
)
OF_A_BLOCK = 12  # weights and biases of two norms and four layers
WEIGHTS = LAYERS * OF_A_BLOCK + 4  # two tables, the last norm
MOST_ATTRIBUTES = 32


def names_of(setup: Setup) -> list[str]:
    taking = techniques_of(setup, Tape(2), precision_of(setup.precision))
    return [type(one).__name__ for one in taking]


@pytest.mark.parametrize("address", [address for _, address in TECHNIQUES])
def test_the_table_names_techniques(address: str) -> None:
    assert issubclass(imported(address), Technique)


def test_every_loss_outside_of_the_model_has_who_makes_it() -> None:
    assert OBJECTIVES.keys() == OUTSIDE_LOSSES.keys()
    for address in OBJECTIVES.values():
        assert issubclass(imported(address), Objective)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"max_gradient_norm": 1.0}, ["Clips"]),
        ({"max_gradient_norm": 1.0, "fp32_gradients": True}, ["ResidentGradients", "ClipsFp32"]),
        ({"max_gradient_norm": 1.0, "offload": ("optimizer",)}, []),
        ({"ema": True, "grad_scaler": True, "max_gradient_norm": 1.0}, ["Clips", "Averages", "ScalesLoss"]),
        ({"frozen": ("layers",), "offload_activations": True}, ["TrainsLess", "OffloadsActivations"]),
        ({"precision": "fp8"}, ["MultipliesInFloat8"]),
    ],
)
def test_a_job_has_the_techniques_that_it_uses(changes: dict[str, Any], expected: list[str]) -> None:
    assert names_of(PLAIN._replace(**changes)) == expected


class Watcher(Technique, Observer):
    """Counts all that it is told, by the name of what tells it."""

    calls: ClassVar[Counter[str]] = Counter()

    def before_model(self) -> None:
        self.tape.observe(self)
        self.calls["before_model"] += 1

    def made(self, parameter: Parameter) -> None:
        self.calls["made"] += 1

    def made_linear(self, layer: Any) -> None:
        self.calls["made_linear"] += 1

    def recorded(self, inputs: Any, fn: Any) -> Any:
        self.calls["recorded"] += 1
        return fn

    def recomputing(self, node: Any) -> None:
        self.calls["recomputing"] += 1

    def before_accumulate(self, parameter: Parameter) -> None:
        assert parameter.grad is None
        self.calls["before_accumulate"] += 1

    def after_accumulate(self, parameter: Parameter) -> None:
        assert parameter.grad is not None
        self.calls["after_accumulate"] += 1

    def after_step(self) -> None:
        assert all(one.grad is not None for one in self.tape.parameters)
        self.calls["after_step"] += 1


def test_an_observer_sees_everything_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = replay(PLAIN, batch=3, direct=True)
    monkeypatch.setattr(Watcher, "calls", Counter())
    monkeypatch.setattr(techniques, "imported", lambda address: Watcher if address == "watcher" else imported(address))
    monkeypatch.setattr(techniques, "TECHNIQUES", (*TECHNIQUES, (lambda setup: True, "watcher")))
    tape = Tape(3, direct=True)
    watched = replay(PLAIN, tape=tape)
    assert (watched.events, watched.fixed) == (alone.events, alone.fixed)
    operators = Watcher.calls.pop("recorded")
    assert operators > LAYERS * OF_A_BLOCK
    assert Watcher.calls == {
        "before_model": 1,
        "made": WEIGHTS,
        "made_linear": LAYERS * 4,
        "recomputing": LAYERS,
        "before_accumulate": WEIGHTS,
        "after_accumulate": WEIGHTS,
        "after_step": 1,
    }
    assert tape.told.observers == ()
    assert Sharding not in tape.roles


def test_an_observer_is_told_of_what_it_overrides_alone() -> None:
    class OfLeaves(Observer):
        def leaf_reached(self, leaf: Parameter) -> None:
            """Overridden, and nothing else is."""

    tape, observer = Tape(2), OfLeaves()
    tape.observe(observer)
    assert [event for event in EVENTS if getattr(tape.told, event)] == ["leaf_reached"]
    tape.ignore(observer)
    assert not any(getattr(tape.told, event) for event in EVENTS)


def test_the_recorder_has_no_switch_of_a_guest() -> None:
    assert len(vars(Tape(2))) <= MOST_ATTRIBUTES, "let a guest know it: vramplan/replay/observers.py, Observer"


def test_a_role_that_nobody_plays_changes_nothing() -> None:
    class Doubles(Sharding):
        rows_among = 2

    tape, guest = Tape(2), Doubles()
    assert tape.role(Sharding).rows_among == 1
    tape.enlist(Sharding, guest)
    assert tape.role(Sharding) is guest
    tape.dismiss(Sharding)
    assert tape.role(Sharding).rows_among == 1


def test_every_event_has_a_method_of_observers() -> None:
    methods = {name for name, method in vars(Observer).items() if callable(method) and name[0] != "_"}
    assert {*EVENTS} == methods


@pytest.mark.parametrize("word", OWNERS)
def test_an_engine_brings_what_the_registry_says(word: str) -> None:
    assert OWNERS[word] in FOLDERS
    assert brought_for(word) is imported(engine_of(OWNERS[word]).brings[word])


def test_another_package_brings_an_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Engine(name="other", brings={"other-adam": "vramplan.replay.optimizers.muon"})
    monkeypatch.setattr(engines, "_entry_points", lambda: {"other": SimpleNamespace(load=lambda: other)})
    engine_of.cache_clear()
    brought_for.cache_clear()
    try:
        assert brought_for("other-adam") is imported("vramplan.replay.optimizers.muon")
        assert brought_for("nobodys-adam") is None
    finally:
        engine_of.cache_clear()
        brought_for.cache_clear()
