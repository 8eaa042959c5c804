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
from vramplan.answers.gate import gate
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
    path = file_of(tmp_path, {**JOB, "name": "a", "tokens": "1B", "budget": 1, "deadline": "1h"})
    code, out, _ = run("check", path, "--format", "json")
    row = json.loads(out)["results"][0]
    assert (code, row["passed"]) == (3, False)
    assert any("the budget is 1 USD" in reason for reason in row["reasons"])
    enough = f"the deadline is 60 min: {found['devices_in_time']:,} GPUs or more would keep it"
    assert any(enough in reason for reason in row["reasons"])
    assert run("check", path).code == 3


def test_a_limit_that_cannot_be_judged_is_not_kept_and_says_what_is_missing(tmp_path: Path) -> None:
    unknown = {**JOB, "gpu": "80 GiB", "micro_batch_size": 1}
    document = answered(**unknown, tokens="1B", deadline="36h", budget="5")
    deadline, budget = document["limits"]
    assert (deadline["key"], deadline["kept"], budget["key"], budget["kept"]) == ("deadline", None, "budget", None)
    assert "cannot be judged: no memory bandwidth of the GPU is known (80 GiB)" in deadline["why"]
    assert "--price" in budget["why"]
    assert "--price" not in answered(**unknown, tokens="1B", budget="5", price="2")["limits"][0]["why"]
    assert (document["verdict"], document["exit_code"]) == ("fits", 3)
    assert {deadline["why"], budget["why"]} <= set(document["warnings"])
    small = {"model": "gpt2", "gpu": "gtx-1080-ti", "precision": "amp-fp16"}
    path = file_of(tmp_path, {**JOB, **small, "micro_batch_size": 1, "name": "a", "tokens": "1B", "deadline": "52w"})
    row = json.loads(run("check", path, "--format", "json").out)["results"][0]
    assert (row["passed"], row["exit_code"]) == (False, 3)
    assert "cannot be judged" in row["reasons"][0]


def test_a_budget_without_a_price_is_not_kept() -> None:
    priceless = {**JOB, "gpu": "gtx-1080", "model": "gpt2", "micro_batch_size": 1, "precision": "fp32"}
    document = answered(**priceless, tokens="1M", budget="5000", deadline="52w")
    assert [limit["kept"] for limit in document["limits"]] == [True, None]
    assert document["limits"][1]["why"].endswith("no price of the GPU is known: --price gives one")
    assert document["exit_code"] == 3
    assert answered(**priceless, tokens="1M", budget="5000", price="1")["exit_code"] == 0


def test_a_tight_run_has_limits_too() -> None:
    asked = {**JOB, "tokens": "1B", "budget": 1}
    job, result = build_any_job(asked), fit(**asked)
    tight = result._replace(verdict="tight", headroom_bytes=1)
    for strict in (False, True):
        row = gate(tight, job, strict=strict)
        assert (row.passed, row.exit_code, row.reasons) == (False, 3, result.broken_limits)
        assert tight.exit_code(strict=strict) == 3


def test_a_broken_limit_has_a_line_of_its_own_under_the_verdict() -> None:
    said = run("fit", *WORDS, "--tokens", "1B", "--deadline", "1h", "--budget", "1").out.splitlines()
    assert said[1].split()[:3] == ["limit", "misses", "the"]
    assert said[2].split()[:3] == ["limit", "exceeds", "the"]
    assert max(map(len, said)) <= 80
    kept = run("fit", *WORDS, "--tokens", "1B", "--deadline", "52w").out
    assert "limit " not in kept


def test_why_a_run_has_no_time_is_said_where_one_is_asked() -> None:
    words = ("fit", "-m", "gpt2", "-g", "24 GiB", "--micro-batch", "1")
    assert "no memory bandwidth of the GPU is known" in " ".join(run(*words, "--samples", "52k").out.split())
    assert "bandwidth" not in run(*words).out


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


@pytest.mark.plain
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
