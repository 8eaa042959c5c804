"""Runs side by side: each row is the answer of `fit`, and the winners are the best rows."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.cli.running import refused, run
from vramplan import fit
from vramplan.answers.compared import MOST_CLOSER
from vramplan.answers.processes import done
from vramplan.cli.runs import compare as runs
from vramplan.report.json import schema

pytestmark = pytest.mark.contract

WORDS = ("-m", "gpt2", "-g", "t4,v100,24 GiB", "--seq", "256", "--micro-batch", "1,16")


def compared(*words: str, command: str = "compare") -> dict[str, Any]:
    ran = run(command, *words, "--format", "json")
    assert ran.code in (0, 3)
    document: dict[str, Any] = ran.document
    jsonschema.validate(document, schema("compare"))
    return document


def is_answer_of_fit(cell: dict[str, Any], keys: dict[str, Any]) -> None:
    """Whether a row has the figures of `fit`."""
    alone = fit(**keys)
    assert (cell["verdict"], cell["device_bytes"]) == (alone.verdict, alone.peak.device_bytes)
    assert cell["weight_dtype"] == alone.weight_dtype
    if alone.time is None or alone.verdict != "fits":
        assert cell["tokens_per_second"] is None
    else:
        assert cell["tokens_per_second"] == alone.time.tokens_per_second
        assert cell["step_seconds"] == alone.time.step_seconds
    if alone.verdict == "fits":
        assert cell["micro_batch_size"] == alone.recommended.micro_batch_size
        assert cell["largest_micro_batch_size"] == alone.recommended.largest_micro_batch_size


def test_a_run_that_does_not_fit_takes_no_time_and_costs_nothing() -> None:
    words = ("-m", "gpt2-xl", "-g", "t4,a100", "--micro-batch", "1", "--precision", "fp32", "--tokens", "1M")
    no, yes = compared(*words)["cells"]
    assert (no["verdict"], yes["verdict"]) == ("does-not-fit", "fits")
    assert no["wall_seconds"] is no["cost_usd"] is None
    assert yes["wall_seconds"] > 0 < yes["cost_usd"]
    assert no["keeps_limits"] is yes["keeps_limits"] is None
    assert [cell["keeps_limits"] for cell in compared(*words, "--deadline", "300 days")["cells"]][1] is True


def test_every_row_is_the_answer_of_fit() -> None:
    document = compared(*WORDS)
    assert document["axes"] == ["gpu", "micro-batch"]
    assert [(cell["options"]["gpu"], cell["options"]["micro-batch"]) for cell in document["cells"]] == [
        (gpu, micro) for gpu in ("t4", "v100", "24 GiB") for micro in ("1", "16")
    ]
    for cell in document["cells"]:
        options = cell["options"]
        assert cell["is_estimated"] is False
        micro = int(options["micro-batch"])
        is_answer_of_fit(
            cell, {"model": "gpt2", "gpu": options["gpu"], "sequence_length": 256, "micro_batch_size": micro}
        )


def test_the_largest_micro_batch_of_a_row_whose_allocator_is_simulated_is_that_of_fit() -> None:
    words = ("-m", "gpt2-xl", "-g", "t4,v100", "--gpus", "8", "--sharding", "fsdp", "--seq", "512")
    for cell in compared(*words)["cells"]:
        keys = {"model": "gpt2-xl", "gpu": cell["options"]["gpu"], "sequence_length": 512}
        is_answer_of_fit(cell, {**keys, "parallel": {"data": 8, "sharding": "fsdp"}})
        assert cell["largest_micro_batch_size"] >= cell["micro_batch_size"]


def test_of_many_rows_those_that_win_are_the_answers_of_fit_and_others_say_that_they_are_estimated() -> None:
    micros = ",".join(map(str, range(1, MOST_CLOSER + 2)))
    words = ("-m", "gpt2", "-g", "t4,v100", "--seq", "128", "--micro-batch", micros)
    document = compared(*words)
    winners = {document[name] for name in ("fastest", "cheapest", "cheapest_hour")}
    for place, cell in enumerate(document["cells"]):
        keys = {"model": "gpt2", "gpu": cell["options"]["gpu"], "sequence_length": 128}
        keys["micro_batch_size"] = int(cell["options"]["micro-batch"])
        assert cell["is_estimated"] is (place not in winners)
        if place in winners or place % 8 == 0:
            is_answer_of_fit(cell, keys if place in winners else {**keys, "allocator": "estimate"})
    text = run("compare", *words).out
    assert text.count("fits (est.)") == len(document["cells"]) - len(winners)
    assert "are estimated (est.)" in text
    assert "est." not in run("compare", *WORDS).out


def test_the_winners_are_the_best_of_those_that_fit() -> None:
    document = compared(*WORDS)
    fitting = [cell for cell in document["cells"] if cell["verdict"] == "fits"]
    for winner, key, best in (
        ("fastest", "samples_per_second", max),
        ("cheapest", "usd_per_million_tokens", min),
        ("cheapest_hour", "usd_per_hour", min),
    ):
        figures = [cell[key] for cell in fitting if cell[key] is not None]
        assert document["cells"][document[winner]][key] == best(figures)


def test_a_budget_and_a_deadline_rule_rows_out() -> None:
    free = compared("-m", "gpt2", "-g", "t4,h100", "--tokens", "1B")
    costs = [cell["cost_usd"] for cell in free["cells"]]
    assert all(cost is not None for cost in costs)
    held = compared("-m", "gpt2", "-g", "t4,h100", "--tokens", "1B", "--budget", f"{(costs[0] + costs[1]) / 2:.2f}")
    assert [cell["keeps_limits"] for cell in held["cells"]] == [cost == min(costs) for cost in costs]
    assert held["fastest"] == costs.index(min(costs))
    none = run("compare", "-m", "gpt2", "-g", "t4,h100", "--tokens", "1B", "--deadline", "1s")
    assert none.code == 3
    assert "none of them fits and keeps its limits" in none.out


def test_a_tight_run_ends_as_fit_ends_it() -> None:
    """The estimate is within the usable memory or above it, and a limit is kept or broken."""
    words = ("-m", "gpt2", "-g", "t4", "--micro-batch", "2", "--checkpointing", "none")
    free = run("fit", *words, "--seq", "128", "--format", "json").document
    room, mib = free["usable_bytes"] - free["peak"]["device_bytes"], 2**20
    codes = {}
    for left in (mib, -300 * mib):  # the allocator gives back what it has kept, before it needs more than there is
        for limit in ("52w", "1s"):
            tight = (*words, "--reserve", f"{room - left} B", "--tokens", "1M", "--deadline", limit)
            alone = run("fit", *tight, "--seq", "128", "--format", "json")
            assert alone.document["verdict"] == "tight"
            codes[left > 0, limit] = run("compare", *tight, "--seq", "128,1024", "--quiet").code
            assert codes[left > 0, limit] == alone.code
    assert codes == {(True, "52w"): 0, (True, "1s"): 3, (False, "52w"): 3, (False, "1s"): 3}


def test_limits_that_cannot_be_judged_are_not_kept() -> None:
    """Of a card whose rates are not known nobody knows how long it takes, and of one without a price what it costs."""
    words = ("-m", "gpt2", "-g", "24 GiB,v100,t4", "--seq", "256", "--tokens", "1B")
    document = compared(*words, "--budget", "1k", "--deadline", "90d")
    assert [cell["verdict"] for cell in document["cells"]] == ["fits", "fits", "fits"]
    assert [cell["keeps_limits"] for cell in document["cells"]] == [None, None, True]
    assert [document[name] for name in ("fastest", "cheapest", "cheapest_hour")] == [2, 2, 2]
    assert "of the GPU is known (24 GiB)" in document["cells"][0]["unjudged"]
    assert "no price of the GPU is known: --price gives one" in document["cells"][1]["unjudged"]
    broken = run("compare", *words, "--deadline", "1s")
    assert broken.code == 3
    assert "fits (limit?)" in broken.out
    assert "none of them fits and keeps its limits" in broken.out
    assert "not judged by its limits: --gpu '24 GiB'" in broken.out
    assert "no run has a rate" not in broken.out
    free = compared(*words)
    assert [cell["unjudged"] for cell in free["cells"]] == [None, None, None]
    plan = refused("plan", "-m", "gpt2", "-g", "v100", "--tokens", "1B", "--budget", "5")
    assert "no price of v100 is known" in plan.err


@pytest.mark.contract
def test_a_run_whose_limits_cannot_be_judged_wins_nothing() -> None:
    words = ("-m", "gpt2", "-g", "gtx-1080-ti,t4", "--precision", "fp16", "--tokens", "1M", "--deadline", "52w")
    held = compared(*words)
    assert [cell["keeps_limits"] for cell in held["cells"]] == [None, True]
    assert {held["fastest"], held["cheapest_hour"]} == {1}
    assert "cannot be judged" in run("compare", *words).out
    alone = run("scale", "-m", "gpt2", "-g", "gtx-1080-ti", "--gpus", "2", "--tokens", "1M", "--deadline", "52w")
    assert alone.code == 3
    assert "is enough" not in alone.out


def test_what_is_refused_is_a_row_and_the_rest_is_answered() -> None:
    document = compared("-m", "gpt2,no-such-model", "-g", "v100")
    assert [cell["error"] is None for cell in document["cells"]] == [True, False]
    assert "no-such-model" in document["cells"][1]["error"]
    assert run("compare", "-m", "a,b", "-g", "v100").code == 2


def test_values_with_commas_are_separated_by_semicolons() -> None:
    words = ("-m", "gpt2", "-g", "v100", "--adapter", "lora", "--targets", "c_attn,c_proj;all-linear")
    document = compared(*words)
    assert [cell["options"] for cell in document["cells"]] == [
        {"targets": "c_attn,c_proj"},
        {"targets": "all-linear"},
    ]


def test_a_table_has_a_row_for_each() -> None:
    rows = list(csv.DictReader(io.StringIO(run("compare", *WORDS, "--format", "csv").out)))
    assert [row["gpu"] for row in rows] == ["t4", "t4", "v100", "v100", "24 GiB", "24 GiB"]
    text = run("compare", *WORDS).out
    assert text.count("\nv100 ") == 2
    assert "fastest: --gpu v100" in text
    assert run("compare", *WORDS, "--format", "markdown").out.startswith("| gpu |")


def test_all_is_every_gpu_with_a_rent_and_the_cheapest_that_fits_is_named(tmp_path: Path) -> None:
    short = ("-m", "gpt2", "--seq", "128", "--micro-batch", "1")
    document = compared(*short, "-g", "all")
    names = [cell["options"]["gpu"] for cell in document["cells"]]
    hours = [cell["usd_per_hour"] for cell in document["cells"]]
    assert {"t4", "h100-80gb", "a100-80gb"} < set(names)
    assert "v100" not in names  # without a price
    assert hours == sorted(hours)
    assert document["cheapest_hour"] == next(
        place for place, cell in enumerate(document["cells"]) if cell["verdict"] == "fits"
    )
    prices = tmp_path / "prices"
    prices.mkdir()
    (prices / "ours.yaml").write_text(
        "kind: prices\nname: ours\nsources: {bill: {title: Bill, url: https://example.com, accessed: '2026-01-01'}}\n"
        "fields: {v100: {value: 0.01 USD/h, source: bill}, no-gpu: {value: 0.02 USD/h, source: bill}}\n"
    )
    both = compared(*short, "-g", "2xall,8xt4", "--profiles", str(tmp_path))
    counted = [cell["options"]["gpu"] for cell in both["cells"]]
    assert counted == ["2xv100", *(f"2x{name}" for name in names), "8xt4"]
    assert {cell["devices"] for cell in both["cells"]} == {2, 8}
    for word in ("all", "auto"):
        assert "vramplan compare -g all" in refused("fit", "-m", "gpt2", "-g", word).err


def test_what_cannot_be_compared_is_said() -> None:
    assert "nothing to compare" in refused("compare", "-m", "gpt2", "-g", "v100").err
    misspelled = refused("compare", "-m", "gpt2", "-g", "al").err
    assert "there is no GPU profile 'al' (vramplan compare -g all" in misspelled
    assert "did you mean h100?" in refused("compare", "-m", "gpt2", "-g", "h10").err
    numbers = ",".join(map(str, range(1, 200)))
    many = refused("compare", "-m", "gpt2", "-g", "v100", "--micro-batch", numbers, "--seq", numbers)
    assert "39,601 combinations" in many.err


def test_what_is_said_where_nothing_can_be_ranked() -> None:
    bare = run("scale", "-m", "gpt2", "-g", "24 GiB", "--gpus", "2")
    assert "no run has a rate or a price to compare" in bare.out
    assert "none of them fits" not in bare.out
    assert "the rates of 24 GiB are not known" in refused("plan", "-m", "gpt2", "-g", "24 GiB").err
    wrong = run("scale", "-m", "gpt2", "-g", "h100", "--gpus", "2,4", "--global-batch", "7")  # other batches are near
    assert "2 of 2 cannot be computed" in wrong.out
    assert "none of them fits" not in wrong.out
    assert "no number of these GPUs" not in wrong.out


def test_a_list_may_stand_behind_an_option_in_short() -> None:
    found = compared("gpt2", "4xa100", "--zero", "2,3")
    assert [cell["options"] for cell in found["cells"]] == [{"sharding": "zero2"}, {"sharding": "zero3"}]
    assert [cell["error"] for cell in found["cells"]] == [None, None]


def test_a_run_on_more_and_more_devices() -> None:
    document = compared("-m", "gpt2-xl", "-g", "a100", "--sharding", "ddp", "--to", "8", command="scale")
    cells = document["cells"]
    assert [cell["devices"] for cell in cells] == [1, 2, 4, 8]
    assert cells[0]["efficiency"] == 1
    rates = [cell["samples_per_second"] for cell in cells]
    assert rates == sorted(rates)
    for cell in cells:
        assert cell["efficiency"] == pytest.approx(cell["samples_per_second"] / cell["devices"] / rates[0], abs=1e-6)
    assert any("exhaust it first" in words for words in document["advice"])
    split = ("-m", "gpt2-medium", "-g", "a100", "--runtime", "megatron", "--tensor", "2", "--gpus", "1,2")
    assert [cell["error"] for cell in compared(*split, command="scale")["cells"]] == [None, None]
    few = compared("-m", "gpt2", "-g", "a100", "--gpus", "3,1", command="scale")
    assert [cell["devices"] for cell in few["cells"]] == [1, 3]
    up_to = [compared("-m", "gpt2", "-g", "a100", "--gpus", last, command="scale") for last in ("1", "12")]
    assert [[cell["devices"] for cell in one["cells"]] for one in up_to] == [[1], [1, 2, 4, 8, 12]]
    counted = compared("-m", "gpt2", "-g", "4xa100", command="scale")
    assert [cell["devices"] for cell in counted["cells"]] == [1, 2, 4]
    for last in ("--gpus", "--to"):  # the number before the GPU is the first then
        both = compared("-m", "gpt2", "-g", "4xa100", last, "12", command="scale")
        assert [cell["devices"] for cell in both["cells"]] == [4, 8, 12]
    assert "4 GPUs are more than the last number, 2" in refused("scale", "gpt2", "4xa100", "--gpus", "2").err
    large = compared("-m", "llama-3.1-8b", "-g", "a100-80gb", "--gpus", "8,16", command="scale")
    assert large["cells"][0]["verdict"] == "fits"
    assert "8 GPUs fit with fsdp, the fewest that were asked about" in large["advice"]
    assert "no list of numbers" in refused("scale", "-m", "gpt2", "-g", "a100", "--gpus", "two").err
    json.dumps(document)


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("words", "of_one"),
    [
        ((), ()),
        (("--fsdp",), ("--fsdp",)),
        (("--zero", "3", "--offload", "optimizer"), ("--zero", "3", "--offload", "optimizer")),
        (("--sharding", "ddp"), ()),  # which needs several
        (("--precision", "pure-bf16"), ("--precision", "pure-bf16")),
    ],
    ids=str,
)
def test_the_row_of_one_gpu_is_the_answer_of_fit(words: tuple[str, ...], of_one: tuple[str, ...]) -> None:
    """With the number formats that the program has there, which are other ones where FSDP shares the states."""
    short = ("-m", "llama-3.2-1b", "-g", "h100", "--seq", "64", "--micro-batch", "1")
    document = compared(*short, *words, "--gpus", "1,2", command="scale")
    cell, of_several = document["cells"]
    alone = run("fit", *short, *of_one, "--gpus", "1", "--format", "json").document
    assert (cell["verdict"], cell["device_bytes"]) == (alone["verdict"], alone["peak"]["device_bytes"])
    assert (cell["weight_dtype"], cell["precision"]) == (alone["weight_dtype"], alone["job"]["precision"])
    differs = cell["weight_dtype"] != of_several["weight_dtype"]
    assert differs is (words == ())
    assert any("1 GPU trains bf16 weights" in said for said in document["advice"]) is differs
    other_casts = not differs and cell["precision"] != of_several["precision"]
    assert any("1 GPU runs in" in said for said in document["advice"]) is other_casts


def test_advice_says_which_numbers_were_looked_at_and_how_they_share() -> None:
    """One GPU is enough by `fit`, and not with FSDP's fp32 weights."""
    large = ("-m", "llama-3.1-8b", "-g", "h100")
    free = compared(*large, "--gpus", "1,4", command="scale")
    assert (free["cells"][0]["verdict"], free["cells"][1]["verdict"]) == ("fits", "fits")
    assert not any("fewest" in said for said in free["advice"])
    shared = compared(*large, "--fsdp", "--gpus", "1,4", command="scale")
    assert "of these numbers, 4 GPUs are the fewest that fit with fsdp" in shared["advice"]
    none = run("scale", "-m", "llama-3.1-8b", "-g", "t4", "--gpus", "1,2").out
    assert "\nnone of them fits\n" in none
    assert "no run on these numbers of GPUs fits with fsdp" in none
    assert "--gpus 4,8, and no number before the GPU" in none.replace("\n", " ")


def test_advice_stops_at_the_last_number_that_is_worth_it_and_names_the_next() -> None:
    """Between machines with little bandwidth a GPU does a fifth, with 16 of them and with 64."""
    slow = ("--seq", "512", "--micro-batch", "1", "--steps", "1", "--node-bandwidth", "20 GB/s", "--gpus", "8,16,64")
    document = compared("-m", "gpt2-xl", "-g", "a100", *slow, command="scale")
    assert [cell["efficiency"] >= 0.8 for cell in document["cells"]] == [True, False, False]
    assert sum(said.startswith("stop at 8 GPUs: with 16 each does") for said in document["advice"]) == 1
    alone = compared("-m", "qwen3-8b", "-g", "rtx-4090", "--lora", "--gpus", "1,2", command="scale")
    assert sum(said.startswith("stay on 1 GPU: with 2 each does") for said in alone["advice"]) == 1


def test_the_jobs_of_a_file_are_rows(tmp_path: Path) -> None:
    """A matrix is unfolded; what is wrong with one job is said in its row."""
    file = tmp_path / "jobs.yaml"
    file.write_text(
        "version: 1\n"
        "jobs:\n"
        "  - {name: a, model: gpt2, sequence_length: 256, matrix: {gpu: [t4, v100], micro_batch_size: [1, 2]}}\n"
        "  - {name: b, model: gpt2, gpu: t5}\n"
    )
    document = run("compare", "--job", str(file), "--format", "json").document
    names = [cell["options"]["job"] for cell in document["cells"]]
    assert names[0] == "a (gpu=t4, micro_batch_size=1)"
    assert names[-1] == "b"
    assert document["cells"][-1]["error"] is not None
    for cell in document["cells"][:4]:
        one = f"{file}#{cell['options']['job']}"
        alone = run("fit", "--job", one, "--format", "json").document
        assert cell["device_bytes"] == alone["peak"]["device_bytes"]
    assert "nothing to compare" in refused("compare", "--job", str(file), "-g", "t4").err


def test_lists_vary_a_job_of_a_file(tmp_path: Path) -> None:
    """What the lists do not say is as in the file, and each row is the answer of `fit` with the option."""
    file = tmp_path / "jobs.yaml"
    file.write_text(
        "version: 1\n"
        "jobs:\n"
        "  - {name: full, model: gpt2, gpu: t4, sequence_length: 128, micro_batch_size: 2}\n"
        "  - {name: other, model: gpt2, gpu: v100}\n"
    )
    document = run("compare", f"{file}#full", "--gpus", "1,2", "--format", "json").document
    assert [cell["devices"] for cell in document["cells"]] == [1, 2]
    for cell in document["cells"]:
        alone = run("fit", f"{file}#full", "--gpus", cell["options"]["gpus"], "--format", "json").document
        assert alone["job"]["sequence_length"] == 128
        assert (cell["verdict"], cell["device_bytes"]) == (alone["verdict"], alone["peak"]["device_bytes"])
        assert cell["micro_batch_size"] == 2
    mixed = compared(f"{file}#full", "--seq", "128,1000000", "-g", "v100")
    assert [cell["error"] is None for cell in mixed["cells"]] == [True, False]
    assert "has 2 jobs: say which" in refused("compare", str(file), "--gpus", "1,2").err
    assert "has no job 'none'" in refused("compare", f"{file}#none", "--gpus", "1,2").err
    assert "nothing to compare" in refused("compare", f"{file}#full").err


def test_lists_vary_a_file_of_a_training_program(tmp_path: Path) -> None:
    file = tmp_path / "axolotl.yaml"
    file.write_text(
        "base_model: Qwen/Qwen2.5-0.5B\nadapter: lora\nlora_r: 16\nlora_target_linear: true\nsequence_len: 256\n"
        "micro_batch_size: 2\ngradient_accumulation_steps: 4\noptimizer: adamw_torch\nbf16: true\n"
    )
    ran = run("compare", str(file), "-g", "l4,a100", "--format", "json")
    assert ran.err.count("is read as axolotl") == 1
    for cell in ran.document["cells"]:
        alone = run("fit", str(file), "-g", cell["options"]["gpu"], "--format", "json").document
        assert (cell["verdict"], cell["device_bytes"]) == (alone["verdict"], alone["peak"]["device_bytes"])
        assert (cell["micro_batch_size"], cell["gradient_accumulation_steps"]) == (2, 4)
    assert "compare FILE --gpus 1,2,4 takes one" in refused("walkthrough", str(file), "-g", "l4").err


def test_a_file_is_scaled_as_it_says_how_devices_share(tmp_path: Path) -> None:
    """Each row is the answer of `fit` with the number of GPUs, on one without what needs several."""
    axolotl = tmp_path / "axolotl.yaml"
    axolotl.write_text(
        "base_model: Qwen/Qwen2.5-0.5B\nadapter: lora\nlora_r: 16\nlora_target_linear: true\nsequence_len: 256\n"
        "micro_batch_size: 2\ngradient_accumulation_steps: 4\noptimizer: adamw_torch\nbf16: true\n"
    )
    jobs = tmp_path / "jobs.yaml"
    shared = "parallel: {data: 4, sharding: ddp}"
    jobs.write_text(
        f"version: 1\njobs:\n- {{name: a, model: gpt2, gpu: t4, sequence_length: 128, micro_batch_size: 2, {shared}}}\n"
    )
    for words, of_one in (((str(axolotl), "-g", "l4"), ()), ((str(jobs),), ("--sharding", "none"))):
        ran = run("scale", *words, "--gpus", "1,2", "--format", "json")
        assert ran.err.count("is read as axolotl") == (words[0] == str(axolotl))
        for cell in ran.document["cells"]:
            count = cell["options"]["gpus"]
            more = of_one if count == "1" else ()
            alone = run("fit", *words, "--gpus", count, *more, "--format", "json").document
            assert (cell["verdict"], cell["device_bytes"]) == (alone["verdict"], alone["peak"]["device_bytes"])
            assert cell["micro_batch_size"] == 2
            assert alone["job"]["parallel"]["sharding"] == ("none" if count == "1" else "ddp")


def test_several_processes_give_the_rows_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """33 iterations: fewer are not worth a second process."""
    words = (
        "-m",
        "gpt2",
        "-g",
        "t4,a100-40gb",
        "--seq",
        ",".join(str(64 + 8 * one) for one in range(33)),
        "--micro-batch",
        "2",
    )
    rows = []
    for processes in (1, 3):
        monkeypatch.setattr(runs, "usable", lambda processes=processes: processes)
        rows.append(compared(*words))
    assert len(rows[0]["cells"]) == 66
    assert rows[0] == rows[1]


def test_what_a_task_of_another_process_raises_is_raised_here() -> None:
    def inverse(number: int) -> float:
        return 1 / number

    assert done([2, 4, 8, 16], inverse, 2) == [0.5, 0.25, 0.125, 0.0625]
    with pytest.raises(ZeroDivisionError):
        done([1, 0, 2], inverse, 2)


@pytest.mark.parametrize("words", [("scale", "gpt2", "-g", "t4"), ("compare", "gpt2", "-g", "t4,v100")])
def test_runs_that_are_all_refused_for_one_reason_are_refused_once(words: tuple[str, ...]) -> None:
    ran = refused(*words, "--seq", "9999", "--gradient-accumulation-steps", "0")
    assert ran.err.count("sequence_length: 9999 is more than the 1024 positions") == 1
    assert ran.err.count("gradient_accumulation_steps: 0 is too small") == 1
