"""micro * steps * data == global, always, and what is said when that cannot be."""

from __future__ import annotations

import re
from math import gcd, prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.answers import answer
from tests.cli.draws import jobs
from vramplan.errors import InputError, UsageError
from vramplan.job import build_job
from vramplan.planner.accumulation import OpenSchedules, divisors
from vramplan.results import FitResult

TINY = {"family": "gpt2", "layers": 1, "hidden_size": 32, "attention_heads": 1, "vocabulary_size": 100}
PUBLISHED = {**TINY, "recipe_global_batch_size": 512}
CARD = {"name": "card", "memory": "24 GiB"}


def run(**keys: Any) -> FitResult:
    return answer(build_job({"model": TINY, "gpu": CARD, "sequence_length": 16, **keys}))


def batch(result: FitResult) -> tuple[int, int, int]:
    job = result.job
    return job["micro_batch_size"], job["gradient_accumulation_steps"], job["global_batch_size"]


def told(result: FitResult) -> dict[str, Any]:
    return {assumption.key: assumption.value for assumption in result.assumptions}


def reachable(message: str) -> list[int]:
    found = re.search(r"reachable: ([\d and]+)", message)
    assert found, message
    return [int(number) for number in found[1].split(" and ")]


@pytest.mark.sweep(4)
@settings(deadline=None, max_examples=12)
@given(jobs())
def test_the_product_is_the_global_batch(raw: dict[str, Any]) -> None:
    result = answer(build_job(raw))
    data = raw["parallel"]["data"]
    micro, steps, whole = batch(result)
    assert micro * steps * data == whole
    assert raw.get("global_batch_size") in (None, whole)
    recommended = result.recommended
    if recommended.micro_batch_size is not None:
        assert (micro, steps, whole) == recommended[:3]
    for row in result.alternatives:
        assert row.gradient_accumulation_steps is not None
        if "global_batch_size" in raw:
            assert row.micro_batch_size * row.gradient_accumulation_steps * data == whole


@given(st.integers(1, 300), st.integers(1, 40), st.one_of(st.none(), st.integers(1, 40)), st.integers(1, 8))
def test_an_unreachable_global_batch_names_the_nearest_ones(
    wanted: int, micro: int, steps: int | None, data: int
) -> None:
    unit = micro * data * (steps or 1)
    if wanted % unit == 0 and (steps is None or wanted == unit):
        solved = OpenSchedules(micro=micro, steps=steps, global_batch=wanted, given=True, data=data)
        assert [one.micro_batch_size * one.gradient_accumulation_steps * data for one in solved.schedules()] == [wanted]
        return
    with pytest.raises(UsageError) as caught:
        OpenSchedules(micro=micro, steps=steps, global_batch=wanted, given=True, data=data)
    neighbours = reachable(str(caught.value))
    if steps is not None:
        assert neighbours == [unit]
        return
    below = max((n for n in range(unit, wanted, unit)), default=None)
    above = min(range(unit, wanted + unit + 1, unit), key=lambda n: (n <= wanted, n))
    assert neighbours == [n for n in (below, above) if n is not None]


def test_an_unreachable_global_batch_is_refused_in_words() -> None:
    with pytest.raises(InputError, match="global batch size 100 cannot be reached") as caught:
        run(global_batch_size=100, micro_batch_size=8)
    assert reachable(str(caught.value)) == [96, 104]
    with pytest.raises(InputError, match="3 data-parallel GPUs") as caught:
        run(global_batch_size=512, parallel={"data": 3})
    assert reachable(str(caught.value)) == [510, 513]
    with pytest.raises(InputError, match="7 accumulation steps") as caught:
        run(global_batch_size=512, gradient_accumulation_steps=7)
    assert reachable(str(caught.value)) == [511, 518]
    with pytest.raises(InputError, match="cannot be reached") as caught:
        run(global_batch_size=5, micro_batch_size=8)
    assert reachable(str(caught.value)) == [8]  # nothing is below


@pytest.mark.parametrize(
    ("keys", "reached"),
    [
        ({"micro_batch_size": 3}, 513),  # 510 is 2 away
        ({"micro_batch_size": 10}, 510),
        ({"micro_batch_size": 1000}, 1000),
        ({"parallel": {"data": 3}}, 513),
        ({"micro_batch_size": 5, "parallel": {"data": 8}}, 520),
    ],
)
def test_a_published_global_batch_moves_to_the_nearest_reachable_one_and_says_so(
    keys: dict[str, Any], reached: int
) -> None:
    result = run(model=PUBLISHED, **keys)
    assert batch(result)[2] == reached
    assert told(result)["global_batch_size"] == reached
    why = next(item.why for item in result.assumptions if item.key == "global_batch_size")
    assert "nearest" in why
    assert "512" in why


def test_a_reachable_published_batch_stays_where_it_is() -> None:
    result = run(model=PUBLISHED, micro_batch_size=8)
    assert batch(result) == (8, 64, 512)
    assert told(result)["global_batch_size"] == 512


def test_steps_without_a_global_batch_multiply_and_nothing_is_assumed() -> None:
    result = run(gradient_accumulation_steps=3, micro_batch_size=5, parallel={"data": 2})
    assert batch(result) == (5, 3, 30)
    assert "global_batch_size" not in told(result)
    largest = run(gradient_accumulation_steps=3)
    micro, steps, whole = batch(largest)
    assert (steps, whole) == (3, 3 * micro)
    assert micro > 512  # no published batch bounds it
    assert "global_batch_size" not in told(largest)


def test_steps_and_a_global_batch_make_the_micro_batch() -> None:
    assert batch(run(gradient_accumulation_steps=4, global_batch_size=48, parallel={"data": 2})) == (6, 4, 48)


def test_all_three_keys_must_agree() -> None:
    keys = {"micro_batch_size": 4, "gradient_accumulation_steps": 8}
    assert batch(run(**keys, global_batch_size=32)) == (4, 8, 32)
    with pytest.raises(InputError, match=r"4 \* gradient_accumulation_steps 8 \* data 1 = 32, not 33"):
        run(**keys, global_batch_size=33)


def test_the_fewest_steps_that_fit_are_preferred() -> None:
    wide = run(global_batch_size=96)
    assert batch(wide) == (96, 1, 96)
    assert wide.job["activation_checkpointing"] == "none"


def test_gradients_are_resident_exactly_if_the_job_accumulates() -> None:
    one, two = run(micro_batch_size=2), run(micro_batch_size=2, gradient_accumulation_steps=256)
    assert one.job["gradient_accumulation_steps"] == 1
    basis = {part.name: part.basis for part in two.components}["gradients"]
    assert "resident" in basis
    assert one.peak.forward_bytes < two.peak.forward_bytes


def test_replicas_do_not_change_what_one_device_holds() -> None:
    alone = run(micro_batch_size=4, gradient_accumulation_steps=2)
    eight = run(micro_batch_size=4, gradient_accumulation_steps=2, parallel={"data": 8, "sharding": "none"})
    assert eight.peak == alone.peak
    assert batch(eight) == (4, 2, 64)
    assert any("communication buffers are not counted" in warning for warning in eight.warnings)


@given(st.integers(1, 5000))
def test_divisors_are_all_of_them_the_largest_first(number: int) -> None:
    found = divisors(number)
    assert found == sorted((n for n in range(1, number + 1) if gcd(n, number) == n), reverse=True)


def test_an_interleaved_pipeline_takes_steps_in_multiples_of_its_stages() -> None:
    parallel = {"data": 6, "pipeline": 2, "schedule": "interleaved:2"}
    found = run(model="gpt2", gpu="80 GiB", parallel=parallel)
    micro, steps, whole = batch(found)
    assert steps % 2 == 0
    assert micro * steps * 6 == whole == 516


@given(st.lists(st.integers(1, 60), min_size=1, max_size=3))
def test_divisors_of_a_product(factors: list[int]) -> None:
    product = prod(factors)
    assert divisors(*factors) == [one for one in range(product, 0, -1) if product % one == 0]


def test_divisors_of_a_product_of_two_long_numbers_take_no_time() -> None:
    assert len(divisors(2**40, 2**40)) == 81
    assert divisors(1_099_511_627_689) == [1_099_511_627_689, 1]  # the largest prime below 2^40
