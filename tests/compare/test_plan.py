"""The search among plans: its winner is the best of all combinations, typed it gives the same run."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from tests.cli.running import refused, run
from vramplan import fit
from vramplan.answers import asked
from vramplan.answers.bounds import CLOSER, Bounds
from vramplan.answers.candidates import COMPILED, LOSSES, OFFLOADS, complexity
from vramplan.answers.processes import done
from vramplan.errors import InputError
from vramplan.planner.bounds.plain import gathered_bytes, least_bytes, plain_setup
from vramplan.planner.budget import RESERVED_PERCENT
from vramplan.report.json import schema
from vramplan.report.scatter_svg import FEW, LEFT, RIGHT, ScatterPoint, scatter
from vramplan.results.compared import Cell
from vramplan.values.job import ResolvedJob

pytestmark = pytest.mark.contract

WORDS = ("-m", "gpt2", "-g", "v100", "--seq", "512", "--steps", "4")


def planned(*words: str) -> dict[str, Any]:
    ran = run("plan", *words, "--format", "json")
    assert ran.code in (0, 3)
    document: dict[str, Any] = ran.document
    jsonschema.validate(document, schema("plan"))
    return document


def test_the_winner_is_that_of_trying_everything() -> None:
    checkpointing = ("none", "selective-op", "every:2", "full")
    words = ("--attention", "sdpa", "--checkpointing", ",".join(checkpointing), "--exclude", "offload")
    document = planned(*WORDS, *words)
    best, count = 0.0, 0
    axes = (checkpointing, LOSSES, COMPILED, OFFLOADS[:1])
    for checkpoints, loss, compiled, offload in product(*axes):
        keys: dict[str, Any] = {"model": "gpt2", "gpu": "v100", "sequence_length": 512, "attention": "sdpa"}
        keys |= {"gradient_accumulation_steps": 4, "activation_checkpointing": checkpoints}
        keys |= {} if loss == "-" else {"loss": loss}
        keys |= {} if compiled == "-" else {"compile": True}
        keys |= {} if offload == "-" else {"offload": [offload]}
        count += 1
        try:
            result = fit(**keys)
        except InputError:
            continue
        if result.verdict == "fits" and result.time is not None:
            best = max(best, result.time.samples_per_second)
    assert document["combinations"] == document["candidates"] == count
    assert document["plans"][0]["samples_per_second"] == best
    fastest = document["plans"][document["fastest"]]
    near = [plan for plan in document["plans"] if plan["samples_per_second"] * 1.05 >= best]
    assert fastest in near
    assert fastest["complexity"] == min(plan["complexity"] for plan in near)


def test_a_plan_that_is_faster_by_less_than_rates_are_off_by_is_not_called_the_fastest() -> None:
    words = ("-m", "gpt2-large", "-g", "t4", "--seq", "512", "--checkpointing", "none,full", "--exclude", "compile")
    document = planned(*words)
    first, fastest = document["plans"][0], document["plans"][document["fastest"]]
    assert first["samples_per_second"] > fastest["samples_per_second"] >= first["samples_per_second"] / 1.05
    assert first["complexity"] > fastest["complexity"]
    assert document["ladder"][-1]["device_bytes"] == fastest["device_bytes"]
    assert " ".join(run("plan", *words).out.split()).startswith(f"fastest {fastest['flags']}")


def test_a_plan_is_listed_once_and_its_ladder_ends_in_what_was_chosen() -> None:
    """Where a simulated allocator leaves a smaller micro-batch than the estimate, which was the last row then."""
    document = planned("-m", "llama-3.2-1b", "-g", "l4", "--loss", "fused", "--exclude", "offload")
    runs = [(tuple(plan["options"].items()), plan["micro_batch_size"]) for plan in document["plans"]]
    assert len(set(runs)) == len(runs)
    fastest = document["plans"][document["fastest"]]
    assert "--micro-batch" not in fastest["flags"]
    last = document["ladder"][-1]
    assert (last["option"], last["samples_per_second"]) == ("--compile true", fastest["samples_per_second"])


@pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux alone")
def test_plans_that_several_processes_simulate_are_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*WORDS, "--exclude", "compile=true", "--checkpointing", "none,full")
    monkeypatch.setattr("vramplan.cli.runs.plan.usable", lambda: 1)
    alone = planned(*words)
    monkeypatch.setattr("vramplan.cli.runs.plan.usable", lambda: 2)
    monkeypatch.setattr(asked, "BLOCKS_OF_SEVERAL", 1)
    together: list[int] = []

    def counted(tasks: Any, do: Any, processes: int) -> Any:
        together.append(len(tasks))
        return done(tasks, do, processes)

    monkeypatch.setattr(asked, "done", counted)
    assert planned(*words) == alone
    assert set(together) == {2}


@pytest.mark.sweep
def test_a_plan_typed_is_the_run_that_it_promises() -> None:
    document = planned(*WORDS, "--exclude", "compile=true")
    assert {plan["micro_batch_size"] for plan in document["plans"]} > {document["plans"][0]["micro_batch_size"]}
    for place in {document["fastest"], document["simplest"], *document["front"]}:
        found = document["plans"][place]
        assert document["plans"][0]["samples_per_second"] * 0.9 <= found["samples_per_second"]
        alone = run("fit", *WORDS, *shlex.split(found["flags"]), "--format", "json").document
        assert alone["verdict"] == "fits"
        assert alone["peak"]["device_bytes"] == found["device_bytes"]
        assert alone["time"]["samples_per_second"] == found["samples_per_second"]


def test_the_order_the_simple_plan_and_the_front() -> None:
    document = planned("-m", "gpt2-xl", "-g", "a100", "--gpus", "4", "--exclude", "offload", "--loss", "standard")
    plans = document["plans"]
    rates = [one["samples_per_second"] for one in plans]
    assert rates == sorted(rates, reverse=True)
    assert all("loss" not in one["options"] for one in plans)
    simple = plans[document["simplest"]]
    near = [one for one in plans if one["samples_per_second"] >= 0.9 * rates[0]]
    assert simple["complexity"] == min(one["complexity"] for one in near)
    assert all(one["complexity"] == complexity(one["options"], document["axes"]) for one in plans)
    front = [plans[place] for place in document["front"]]
    for one in front:
        assert not any(
            other["device_bytes"] < one["device_bytes"] and other["samples_per_second"] > one["samples_per_second"]
            for other in plans
        )
    assert plans[0] in front
    first, precision, third = [step["option"] for step in document["ladder"]][:3]
    assert (first, third) == ("plain", "accumulation")
    assert re.fullmatch(r"--precision (fsdp|mixed|amp)-bf16", precision)
    assert document["ladder"][-1]["samples_per_second"] == rates[0]


SMALL = (
    ("-m", "gpt2", "-g", "rtx-2080-ti", "--gpus", "2", "--sharding", "ddp,fsdp,zero2", "--loss", "standard"),
    ("-m", "gpt2", "-g", "t4", "--gpus", "2", "--runtime", "megatron", "--attention", "sdpa", "--loss", "standard"),
)
PINNED = ("--attention", "sdpa", "--loss", "standard", "--exclude", "offload")
PIPELINES = ("--gpus", "4", "--runtime", "megatron", "--tensor", "1", "--context", "1", "--global-batch", "16")
SHARED = ("--gpus", "2", "--sharding", "ddp,zero1,fsdp", "--global-batch", "32")
EXPERTS = ("--gpus", "32", "--runtime", "megatron", "--tensor", "1", "--pipeline", "1", "--context", "1")
LARGE = (
    "--sharding",
    "fsdp,fsdp-grad-op,distributed-optimizer",
    "--checkpointing",
    "none,full",
    "--global-batch",
    "128",
)
ON_HOST = ("--gpus", "4", "--sharding", "zero2,zero3", "--global-batch", "64", "--checkpointing", "none,every:2,full")
BATCHES = (
    ("-m", "mixtral-8x7b", "-g", "h100", *EXPERTS, *LARGE, *PINNED),
    ("-m", "gpt2-xl", "-g", "rtx-4090", *PIPELINES, *PINNED),
    ("-m", "gpt2-medium", "-g", "rtx-2080-ti", *SHARED, *PINNED),
    ("-m", "gpt2-xl", "-g", "rtx-3090", *ON_HOST, *PINNED[:4], "--exclude", "compile=true"),
)
"""Where experts are shared, where a pipeline has a choice of micro-batches, where few combinations fit, and where those
that fit accumulate."""


@pytest.mark.sweep
@pytest.mark.parametrize("words", [*SMALL, *BATCHES])
def test_what_is_passed_over_would_have_changed_nothing(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds, learned refusals and states that are too large: as if every combination were answered."""
    document = planned(*words)
    seen = ("refused", "too_large", "over_limits", "slower", "fits")
    assert sum(document[name] for name in seen) == document["combinations"]
    for bound in ("least_in_all", "least_without_sharing", "least_of_all_kernels", "closest"):
        monkeypatch.setattr(Bounds, bound, lambda self, job: 0.0)
    monkeypatch.setattr(Bounds, "least", lambda self, job, *, shared=True: 0.0)
    monkeypatch.setattr(Bounds, "closer", lambda self, job, number: 0.0)
    monkeypatch.setattr(Bounds, "has_room", lambda self, job, *, cut=True: True)
    monkeypatch.setattr(asked.AskedCombinations, "is_too_large", lambda self, one, job: False)
    monkeypatch.setattr(asked.AskedCombinations, "_learn", lambda self, one, problems: None)
    monkeypatch.setattr(asked, "floor_of", lambda job, replays, **how: None)
    every = planned(*words)
    assert every["refused"] >= document["refused"]
    for name in ("fits", "plans", "fastest", "simplest", "front", "ladder"):
        assert document[name] == every[name]


PLANNED = (
    "-m",
    "llama-3.2-1b",
    "-g",
    "l4",
    "--gpus",
    "4",
    "--seq",
    "1024",
    "--pipeline",
    "1",
    "--sharding",
    "fsdp,zero3",
)
LORA = ("-m", "llama-3.2-1b", "-g", "l4", "--gpus", "2", "--lora", "--sharding", "ddp,fsdp", "--loss", "standard")
PLAIN = ("--exclude", "compile=true")
STARTED_OFTEN = ("-m", "gpt2", "-g", "a100", "--gpus", "2", "--micro-batch", "1", "--global-batch", "16")
OTHERS = (
    (*STARTED_OFTEN, "--runtime", "llm-foundry", "--loss", "standard"),
    (
        "-m",
        "llama-3.2-1b",
        "-g",
        "h100",
        "--gpus",
        "2",
        "--seq",
        "512",
        "--runtime",
        "litgpt",
    ),
    ("-m", "gpt2", "-g", "l4", "--gpus", "4", "--runtime", "megatron", "--context", "2", "--checkpointing", "none"),
    (
        "-m",
        "gpt2",
        "-g",
        "l4",
        "--gpus",
        "2",
        "--runtime",
        "deepspeed",
        "--sharding",
        "ddp",
        "--lora",
        "--micro-batch",
        "2",
    ),
)
"""Programs with a long step outside of their kernels, with kernels of their own, with other code where a sequence is
shared, and with buffers that are filled."""


@pytest.mark.sweep(14)
@pytest.mark.parametrize(
    "words",
    [
        *((*words, *PLAIN) for words in (*SMALL, *BATCHES, LORA)),
        (*PLANNED, "--checkpointing", "none,every:2,selective-op", *PINNED[2:]),
        *OTHERS,
    ],
)
def test_no_run_is_faster_than_its_bounds_or_needs_less(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each bound of each run that is answered when nothing is too slow to be looked for."""
    answered = asked.AskedCombinations._answered
    looked = []

    def checked(
        self: asked.AskedCombinations, one: dict[str, str], job: ResolvedJob, *, closer_from: int | None = None
    ) -> Cell:
        cell = answered(self, one, job, closer_from=closer_from)
        is_estimate = closer_from is None  # a simulated allocator may have room for a larger micro-batch
        if is_estimate and cell.samples_per_second is not None:
            bounds = self.bounds
            for bound in (bounds.least_in_all, bounds.least_without_sharing, bounds.least):
                assert bound(job) * cell.samples_per_second <= 1 + 1e-9, (bound.__name__, one)
            for number in range(CLOSER):
                closer = bounds.closer(job, number)
                assert closer is not None, (number, one)
                assert closer * cell.samples_per_second <= 1 + 1e-9, (number, one)
            for accumulates in (False, *([True] if self._always_accumulates(job) else [])):
                seconds = bounds.least_by_floor(job, self.session.replays, accumulates=accumulates)
                assert seconds * cell.samples_per_second <= 1 + 1e-6, (one, accumulates)  # it may be the answer's own
                assert self._floor_above(job, accumulates=accumulates) is None, one
                assert not accumulates or cell.gradient_accumulation_steps > 1
            pinned = job._replace(
                micro_batch_size=cell.micro_batch_size, gradient_accumulation_steps=cell.gradient_accumulation_steps
            )
            assert bounds.closest(pinned) * cell.samples_per_second <= 1 + 1e-9, one
            plain = bounds.plain_at(plain_setup(job))
            assert cell.device_bytes is not None
            states = least_bytes(job, plain) + gathered_bytes(job, plain)
            assert states <= cell.device_bytes * 100 // RESERVED_PERCENT
            for cut in (False, True):
                assert bounds.most_samples(job, cut=cut) >= (cell.micro_batch_size or 0)
            looked.append(cell)
        return cell

    monkeypatch.setattr(asked.AskedCombinations, "_answered", checked)
    document = planned(*words, "--within", "100")
    assert document["slower"] == 0
    assert document["within"] == 1
    assert len(looked) >= document["fits"] >= 9


@pytest.mark.sweep
def test_micro_batches_of_a_pipeline_are_searched() -> None:
    """Smaller micro-batches leave a smaller bubble, so the fastest plan is not at the largest that fits."""
    words = ("-m", "gpt2-medium", "-g", "a100", "--gpus", "1", "--runtime", "megatron", "--pipeline", "4")
    pins = ("--checkpointing", "none", "--attention", "sdpa", "--global-batch", "16", "--loss", "standard")
    document = planned(*words, *pins, "--exclude", "compile=true", "--exclude", "offload")
    assert document["candidates"] == 5 * document["combinations"]
    rates = {}
    for micro in (1, 2, 4, 8, 16):
        alone = run("fit", *words, *pins, "--micro-batch", str(micro), "--format", "json").document
        assert alone["verdict"] == "fits"
        rates[micro] = alone["time"]["samples_per_second"]
    best = max(rates, key=lambda micro: rates[micro])
    assert best < max(rates)
    found = document["plans"][document["fastest"]]
    assert (found["micro_batch_size"], found["samples_per_second"]) == (best, rates[best])
    assert document["ladder"][-1]["option"] == f"--micro-batch {best}"


@pytest.mark.sweep
def test_where_the_allocator_is_simulated_the_plans_that_are_shown_are() -> None:
    words = (
        "-m",
        "qwen3-0.6b",
        "-g",
        "2xt4",
        "--seq",
        "512",
        "--runtime",
        "torchtitan",
        "--checkpointing",
        "none,full",
    )
    out = ("--exclude", "offload", "--exclude", "compile=true")
    document = planned(*words, *out, "--loss", "standard")
    shown = {document["fastest"], document["simplest"], *document["front"]}
    assert not any(document["plans"][place]["is_estimated"] for place in shown)
    found = document["plans"][document["fastest"]]
    batch = ("--micro-batch", str(found["micro_batch_size"]), "--steps", str(found["gradient_accumulation_steps"]))
    alone = run(
        "fit", *words[:8], "--loss", "standard", *shlex.split(found["flags"]), *batch, "--format", "json"
    ).document
    assert (alone["verdict"], alone["allocator"]["settings"]) == ("fits", "expandable_segments:True")
    assert alone["peak"]["device_bytes"] == found["device_bytes"]


@pytest.mark.sweep
def test_a_list_is_tried_value_by_value() -> None:
    words = ("-m", "gpt2", "-g", "t4", "--seq", "512", "--checkpointing", "none", "--exclude", "compile=true")
    document = planned(
        *words, "--optimizer", "adamw,adamw-8bit", "--runtime", "all", "--loss", "standard", "--within", "100"
    )
    assert document["axes"]["optimizer"] == ["adamw", "adamw-8bit"]
    assert document["axes"]["runtime"][0] == "transformers"
    assert {"pytorch", "nanogpt"} <= set(document["axes"]["runtime"])
    assert "litgpt" not in document["axes"]["runtime"]  # it has no GPT-2
    assert {"transformers", "pytorch"} <= {one["options"]["runtime"] for one in document["plans"]}
    assert {one["options"]["optimizer"] for one in document["plans"]} == {"adamw", "adamw-8bit"}


def test_what_is_given_is_pinned_and_what_is_excluded_is_left_out() -> None:
    twice = ("--exclude", "loss=fused") * 2
    document = planned(*WORDS, "--checkpointing", "full", *twice)
    assert set(document["axes"]) == {"attention", "loss", "compile", "offload"}
    assert document["axes"]["loss"] == ["-"]
    assert all(one["activation_checkpointing"] == "full" for one in document["plans"])
    assert "names no open choice" in refused("plan", *WORDS, "--exclude", "colour=red").err
    assert "names no value" in refused("plan", *WORDS, "--exclude", "loss=red").err


@pytest.mark.sweep
def test_a_program_that_splits_models_has_degrees() -> None:
    words = ("-m", "gpt2-medium", "-g", "a100", "--gpus", "4", "--runtime", "megatron", "--checkpointing", "none")
    document = planned(*words, "--exclude", "context=2", "--exclude", "context=4", "--within", "50")
    assert {"tensor", "pipeline"} <= set(document["axes"])
    assert any(one["options"]["tensor"] != "-" for one in document["plans"])
    for one in document["plans"]:
        assert one["devices"] == 4


def test_nothing_fits() -> None:
    ran = run("plan", "-m", "llama-2-70b", "-g", "t4", "--checkpointing", "full", "--exclude", "offload")
    assert ran.code == 3
    assert "no plan fits" in ran.out


def test_the_memory_of_the_host_is_looked_at_and_told() -> None:
    words = ("-m", "gpt2-xl", "-g", "t4", "--checkpointing", "full", "--exclude", "compile", "--exclude", "loss")
    found = planned(*words)
    assert found["axes"]["offload"] == ["-", "optimizer", "parameters,optimizer"]
    winner = found["plans"][found["fastest"]]
    assert found["plans"][0]["options"]["offload"] == "parameters,optimizer"
    assert winner["options"]["offload"] == "optimizer"  # nobody can tell which of the two is faster
    typed = fit(model="gpt2-xl", gpu="t4", activation_checkpointing="full", offload=["optimizer"])
    assert typed.host is not None
    assert winner["host_bytes"] == typed.host.node_bytes
    assert f"{-(-winner['host_bytes'] // 2**30)} GiB on the host" in run("plan", *words).out


def test_a_search_says_on_a_terminal_how_far_it_is_and_prints_the_best_so_far_when_interrupted() -> None:
    words = ["plan", "-m", "llama-2-7b", "-g", "a100", "--gpus", "8", "--runtime", "all", "--format", "json"]
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job beside ignores it
    code += f"from vramplan.cli.start import main; sys.argv[1:] = {words!r}; main()"
    terminal, its_end = os.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=its_end, text=True)
    os.close(its_end)
    progress = os.read(terminal, 4096)  # waits until the search has begun
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    os.close(terminal)
    assert re.match(rb"\r[\d,]+ of [\d,]+ combinations are settled, \d+ fit", progress)
    assert process.returncode == 130
    assert json.loads(out)["complete"] is False


@pytest.mark.parametrize("program", ["transformers", "megatron"])
def test_plans_that_break_a_deadline_are_counted_apart(program: str) -> None:
    words = ("-m", "gpt2", "-g", "t4", "--gpus", "2", "--runtime", program, "--checkpointing", "none")
    long = ("--global-batch", "8", "--tokens", "1B", "--sharding", "ddp", *PINNED)
    document = planned(*words, *long, "--deadline", "1h")
    assert document["over_limits"] > 0
    assert document["fastest"] is None
    free = planned(*words, *long)
    assert free["over_limits"] == 0
    assert free["nearest"] is None
    nearest, fastest = document["nearest"], free["plans"][free["fastest"]]  # which is not fast enough
    assert nearest["samples_per_second"] == pytest.approx(fastest["samples_per_second"])
    assert nearest["wall_seconds"] > 3600
    assert "no plan that fits keeps its limits" in run("plan", *words, *long, "--deadline", "1h").out


def test_with_a_length_each_plan_says_how_long_the_run_takes_and_what_it_costs() -> None:
    words = ("-m", "gpt2", "-g", "t4", "--checkpointing", "none", "--micro-batch", "1", "--no-compile", *PINNED)
    words = (*words, "--format", "markdown")
    out = run("plan", *words, "--tokens", "1B", "--price", "0.5", "--goodput", "1").out
    found = re.search(r"([\d,]+) tokens/s, [\d.]+ GiB a GPU, ([\d.]+) h, ([\d.]+) USD", out)
    assert found is not None
    rate, hours, money = (float(one.replace(",", "")) for one in found.groups())
    assert hours == pytest.approx(1e9 / rate / 3600, rel=0.01)
    assert money == pytest.approx(hours * 0.5, rel=0.01)
    assert f"| {found[2]} h | {found[3]} |" in out
    assert "takes" not in run("plan", *words).out


def test_a_batch_is_named_once() -> None:
    words = ("-m", "gpt2-medium", "-g", "a100", "--gpus", "1", "--runtime", "megatron", "--pipeline", "4")
    fastest = run("plan", *words, "--checkpointing", "none", "--global-batch", "16", "--attention", "sdpa").out
    assert fastest.partition(" tokens/s")[0].count("--micro-batch") == 1


def test_an_interrupted_search_loses_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever interrupts while a plan is answered as `fit` does gets it with its estimate."""

    def interrupted(self: asked.AskedCombinations, cell: Cell, *, pinned: bool) -> Cell:
        raise KeyboardInterrupt

    words = (*WORDS, "--checkpointing", "none", "--exclude", "compile=true", *PINNED)
    found = planned(*words)
    monkeypatch.setattr(asked.AskedCombinations, "settled", interrupted)
    ran = run("plan", *words, "--format", "json")
    assert (ran.code, ran.document["complete"]) == (130, False)
    assert ran.document["plans"][0]["options"] == found["plans"][0]["options"]
    assert "best so far" in run("plan", *words).out


def test_a_search_that_is_interrupted_before_a_plan_fits_does_not_say_that_none_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(
        self: asked.AskedCombinations, one: dict[str, str], job: ResolvedJob, limit: float, *, small_first: bool
    ) -> Cell:
        raise KeyboardInterrupt

    monkeypatch.setattr(asked.AskedCombinations, "cell", interrupted)
    ran = run("plan", *WORDS)
    assert ran.code == 130
    assert "no plan was found up to then" in ran.out
    assert "no plan fits" not in ran.out


@pytest.mark.sweep
@pytest.mark.parametrize("words", [("plan", *WORDS), ("compare", "-m", "gpt2", "-g", "t4,v100,h100")])
def test_the_picture_has_a_point_for_each_run_and_lists_the_front(words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "front.svg"
    found = run(*words, "--svg", str(path), "--format", "json").document
    picture = ElementTree.fromstring(path.read_text("ascii"))
    points = picture.findall(".//{http://www.w3.org/2000/svg}circle")
    runs = found.get("plans") or [one for one in found["cells"] if one["verdict"] == "fits"]
    assert len(points) == len(runs)
    listed = [text for text in picture.itertext() if " GiB, " in text]
    assert any(point.get("r") == "5" for point in points)
    listed_points = len(points) if len(points) <= FEW else sum(point.get("r") == "5" for point in points)
    assert len(listed) == listed_points


@pytest.mark.parametrize("gibs", [[29.4, 29.8, 29.9], [19.8, 68.1], [5.0], [3.0] * 13])
def test_a_picture_begins_where_its_points_are_and_keeps_their_numbers_apart(gibs: list[float]) -> None:
    runs = [ScatterPoint(gib, 2000.0 + number, f"run {number}", number == 0) for number, gib in enumerate(gibs)]
    picture = ElementTree.fromstring(scatter(runs, "runs", "tokens/s"))
    across = sorted(float(one.get("cx", "")) for one in picture.iter("{http://www.w3.org/2000/svg}circle"))
    assert LEFT <= across[0] <= across[-1] <= RIGHT
    if len(set(gibs)) == 3:
        assert across[-1] - across[0] > (RIGHT - LEFT) / 2
    numbers = [one for one in picture.iter("{http://www.w3.org/2000/svg}text") if one.get("font-size") == "11"]
    assert len(numbers) == (len(runs) if len(runs) <= FEW else 1)
    assert len({(one.get("x"), one.get("y")) for one in numbers}) == len(numbers)


def test_a_plan_for_a_job_of_a_file(tmp_path: Path) -> None:
    """What is trained is as in the file, how it is run is looked for, and an option goes before the file."""
    file = tmp_path / "jobs.yaml"
    file.write_text(
        "version: 1\njobs:\n- name: a\n  model: gpt2-medium\n  gpu: 2xa100-40gb\n  sequence_length: 256\n"
        "  precision: bf16\n  micro_batch_size: 4\n  gradient_accumulation_steps: 2\n"
        "  activation_checkpointing: full\n  parallel: {sharding: fsdp}\n  expect: does-not-fit\n  notes: ours\n"
    )
    words = ("gpt2-medium", "-g", "a100-40gb", "--gpus", "2", "--seq", "256", "--precision", "bf16")
    pinned = (
        "--sharding",
        "zero1,zero3",
        "--checkpointing",
        "none,full",
        "--loss",
        "standard",
        "--offload",
        "optimizer",
    )
    pinned = (*pinned, "--exclude", "compile=true", "--format", "json")
    same = run("plan", *words, "--global-batch", "16", *pinned).document
    assert run("plan", str(file), *pinned).document == same
    assert {plan["options"]["sharding"] for plan in same["plans"]} == {"zero1", "zero3"}
    assert "is not written as another file" in refused("plan", str(file), "--emit", "trl").err
