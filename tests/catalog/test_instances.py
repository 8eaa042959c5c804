"""Instances of clouds: their GPUs, the memory of their host and their network, each with its source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import run
from vramplan.catalog import locate
from vramplan.catalog.gpus import find_gpu
from vramplan.catalog.instances import instance_named, load_instances
from vramplan.catalog.prices import rents_of
from vramplan.errors import InputError
from vramplan.job import build_any_job
from vramplan.job.given.spelled import instance_of
from vramplan.values.job import ResolvedJob

pytestmark = pytest.mark.contract


def job(**keys: Any) -> ResolvedJob:
    """A job with these keys."""
    found = build_any_job({"model": "llama-3.1-8b", "adapter": "lora", **keys})
    assert isinstance(found, ResolvedJob)
    return found


def test_every_instance_has_a_gpu_of_the_catalogue_and_a_source_and_is_found_by_its_name() -> None:
    clouds = locate.load_all("instances", (), load_instances)
    assert {one.name for one in clouds} == {"aws", "azure", "gcp", "lambda", "nvidia"}
    for cloud in clouds:
        for name, field in cloud.fields.items():
            assert field.source is not None
            assert find_gpu(field.value.gpu).name == field.value.gpu
            found = instance_of(name)
            assert found is not None, f"{name} has another form than names of instances"
            assert (found.name, found.cloud) == (name, cloud.name)


def test_the_rent_of_sagemaker_is_not_that_of_ec2() -> None:
    plain, managed = instance_named("p4d.24xlarge"), instance_named("ml.p4d.24xlarge")
    assert plain is not None
    assert plain.usd_per_hour is not None
    assert managed == plain._replace(usd_per_hour=None)


@pytest.mark.parametrize(
    ("text", "gpu", "devices"),
    [
        ("p4d.24xlarge", "a100-40gb", 8),
        ("2xp4d.24xlarge", "a100-40gb", 16),
        ("P5.48xlarge", "h100-80gb", 8),
        ("g5.12xlarge", "a10g", 4),
        ("g6e.xlarge", "l40s", 1),
        ("a2-highgpu-4g", "a100-40gb", 4),
        ("g2-standard-48", "l4", 4),
        ("a3-ultragpu-8g", "h200", 8),
        ("gpu_8x_a100_80gb_sxm4", "a100-80gb", 8),
        ("NVIDIA DGX H100", "h100-80gb", 8),
        ("2xdgx-h200", "h200", 16),
        ("standard nd96asr v4", "a100-40gb", 8),
        ("Standard_ND96isr_H100_v5", "h100-80gb", 8),
        ("nd96isr_h100_v5", "h100-80gb", 8),
        ("ml.p4d.24xlarge", "a100-40gb", 8),
    ],
)
def test_an_instance_is_its_gpus(text: str, gpu: str, devices: int) -> None:
    found = job(gpu=text)
    assert (found.gpu.name, found.data_parallel_size) == (gpu, devices)
    assert any(one.key == "gpu" and one.value == gpu for one in found.assumptions)


def test_a_part_of_an_instance_and_several_of_them_may_be_asked_for() -> None:
    assert job(gpu="p4d.24xlarge", parallel={"data": 4}).data_parallel_size == 4
    several = job(gpu="p4d.24xlarge", parallel={"data": 16})
    assert (several.devices_per_node, several.node_bandwidth_bytes_per_s) == (8, 50e9)
    own = job(gpu="2xp4d.24xlarge", parallel={"node_bandwidth": "100 GB/s"})
    assert own.node_bandwidth_bytes_per_s == 100e9
    with pytest.raises(InputError, match="is 8 GPUs, and the job says 12"):
        job(gpu="p4d.24xlarge", parallel={"data": 12})


def test_one_instance_has_no_network_to_look_at_and_its_host_memory_where_something_is_offloaded() -> None:
    assert job(gpu="p4d.24xlarge").node_bandwidth_bytes_per_s is None
    assert job(gpu="p4d.24xlarge").host_memory_bytes is None
    offloaded = {"gpu": "g5.12xlarge", "adapter": None, "offload": ["activations"]}
    assert job(**offloaded).host_memory_bytes == 192 << 30
    assert job(**offloaded, host_memory="64 GiB").host_memory_bytes == 64 << 30


def test_an_instance_has_the_price_of_its_cloud() -> None:
    def dollars(gpu: str) -> tuple[float, int]:
        run_of = run("fit", "llama-3.1-8b", gpu, "--lora", "--tokens", "1M", "--format", "json").document["run"]
        return run_of["price_usd_per_gpu_hour"]["likely"], run_of["price_offers"]

    instance = instance_named("p4d.24xlarge")
    assert instance is not None
    assert instance.usd_per_hour is not None
    assert dollars("p4d.24xlarge") == (pytest.approx(instance.usd_per_hour / 8), 1)
    usd, offers = dollars("Standard_ND96asr_v4")  # whose own price is not known
    assert (usd, offers) == (next(one.usd for one in rents_of("a100-40gb") if one.provider == "azure"), 1)
    assert dollars("8xa100-40gb")[1] > 1


def test_who_takes_a_part_of_an_instance_pays_for_the_whole() -> None:
    words = ("compare", "-m", "gpt2", "--gpu", "p4d.24xlarge", "--gpus", "2,8,16", "--format", "json")
    part, whole, both = (float(row["usd_per_hour"]) for row in run(*words).document["cells"])
    assert part == pytest.approx(whole)
    assert both == pytest.approx(2 * whole)


def test_nodes_of_an_instance_keep_its_network() -> None:
    words = ("fit", "llama-3.1-8b", "p4d.24xlarge", "--nodes", "2", "--lora", "--format", "json")
    parallel = run(*words).document["job"]["parallel"]
    assert (parallel["data"], parallel["devices_per_node"]) == (16, 8)
    assert parallel["node_bandwidth"] == "50000000000.0 B/s"


def test_remedies_of_an_instance_count_its_gpus() -> None:
    words = ("fit", "llama-3.1-8b", "g5.12xlarge", "--micro-batch", "1", "--format", "json")
    gpu = next(one for one in run(*words).document["remedies"] if "gpu" in one["change"])
    found = re.search(r"--gpu (\d+)x", gpu["option"])
    assert found is not None
    assert int(found[1]) % 4 == 0


def test_the_card_of_an_instance_is_named_where_no_machine_is_meant() -> None:
    assert "an instance of aws with 8 x a100-40gb" in run("gpus", "show", "p4d.24xlarge").err


@pytest.mark.parametrize(
    ("name", "hint"), [("p5.49xlarge", "an AWS instance"), ("a4-ultragpu-8g", "Google Cloud"), ("nc6s_v3", "Azure")]
)
def test_what_no_profile_has_leads_to_the_gpu(name: str, hint: str) -> None:
    ran = run("fit", "gpt2", "-g", name)
    assert ran.code == 2
    assert hint in ran.err


def test_a_typing_error_in_the_name_of_an_instance_names_the_near_one_of_its_family() -> None:
    assert "did you mean p4d.24xlarge?" in run("fit", "gpt2", "-g", "2xp4d.24xlrge").err
    assert "did you mean" not in run("fit", "gpt2", "-g", "p3.2xlarge").err  # which is real, and p3dn another one


def test_a_folder_of_profiles_may_have_instances_of_its_own(tmp_path: Path) -> None:
    head = (
        "kind: instances\nname: lab\nsources:\n  us: {title: us, url: https://x.y, accessed: '2026-11-28'}\nfields:\n"
    )
    folder = tmp_path / "instances"
    folder.mkdir()
    (folder / "lab.yaml").write_text(head + "  big.node: {value: 4 x a6000, source: us}\n", "utf-8")
    found = instance_named("big.node", [tmp_path])
    assert found is not None
    assert (found.gpus, found.gpu, found.host_memory) == (4, "a6000", None)
    (folder / "lab.yaml").write_text(head + "  big.node: {value: four cards, source: us}\n", "utf-8")
    with pytest.raises(InputError, match="'four cards' is no machine"):
        load_instances(folder / "lab.yaml")
