"""The JSON of every command is valid against its schema, and what it says can be fed back in."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.cli.draws import IMPLEMENTATIONS, PRECISIONS, STRATEGIES, jobs
from tests.cli.running import TINY, Ran, feed, fit, run, same, valid, write_jobs

# docs/job-format.md, "Results, in JSON": every key is always there
KEYS = {
    "": "schema_version vramplan_version name verdict job exit_code capacity_bytes usable_bytes headroom_bytes "
    "utilization parameters peak components overheads recommended checkpoints alternatives remedies assumptions "
    "warnings",
    "parameters": "total trainable",
    "peak": "allocated_bytes reserved_bytes device_bytes low_bytes high_bytes phase operator phases saved_bytes",
    "recommended": "micro_batch_size gradient_accumulation_steps global_batch_size largest_micro_batch_size "
    "activation_checkpointing flags",
    "components": "name bytes basis",
    "overheads": "name bytes basis",
    "checkpoints": "first last",
    "alternatives": "activation_checkpointing verdict micro_batch_size gradient_accumulation_steps allocated_bytes "
    "device_bytes largest_micro_batch_size recomputed_fraction",
    "remedies": "change option saves_bytes device_bytes usable_bytes cost costs verdict",
    "assumptions": "key value why",
}
OPTIONS = {
    "sequence_length": "--seq",
    "micro_batch_size": "--micro-batch",
    "global_batch_size": "--global-batch",
    "gradient_accumulation_steps": "--gradient-accumulation-steps",
    "precision": "--precision",
    "optimizer": "--optimizer",
    "optimizer_implementation": "--optimizer-implementation",
    "activation_checkpointing": "--checkpointing",
    "attention": "--attention",
    "dropout": "--dropout",
    "runtime": "--runtime",
    "reserve": "--reserve",
    "max_gradient_norm": "--max-gradient-norm",
    "weight_dtype": "--weight-dtype",
    "gpu_free": "--gpu-free",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


@pytest.mark.sweep(6)
@pytest.mark.parametrize(
    "words",
    [
        ("-m", "gpt2-xl", "-g", "v100"),
        ("-m", "gpt2-xl", "-g", "v100", "--micro-batch", "32", "--checkpointing", "full"),
        ("-m", "gpt2-xl", "-g", "v100", "--reserve", "3.5 GiB"),
        ("-m", "llama-3-8b", "-g", "t4"),
        ("-m", "bert-tiny", "-g", "24 GiB", "--seq", "7", "--gpus", "3"),
    ],
    ids=["fits", "no", "tight", "huge", "tiny"],
)
def test_every_key_of_the_contract_is_there(words: tuple[str, ...]) -> None:
    answer = fit(*words)
    for path, keys in KEYS.items():
        part = answer[path] if path else answer
        for one in part if isinstance(part, list) else [part]:
            assert set(keys.split()) <= set(one), path
    assert set(answer["peak"]["phases"]) == {"forward_bytes", "backward_bytes", "step_bytes"}
    if answer["verdict"] == "does-not-fit":
        pinnable = set(answer["recommended"]) - {"largest_micro_batch_size"}
        assert {answer["recommended"][key] for key in pinnable} == {None}


def test_every_command_is_valid_against_its_schema(tmp_path: Path) -> None:
    measured = {"peak_bytes": 700_000_000, "metric": "device", "outcome": "fits"}
    file = write_jobs(
        tmp_path / "jobs.yaml",
        {"model": TINY, "gpu": "v100", "measured": measured},
        {"model": "gpt2-xl", "gpu": "t4"},
        {"model": "nobody-has-this", "gpu": "t4"},
        {"model": "gpt2", "gpu": "t4", "quantization": "nf4"},
    )
    for name, words in {
        "check": ("check", file),
        "validate": ("validate", file),
        "gpus": ("gpus",),
        "models": ("models",),
        "gpu-profile": ("gpus", "show", "v100"),
        "model-profile": ("models", "show", "gpt2-xl"),
    }.items():
        valid(name, run(*words, "--format", "json").document)


def test_filters_that_leave_nothing_are_valid_too() -> None:
    assert valid("gpus", run("gpus", "--name", "nothing", "--format", "json").document)["gpus"] == []
    assert valid("models", run("models", "--name", "nothing", "--format", "json").document)["models"] == []


@pytest.mark.sweep(4)
@settings(deadline=None, max_examples=8)
@given(raw=jobs())
def test_a_resolved_job_from_a_file_fed_back_in_gives_the_same_answer(raw: dict[str, Any], folder: Path) -> None:
    first = feed(raw, folder / "first.json")
    same(first, feed(first["job"], folder / "second.json"))


@st.composite
def option_lists(draw: st.DrawFn) -> list[str]:
    """Options of `fit` that go together."""
    precision = draw(st.sampled_from(["auto", *PRECISIONS]))
    optimizer = draw(st.sampled_from(["adamw", "sgd", "rmsprop", "adafactor"]))
    mixed = precision.startswith("mixed-")
    assume(not (mixed and optimizer == "adafactor"))
    gpu = draw(st.sampled_from(["v100", "a100", "4090", "t4", "24 GiB", "12 GB", "mi300x"]))
    assume(not (precision.endswith("bf16") and gpu in ("v100", "t4")))
    model = draw(st.sampled_from(["gpt2", "gpt2-xl", "bert-base-uncased", "smollm-135m", "qwen2-0.5b"]))
    words = ["-m", model, "-g", gpu, "--precision", precision, "--optimizer", optimizer]
    if not mixed and draw(st.booleans()):
        words += ["--optimizer-implementation", draw(st.sampled_from(IMPLEMENTATIONS[optimizer]))]
    for option, values in (
        ("--seq", ["128", "512", "77"]),
        ("--micro-batch", ["1", "3", "16"]),
        ("--checkpointing", STRATEGIES),
        ("--attention", ["eager", "efficient"]),
        ("--runtime", ["pytorch"]),
        ("--dropout", ["0", "0.25"]),
        ("--reserve", ["1 GiB", "500 MB"]),
        ("--gpus", ["4"]),
    ):
        if draw(st.booleans()):
            words += [option, draw(st.sampled_from(values))]
    if draw(st.booleans()):
        words.append("--hold-outputs")
    return words


@pytest.mark.sweep(12)
@settings(deadline=None, max_examples=9)
@given(words=option_lists())
def test_a_resolved_job_from_options_fed_back_in_gives_the_same_answer(words: list[str], folder: Path) -> None:
    first = fit(*words)
    job = first["job"]
    same(first, feed(job, folder / "options.json"))

    again = words[:4]  # the model and the GPU; all else as it was resolved
    for key, option in OPTIONS.items():
        if job[key] is not None:
            again += [option, str(job[key])]
    again += ["--gpus", str(job["parallel"]["data"]), "--hold-outputs" if job["hold_outputs"] else "--no-hold-outputs"]
    same(first, fit(*again))


@pytest.mark.sweep(12)
@settings(deadline=None, max_examples=8)
@given(words=option_lists())
@example(words=["-m", "smollm-135m", "-g", "v100", "--optimizer", "adamw", "--checkpointing", "selective-op"])
def test_the_recommended_flags_in_place_of_what_was_given_change_nothing(words: list[str]) -> None:
    first = fit(*words)
    flags = first["recommended"]["flags"]
    assume(flags is not None)
    pinned = fit(*replaced(words, shlex.split(flags)))
    same(first, pinned)
    assert pinned["recommended"] == first["recommended"]


def replaced(words: list[str], change: list[str]) -> list[str]:
    """A command line with the options of a change, in place of those that it has already."""
    new = {word for word in change if word.startswith("--")}
    new |= {f"--{word[5:]}" if word.startswith("--no-") else f"--no-{word[2:]}" for word in new}
    new |= {short for short, long in (("-m", "--model"), ("-g", "--gpu")) if long in new}
    left: list[str] = []
    skips = False
    for word in words:
        if word.startswith("-"):
            skips = word in new
        if not skips:
            left.append(word)
    return [*left, *change]


@pytest.mark.sweep(6)
@settings(deadline=None, max_examples=4)
@given(words=option_lists())
@example(words=["-m", "bert-base-uncased", "-g", "mi300x", "--optimizer", "adamw", "--hold-outputs"])
def test_the_remedies_of_a_command_do_what_they_say(words: list[str], folder: Path) -> None:
    words = replaced(words, ["--micro-batch", "512", "--seq", "512"])
    first = fit(*words)
    assert bool(first["remedies"]) <= (first["verdict"] != "fits")
    for remedy in first["remedies"]:
        again = fit(*replaced(words, shlex.split(remedy["option"])))
        assert again["verdict"] == remedy["verdict"]
        assert first["peak"]["device_bytes"] - again["peak"]["device_bytes"] == remedy["saves_bytes"]


@pytest.mark.sweep
def test_the_famous_no_offers_what_would_do() -> None:
    words = ("-m", "gpt2-xl", "-g", "v100", "--micro-batch", "32", "--checkpointing", "full")
    ran = run("fit", *words, "--format", "json")
    assert ran.code == 3
    answer = valid("fit", ran.document)
    assert (answer["verdict"], answer["headroom_bytes"] < 0) == ("does-not-fit", True)
    assert {"micro_batch_size", "gpu"} <= {key for remedy in answer["remedies"] for key in remedy["change"]}
    assert answer["recommended"]["largest_micro_batch_size"] > 0  # what would do


@pytest.mark.parametrize("words", [("fit", "gpt2", "foo"), ("check", "no.yaml"), ("gpus", "foo"), ("fit", "--foo")])
def test_an_error_is_an_object_also_with_the_short_option(words: tuple[str, ...]) -> None:
    assert run(*words, "--json").out == run(*words, "--format", "json").out != ""


@pytest.mark.parametrize("words", [("gpus", "t4"), ("runtimes",), ("profiles", "diff", "t4", "v100")])
def test_lists_take_the_short_option_too(words: tuple[str, ...]) -> None:
    assert run(*words, "--json") == run(*words, "--format", "json")
    assert run(*words, "--yaml") == run(*words, "--format", "yaml")


def test_the_text_says_what_the_json_says() -> None:
    words = ("-m", "gpt2-xl", "-g", "v100")
    answer, text = fit(*words), run("fit", *words, "--details").out
    for setting in answer["settings"]:
        assert f"{setting['name']} {setting['value']}" in text
        assert f"{setting['name']} {setting['value']}" in run("fit", *words).out
    assert answer["recommended"]["flags"] in text
    assert f"{answer['parameters']['total']:,}" in text
    for part in answer["components"] + answer["assumptions"]:
        assert part.get("name", part.get("key")) in text
    for warning in answer["warnings"]:
        assert warning in " ".join(text.split())


def warnings_of(ran: Ran) -> str:
    return "\n".join(valid("check", ran.document)["results"][0]["warnings"])


def test_a_declared_count_that_is_not_the_counted_one_is_warned_of(tmp_path: Path) -> None:
    gpu = {"name": "card", "memory": "8 GiB"}
    counted = run(
        "check", write_jobs(tmp_path / "a", {"model": TINY, "gpu": gpu}), "--print", "results.0.parameters.total"
    )
    number = int(counted.out)
    for declared in (number, number + 1):
        file = write_jobs(tmp_path / "b", {"model": {**TINY, "parameters": declared}, "gpu": gpu})
        said = warnings_of(run("check", file, "--format", "json"))
        assert (f"{number:,}" in said) is (declared != number)
        assert (f"{declared:,}" in said) is (declared != number)


def test_the_answer_says_which_v100_it_means() -> None:
    assert any("v100-16gb" in warning for warning in fit("-m", "gpt2", "-g", "V100-32GB")["warnings"])
    small = fit("-m", "gpt2", "-g", "v100-16gb")
    assert small["capacity_bytes"] < 16 * 2**30 < fit("-m", "gpt2", "-g", "v100")["capacity_bytes"]


def test_every_default_that_moves_the_answer_is_told() -> None:
    told = {item["key"]: item["value"] for item in fit("-m", "gpt2-xl", "-g", "v100")["assumptions"]}
    assert told == {
        "runtime": "transformers",
        "precision": "amp-fp16",
        "optimizer": "adamw",
        "optimizer_implementation": "fused",
        "max_gradient_norm": 1.0,
        "weight_dtype": "fp32",
        "attention": "efficient",
        "sequence_length": 1024,
        "global_batch_size": 512,
        "dropout": 0.1,
        "activation_checkpointing": "sqrt",
        "micro_batch_size": 2,
        "packing": False,
    }
    del told["packing"]  # a flag, which takes no value
    given = ["--no-packing", *(word for key, value in told.items() for word in (OPTIONS[key], str(value)))]
    assert fit("-m", "gpt2-xl", "-g", "v100", *given)["assumptions"] == []
    assert "dropout" not in {item["key"] for item in fit("-m", "llama-3.2-1b", "-g", "a100")["assumptions"]}


def test_nominal_capacity_and_unknown_abilities_are_told() -> None:
    told = {item["key"]: item["why"] for item in fit("-m", "gpt2", "-g", "h200")["assumptions"]}
    assert "nominal" in told["gpu.memory"]
    told = {item["key"]: item["why"] for item in fit("-m", "gpt2", "-g", "24 GiB")["assumptions"]}
    assert "unknown" in told["precision"]
    assert "unknown" in told["attention"]
