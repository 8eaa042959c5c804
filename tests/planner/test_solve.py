"""What is solved for fits, and the value after it does not; what is said of both is what typing them gives."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.cli.draws import jobs
from tests.cli.running import fit as command
from tests.cli.running import run
from vramplan import fit
from vramplan.errors import InputError
from vramplan.report.solved import solved_words
from vramplan.results import FitResult
from vramplan.results.solved import Solved

QLORA: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "rtx-4090",
    "adapter": {"kind": "lora"},
    "quantization": "nf4",
    "micro_batch_size": 1,
}


def with_value(keys: dict[str, Any], key: str, value: int) -> dict[str, Any]:
    group, _, name = key.rpartition(".")
    return {**keys, group: {**keys.get(group, {}), name: value}} if group else {**keys, name: value}


def verify(keys: dict[str, Any], result: FitResult) -> None:
    solved = result.solved
    assert solved is not None
    if solved.value is not None:
        at = fit(**with_value(keys, solved.key, solved.value))
        assert (at.verdict, at.peak) == (result.verdict, result.peak)
        assert (at.verdict == "fits") if solved.certain else (at.verdict == "tight" and at.headroom_bytes >= 0)
    if solved.next_value is None:
        assert solved.bound
        return
    after = fit(**with_value(keys, solved.key, solved.next_value))
    assert after.verdict == solved.next_verdict
    assert after.peak.device_bytes == solved.next_device_bytes
    assert after.usable_bytes == solved.next_usable_bytes
    assert after.verdict != "fits" if solved.certain else after.headroom_bytes < 0 or after.verdict == "does-not-fit"


@pytest.mark.sweep
@pytest.mark.contract
@pytest.mark.parametrize(
    ("what", "keys"),
    [
        ("sequence", QLORA),
        ("rank", QLORA),
        ("micro-batch", {"model": "gpt2-xl", "gpu": "v100", "gradient_accumulation_steps": 4}),
        ("micro-batch", {"model": "gpt2-xl", "gpu": "v100", "global_batch_size": 96}),
        ("sequence", {"model": "gpt2-xl", "gpu": "v100", "micro_batch_size": 8}),
        ("sequence", {"model": "llama-3.1-8b", "gpu": "rtx-4090", "precision": "amp-bf16", "weight_dtype": "fp32"}),
    ],
    ids=lambda given: given if isinstance(given, str) else str(given["model"]),
)
def test_the_value_fits_and_the_next_does_not(what: str, keys: dict[str, Any]) -> None:
    verify(keys, fit(**keys, max=what))


@pytest.mark.sweep(6)
@pytest.mark.contract
@settings(deadline=None, max_examples=6)
@given(jobs(pin_micro=False), st.sampled_from(["sequence", "micro-batch"]), st.integers(30, 400))
def test_so_it_is_of_random_jobs(raw: dict[str, Any], what: str, room: int) -> None:
    keys = {**raw, "gpu": {**raw["gpu"], "memory": f"{614 + room * room // 100} MiB"}}
    keys.pop("sequence_length")
    keys["gradient_accumulation_steps"] = 2
    keys.pop("global_batch_size", None)
    try:
        result = fit(**keys, max=what)
    except InputError:
        assume(False)
    verify(keys, result)


@pytest.mark.contract
def test_learned_positions_bound_the_sequence_and_it_is_said() -> None:
    result = fit(model="gpt2", gpu="h100-80gb", micro_batch_size=1, max="seq")
    assert result.solved is not None
    assert (result.solved.value, result.solved.next_value) == (1024, None)
    assert "1024 positions" in str(result.solved.bound)


@pytest.mark.sweep
@pytest.mark.contract
def test_the_number_of_layers_is_that_of_a_described_model() -> None:
    result = fit(model="gpt2-xl", gpu="v100", micro_batch_size=4, max="layers")
    solved = result.solved
    assert solved is not None
    assert result.job["model"]["layers"] == solved.value
    assert result.verdict == "fits"
    for layers, fits in ((solved.value, True), (solved.next_value, False)):
        model = {**result.job["model"], "layers": layers, "parameters": None}
        assert (fit(model=model, gpu="v100", micro_batch_size=4).verdict == "fits") is fits


@pytest.mark.sweep
@pytest.mark.contract
def test_the_fewest_devices() -> None:
    keys: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "t4", "sequence_length": 512, "micro_batch_size": 1}
    result = fit(**keys, gpus="auto", parallel={"sharding": "zero3"})
    solved = result.solved
    assert solved is not None
    assert solved.value
    assert solved.next_value == solved.value - 1
    for count, fits in ((solved.value, True), (solved.next_value, False)):
        again = fit(**keys, parallel={"sharding": "zero3", "data": count})
        assert (again.verdict == "fits") is fits
    assert again.peak.device_bytes == solved.next_device_bytes
    free = fit(**keys, gpus="auto").solved
    assert free is not None
    assert free.value is not None
    assert free.value <= solved.value
    small = fit(model="gpt2", gpu="a100-80gb", gpus="auto").solved
    assert small is not None
    assert (small.value, small.next_value) == (1, None)


@pytest.mark.sweep
@pytest.mark.contract
def test_where_no_number_of_devices_fits_the_most_are_shown() -> None:
    keys: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "t4", "global_batch_size": 2, "micro_batch_size": 1}
    result = fit(**keys, gpus="auto")
    assert result.solved is not None
    assert result.solved.value is None
    assert result.solved.bound == "with 2 devices it does not fit for certain; the figures are those with 2"
    assert result.job["parallel"]["data"] == 2
    assert result.peak.device_bytes < fit(**keys).peak.device_bytes
    assert result._replace(verdict="tight", headroom_bytes=1).exit_code(strict=False) == 3  # nothing was found


@pytest.mark.contract
def test_what_needs_more_than_there_is_is_not_called_tight() -> None:
    above = Solved("parallel.data", 8, True, "--gpus 8", 7, "tight", 35 << 30, 31 << 30, None)
    assert solved_words(above, {}).endswith("it needs 35.00 of 31.00 GiB: more likely than not it does not fit.")
    assert solved_words(above._replace(next_device_bytes=30 << 30), {}).endswith("31.00 GiB: tight.")


@pytest.mark.plain
@pytest.mark.sweep(3)
@pytest.mark.contract
@pytest.mark.parametrize("sharing", ["ddp", "fsdp", "hsdp:4"])
def test_devices_are_open_beside_a_way_to_share_that_needs_several(sharing: str) -> None:
    keys: dict[str, Any] = {"model": "gpt2-large", "gpu": "t4", "sequence_length": 256}
    result = fit(**keys, gpus="auto", parallel={"sharding": sharing})
    solved = result.solved
    assert solved is not None
    if solved.value is None:
        assert sharing == "ddp"
        assert result.verdict != "fits"
        return
    assert fit(**keys, parallel={"sharding": sharing, "data": solved.value}).verdict == "fits"
    if solved.next_value is not None:
        assert fit(**keys, parallel={"sharding": sharing, "data": solved.next_value}).verdict != "fits"


@pytest.mark.contract
@pytest.mark.parametrize("words", [("--max", "sequence_length"), ("--max", "SEQ"), ("--seq", "max")])
def test_people_may_write_it_as_they_say_it(words: tuple[str, ...]) -> None:
    answer = command("-m", "gpt2", "-g", "h100-80gb", "--micro-batch", "1", *words)
    assert answer["solved"]["value"] == 1024
    shown = run("fit", "-m", "gpt2", "-g", "h100-80gb", "--micro-batch", "1", *words, "--print", "solved.value")
    assert (shown.code, shown.out.strip()) == (0, "1024")


@pytest.mark.sweep
@pytest.mark.contract
def test_the_text_says_what_was_solved_for() -> None:
    words = ("-m", "gpt2-xl", "-g", "v100", "--steps", "4", "--micro-batch", "max")
    answer, text = command(*words), run("fit", *words).out
    assert f"The largest micro-batch is {answer['solved']['value']}" in text
    assert f"With {answer['solved']['next_value']} it needs" in text


@pytest.mark.contract
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--max", "sequense"), "did you mean sequence"),
        (("--max", "rank"), "rank belongs to an adapter"),
        (("--max", "sequence", "--seq", "128"), "sequence_length is given and solved for"),
        (("--max", "sequence", "--micro-batch", "max"), "one is solved for at a time"),
        (("--gpus", "max"), "parallel.data: expected a whole number"),
    ],
)
def test_what_cannot_be_solved_says_why(words: tuple[str, ...], message: str) -> None:
    ran = run("fit", "-m", "gpt2", "-g", "t4", *words)
    assert ran.code == 2
    assert message in ran.err


@pytest.mark.sweep
@pytest.mark.contract
def test_all_devices_are_counted_where_several_share_a_replica() -> None:
    ran = run("fit", "llama-3.1-8b", "-g", "rtx-4090", "--gpus", "auto", "--tensor", "2", "--runtime", "torchtitan")
    text = " ".join(ran.out.split())
    whole, replicas = re.search(r"number of GPUs is (\d+), (\d+) times 2", text).groups()  # type: ignore[union-attr]
    assert f"on {whole} x rtx-4090" in text
    assert int(whole) == 2 * int(replicas)
