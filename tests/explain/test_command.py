"""`vramplan explain` as a person and as a program meet it."""

from __future__ import annotations

import csv
import io
import json
import os
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.draws import jobs
from tests.cli.running import fit, process, refused, run, valid
from vramplan.answers.explanation import explain, rule_of
from vramplan.answers.explanation.life import life
from vramplan.answers.explanation.states import states
from vramplan.answers.explanation.trace import Trace
from vramplan.job import build_job
from vramplan.planner.decision import decide
from vramplan.report.explain import csv as csv_of
from vramplan.report.explain import document, markdown, text
from vramplan.report.lines import to_plain

JOBS: dict[str, tuple[str, ...]] = {
    "gpt2 autocast": ("-m", "gpt2-xl", "-g", "v100"),
    "gpt2 eager stored": (
        "-m",
        "gpt2",
        "-g",
        "v100",
        "--attention",
        "eager",
        "--checkpointing",
        "none",
        "--seq",
        "256",
    ),
    "llama flash": ("-m", "llama-3.2-1b", "-g", "a100-40gb", "--attention", "flash", "--checkpointing", "full"),
    "llama 80 layers": ("-m", "llama-3.1-70b", "-g", "h100-80gb", "--precision", "mixed-bf16", "--micro-batch", "1"),
    "bert eager": (
        "-m",
        "bert-base",
        "-g",
        "a100-40gb",
        "--attention",
        "eager",
        "--optimizer-implementation",
        "foreach",
    ),
    "pure": ("-m", "gpt2-medium", "-g", "a100-40gb", "--precision", "pure-bf16", "--optimizer", "adafactor"),
    "one step": ("-m", "gpt2", "-g", "a100-40gb", "--micro-batch", "4", "--steps", "1", "--optimizer", "sgd-momentum"),
    "for-loop": ("-m", "gpt2", "-g", "v100", "--micro-batch", "1", "--optimizer-implementation", "for-loop"),
    "segments": ("-m", "gpt2", "-g", "v100", "--checkpointing", "layers:[[0,3],[6,11]]", "--micro-batch", "3"),
}
XL = JOBS["gpt2 autocast"]


def explained(*words: object) -> Any:
    """The JSON answer."""
    ran = run("explain", *words, "--format", "json")
    assert ran.code == 0, ran
    return valid("explain", ran.document)


def names(answer: Any) -> list[str]:
    """Every name that the answer says, of tensors that can be followed."""
    found = [tensor["name"] for state in answer["states"] for tensor in state["tensors"]]
    found += [one["name"] for one in answer["peak"]["alive"]]
    for section in answer["operators"]:
        for step in section["steps"]:
            found += [made["name"] for made in step["makes"]]
            found += [saved["tensor"] for saved in step["saves"]]
    return list(dict.fromkeys(found))


@pytest.mark.sweep(6)
@pytest.mark.parametrize("words", JOBS.values(), ids=JOBS)
def test_the_figures_sum_to_the_answer_of_fit(words: tuple[str, ...]) -> None:
    answer, judged = explained(*words), fit(*words)
    sums: dict[str, int] = {}
    for one in answer["peak"]["alive"]:
        assert one["total_bytes"] == one["bytes"] * one["copies"]
        sums[one["component"]] = sums.get(one["component"], 0) + one["total_bytes"]
    components = {part["name"]: part["bytes"] for part in judged["components"]}
    assert sums == components
    assert sum(sums.values()) == judged["peak"]["allocated_bytes"] == answer["peak"]["allocated_bytes"]
    assert answer["totals"]["components"] == [{"name": k, "bytes": v} for k, v in components.items()]
    assert answer["totals"]["saved"]["saved_bytes"] == judged["peak"]["saved_bytes"]
    *parts, whole = answer["totals"]["saved"].values()
    assert sum(parts) == whole
    overheads = sum(part["bytes"] for part in answer["totals"]["overheads"])
    assert answer["peak"]["allocated_bytes"] + overheads == judged["peak"]["device_bytes"]
    assert {key: answer["peak"][key] for key in ("phase", "operator")} == {
        key: judged["peak"][key] for key in ("phase", "operator")
    }
    for state in answer["states"]:
        assert (
            sum(tensor["total_bytes"] for tensor in state["tensors"])
            == state["bytes"]
            == components[state["component"]]
        )
    assert answer["job"] == judged["job"]
    assert answer["verdict"] == judged["verdict"]


def test_stored_blocks_keep_what_the_operators_of_one_say() -> None:
    """Twelve equal blocks: what all keep is twelve times what one makes and keeps; only the last output is not kept by
    a block, but by the final norm, and it is kept all the same."""
    answer = explained(*JOBS["gpt2 eager stored"])
    block = next(s for s in answer["operators"] if s["part"] == "block" and s["direction"] == "forward")
    assert not block["checkpointed"]
    kept = sum(made["bytes"] for step in block["steps"] for made in step["makes"] if made["kept"])
    assert kept == block["kept_bytes"]
    assert answer["totals"]["saved"]["blocks_bytes"] == 12 * kept


@pytest.mark.plain
def test_a_checkpointed_block_keeps_nothing_of_its_own_and_is_computed_again() -> None:
    answer = explained(*XL, "--block", 3)
    sections = {(s["part"], s["direction"]): s for s in answer["operators"]}
    forward, again = sections["block", "forward"], sections["block", "recompute"]
    assert forward["checkpointed"]
    assert forward["kept_bytes"] == 0  # block 3 is inside of the segment 0-6
    operators = [step["operator"] for step in forward["steps"]]
    assert [step["operator"] for step in again["steps"]] == operators
    assert all(saved["recomputed"] for step in again["steps"] for saved in step["saves"])
    segment_end = explained(*XL, "--block", 6)
    ends = next(s for s in segment_end["operators"] if s["part"] == "block" and s["direction"] == "forward")
    assert ends["kept_bytes"] == 2 * 1024 * 1600 * 4  # the input of the next segment


@pytest.mark.sweep(3)
@pytest.mark.parametrize("words", [XL, JOBS["bert eager"], JOBS["segments"]], ids=["gpt2-xl", "bert", "segments"])
def test_every_printed_name_can_be_followed(words: tuple[str, ...]) -> None:
    answer = explained(*words)
    decision = decide(build_job(answer["job"]))
    trace = Trace(decision.setup, answer["job"]["micro_batch_size"])
    held = states(trace)
    for name in names(answer):
        found = life(trace, rule_of, held, name, answer["block"])
        plain = name if not name.startswith("block.") or name.split(".")[1].isdigit() else None
        assert plain in (None, found.name), name
        assert found.points
        assert found.born
        assert found.died


@pytest.mark.plain
def test_a_tensor_of_any_block_is_that_of_the_block() -> None:
    end = explained(*XL, "--tensor", "block.20.add.2")["tensor"]
    assert end["name"] == "block.20.add.2"
    assert end["at_peak"]  # the input of the checkpoint 21-27
    assert end["copies_at_peak"] == 7
    assert [keeper["operator"] for keeper in end["keepers"]] == ["block.21.ln_1.native_layer_norm"]
    assert "block.21" in end["died"]
    inner = explained(*XL, "--tensor", "block.19.add.2")["tensor"]
    assert not inner["at_peak"]
    assert inner["died_phase"] == "forward"


@pytest.mark.sweep
def test_a_part_of_a_name_is_enough_where_it_names_one_tensor() -> None:
    assert explained(*XL, "--tensor", "softmax")["tensor"]["name"] == "causal_lm_loss.log_softmax"
    for called in ("logits", "lm_head"):
        assert explained(*XL, "--tensor", called)["tensor"]["name"] == "times_head.mm"
    assert explained(*XL, "--tensor", "c_fc.weight")["tensor"]["name"] == "block.24.mlp.c_fc.weight"
    assert explained(*XL, "--block", 5, "--tensor", "c_fc.addmm")["tensor"]["name"] == "block.5.mlp.c_fc.addmm"


@pytest.mark.sweep
def test_what_is_not_there_is_refused_with_what_is() -> None:
    assert "attn.c_attn.addmm" in refused("explain", *XL, "--tensor", "c_attn.adm").err
    several = refused("explain", *XL, "--tensor", "gelu_new").err
    assert "may be any of" in several
    assert "mlp.gelu_new.tanh" in several
    assert "blocks are 0 to 47" in refused("explain", *XL, "--tensor", "block.48.add").err
    assert "blocks are 0 to 47" in refused("explain", *XL, "--block", 48).err
    assert "blocks are 0 to 47" in refused("explain", *XL, "--block", -1).err
    refused("explain", *XL, "--tensor", "")
    refused("explain", *XL, "--tensor", "zzz")


def test_a_job_that_does_not_fit_is_explained_too() -> None:
    answer = explained("-m", "gpt2-xl", "-g", "v100", "--micro-batch", 32)
    assert answer["verdict"] == "does-not-fit"


@pytest.mark.sweep(12)
@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("words", [XL, JOBS["llama flash"], JOBS["bert eager"], JOBS["pure"]], ids=lambda w: w[1])
def test_the_text_is_within_the_width_and_ends_in_the_figures_of_fit(words: tuple[str, ...], width: int) -> None:
    answer = explain(build_job(explained(*words)["job"]))
    lines = to_plain(text(answer, width=width)).splitlines()
    assert max(map(len, lines)) <= width
    said = "\n".join(lines)
    assert f"{answer.fit.peak.allocated_bytes:,}" in said
    assert f"{answer.fit.peak.device_bytes:,}" in said
    assert f"{answer.fit.peak.saved_bytes:,}" in said
    for rule in answer.rules:
        assert rule.name in said


@pytest.mark.plain
@pytest.mark.sweep(9)
@settings(max_examples=8, deadline=None)
@given(jobs(), st.integers(40, 130))
def test_any_job_is_explained_in_every_format(job: dict[str, Any], width: int) -> None:
    """`explain` itself compares every sum with the answer of `fit`; a difference would be an exception."""
    answer = explain(build_job(job))
    valid("explain", json.loads(json.dumps(document(answer))))
    assert max(map(len, to_plain(text(answer, width=width)).splitlines())) <= width
    alive = [int(row["total_bytes"]) for row in rows_of(csv_of(answer)) if row["table"] == "peak"]
    assert sum(alive) == answer.fit.peak.allocated_bytes
    assert all(f"`{rule.name}`" in markdown(answer) for rule in answer.rules)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.sweep
def test_every_format_says_the_same_figures() -> None:
    answer = explained(*XL)
    peak = f"{answer['peak']['allocated_bytes']:,}"
    assert peak in run("explain", *XL).out
    rows = rows_of(run("explain", *XL, "--format", "csv").out)
    alive = [int(row["total_bytes"]) for row in rows if row["table"] == "peak"]
    assert sum(alive) == answer["peak"]["allocated_bytes"]
    assert {row["tensor"] for row in rows if row["table"] == "made"} <= set(names(answer))
    table = run("explain", *XL, "--format", "markdown").out
    assert all(f"`{rule['name']}`" in table for rule in answer["rules"])
    assert json.loads(run("explain", *XL, "--print", "totals").out) == answer["totals"]
    followed = run("explain", *XL, "--tensor", "logits", "--format", "csv").out.splitlines()
    assert followed[0] == "tensor,moment,copies,bytes"
    assert all(line.startswith("times_head.mm,") for line in followed[1:])
    assert "## `times_head.mm`" in run("explain", *XL, "--tensor", "logits", "--format", "markdown").out
    assert run("explain", *XL, "--quiet").out == ""


@pytest.mark.sweep
def test_python_without_docstrings_is_told_so() -> None:
    """The rules are their docstrings."""
    environment = {**os.environ, "PYTHONOPTIMIZE": "2"}
    with mock.patch.dict(os.environ, environment):
        done = process("explain", *XL)
    assert done.returncode == 2, done.stderr
    assert "-OO" in done.stderr
