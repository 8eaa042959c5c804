"""The closed forms, each against the figure that a text prints for it. This proves the transcription, nothing more.

The tolerance of each is half of the last printed digit.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramplan.planner.textbook import accumulation, activations, checkpointing, learning_rate
from vramplan.planner.textbook.activations import ActivationSizes
from vramplan.planner.textbook.states import MOMENTS, Elements, model_states

GB = 10**9
FP32, MIXED = Elements(4, 4, 0, 4), Elements(2, 2, 4, 4)
XL = ActivationSizes(batch=32, sequence_length=1024, hidden_size=1600, layers=48, attention_heads=25)

pytestmark = pytest.mark.closed_form


def printed(size_bytes: float, figure: float, digit: float = 0.1, unit: int = GB) -> None:
    assert size_bytes / unit == pytest.approx(figure, abs=digit / 2 + 1e-9)


@pytest.mark.parametrize(
    ("parameters", "elements", "parts", "total"),
    [
        (1_500_000_000, FP32, (6, 6, 0, 12), 24),
        (1_500_000_000, MIXED, (3, 3, 6, 12), 24),
        (7_000_000_000, Elements(2, 2, 0, 4), (14, 14, 0, 56), 84),
        (20_000_000_000, Elements(2, 0, 0, 4), (40, 0, 0, 160), 200),
    ],
)
def test_model_states(parameters: int, elements: Elements, parts: tuple[int, ...], total: int) -> None:
    states = model_states(parameters, elements, "adamw")
    assert states == tuple(part * GB for part in parts)
    assert states.total == total * GB


def test_adam_alone() -> None:
    assert model_states(100_000_000, FP32, "adam").optimizer == 0.8 * GB


def test_optimizer_states_relative_to_the_weights() -> None:
    quoted = {"sgd": 0, "sgd-momentum": 1, "rmsprop": 1, "adam": 2, "adamw": 2}
    assert {name: MOMENTS[name] for name in quoted} == quoted


@pytest.mark.parametrize(("stage", "figure"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero(stage: int, figure: float) -> None:
    printed(model_states(7_500_000_000, MIXED, "adam", stage=stage, shards=64).total, figure)


@given(st.integers(1, 10**12), st.integers(1, 4096))
def test_each_stage_of_zero_holds_no_more_than_the_one_before(parameters: int, shards: int) -> None:
    totals = [model_states(parameters, MIXED, "adam", stage=stage, shards=shards).total for stage in range(4)]
    assert totals == sorted(totals, reverse=True)
    assert totals[3] * shards >= totals[0]  # demand rounds up


def test_the_three_activation_models() -> None:
    printed(activations.book(XL), 40.7)
    printed(activations.book(XL) / 48, 848.9, unit=10**6)
    printed(activations.book(XL, 4), 81.5)
    printed(activations.zero_paper(XL), 60.4)
    printed(activations.korthikanti(XL), 286.9)
    printed(activations.korthikanti(XL) / 48, 5.98, 0.01)


def test_korthikanti_is_the_equation_of_the_paper_in_16_bits() -> None:
    assert activations.korthikanti(XL) == 48 * 1024 * 32 * 1600 * 34 + 48 * 5 * 25 * 1024**2 * 32


def test_a_quoted_figure_is_scaled_by_its_elements() -> None:
    assert activations.at_element_size(65 * GB, 4) == 65 * GB
    assert activations.at_element_size(65 * GB, 2) == 32.5 * GB


def test_the_checkpointing_table() -> None:
    layer = 10**9
    assert checkpointing.best_checkpoints(48) == 7
    assert checkpointing.checkpointed_bytes(48 * layer, 48, 0) == 48 * layer
    assert checkpointing.checkpointed_bytes(48 * layer, 48, 48) == layer
    best = checkpointing.checkpointed_bytes(48 * layer, 48, 7)
    printed(best, 13.9)  # 7 A + 48/7 A
    assert round(100 * (1 - best / (48 * layer))) == 71
    assert [checkpointing.recomputed_layers(48, k) for k in (0, 48, 7)] == [0, 47, 41]
    assert pytest.approx(0.33, abs=0.005) == checkpointing.ONE_MORE_FORWARD


@given(st.integers(2, 300))
def test_no_other_count_of_checkpoints_is_better_than_the_root(layers: int) -> None:
    """Of the whole numbers, one beside the real optimum is best; the rounded root is within 2 % of it."""
    sizes = [checkpointing.checkpointed_bytes(layers * 10**9, layers, k) for k in range(1, layers)]
    best = checkpointing.checkpointed_bytes(layers * 10**9, layers, checkpointing.best_checkpoints(layers))
    if checkpointing.best_checkpoints(layers) < layers:
        assert best <= 1.02 * min(sizes)


@pytest.mark.parametrize(
    ("strategy", "count"),
    [("none", 0), ("full", 48), ("every:1", 48), ("sqrt", 7), ("every:4", 12), ("every:7", 7), ("selective", None)],
)
def test_strategies_as_rows_of_the_table(strategy: str, count: int | None) -> None:
    assert checkpointing.checkpoint_count(strategy, 48) == count


def test_accumulation() -> None:
    assert accumulation.effective_batch(16, 4, 8) == 512
    assert accumulation.communication_saved(4) == 0.75
    quoted = {1: "none", 2: "none", 3: "under 5 %", 4: "under 5 %", 5: "under 10 %", 8: "under 10 %"}
    quoted |= {9: "under 20 %", 16: "under 20 %", 17: "over 20 %", 1000: "over 20 %"}
    assert {k: accumulation.quoted_overhead(k) for k in quoted} == quoted


def test_learning_rates() -> None:
    assert learning_rate.linear(0.1, 256, 1024) == pytest.approx(0.4)
    assert learning_rate.linear(0.1, 256, 8192) == pytest.approx(3.2)
    assert learning_rate.square_root(0.1, 256, 8192) == pytest.approx(0.57, abs=0.005)


@pytest.mark.parametrize(
    ("batch", "steps"),
    [
        *((1, (0, 500)), (512, (0, 500)), (513, (1000, 1000)), (2048, (1000, 1000)), (2049, (5000, 5000))),
        *((8192, (5000, 5000)), (8193, (10000, 10000)), (32768, (10000, 10000)), (32769, (20000, 20000))),
    ],
)
def test_warm_up(batch: int, steps: tuple[int, int]) -> None:
    assert learning_rate.warm_up_steps(batch) == steps


@pytest.mark.parametrize(
    ("optimizer", "batch", "rule"),
    [
        *(("sgd", 1024, "linear"), ("sgd-momentum", 8192, "linear"), ("sgd-momentum", 8193, "square-root")),
        *(("adamw", 1024, "square-root"), ("adam", 64, "square-root"), ("rmsprop", 64, "square-root")),
        *(("adafactor", 64, "square-root"), ("lamb", 16384, "square-root"), ("lars", 4096, "linear")),
    ],
)
def test_the_optimizer_decides_the_rule(optimizer: str, batch: int, rule: str) -> None:
    assert learning_rate.rule_for(optimizer, batch) == rule


@pytest.mark.parametrize(("batch", "name"), [(8191, None), (8192, "lamb"), (32768, "lamb"), (32769, None)])
def test_where_texts_change_the_optimizer(batch: int, name: Any) -> None:
    assert learning_rate.layerwise_optimizer(batch, convolutional=False) == name
    assert learning_rate.layerwise_optimizer(batch, convolutional=True) == (name and "lars")
