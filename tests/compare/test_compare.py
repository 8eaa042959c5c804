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


def test_every_row_is_the_answer_of_fit_with_an_estimated_allocator() -> None:
    document = compared(*WORDS)
    assert document["axes"] == ["gpu", "micro-batch"]
    assert [(cell["options"]["gpu"], cell["options"]["micro-batch"]) for cell in document["cells"]] == [
        (gpu, micro) for gpu in ("t4", "v100", "24 GiB") for micro in ("1", "16")
    ]
    for cell in document["cells"]:
        options = cell["options"]
        micro = int(options["micro-batch"])
        keys = {"sequence_length": 256, "micro_batch_size": micro, "allocator": "estimate"}
        alone = fit(model="gpt2", gpu=options["gpu"], **keys)
        assert cell["verdict"] == alone.verdict
        assert cell["device_bytes"] == alone.peak.device_bytes
        assert cell["largest_micro_batch_size"] == alone.recommended.largest_micro_batch_size
        if alone.time is None:
            assert cell["tokens_per_second"] is None
        else:
            assert cell["tokens_per_second"] == alone.time.tokens_per_second
            assert cell["step_seconds"] == alone.time.step_seconds


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


def test_a_run_whose_limits_cannot_be_judged_wins_nothing() -> None:
    words = ("-m", "gpt2", "-g", "gtx-1080-ti,t4", "--precision", "fp16", "--tokens", "1M", "--deadline", "52w")
    held = compared(*words)
    assert [cell["keeps_limits"] for cell in held["cells"]] == [False, True]
    assert {held["fastest"], held["cheapest_hour"]} == {1}
    assert "of 1 of 2 no time is known" in run("compare", *words).out
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


def test_what_cannot_be_compared_is_said() -> None:
    assert "nothing to compare" in refused("compare", "-m", "gpt2", "-g", "v100").err
    numbers = ",".join(map(str, range(1, 200)))
    many = refused("compare", "-m", "gpt2", "-g", "v100", "--micro-batch", numbers, "--seq", numbers)
    assert "39,601 combinations" in many.err


def test_what_is_said_where_nothing_can_be_ranked() -> None:
    bare = run("scale", "-m", "gpt2", "-g", "24 GiB", "--gpus", "2")
    assert "no run has a rate or a price to compare" in bare.out
    assert "none of them fits" not in bare.out
    assert "the rates of 24 GiB are not known" in refused("plan", "-m", "gpt2", "-g", "24 GiB").err
    wrong = run("scale", "-m", "llama-3.1-8b", "-g", "h100", "--runtime", "megatron", "--tensor", "two", "--gpus", "2")
    assert "2 of 2 cannot be computed" in wrong.out
    assert "none of them fits" not in wrong.out
    assert "no number of these GPUs" not in wrong.out


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
    large = compared("-m", "llama-3.1-8b", "-g", "a100-80gb", "--gpus", "8,16", command="scale")
    assert large["cells"][0]["verdict"] == "fits"
    assert "8 GPUs fit, the fewest that were asked about" in large["advice"]
    assert "no list of numbers" in refused("scale", "-m", "gpt2", "-g", "a100", "--gpus", "two").err
    json.dumps(document)


@pytest.mark.parametrize("words", [(), ("--fsdp",), ("--zero", "3")], ids=str)
def test_one_gpu_has_the_number_formats_of_several(words: tuple[str, ...]) -> None:
    """Weights and two moments in fp32, as where the states are shared; on one GPU alone they would be in bf16."""
    short = ("-m", "llama-3.2-1b", "-g", "h100", "--seq", "64", "--micro-batch", "1")
    document = compared(*short, *words, "--gpus", "1,2", command="scale")
    in_fp32, in_bf16 = (3 * width * 1_235_814_400 for width in (4, 2))
    assert document["cells"][0]["device_bytes"] > in_fp32
    named = compared(*short, *words, "--gpus", "1,2", "--weight-dtype", "bf16", command="scale")
    if "--zero" not in words:  # DeepSpeed has fp32 copies beside them
        assert in_bf16 < named["cells"][0]["device_bytes"] < in_fp32


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
        alone = run("fit", "--job", one, "--allocator", "estimate", "--format", "json").document
        assert cell["device_bytes"] == alone["peak"]["device_bytes"]
    assert "have their own keys" in refused("compare", "--job", str(file), "-g", "t4").err


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
