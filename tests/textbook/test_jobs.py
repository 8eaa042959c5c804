"""Jobs of the runtime textbook: the figures of the texts, what is said with them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.running import feed, fit, refused, run, same, valid, write_jobs
from vramplan.job import build_any_job, job_to_dict
from vramplan.job.counts import parameter_count
from vramplan.values.textbook import TextbookJob

GB = 10**9
BOOK = ("-g", "v100", "--runtime", "textbook")
XL = (*BOOK, "-m", "gpt2-xl", "--micro-batch", 32)
DIMENSIONS = {"parameters": 1_500_000_000, "layers": 48, "hidden_size": 1600, "attention_heads": 25}


def components(answer: Any) -> dict[str, float]:
    return {part["name"]: part["bytes"] / GB for part in answer["components"]}


@pytest.mark.closed_form
@pytest.mark.parametrize(
    ("options", "total"),
    [
        ("-m 1.5B --precision fp32", 24.0),
        ("-m 1.5e9 --precision mixed-fp16", 24.0),
        ("-m 7B --precision mixed-fp16 --master-dtype none", 84),
        ("-m 20B --gradient-dtype none --master-dtype none", 200),
        ("-m 100M --precision fp32 --weight-dtype none --gradient-dtype none", 0.8),
        ("-m 7.5B --gpus 64", 120),
        ("-m 7.5B --gpus 64 --sharding ddp", 120),
        ("-m 7.5B --gpus 64 --sharding zero1", 31.4),
        ("-m 7.5B --gpus 64 --sharding zero2", 16.6),
        ("-m 7.5B --gpus 64 --sharding fsdp-grad-op", 16.6),
        ("-m 7.5B --gpus 64 --sharding zero3", 1.9),
        ("-m 7.5B --gpus 64 --sharding fsdp", 1.9),
        ("-m 7.5B --gpus 128 --sharding zero3 --shards 64", 1.9),
        ("-m 1.5B --precision fp32 --activation-bytes 65GB", 89.0),
        ("-m 1.5B --activation-bytes 65GB", 56.5),
        ("-m 1.5B --activation-bytes 65GB --checkpoint-factor 4", 32.1),
    ],
)
def test_printed_totals(options: str, total: float) -> None:
    """Half of the last printed digit, which is a tenth at least."""
    answer = fit(*BOOK, *options.split())
    assert answer["peak"]["allocated_bytes"] / GB == pytest.approx(total, abs=0.05)


@pytest.mark.closed_form
@pytest.mark.parametrize(
    ("options", "figure"),
    [
        ("--activation-model book", 40.7),
        ("--activation-model book --precision fp32", 81.5),
        ("--activation-model zero-paper", 60.4),
        ("--activation-model korthikanti", 286.9),
        ("--activation-model korthikanti --compute-dtype fp16 --precision fp32", 286.9),
    ],
)
def test_printed_activations(options: str, figure: float) -> None:
    answer = fit(*XL, *options.split(), "--checkpointing", "none")
    assert components(answer)["activations"] == pytest.approx(figure, abs=0.05)


@pytest.mark.closed_form
@pytest.mark.parametrize(("strategy", "layers"), [("none", 48), ("full", 1), ("sqrt", 7 + 48 / 7), ("every:4", 16)])
def test_the_table_of_checkpointing(strategy: str, layers: float) -> None:
    """Exact but for the rounding up to whole bytes."""
    stored = components(fit(*XL, "--activation-model", "zero-paper", "--checkpointing", "none"))["activations"]
    found = components(fit(*XL, "--activation-model", "zero-paper", "--checkpointing", strategy))["activations"]
    assert found == pytest.approx(stored * layers / 48, rel=1e-9)


@pytest.mark.closed_form
def test_the_root_of_the_table_is_spelled_out() -> None:
    answer = fit(*XL, "--activation-model", "zero-paper", "--checkpointing", "sqrt")
    (basis,) = [part["basis"] for part in answer["components"] if part["name"] == "activations"]
    assert "7 + 48/7 = 13.9 of 48 layers, 71% less" in basis


@pytest.mark.closed_form
def test_the_v100_of_the_texts_has_its_nominal_memory() -> None:
    answer = fit(*BOOK, "-m", "1.5B", "--activation-bytes", "65 GB", "--checkpoint-factor", "4")
    assert answer["capacity_bytes"] == answer["usable_bytes"] == 32 * 2**30
    assert answer["verdict"] == "fits"
    peak = answer["peak"]
    figures = {peak[key] for key in peak if key.endswith("_bytes") and key != "saved_bytes"}
    assert figures == {32_125_000_000}
    assert set(peak["phases"].values()) == figures
    assert (peak["phase"], answer["overheads"], answer["checkpoints"]) == ("textbook", [], [])


@pytest.mark.closed_form
def test_the_architecture_is_counted() -> None:
    assert fit(*BOOK, "-m", "gpt2-xl")["parameters"]["total"] == 1_557_611_200


@pytest.mark.sweep
def test_every_answer_says_that_it_is_no_prediction_and_how_far_from_the_replay() -> None:
    answer = fit(*XL, "--activation-bytes", "65 GB", "--checkpoint-factor", 4)
    first, second, *_ = answer["warnings"]
    assert "not a prediction" in first
    replay = fit(
        "-m", "gpt2-xl", "-g", "v100", "--micro-batch", 32, "--precision", "mixed-fp16", "--checkpointing", "every:4"
    )
    allocated, total = replay["peak"]["allocated_bytes"], answer["peak"]["allocated_bytes"]
    assert f"{allocated / GB:.1f} GB" in second
    assert f"{allocated / total - 1:.0%} more than the textbook's {total / GB:.1f} GB" in second
    assert all(part["basis"].startswith("textbook: ") for part in answer["components"])
    bare = fit(*BOOK, "-m", "1.5B")
    assert not [text for text in bare["warnings"] if "replayed" in text]


@pytest.mark.parametrize("options", ["--master-dtype none", "--gpus 4 --sharding zero2", "--optimizer lion"])
def test_what_the_replay_cannot_do_is_not_compared(options: str) -> None:
    assert not [text for text in fit(*BOOK, "-m", "gpt2", *options.split())["warnings"] if "replayed" in text]


def test_without_activation_keys_there_are_none_and_this_is_told() -> None:
    answer = fit(*BOOK, "-m", "gpt2")
    assert "activations" not in components(answer)
    (told,) = [item for item in answer["assumptions"] if item["key"] == "activation_model"]
    assert (told["value"], "left out" in told["why"]) == (None, True)
    assert answer["recommended"]["micro_batch_size"] == 1
    (micro,) = [item for item in answer["assumptions"] if item["key"] == "micro_batch_size"]
    assert micro["why"] == "no figure here depends on it"


def test_the_micro_batch_is_the_largest_exact_one_that_fits() -> None:
    answer = fit(*BOOK, "-m", "gpt2-xl", "--activation-model", "zero-paper", "--checkpointing", "sqrt")
    chosen = answer["recommended"]
    micro, largest = chosen["micro_batch_size"], chosen["largest_micro_batch_size"]
    assert micro * chosen["gradient_accumulation_steps"] == 512
    assert micro <= largest < 2 * micro
    options = (*BOOK, "-m", "gpt2-xl", "--activation-model", "zero-paper", "--checkpointing", "sqrt", "--steps", 1)
    assert fit(*options, "--micro-batch", largest)["verdict"] == "fits"
    assert fit(*options, "--micro-batch", largest + 1)["verdict"] == "does-not-fit"


def test_remedies_fit_when_they_are_taken() -> None:
    options = (
        *BOOK,
        "-m",
        "gpt2-xl",
        "--activation-model",
        "book",
        "--micro-batch",
        64,
        "--checkpointing",
        "none",
        "--gpus",
        4,
    )
    answer = fit(*options)
    assert answer["verdict"] == "does-not-fit"
    changes = {tuple(remedy["change"]) for remedy in answer["remedies"]}
    assert ("activation_checkpointing",) in changes
    for remedy in answer["remedies"]:
        (key, value), *_ = remedy["change"].items()
        if key == "activation_checkpointing":
            changed = fit(*options[:-4], "--checkpointing", value, "--gpus", 4)
            saved = answer["peak"]["device_bytes"] - changed["peak"]["device_bytes"]
            assert (changed["verdict"], saved) == ("fits", remedy["saves_bytes"])


@pytest.mark.parametrize(
    ("model", "keys", "needed"),
    [
        ({"parameters": 7}, {"activation_model": "book"}, {"model.layers", "model.hidden_size", "sequence_length"}),
        (
            {"parameters": 7, "layers": 2},
            {"activation_model": "korthikanti", "sequence_length": 8},
            {"model.hidden_size", "model.attention_heads"},
        ),
        ({"parameters": 7, "layers": 2, "hidden_size": 8}, {"activation_model": "zero-paper"}, {"sequence_length"}),
        ({"parameters": 7}, {"activation_bytes": "1 GB", "activation_checkpointing": "sqrt"}, {"model.layers"}),
        ({"layers": 2}, {}, {"model.parameters"}),
        ({"family": "rwkv", "layers": 2}, {}, {"model.parameters"}),
    ],
)
def test_exactly_what_is_missing_is_named(model: Any, keys: Any, needed: set[str], tmp_path: Path) -> None:
    job = {"model": model, "gpu": "v100", "runtime": "textbook", **keys}
    ran = refused("check", write_jobs(tmp_path / "jobs", job), "--format", "json")
    problems = ran.document["results"][0]["error"]["problems"]
    assert {problem["key"].removeprefix("jobs.0.") for problem in problems} == needed


@pytest.mark.parametrize("name", ["book", "zero-paper", "korthikanti"])
def test_a_mapping_of_sizes_is_enough(name: str, tmp_path: Path) -> None:
    job = {"model": DIMENSIONS, "sequence_length": 1024, "micro_batch_size": 32, "activation_model": name}
    path = write_jobs(
        tmp_path / "jobs",
        {**job, "gpu": "v100", "runtime": "textbook", "expect": "does-not-fit", "activation_checkpointing": "none"},
    )
    ran = run("check", path, "--format", "json")
    assert ran.code == 0, ran
    assert components(valid("check", ran.document)["results"][0])["weights"] == 3.0


def test_an_inline_count_is_the_text_s_and_the_architecture_is_named(tmp_path: Path) -> None:
    model = {"family": "gpt2", "layers": 48, "hidden_size": 1600, "attention_heads": 25, "parameters": 1_500_000_000}
    path = write_jobs(tmp_path / "jobs", {"model": model, "gpu": "v100", "runtime": "textbook"})
    (answer,) = valid("check", run("check", path, "--format", "json").document)["results"]
    assert answer["parameters"]["total"] == 1_500_000_000
    assert any("1,557,611,200" in text for text in answer["warnings"])


def test_a_family_that_is_not_modelled_has_its_declared_count(tmp_path: Path) -> None:
    model = {"name": "Mixtral", "family": "mixtral", "parameters": 46_702_792_704}
    path = write_jobs(
        tmp_path / "jobs", {"model": model, "gpu": "h100", "runtime": "textbook", "expect": "does-not-fit"}
    )
    assert run("check", path).code == 0


def test_a_gate_says_that_it_passed_by_the_textbook(tmp_path: Path) -> None:
    path = write_jobs(tmp_path / "jobs", {"model": DIMENSIONS, "gpu": "v100", "runtime": "textbook"})
    (row,) = valid("check", run("check", path, "--strict", "--format", "json").document)["results"]
    assert (row["passed"], row["reasons"]) == (True, ["textbook figures, not a prediction"])


def test_a_measured_case_is_compared(tmp_path: Path) -> None:
    case = {"model": DIMENSIONS, "gpu": "v100", "runtime": "textbook"}
    case["measured"] = {"peak_bytes": 30 * GB, "metric": "allocated"}
    document = valid("validate", run("validate", write_jobs(tmp_path / "cases", case), "--format", "json").document)
    assert document["results"][0]["relative_error"] == pytest.approx(-0.2)
    assert set(document["summary"]["per_runtime"]) == {"textbook"}


REFUSED = {
    "--attention eager": "attention",
    "--dropout 0.1": "dropout",
    "--hold-outputs": "hold_outputs",
    "--hold-outputs-until backward": "hold_outputs_until",
    "--optimizer-implementation fused": "optimizer_implementation",
    "--optimizer-in-backward": "optimizer_in_backward",
    "--max-gradient-norm 1": "max_gradient_norm",
    "--ema": "ema",
    "--grad-scaler": "grad_scaler",
    "--label-smoothing 0.1": "label_smoothing",
    "--dpo-reference model": "dpo_reference",
    "--padding right": "padding",
    "--eval-batch-size 8": "eval_batch_size",
    "--generation-batch-size 8": "generation_batch_size",
    "--generation-length 8": "generation_length",
    "--checkpoint-reentrant": "checkpoint_reentrant",
    "--offload activations": "offload",
    "--compile": "compile",
    "--loss fp32-logits": "loss",
    "--reserve 1GiB": "reserve",
    "--gpu-free 8GiB": "gpu_free",
    "--pytorch-version 2.1": "pytorch_version",
    "--cuda-module-loading lazy": "cuda_module_loading",
    "--optimizer adafactor": "optimizer",
    "--checkpointing selective": "activation_checkpointing",
    "--checkpointing layers:[[0,1]]": "activation_checkpointing",
    "--sharding hsdp:2 --gpus 4": "parallel.sharding",
    "--shards 3 --gpus 4": "parallel.shards",
    "--tensor 2": "parallel.tensor",
    "--pipeline 2": "parallel.pipeline",
    "--offload optimizer": "offload",
    "--host-memory 64GiB": "host_memory",
    "--allocator simulate": "allocator",
    "--precision bf16": "precision",
    "--precision fp8": "precision",
    "--checkpoint-factor 4": "checkpoint_factor",
    "--activation-bytes 1GB --checkpoint-factor 4 --checkpointing none": "checkpoint_factor",
    "--activation-bytes 1GB --checkpoint-factor 0.5": "checkpoint_factor",
    "--trainable-parameters many": "trainable_parameters",
    "--trainable-parameters 99T": "trainable_parameters",
    "--activation-bytes 1GB --activation-model book": "activation_model",
    "--activation-model books": "activation_model",
    "--activation-bytes 65": "activation_bytes",
}


@pytest.mark.parametrize(("options", "key"), REFUSED.items(), ids=REFUSED)
def test_what_no_equation_looks_at_is_refused(options: str, key: str) -> None:
    ran = refused("fit", *BOOK, "-m", "gpt2", *options.split(), "--format", "json")
    assert [problem["key"] for problem in valid("error", ran.document)["error"]["problems"]] == [key]


def test_nothing_else_replays_a_textbook_job() -> None:
    assert "textbook has equations" in refused("timeline", *BOOK, "-m", "gpt2").err


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *(("1.5B", 1_500_000_000), ("1500000000", 1_500_000_000), ("7e9", 7 * GB), ("124M", 124_000_000)),
        *(("1.5 b", 1_500_000_000), ("0.5K", 500), ("1.5e9", 1_500_000_000), ("2T", 2 * 10**12), ("3", 3)),
        *(("1.5", None), ("0", None), ("1e99", None), ("gpt2", None), ("7B-chat", None), ("-7B", None), ("", None)),
    ],
)
def test_a_count_of_parameters(text: str, count: int | None) -> None:
    assert parameter_count(text) == count


raw_jobs = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["1.5B", "gpt2", "bert-base-uncased", DIMENSIONS, {**DIMENSIONS, "family": "gpt2"}]),
        "gpu": st.sampled_from(["v100", "a100", {"name": "x", "memory": "24 GB"}, {"name": "v100"}]),
        "runtime": st.just("textbook"),
    },
    optional={
        "sequence_length": st.integers(1, 1024),
        "micro_batch_size": st.integers(1, 64),
        "gradient_accumulation_steps": st.integers(1, 8),
        "precision": st.sampled_from(["auto", "fp32", "amp-fp16", "mixed-fp16", "pure-fp16"]),
        "gradient_dtype": st.sampled_from(["none", "fp16", "fp32"]),
        "master_dtype": st.sampled_from(["none", "fp32"]),
        "optimizer_state_dtype": st.sampled_from(["int8", "bf16"]),
        "optimizer": st.sampled_from(["sgd", "rmsprop", "adamw", "lion"]),
        "activation_checkpointing": st.sampled_from(["none", "full", "sqrt", "every:3"]),
        "activation_model": st.sampled_from(["book", "zero-paper", "korthikanti"]),
        "activation_bytes": st.sampled_from(["1 GB", "65 GB"]),
        "checkpoint_factor": st.sampled_from([1, 2.5, 4]),
        "trainable_parameters": st.sampled_from([1000, "2M", "1e12"]),
        "parallel": st.sampled_from(
            [{"data": 8}, {"data": 8, "sharding": "zero2"}, {"data": 8, "sharding": "fsdp", "shards": 4}]
        ),
    },
)


@pytest.mark.sweep(2)
@settings(deadline=None, max_examples=18)
@given(raw_jobs)
def test_an_echoed_answer_is_the_same_answer(raw: dict[str, Any]) -> None:
    from vramplan.answers.fit import answer
    from vramplan.errors import InputError
    from vramplan.results import fit_document

    try:
        job = build_any_job(raw)
        first = fit_document(answer(job), exit_code=0)
    except InputError:
        return
    assert isinstance(job, TextbookJob)
    again = fit_document(answer(build_any_job(json.loads(json.dumps(first["job"])))), exit_code=0)
    same(first, again)
    assert again["job"] == first["job"]
    parts = sum(part["bytes"] for part in first["components"])
    assert parts == first["peak"]["device_bytes"]
    assert (first["verdict"] == "fits") == (parts <= first["usable_bytes"])
    assert job_to_dict(job)["runtime"] == "textbook"


def test_an_echoed_answer_goes_through_a_file(tmp_path: Path) -> None:
    first = fit(*XL, "--activation-bytes", "65 GB", "--checkpoint-factor", 4)
    same(first, feed(first["job"], tmp_path / "echo"))
