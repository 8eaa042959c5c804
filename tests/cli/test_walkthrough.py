"""`vramplan walkthrough`: the story of the texts, for any model and GPU, and reasons that the figures bear out."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.cli.running import fit, refused, run, valid

QUOTED = ("--parameters", "1.5e9", "--activation-bytes", "65 GB", "--checkpoint-factor", 4)
GB = 10**9
STATES = ("weights", "gradients", "master", "optimizer")


def walk(*words: object) -> Any:
    ran = run("walkthrough", *words, "--format", "json")
    assert ran.code == 0, ran
    return valid("walkthrough", ran.document)


def parts(side: Any) -> dict[str, int]:
    return {part["name"]: part["bytes"] for part in side["components"]}


@pytest.mark.closed_form
def test_the_walk_through_of_the_texts() -> None:
    """Printed to a tenth of a GB; the percentage to a whole one."""
    steps = walk("-m", "gpt2-xl", "-g", "v100", "--micro-batch", 32, *QUOTED)["steps"]
    printed = [
        ((6, 6, 0, 12, 65.0), 89.0, "does-not-fit"),
        ((3, 3, 6, 12, 32.5), 56.5, "does-not-fit"),
        ((3, 3, 6, 12, 8.1), 32.1, "fits"),
    ]
    for step, (figures, total, verdict) in zip(steps, printed, strict=False):
        book = parts(step["textbook"])
        found = [book.get(name, 0) / GB for name in (*STATES, "activations")]
        assert found == pytest.approx(figures, abs=0.05)
        assert step["textbook"]["total_bytes"] / GB == pytest.approx(total, abs=0.05)
        assert step["textbook"]["verdict"] == verdict
    assert round(100 * steps[1]["textbook"]["change_fraction"]) == -37


@pytest.mark.closed_form
def test_the_accumulation_of_the_texts() -> None:
    answer = walk("--gpus", 8, "--steps", 4, *QUOTED)
    last = answer["steps"][3]["textbook"]
    assert (last["micro_batch_size"], last["gradient_accumulation_steps"]) == (16, 4)
    assert (answer["data_parallel_size"], answer["global_batch_size"]) == (8, 512)
    assert parts(last)["activations"] / GB == pytest.approx(8.125 / 2, rel=1e-6)


@pytest.mark.closed_form
def test_without_options_it_is_what_texts_print() -> None:
    plain, quoted = walk(), walk("--micro-batch", 32, *QUOTED)
    assert plain["steps"] == quoted["steps"]
    totals = [round(step["textbook"]["total_bytes"] / GB, 1) for step in plain["steps"]]
    assert totals[:3] == [89.0, 56.5, 32.1]
    own = walk("-m", "gpt2-xl")  # a model that is named is counted, and its activations follow from an equation
    assert (own["activation_bytes"], own["activation_model"]) == (None, "korthikanti")


@pytest.mark.contract
@pytest.mark.parametrize("words", [(), QUOTED, ("-m", "llama-3.2-1b", "-g", "a100-40gb", "--micro-batch", 8)])
def test_it_is_one_screen_and_the_texts_come_first(words: tuple[object, ...]) -> None:
    lines = run("walkthrough", *words).out.splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    titles = [line.split("  ")[0] for line in lines if line and not line.startswith(" ")]
    assert titles[1] in {"What texts print", "By the textbook"}
    assert titles[2] == "What a step allocates"
    if not words:
        assert [line.split()[-2] for line in lines[4:7]] == ["89.0", "-37%", "-43%"]


def test_the_text_has_the_figures_of_the_texts() -> None:
    text = run("walkthrough", *QUOTED, "--details").out
    for figure in ("89.0", "56.5", "-37%", "32.1", "1,557,611,200", "1,500,000,000"):
        assert figure in text


CASES = {
    "the default": (),
    "a modern card": ("-m", "llama-3.2-1b", "-g", "a100-40gb", "--micro-batch", 8),
    "an encoder": ("-m", "bert-base-uncased", "-g", "24 GiB", "--seq", 128, "--checkpointing", "full"),
    "no master copy": ("-m", "gpt2", "-g", "t4", "--precision", "pure-fp16", "--activation-model", "book"),
    "eager": ("-m", "gpt2-medium", "-g", "a100", "--attention", "eager", "--global-batch", 48, "--micro-batch", 12),
    "flash": ("-m", "gpt2-medium", "-g", "a100", "--attention", "flash", "--gpus", 3),
    "autocast": ("-m", "gpt2", "-g", "v100", "--precision", "amp-fp16", "--optimizer", "sgd-momentum"),
}


@pytest.mark.sweep(8)
@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_any_model_and_gpu(words: tuple[object, ...]) -> None:
    answer = walk(*words)
    micro = answer["steps"][0]["textbook"]["micro_batch_size"]
    for step in answer["steps"]:
        book, replay = step["textbook"], step["replay"]
        assert sum(parts(book).values()) == book["total_bytes"]
        assert sum(parts(replay).values()) == replay["allocated_bytes"] <= replay["device_bytes"]
        assert (book["verdict"] == "fits") == (book["total_bytes"] <= answer["nominal_capacity_bytes"])
        assert book["micro_batch_size"] <= micro >= replay["micro_batch_size"]
        for side in (book, replay):
            assert (side["verdict"] == "fits") or step["step"] < 4 or side["micro_batch_size"] == 1
        reasons_are_borne_out(step)
    last = answer["steps"][3]
    for side in (last["textbook"], last["replay"]):
        batch = side["micro_batch_size"] * side["gradient_accumulation_steps"] * answer["data_parallel_size"]
        assert batch == answer["global_batch_size"]


def reasons_are_borne_out(step: Any) -> None:
    """Every component that a reason names is there, with the figure that it gives; what is large has a reason."""
    book, replay = parts(step["textbook"]), parts(step["replay"])
    text = {reason.partition(":")[0]: reason for reason in step["reasons"]}
    total, allocated = step["textbook"]["total_bytes"], step["replay"]["allocated_bytes"]
    difference = f"{abs(allocated - total) / GB:.1f} GB {'more' if allocated >= total else 'less'}"
    assert any(difference in reason for reason in step["reasons"])
    for name, size in replay.items():
        if name not in (*STATES, "activations"):
            assert (name in text) == (size >= 0.01 * allocated)
            if name in text:
                assert f"{size / GB:.1f} GB that the textbook leaves out" in text[name]
    if abs(replay.get("activations", 0) - book.get("activations", 0)) >= 0.01 * allocated:
        assert f"{replay.get('activations', 0) / GB:.1f} GB replayed" in text["activations"]
    if step["replay"]["attention"] == "eager":
        assert "attention scores" not in text


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_replayed_side_is_what_fit_says(number: int) -> None:
    step = walk("-m", "gpt2-medium", "-g", "a100-40gb", "--micro-batch", 8)["steps"][number - 1]
    keys = ("--precision", step["precision"], "--checkpointing", step["activation_checkpointing"])
    same = fit("-m", "gpt2-medium", "-g", "a100-40gb", "--micro-batch", 8, "--steps", 1, *keys)
    assert step["replay"]["allocated_bytes"] == same["peak"]["allocated_bytes"]
    beside = ("name", "bytes", "basis")  # one device holds what it holds
    assert step["replay"]["components"] == [{key: part[key] for key in beside} for part in same["components"]]
    assert step["replay"]["verdict"] == same["verdict"]


@pytest.mark.parametrize(
    ("gpu", "precision"),
    [("v100", "mixed-fp16"), ("a100", "mixed-bf16"), ("24 GiB", "mixed-bf16"), ("t4", "mixed-fp16")],
)
def test_mixed_precision_is_what_the_gpu_can(gpu: str, precision: str) -> None:
    answer = walk("-m", "gpt2", "-g", gpu)
    assert [step["precision"] for step in answer["steps"]] == ["fp32", precision, precision, precision]


def test_auto_is_the_default_on_both_sides() -> None:
    assert walk("-m", "gpt2", "--precision", "auto")["steps"] == walk("-m", "gpt2")["steps"]


def test_the_batch_of_step_four_is_exact_or_named() -> None:
    assert walk("-m", "gpt2", "--gpus", 7)["global_batch_size"] == 511
    assert "reachable: 49 and 56" in refused("walkthrough", "-m", "gpt2", "--gpus", 7, "--global-batch", 50).err


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("--precision", "fp32"), "precision"),
        (("--checkpointing", "none"), "activation_checkpointing"),
        (("--runtime", "textbook"), "runtime"),
        (("--base-lr", "1"), "base_learning_rate"),
        (("--parameters", "zebra"), "--parameters"),
        (("--micro-batch", "x"), "micro_batch_size"),
        (("--activation-bytes", "65"), "activation_bytes"),
        (("--optimizer", "adafactor"), "optimizer"),
        (("-m", "gpt22"), "model"),
        (("--activation-model", "book", "--activation-bytes", "1 GB"), "activation_model"),
        (("--checkpoint-factor", "x"), "checkpoint_factor"),
        (("--trainable-parameters", "1M"), "trainable_parameters"),
    ],
)
def test_what_a_step_decides_or_nobody_knows_is_refused(words: tuple[str, ...], key: str) -> None:
    ran = refused("walkthrough", *words, "--format", "json")
    assert key in [problem["key"] for problem in valid("error", ran.document)["error"]["problems"]]


def test_what_the_replay_warns_of_is_said_once() -> None:
    warnings = walk()["warnings"]
    assert "not a prediction" in warnings[0]
    assert len(set(warnings)) == len(warnings)


def test_every_format_answers() -> None:
    outputs = {name: run("walkthrough", *QUOTED, "--format", name) for name in ("text", "yaml", "csv", "markdown")}
    assert {ran.code for ran in outputs.values()} == {0}
    assert re.search(r"\| \*\*total\*\* \| \*\*32\.13\*\* \|", outputs["markdown"].out)
    assert run("walkthrough", *QUOTED, "--print", "steps.2.textbook.total_bytes").out == "32125000000\n"
    assert run("walkthrough", "--quiet").out == ""
