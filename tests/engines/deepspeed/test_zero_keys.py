"""DeepSpeed's ZeRO as a job: its switches, their defaults, what does not go together, and the memory of the host."""

from __future__ import annotations

import pytest

from tests.cli.running import run
from vramplan.errors import InputError
from vramplan.job import build_job

pytestmark = pytest.mark.plain

JOB = ("fit", "--model", "gpt2", "--gpu", "a100", "--micro-batch", "2", "--steps", "1", "--checkpointing", "none")
NVME = "--sharding zero3 --gpus 4 --offload optimizer --offload-optimizer-device nvme"
DRIVE = "--sharding zero3 --gpus 2 --offload parameters,optimizer --offload-parameters-device nvme"
ZERO = (*JOB, "--gpus", "4", "--sharding")


def test_defaults_are_deepspeeds_own_and_told() -> None:
    found = run(*ZERO, "zero2", "--runtime", "deepspeed", "--format", "json").document
    parallel = found["job"]["parallel"]
    assert (parallel["reduce_bucket_size"], parallel["overlap_comm"]) == (500_000_000, False)
    assert parallel["sub_group_size"] is None
    told = {one["key"] for one in found["assumptions"]}
    assert {"parallel.reduce_bucket_size", "parallel.overlap_comm"} <= told
    assert found["job"]["precision"] == "mixed-bf16"


def test_the_trainer_has_its_own_defaults_for_stage_3() -> None:
    parallel = run(*ZERO, "zero3", "--format", "json").document["job"]["parallel"]
    assert parallel["reduce_bucket_size"] == 768 * 768
    assert parallel["stage3_prefetch_bucket_size"] == int(0.9 * 768 * 768)
    assert parallel["stage3_param_persistence_threshold"] == 10 * 768
    assert parallel["stage3_max_live_parameters"] == 1_000_000_000
    plain = run(*ZERO, "zero3", "--runtime", "deepspeed", "--format", "json").document["job"]["parallel"]
    assert plain["stage3_param_persistence_threshold"] == 100_000


@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
def test_a_smaller_bucket_is_a_smaller_peak(stage: str) -> None:
    sizes = [
        run(*ZERO, stage, "--reduce-bucket-size", str(size), "--print", "peak.allocated_bytes").out
        for size in (1_000_000, 900_000_000)
    ]
    assert int(sizes[0]) < int(sizes[1])


def test_a_second_bucket_costs_as_much_as_the_first() -> None:
    one, two = (
        int(
            run(*ZERO, "zero2", "--reduce-bucket-size", "2000000000", word, "--print", "peak.phases.backward_bytes").out
        )
        for word in ("--no-overlap-comm", "--overlap-comm")
    )
    assert two - one == 2 * 2_000_000_000


@pytest.mark.parametrize(
    ("words", "key", "says"),
    [
        ("--sharding ddp --gpus 4 --reduce-bucket-size 5", "reduce_bucket_size", "belongs to parallel.sharding"),
        ("--sharding zero2 --gpus 4 --sub-group-size 5", "sub_group_size", "belongs to parallel.sharding zero3"),
        ("--sharding zero2 --gpus 4 --reduce-bucket-size 0", "reduce_bucket_size", "holds no gradient"),
        ("--sharding zero2 --gpus 4 --precision amp-bf16", "precision", "use mixed-bf16"),
        ("--sharding zero2 --gpus 4 --precision amp-bf16", "precision", "not modelled"),
        ("--sharding zero2 --gpus 4 --optimizer muon", "optimizer", "not modelled"),
        ("--sharding zero3 --gpus 4 --offload gradients", "offload", "[optimizer, gradients]"),
        ("--sharding zero3 --offload optimizer --offload-optimizer-buffer-count 4", "buffer_count", "on NVMe"),
        ("--sharding zero3 --offload optimizer --offload-optimizer-device disk", "device", "'disk'"),
        (f"{NVME} --offload-optimizer-buffer-count 3", "offload_optimizer_buffer_count", "4"),
        ("--sharding zero2 --offload optimizer --offload-optimizer-device nvme", "device", "belongs to"),
        ("--sharding ddp --gpus 4 --offload-optimizer-device nvme", "device", "belongs to"),
        ("--sharding zero3 --gpus 4 --offload-parameters-device nvme", "offload", "with the optimizer that steps"),
        ("--sharding zero3 --offload parameters,optimizer --offload-parameters-max-in-cpu 4", "max_in_cpu", "on NVMe"),
        (f"{DRIVE} --offload-parameters-buffer-count 0", "offload_parameters_buffer_count", "1"),
        (f"{DRIVE} --offload-parameters-buffer-size 19298687", "offload_parameters_buffer_size", "19298688 or more"),
        (f"{DRIVE} --stage3-param-persistence-threshold 9999999", "persistence_threshold", "less than 2359296"),
        ("--sharding ddp --gpus 4 --offload-parameters-device nvme", "device", "belongs to"),
        ("--sharding zero2 --gpus 4 --offload parameters", "offload", "not modelled"),
        ("--sharding zero2 --gpus 4 --offload gradients", "offload", "optimizer that steps them"),
        ("--runtime pytorch --offload optimizer", "offload", "not modelled"),
        ("--runtime deepspeed --sharding none", "sharding", "one of ddp, zero1, zero2, zero3"),
        ("--sharding zero2 --gpus 4 --gradient-as-bucket-view", "gradient_as_bucket_view", "belongs to"),
    ],
)
def test_what_does_not_go_together_is_refused(words: str, key: str, says: str) -> None:
    found = run(*JOB, *words.split())
    assert found.code == 2
    assert key in found.err
    assert says in found.err


@pytest.mark.parametrize("key", ["offload_optimizer_device", "offload_parameters_device"])
def test_a_device_of_states_that_stay_on_the_gpu_is_refused(key: str) -> None:
    """On the command line it offloads them."""
    job = {"model": "gpt2", "gpu": "a100", "precision": "mixed-bf16"}
    with pytest.raises(InputError, match=f"{key}.*means nothing"):
        build_job({**job, "parallel": {"data": 4, "sharding": "zero3", key: "nvme"}})


def test_the_size_of_all_gathers_is_told_to_decide_nothing() -> None:
    plain = run(*ZERO, "zero1", "--format", "json").document
    found = run(*ZERO, "zero1", "--allgather-bucket-size", "7", "--format", "json").document
    assert any("allgather_bucket_size decides nothing" in one for one in found["warnings"])
    assert found["peak"] == plain["peak"]


@pytest.mark.sweep(6)
@pytest.mark.parametrize(
    "words",
    [
        *("zero1", "zero2 --offload optimizer,gradients --host-memory 2TiB", "zero3 --sub-group-size 9000000"),
        "zero3 --offload optimizer,parameters",
        "zero3 --offload optimizer --offload-optimizer-device nvme --offload-optimizer-buffer-count 5",
    ],
)
def test_an_echoed_job_gives_the_same_answer(words: str, tmp_path: object) -> None:
    from vramplan import fit

    found = run(*ZERO, *words.split(), "--format", "json").document
    again = fit(**{key: value for key, value in found["job"].items() if value is not None}).to_dict()
    for key in ("peak", "components", "host", "verdict"):
        assert again[key] == found[key]


def test_what_a_node_needs_is_compared_with_its_memory() -> None:
    away = (*ZERO, "zero2", "--offload", "optimizer,gradients", "--devices-per-node", "2")
    found = run(*away, "--format", "json").document
    host = found["host"]
    assert host["devices_per_node"] == 2
    assert host["states_bytes"] > 18 * found["parameters"]["total"] // 4
    assert host["node_bytes"] >= 2 * host["states_bytes"]
    assert host["to_host_bytes"] > host["to_device_bytes"] > 0
    assert found["verdict"] == "fits"
    full = run(*away, "--host-memory", "1 GiB", "--format", "json")
    assert full.document["verdict"] == "does-not-fit"
    assert any("does not fit on the host" in one for one in full.document["warnings"])
    assert run(*away, "--host-memory", "1 TiB", "--format", "json").document["verdict"] == "fits"
    assert run(*JOB, "--host-memory", "1 MiB", "--format", "json").document["verdict"] == "fits"


@pytest.mark.sweep
def test_what_goes_to_the_drive_leaves_the_host() -> None:
    away = ("--offload", "optimizer,parameters", "--format", "json")
    cpu = run(*ZERO, "zero3", *away).document
    drive = run(*ZERO, "zero3", *away, "--offload-optimizer-device", "nvme", "--sub-group-size", "5000000").document
    total = cpu["parameters"]["total"]
    assert cpu["host"]["drive_bytes"] == cpu["host"]["to_drive_bytes"] == 0
    assert drive["host"]["drive_bytes"] >= 12 * total // 4
    assert drive["host"]["to_drive_bytes"] == drive["host"]["from_drive_bytes"] > 0
    assert drive["host"]["states_bytes"] < cpu["host"]["states_bytes"] // 2  # the buffers are left
    shown = run(*ZERO, "zero3", *away[:2], "--offload-optimizer-device", "nvme", "--details").out
    assert " on NVMe; " in shown


def test_parameters_on_nvme_have_deepspeeds_defaults() -> None:
    found = run(*JOB, *DRIVE.split(), "--format", "json").document
    parallel = found["job"]["parallel"]
    sizes = [parallel[f"offload_parameters_{key}"] for key in ("buffer_count", "buffer_size", "max_in_cpu")]
    assert sizes == [5, 100_000_000, 1_000_000_000]
    assert found["host"]["drive_bytes"] > 0
    assert found["host"]["from_drive_bytes"] == 0  # all of it stays on the host
    plain = run(*JOB, *DRIVE.split()[:-1], "cpu", "--format", "json").document
    assert plain["job"]["parallel"]["offload_parameters_buffer_count"] is None
    assert plain["peak"] == found["peak"]
