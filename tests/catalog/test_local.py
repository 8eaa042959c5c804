"""`--gpu local`: what the vendors' tools say, and every way in which they may not say it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.running import fit, refused, run
from vramplan.catalog import local_profile, process
from vramplan.catalog.gpus import find_gpu
from vramplan.catalog.local import visible
from vramplan.catalog.smi import LocalGpu
from vramplan.errors import InputError
from vramplan.job import build_job

MIB = 1 << 20
Tool = Callable[..., None]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Puts a program on an otherwise empty path: it prints `text`, or runs `script`, which is Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(name: str, text: str = "", *, script: str | None = None, code: int = 0) -> None:
        body = f"import sys\nsys.stdout.write({text!r})\nsys.exit({code})\n" if script is None else script
        path = folder / name
        path.write_text(f"#!{sys.executable} -S\n{body}", "utf-8")
        path.chmod(0o755)

    return make


def nvidia(rows: list[dict[str, str]], *, unknown: tuple[str, ...] = ()) -> str:
    """The script of an nvidia-smi that answers what it is asked for, and refuses a query with an unknown field."""
    return f"""
import sys
rows, unknown = {rows!r}, {unknown!r}
asked = next(word for word in sys.argv if word.startswith("--query-gpu=")).split("=")[1].split(",")
assert "--format=csv,noheader,nounits" in sys.argv
for field in asked:
    if field in unknown:
        print(f'Field "{{field}}" is not a valid field to query.')
        sys.exit(2)
for row in rows:
    print(", ".join(row.get(field, "[N/A]") for field in asked))
"""


def card(name: str, total: int, free: int, **more: str) -> dict[str, str]:
    return {"name": name, "memory.total": str(total), "memory.free": str(free), "index": "0", **more}


A100 = card("NVIDIA A100-SXM4-80GB", 81920, 81040, **{"memory.reserved": "869", "compute_cap": "8.0"})
OLD = ("memory.reserved", "compute_cap", "mig.mode.current")


def test_the_capacity_is_what_is_installed_less_what_the_driver_reserves(tool: Tool) -> None:
    tool("nvidia-smi", script=nvidia([A100]))
    gpu = find_gpu("local").gpu()
    assert (gpu.name, gpu.title, gpu.architecture) == ("a100-80gb", "NVIDIA A100-SXM4-80GB", "ampere")
    assert (gpu.capacity_bytes, gpu.capacity_basis) == ((81920 - 869) * MIB, "visible")
    answer = fit("-m", "bert-tiny", "-g", "local")
    assert answer["capacity_bytes"] == (81920 - 869) * MIB
    told = {one["key"]: one for one in answer["assumptions"]}
    assert told["gpu"]["value"] == "a100-80gb"
    assert "NVIDIA A100-SXM4-80GB" in told["gpu"]["why"]
    assert "869.00 MiB that the driver reserves" in told["gpu.memory"]["why"]


@pytest.mark.parametrize("unknown", [OLD, (*OLD, "uuid"), (*OLD, "driver_version")])
def test_an_older_driver_is_asked_for_less(tool: Tool, unknown: tuple[str, ...]) -> None:
    tool("nvidia-smi", script=nvidia([card("NVIDIA GeForce RTX 4090", 24564, 24100)], unknown=unknown))
    gpu = find_gpu("local").gpu()
    assert (gpu.name, gpu.capacity_basis) == ("rtx-4090", "visible")
    assert gpu.capacity_bytes == find_gpu("rtx-4090").gpu().capacity_bytes


def test_a_tool_that_prints_three_columns_whatever_it_is_asked(tool: Tool) -> None:
    tool("nvidia-smi", "Tesla V100-SXM2-16GB, 16160, 16000\n")
    assert find_gpu("local").name == "v100-16gb"


@pytest.mark.parametrize(
    ("reported", "total", "name"),
    [
        ("NVIDIA A100-PCIE-40GB", 40960, "a100-pcie-40gb"),
        ("NVIDIA A100-SXM4-40GB", 40960, "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", 81920, "a100-pcie-80gb"),
        ("NVIDIA H100 80GB HBM3", 81559, "h100-80gb"),
        ("NVIDIA H100 PCIe", 81559, "h100-pcie"),
        ("NVIDIA H100 NVL", 95830, "h100-nvl"),
        ("NVIDIA H200", 143771, "h200"),
        ("NVIDIA GH200 480GB", 97871, "gh200-96gb"),
        ("Tesla V100-SXM2-32GB", 32768, "v100"),
        ("Tesla V100-SXM2-16GB", 16160, "v100-16gb"),
        ("Tesla T4", 15360, "t4"),
        ("NVIDIA A10G", 23028, "a10g"),
        ("NVIDIA L40S", 46068, "l40s"),
        ("NVIDIA RTX A6000", 49140, "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "rtx-6000-ada"),
        ("NVIDIA GeForce RTX 3080", 10240, "rtx-3080"),
        ("NVIDIA GeForce RTX 3080", 12288, "rtx-3080-12gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 16380, "rtx-4060-ti-16gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 8188, "rtx-4060-ti-8gb"),
        ("Quadro RTX 8000", 49152, "quadro-rtx-8000"),
        ("NVIDIA GeForce RTX 3060", 8192, "rtx-3060-8gb"),
        ("NVIDIA GB200", 189471, "gb200"),
        ("NVIDIA B300 SXM6 AC", 275040, "b300"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, "rtx-pro-6000"),
        ("NVIDIA RTX PRO 5000 Blackwell", 73728, "rtx-pro-5000-72gb"),
        ("AMD Instinct MI250X/MI250", 65520, "mi250"),
        ("NVIDIA TITAN RTX", 24576, "titan-rtx"),
    ],
)
def test_the_names_of_drivers_find_profiles(reported: str, total: int, name: str) -> None:
    gpu = LocalGpu(0, reported, total * MIB, None, "nvidia-smi")
    found = local_profile._profile_of(gpu, ())
    assert found is not None
    assert found.name == name
    assert abs(found.value("memory") - total * MIB) <= local_profile.SAME_MEMORY * found.value("memory")


def test_a_card_without_a_profile_is_what_its_capability_says(tool: Tool) -> None:
    row = card("NVIDIA GeForce RTX 2080 Laptop GPU", 8192, 8000, **{"memory.reserved": "190", "compute_cap": "7.5"})
    tool("nvidia-smi", script=nvidia([row]))
    profile = find_gpu("local")
    gpu = profile.gpu()
    assert (gpu.name, gpu.architecture, gpu.bf16, gpu.flash_attention) == (row["name"], "turing", False, False)
    assert gpu.capacity_bytes == (8192 - 190) * MIB
    assert "no profile has that name" in (gpu.note or "")
    echoed = fit("-m", "bert-tiny", "-g", "local")["job"]["gpu"]
    assert (echoed["name"], echoed["architecture"]) == (row["name"], "turing")


def test_a_card_of_an_unusual_size_keeps_its_own(tool: Tool) -> None:
    tool("nvidia-smi", script=nvidia([card("NVIDIA A100-SXM-64GB", 65536, 65000)], unknown=OLD))
    gpu = find_gpu("local").gpu()
    assert (gpu.capacity_bytes, gpu.capacity_basis, gpu.architecture) == (65536 * MIB, "nominal", "ampere")
    assert "its memory is not that of" in (gpu.note or "")
    told = [one for one in fit("-m", "bert-tiny", "-g", "local")["assumptions"] if one["key"] == "gpu.memory"]
    assert len(told) == 1


def test_what_others_hold_is_said_with_a_remedy(tool: Tool) -> None:
    tool("nvidia-smi", script=nvidia([{**A100, "memory.free": "60571"}]))
    note = find_gpu("local").gpu().note or ""
    assert "59.15 GiB are free now" in note
    assert "--gpu-free now" in note
    tool("nvidia-smi", script=nvidia([{**A100, "memory.free": "81040"}]))
    assert "--gpu-free" not in (find_gpu("local").gpu().note or "")


def test_what_is_free_now_decides_where_it_is_asked_for(tool: Tool) -> None:
    tool("nvidia-smi", script=nvidia([{**A100, "memory.free": "60571"}]))
    job = ("-m", "gpt2", "-g", "local")
    assert fit(*job)["usable_bytes"] == (81920 - 869) * MIB
    answer = fit(*job, "--gpu-free", "now")
    assert answer["usable_bytes"] == 60571 * MIB
    assert answer["job"]["gpu_free"] == f"{60571 * MIB} B"
    assert "gpu_free" in {one["key"] for one in answer["assumptions"]}
    assert fit(*job, "--gpu-free", "20 GiB")["usable_bytes"] == 20480 * MIB  # a size overrides what the tool says


def test_a_tool_that_does_not_say_what_is_free_is_an_error(tool: Tool) -> None:
    tool("nvidia-smi", script=nvidia([{**A100, "memory.free": "[N/A]"}]))
    with pytest.raises(InputError, match="does not say how much of a100-80gb is free"):
        build_job({"model": "gpt2", "gpu": "local", "gpu_free": "now"})


def two(tool: Tool) -> None:
    first = {**A100, "uuid": "GPU-aaaa1111"}
    second = card("Tesla T4", 15360, 15000, index="1", uuid="GPU-bbbb2222", compute_cap="7.5")
    tool("nvidia-smi", script=nvidia([first, second]))


def test_several_gpus_are_counted_and_named(tool: Tool) -> None:
    two(tool)
    assert find_gpu("local").name == "a100-80gb"
    assert find_gpu("LOCAL:1 ").name == "t4"
    assert "there are 2 GPUs (local:1 Tesla T4)" in (find_gpu("local:0").gpu().note or "")
    assert (
        "there is local:0 NVIDIA A100-SXM4-80GB, local:1 Tesla T4" in refused("fit", "-m", "gpt2", "-g", "local:2").err
    )
    for odd in ("local:", "local:x", "local:-1", "local:1.0", "local:٣", "local:99999"):
        assert "internal" not in refused("fit", "-m", "gpt2", "-g", odd).err


@pytest.mark.parametrize(
    ("value", "name"),
    [("1", "t4"), ("1,0", "t4"), ("GPU-bbbb", "t4"), ("0", "a100-80gb"), ("0,7,1", "a100-80gb")],
)
def test_cuda_visible_devices_decides_what_is_counted(
    tool: Tool, monkeypatch: pytest.MonkeyPatch, value: str, name: str
) -> None:
    two(tool)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert find_gpu("local").name == name
    if value != "1,0":
        assert "CUDA_VISIBLE_DEVICES hides 1" in refused("fit", "-m", "gpt2", "-g", "local:1").err


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles", "7"])
def test_a_variable_that_hides_everything_is_named(tool: Tool, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    two(tool)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert "CUDA_VISIBLE_DEVICES hides all 2 GPUs" in refused("fit", "-m", "gpt2", "-g", "local").err


@given(st.lists(st.integers(-2, 5).map(str) | st.sampled_from(["", "GPU-1", "x"])), st.integers(1, 4))
def test_what_is_seen_is_a_part_of_what_is_there_without_repetition(entries: list[str], count: int) -> None:
    gpus = [LocalGpu(n, "card", MIB, None, "nvidia-smi", uuid=f"GPU-{n}") for n in range(count)]
    seen, _ = visible(gpus, {"CUDA_VISIBLE_DEVICES": ",".join(entries)})
    assert set(seen) <= set(gpus)
    assert len(set(seen)) == len(seen)
    assert visible(gpus, {})[0] == gpus


def test_rocm_applies_its_own_variable_first() -> None:
    gpus = [LocalGpu(n, f"card {n}", MIB, None, "rocm-smi") for n in range(4)]
    both = {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}
    assert [gpu.number for gpu in visible(gpus, both)[0]] == [3]
    assert [gpu.number for gpu in visible(gpus, {"CUDA_VISIBLE_DEVICES": "1"})[0]] == [1]


def test_an_instance_of_a_card_is_refused_with_a_remedy(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    tool("nvidia-smi", script=nvidia([{**A100, "mig.mode.current": "Enabled"}]))
    assert "MIG mode" in refused("fit", "-m", "gpt2", "-g", "local").err
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    assert "as in --gpu '20 GiB'" in refused("fit", "-m", "gpt2", "-g", "local").err


def test_memory_that_is_the_systems_comes_from_the_profile(tool: Tool) -> None:
    row = {"name": "NVIDIA GB10", "memory.total": "[N/A]", "memory.free": "[N/A]", "index": "0"}
    tool("nvidia-smi", script=nvidia([row]))
    assert find_gpu("local").gpu().capacity_bytes == 128 << 30
    tool("nvidia-smi", script=nvidia([{**row, "name": "Orin (nvgpu)"}]))
    assert "does not say how much memory" in refused("fit", "-m", "gpt2", "-g", "local").err


ROCM = {
    "card1": {"Card Series": "0x74a1", "VRAM Total Memory (B)": "17163091968", "VRAM Total Used Memory (B)": "0"},
    "card0": {
        "Card Series": "AMD Instinct MI300X OAM",
        "VRAM Total Memory (B)": "206141652992",
        "VRAM Total Used Memory (B)": "302694400",
        "GFX Version": "gfx942",
    },
    "system": {"Driver version": "6.8.5"},
}


def test_rocm_smi_is_asked_where_there_is_no_nvidia_smi(tool: Tool) -> None:
    tool("rocm-smi", "WARNING: AMD GPU device(s) is/are in a low-power state.\n" + json.dumps(ROCM))
    gpu = find_gpu("local").gpu()
    assert (gpu.name, gpu.capacity_bytes, gpu.capacity_basis) == ("mi300x", 206141652992, "visible")
    unnamed = find_gpu("local:1").gpu()
    assert (unnamed.name, unnamed.capacity_bytes) == ("GPU 1", 17163091968)


def amd_smi(wrap: bool) -> str:
    static: Any = [
        {
            "gpu": 0,
            "asic": {"market_name": "AMD Instinct MI325X", "target_graphics_version": "gfx942"},
            "vram": {"type": "HBM3E", "size": {"value": 262128, "unit": "MB"}},
        }
    ]
    metric: Any = [{"gpu": 0, "mem_usage": {"used_vram": {"value": 284, "unit": "MB"}}}]
    if wrap:
        static, metric = {"gpu_data": static}, {"gpu_data": metric}
    return f"""
import json, sys
print(json.dumps({static!r} if sys.argv[1] == "static" else {metric!r}))
"""


@pytest.mark.parametrize("wrap", [False, True])
def test_amd_smi_is_asked_last(tool: Tool, wrap: bool) -> None:
    tool("nvidia-smi", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", code=9)
    tool("amd-smi", script=amd_smi(wrap))
    gpu = find_gpu("local").gpu()
    assert (gpu.name, gpu.capacity_bytes) == ("mi325x", 262128 * MIB)
    assert "255.71 GiB are free now" in (gpu.note or "")


GARBAGE = [
    "\n",
    "no such thing\n",
    "NVIDIA A100, much, more\n",
    "NVIDIA A100, 0, 0\n",
    "NVIDIA A100, 100, 200\n",
    ", 100, 50\n",
    "[N/A], 100, 50\n",
    "NVIDIA A100, -5, 3\n",
    "NVIDIA A100, 1e5, 3\n",
    "\x00\x1b[31m\xff, 1\n" * 5,
    "{}",
    "[[[[" * 5000,
    '{"card0": {}}',
    '{"card0": {"VRAM Total Memory (B)": "-1"}}',
    '{"card0": {"VRAM Total Memory (B)": "10", "VRAM Total Used Memory (B)": "20"}}',
    '[{"gpu": 0, "asic": {"market_name": "x"}, "vram": {"size": {"value": "N/A"}}}]',
    "null",
]


@pytest.mark.sweep(8)
@pytest.mark.parametrize("name", ["nvidia-smi", "rocm-smi", "amd-smi"])
@pytest.mark.parametrize("text", GARBAGE, ids=lambda text: repr(text[:20]))
def test_garbage_is_a_clean_error(tool: Tool, name: str, text: str) -> None:
    tool(name, text)
    ran = refused("fit", "-m", "gpt2", "-g", "local")
    assert name in ran.err
    assert "--gpu a100-80gb" in ran.err
    assert len(ran.err) < 600
    assert ran.err.rstrip("\n").isprintable()


def test_no_tool_and_no_gpu_are_clean_errors(tool: Tool, tmp_path: Path) -> None:
    assert "none of nvidia-smi, rocm-smi, amd-smi is on the path" in refused("fit", "-m", "gpt2", "-g", "local").err
    tool("nvidia-smi", "No devices were found\n", code=6)
    assert (
        "nvidia-smi failed with exit code 6: 'No devices were found'" in refused("fit", "-m", "gpt2", "-g", "local").err
    )
    tool("nvidia-smi", "")
    assert "nvidia-smi finds no GPU" in refused("gpus", "show", "local").err
    (tmp_path / "bin/nvidia-smi").write_text("#!/nowhere/at/all\n")
    assert "cannot be started" in refused("fit", "-m", "gpt2", "-g", "local").err


def test_a_tool_that_hangs_is_given_up_and_ended(tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "TIMEOUT_S", 0.4)
    mark = tmp_path / "still alive"
    child = f"import time; time.sleep(1.2); open({str(mark)!r}, 'w')"
    tool("nvidia-smi", script=f"import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', {child!r}])\n")
    begun = time.monotonic()
    assert "gave no answer within 0.4 s" in refused("fit", "-m", "gpt2", "-g", "local").err
    assert time.monotonic() - begun < 1.1  # one attempt, not one for each query
    time.sleep(1.2)
    assert not mark.exists()


def test_a_tool_that_never_stops_printing_is_given_up(tool: Tool) -> None:
    tool("nvidia-smi", script="import sys\nwhile True:\n    sys.stdout.write('y\\n' * 4096)\n")
    begun = time.monotonic()
    assert "printed more than 4 MiB: 'y y" in refused("fit", "-m", "gpt2", "-g", "local").err
    assert time.monotonic() - begun < 5


def test_a_tool_that_talks_on_stderr_and_answers_is_believed(tool: Tool) -> None:
    script = "import sys\nsys.stderr.write('noise\\n' * 50_000)\nprint('Tesla T4, 15360, 15000')\n"
    tool("nvidia-smi", script=script)
    assert find_gpu("local").name == "t4"


def test_a_job_file_may_say_local(tool: Tool, tmp_path: Path) -> None:
    tool("nvidia-smi", script=nvidia([A100]))
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text(
        "version: 1\ndefaults: {gpu: local}\njobs:\n  - {name: a, model: bert-tiny}\n"
        "  - {name: b, model: bert-tiny, gpu: {name: local, memory: 20 GiB}}\n"
    )
    first, second = run("check", jobs, "--format", "json").document["results"]
    assert first["capacity_bytes"] == (81920 - 869) * MIB
    assert second["capacity_bytes"] == 20 * 1024**3
    assert {one["key"] for one in second["assumptions"]}.isdisjoint({"gpu.memory"})
    assert second["job"]["gpu"]["architecture"] == "ampere"


def test_an_answer_about_the_local_card_can_be_given_back_elsewhere(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool("nvidia-smi", script=nvidia([A100]))
    answer = fit("-m", "bert-tiny", "-g", "local")
    monkeypatch.setenv("PATH", "/nowhere")
    from vramplan.job import build_job

    job = build_job(answer["job"])
    assert job.gpu.capacity_bytes == answer["capacity_bytes"]
    assert not [one for one in job.assumptions if one.key.startswith("gpu")]


def test_show_prints_where_the_figures_are_from(tool: Tool) -> None:
    tool("nvidia-smi", script=nvidia([{**A100, "driver_version": "550.54.15"}]))
    document = run("gpus", "show", "local", "--format", "json").document
    assert document["file"] is None
    source = document["fields"]["visible_memory"]["source"]
    assert source["title"] == "nvidia-smi on this machine, driver 550.54.15"


def test_a_broken_list_of_folders_is_said_before_a_card_is_asked(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMPLAN_PROFILES", "/nowhere/at/all")
    with pytest.raises(InputError, match="VRAMPLAN_PROFILES: no such directory"):
        local_profile._profile_of(LocalGpu(0, "NVIDIA A100-SXM4-80GB", MIB, None, "nvidia-smi"), ())
