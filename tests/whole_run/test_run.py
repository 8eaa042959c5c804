"""How long a run is said to take and to cost, and that saying so changes no byte of memory."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.running import run, valid
from tests.gates.test_matrix import file_of
from vramplan import fit
from vramplan.catalog import locate
from vramplan.catalog.gpus import find_gpu
from vramplan.catalog.grids import load_grid
from vramplan.catalog.prices import load_prices, rents_of
from vramplan.job import build_any_job
from vramplan.values.job import ResolvedJob

pytestmark = pytest.mark.contract

JOB: dict[str, Any] = {"model": "gpt2-xl", "gpu": "a100-80gb", "micro_batch_size": 4, "gradient_accumulation_steps": 2}
WORDS = ("-m", "gpt2-xl", "-g", "a100-80gb", "--micro-batch", "4", "--gradient-accumulation-steps", "2")


def answered(**more: Any) -> dict[str, Any]:
    document: dict[str, Any] = fit(**{**JOB, **more}).to_dict()
    return valid("fit", document)


def of_run(**more: Any) -> dict[str, Any]:
    found: dict[str, Any] = answered(**more)["run"]
    return found


LENGTHS = st.fixed_dictionaries(
    {},
    optional={
        "epochs": st.floats(0.1, 100),
        "goodput": st.floats(0.1, 1),
        "price": st.sampled_from(["2.5", "1.99-3.50", "1-2-3"]),
        "deadline": st.sampled_from(["7d", "36 h", "90min"]),
        "budget": st.sampled_from(["5000", "5k", "$12"]),
        "pue": st.floats(1, 2),
        "grid": st.sampled_from(["france", "us", "400 g/kWh", "0.4 kg/kWh"]),
        "data_rate": st.sampled_from(["1 kB/s", "3 GB/s"]),
        "sample_size": st.just("110 kB"),
    },
)


@pytest.mark.sweep(2)
@settings(max_examples=20, deadline=None)
@given(
    length=st.sampled_from([{"tokens": "3B"}, {"samples": "52k"}, {"compute_optimal": True}]),
    more=LENGTHS,
)
def test_a_length_moves_no_byte_and_no_verdict(length: dict[str, Any], more: dict[str, Any]) -> None:
    bare, told = answered(), answered(**length, **more)
    for key in ("verdict", "peak", "components", "overheads", "recommended", "checkpoints", "alternatives"):
        assert told[key] == bare[key]
    for part in ("steady_seconds", "wall_seconds", "gpu_hours", "cost_usd", "energy_kwh", "co2_kg"):
        found = told["run"][part]
        assert found is None or 0 < found["low"] <= found["likely"] <= found["high"]


def test_steps_hours_cost_and_energy_are_products() -> None:
    document = answered(tokens="1B", price="2", goodput=0.5, pue=1.2, grid="400 g/kWh")
    found, time = document["run"], document["time"]
    assert found["steps"] == math.ceil(10**9 / (8 * 1024))
    steady = found["steady_seconds"]
    assert steady["likely"] == pytest.approx(found["steps"] * time["step_seconds"])
    assert found["wall_seconds"]["likely"] == pytest.approx(2 * steady["likely"])
    hours = found["wall_seconds"]["likely"] / 3600
    assert found["gpu_hours"]["likely"] == pytest.approx(hours)
    assert found["cost_usd"]["likely"] == pytest.approx(2 * hours)
    assert found["energy_kwh"]["likely"] == pytest.approx(hours * 0.4 * 0.9 * 1.2)
    assert found["co2_kg"]["likely"] == pytest.approx(0.4 * found["energy_kwh"]["likely"])
    assert found["tokens_per_parameter"] == pytest.approx(10**9 / document["parameters"]["total"], rel=1e-3)


def test_epochs_go_over_samples_or_tokens() -> None:
    assert of_run(samples=1000, epochs=3)["samples"] == 3000
    assert of_run(samples=1000)["steps"] == 125
    assert of_run(tokens=8192, epochs=2.5)["steps"] == 3
    assert of_run(compute_optimal=True)["tokens"] == pytest.approx(20 * 1_557_611_200, rel=1e-6)


def test_more_devices_share_the_hours() -> None:
    one = of_run(samples="52k", parallel={"data": 1})
    four = of_run(samples="52k", parallel={"data": 4, "sharding": "ddp"})
    assert four["steps"] == math.ceil(one["steps"] / 4)
    assert four["wall_seconds"]["likely"] < one["wall_seconds"]["likely"]


def test_a_deadline_that_is_missed_is_a_failed_gate_and_says_what_would_do(tmp_path: Path) -> None:
    found = of_run(tokens="1B", deadline="1h", budget="1")
    assert (found["in_time"], found["in_budget"]) == (False, False)
    assert found["devices_in_time"] == math.ceil(found["wall_seconds"]["likely"] / 3600)
    assert found["price_in_budget_usd"] * found["gpu_hours"]["likely"] == pytest.approx(1)
    ran = run("fit", *WORDS, "--tokens", "1B", "--deadline", "1h")
    assert ran.code == 3
    assert "misses the deadline of 60.0 min" in ran.out
    assert run("fit", *WORDS, "--tokens", "1B", "--deadline", "52w").code == 0
    path = file_of(tmp_path, {**JOB, "name": "a", "tokens": "1B", "budget": 1})
    code, out, _ = run("check", path, "--format", "json")
    row = json.loads(out)["results"][0]
    assert (code, row["passed"]) == (3, False)
    assert any("the budget is 1 USD" in reason for reason in row["reasons"])
    assert run("check", path).code == 3


def test_data_that_come_too_slowly_bound_the_step() -> None:
    fast = answered(data_rate="1 GB/s")
    assert fast["data"]["is_bound"] is False
    assert fast["time"] == answered()["time"]
    needed = fast["data"]["needed_bytes_per_s"]
    assert needed == pytest.approx(fast["time"]["samples_per_second"] * 4 * 1024)
    slow = answered(data_rate=f"{int(needed / 4)} B/s", tokens="1B")
    assert slow["time"]["bound"] == "data"
    assert slow["time"]["step_seconds"] == pytest.approx(4 * fast["time"]["step_seconds"], rel=1e-3)
    assert sum(slow["time"]["shares"].values()) == pytest.approx(1, abs=1e-4)
    assert slow["data"]["host_buffer_bytes"] == 4 * 4 * 1024 * 4


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"epochs": 3}, "of what?"),
        ({"price": "2"}, "nobody says how long it is"),
        ({"tokens": "1B", "samples": 7}, "how long the run is already"),
        ({"tokens": "many"}, "is no count of tokens"),
        ({"tokens": "1B", "price": "3-2"}, "is not understood"),
        ({"tokens": "1B", "price": "2/day"}, "is not understood"),
        ({"tokens": "1B", "budget": "5000/h"}, "is not understood"),
        ({"tokens": "1B", "budget": "50,00"}, "is not understood"),
        ({"tokens": "1B", "deadline": "soon"}, "is not understood"),
        ({"tokens": "1B", "grid": "atlantis"}, "is no grid"),
        ({"data_rate": "fast"}, "is no rate"),
    ],
)
def test_what_is_wrong_is_said(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said.replace("?", r"\?")):
        answered(**keys)


def test_a_price_that_nobody_gives_is_that_of_published_offers() -> None:
    document = answered(tokens="1B")
    offers = rents_of("a100-80gb")
    price = document["run"]["price_usd_per_gpu_hour"]
    assert (price["low"], price["high"]) == (offers[0].usd, offers[-1].usd)
    assert document["run"]["price_offers"] == len(offers) > 2
    told = next(one for one in document["assumptions"] if one["key"] == "price")
    assert all(offer.provider in told["why"] and offer.accessed in told["why"] for offer in offers)
    assert of_run(tokens="1B", gpu="24 GiB", micro_batch_size=1) is None  # no peak rate of such a card is known


def test_every_price_is_of_a_gpu_that_there_is_and_has_a_date() -> None:
    for one in locate.load_all("prices", (), load_prices):
        for gpu, field in one.fields.items():
            assert find_gpu(gpu).name == gpu
            assert field.source is not None
            assert one.sources[field.source].accessed.startswith("202")
    assert len(locate.load_all("grids", (), load_grid)) > 20


@pytest.mark.parametrize("text", ["5000", "5k", "$5000", "5,000", "5000 USD", "usd 5000", "5000usd", "5000$"])
def test_money_is_read_as_people_write_it(text: str) -> None:
    one, other = (
        build_any_job({**JOB, "tokens": "1B", "budget": text, "price": money}) for money in (text, f"{text}/h")
    )
    assert isinstance(one, ResolvedJob)
    assert isinstance(other, ResolvedJob)
    assert one.length.budget_usd == 5000
    assert one.length.price == other.length.price == (5000, 5000, 5000)
