"""The figures that texts print for whole runs. Tolerances are half of the last printed digit."""

from __future__ import annotations

import pytest

from vramplan.planner.textbook import cost
from vramplan.planner.textbook.flops import training_flops

pytestmark = pytest.mark.closed_form


def test_seventy_billion_parameters_on_two_trillion_tokens() -> None:
    flops = training_flops(70 * 10**9, 2e12)
    assert flops == pytest.approx(8.4e23)
    alone = cost.run_seconds(flops, 1, 989e12, 0.5)
    assert alone == pytest.approx(1.70e9, abs=0.005e9)
    assert alone / cost.SECONDS_PER_DAY / 365.25 == pytest.approx(54, abs=0.5)
    together = cost.run_seconds(flops, 1000, 989e12, 0.5)
    assert together / cost.SECONDS_PER_DAY == pytest.approx(19.7, abs=0.05)
    rent = cost.rent_usd(1000, together, 3)
    assert rent == pytest.approx(1.42e6, abs=0.005e6)
    assert cost.break_even_runs(1000 * 30_000, rent) == pytest.approx(21, abs=0.5)


def test_the_energy_of_seven_billion_parameters_on_one_trillion_tokens() -> None:
    flops = training_flops(7 * 10**9, 1e12)
    assert flops == pytest.approx(4.2e22)
    hours = cost.run_seconds(flops, 1024, 150e12, 1.0) / 3600
    assert hours == pytest.approx(76.0, abs=0.05)
    assert hours / 24 == pytest.approx(3.2, abs=0.05)
    energy = cost.energy_kwh(hours, 1024, 400, 128, 200)
    assert energy == pytest.approx(33_056, abs=5)  # the text multiplies 75.95 rounded hours
    assert cost.household_months(energy) == pytest.approx(37, abs=0.5)
    assert energy / 2 == pytest.approx(16_528, abs=3)
    assert cost.co2_kg(energy / 2, 0.4) == pytest.approx(6600, abs=50)


def test_eight_gpus_for_thirty_two() -> None:
    hour = 3600.0
    assert cost.rent_usd(32, hour, 16) == 512
    assert cost.rent_usd(8, hour, 16) == 128
    two_weeks = 14 * cost.SECONDS_PER_DAY
    assert cost.rent_usd(32, two_weeks, 16) == pytest.approx(172.0e3, abs=50)
    assert cost.rent_usd(8, two_weeks, 16) == pytest.approx(43.0e3, abs=50)


def test_data() -> None:
    assert cost.pipeline_utilisation(500, 1000) == 0.5
    assert cost.pipeline_utilisation(2000, 1000) == 1
    assert cost.disk_rate(7e9) == 3.5e9
    assert cost.host_buffer_bytes(100, 2) == 400
