"""Platforms: the network and the host link of usual machines, by architecture, each with its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramplan import fit
from vramplan.catalog import locate
from vramplan.catalog.generations import GENERATIONS
from vramplan.catalog.gpus import find_gpu
from vramplan.catalog.platforms import OTHER, RATES, SHARES, load_platform, on_platform

pytestmark = pytest.mark.contract

MINE = """\
kind: platform
name: hopper
sources:
  bill: {title: our cluster, url: "https://example.com", accessed: "2026-11-01"}
fields:
  network: {value: 25 GB/s, source: bill}
  nvlink_share: {value: 0.82, source: bill}
  network_share: {value: 0.94, source: bill}
"""


def test_every_platform_is_of_an_architecture_and_says_where_its_rates_are_from() -> None:
    found = locate.load_all("platforms", (), load_platform)
    assert {one.name for one in found} <= {*GENERATIONS, OTHER}
    for one in found:
        assert one.fields
        assert all(field.source is not None for field in one.fields.values())
    other = next(one for one in found if one.name == OTHER)
    assert all(other.value(key) for key in (*RATES, *SHARES)), "it stands in for all that the others do not say"


def test_machines_without_nvlink_have_the_plain_network() -> None:
    h100, rtx, p100 = (on_platform(find_gpu(name).gpu()) for name in ("h100", "rtx-4090", "p40"))
    assert (h100.network_bytes_per_s, h100.host_bytes_per_s) == (400e9, 63e9)
    assert (rtx.network_bytes_per_s, rtx.host_bytes_per_s) == (12.5e9, 31.5e9)
    assert (p100.network_bytes_per_s, p100.host_bytes_per_s) == (12.5e9, 15.75e9)


def test_a_platform_of_the_user_is_the_network_of_their_machines(tmp_path: Path) -> None:
    (tmp_path / "platforms").mkdir()
    (tmp_path / "platforms" / "hopper.yaml").write_text(MINE, "utf-8")
    run = {"model": "gpt2", "gpu": "h100", "micro_batch_size": 1}
    far = {"data": 16, "sharding": "ddp", "devices_per_node": 8}
    usual = fit(**run, parallel=far).time
    slow = fit(**run, parallel=far, profiles=[tmp_path]).time
    said = fit(**run, parallel={**far, "node_bandwidth": "25 GB/s"}).time
    assert usual is not None
    assert slow == said
    assert slow.step_seconds > usual.step_seconds
