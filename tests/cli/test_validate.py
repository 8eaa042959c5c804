"""Predicted against measured, like with like, and the summary recomputed here by hand."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import ABLE, TINY, feed, refused, run, valid, write_jobs

CARD = {"name": "card", "memory": "24 GiB", **ABLE}
JOB = {"model": TINY, "gpu": CARD, "micro_batch_size": 4, "gradient_accumulation_steps": 1}


@pytest.fixture(scope="module")
def peak(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    found: dict[str, int] = feed(JOB, tmp_path_factory.mktemp("peak") / "jobs.json")["peak"]
    return found


ESTIMATED = ("--allocator", "estimate")  # whose figures can be computed by hand


APART = {"per_runtime": "transformers", "per_devices": "one", "per_source": "one source"}


def validate(folder: Path, *measured: dict[str, Any], **keys: Any) -> Any:
    jobs = [{**JOB, "measured": one, **keys} for one in measured]
    ran = run("validate", write_jobs(folder / "cases.yaml", *jobs), *ESTIMATED, "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    return valid("validate", ran.document)


@pytest.mark.parametrize("metric", ["allocated", "reserved", "device"])
def test_each_metric_is_compared_with_its_own_figure(metric: str, peak: dict[str, int], tmp_path: Path) -> None:
    measured = {"metric": metric, "peak_bytes": 1_000_000_000}
    (result,) = validate(tmp_path, measured)["results"]
    predicted = peak[f"{metric}_bytes"]
    assert (result["metric"], result["predicted_bytes"], result["measured_bytes"]) == (metric, predicted, 10**9)
    assert result["relative_error"] == pytest.approx((predicted - 10**9) / 10**9)


def test_a_stage_is_compared_with_its_own_figure_and_must_be_there(tmp_path: Path) -> None:
    """Megatron-LM logs the peak of its last rank, whatever the first has in flight."""
    split = {**JOB, "runtime": "megatron", "parallel": {"data": 1, "pipeline": 2}, "precision": "mixed-bf16"}
    split |= {"gradient_accumulation_steps": 8, "activation_checkpointing": "none"}
    stages = feed(split, tmp_path / "jobs.json")["stages"]
    assert len({one["allocated_bytes"] for one in stages}) == len(stages) == 2
    for metric in ("allocated", "device"):
        each = [{"metric": metric, "peak_bytes": 10**9, "stage": number} for number in (0, 1)]
        jobs = [{**split, "measured": one} for one in each]
        ran = run("validate", write_jobs(tmp_path / "cases.yaml", *jobs), *ESTIMATED, "--format", "json")
        found = [result["predicted_bytes"] for result in valid("validate", ran.document)["results"]]
        assert found == [one[f"{metric}_bytes"] for one in stages]
    beyond = {**split, "measured": {"metric": "allocated", "peak_bytes": 10**9, "stage": 2}}
    ran = run("validate", write_jobs(tmp_path / "cases.yaml", beyond), *ESTIMATED)
    assert ran.code != 0
    assert "measured.stage is 2, and the run has 2 stages, counted from 0" in " ".join(ran.err.split())


def test_unspecified_is_right_anywhere_between_allocated_and_device(peak: dict[str, int], tmp_path: Path) -> None:
    low, high = peak["allocated_bytes"], peak["device_bytes"]
    sizes = (low // 2, low - 1, low, (low + high) // 2, high, high + 1, 2 * high)
    answer = validate(tmp_path, *({"metric": "unspecified", "peak_bytes": size} for size in sizes))
    results = answer["results"]
    nearest = [low, low, *sizes[2:5], high, high]
    assert [result["predicted_bytes"] for result in results] == nearest
    for result, size, near in zip(results, sizes, nearest, strict=True):
        assert result["relative_error"] == pytest.approx((near - size) / size)
    assert [result["relative_error"] for result in results[2:5]] == [0, 0, 0]
    apart = answer["summary"]["unspecified"]
    assert (apart["count"], apart["inside"], apart["outside"]["count"]) == (7, 3, 4)
    assert apart["outside"]["worst"] == pytest.approx((low - low // 2) / (low // 2))


def test_no_other_error_counts_a_peak_without_a_metric(peak: dict[str, int], tmp_path: Path) -> None:
    """A peak that is met by whatever is predicted moves no median."""
    device = {"metric": "device", "peak_bytes": 2 * peak["device_bytes"]}
    inside = {"metric": "unspecified", "peak_bytes": peak["device_bytes"]}
    source = {"title": "one source"}
    summary = validate(tmp_path, device, inside, inside, source=source)["summary"]
    groups = (summary["peaks"], *(summary[key][name] for key, name in APART.items()))
    assert [(group["count"], group["median"]) for group in groups] == [(1, 0.5)] * 4
    assert summary["per_metric"]["unspecified"] == {"count": 2, "median": 0, "p90": 0, "worst": 0, "bias": 0}
    text = run("validate", write_jobs(tmp_path / "cases.yaml", {**JOB, "measured": inside}), *ESTIMATED).out
    assert "1 of 1 measured peak whose source does not say what it measured" in " ".join(text.split())
    assert "0.0%" not in text


@pytest.mark.closed_form
def test_the_summary_is_the_one_computed_by_hand(peak: dict[str, int], tmp_path: Path) -> None:
    factors = {"allocated": (0.5, 0.8, 1.0, 1.1, 2.0), "device": (0.9, 1.3)}
    cases = [
        {"metric": metric, "peak_bytes": round(peak[f"{metric}_bytes"] * factor)}
        for metric, several in factors.items()
        for factor in several
    ]
    jobs = [{**JOB, "measured": one} for one in cases]
    jobs.append({**JOB, "runtime": "pytorch", "optimizer_implementation": "fused", "measured": cases[0]})
    jobs.append({**JOB, "measured": {"outcome": "oom"}})  # nothing to compare but the outcome
    ran = run("validate", write_jobs(tmp_path / "cases.yaml", *jobs), *ESTIMATED, "--format", "json")
    answer = valid("validate", ran.document)
    summary = answer["summary"]
    assert (summary["computed"], summary["errors"]) == (9, 0)
    assert list(summary["per_metric"]) == ["allocated", "device"]
    assert list(summary["per_runtime"]) == ["transformers", "pytorch"]

    def compare(stats: dict[str, Any], errors: list[float]) -> None:
        sizes = sorted(map(abs, errors))
        assert stats["count"] == len(errors)
        assert stats["median"] == pytest.approx(statistics.median(sizes))
        assert stats["worst"] == pytest.approx(max(sizes))
        assert stats["bias"] == pytest.approx(statistics.fmean(errors))
        if len(sizes) > 1:
            assert stats["p90"] == pytest.approx(statistics.quantiles(sizes, n=10, method="inclusive")[8])

    def error(metric: str, size: int) -> float:
        return (peak[f"{metric}_bytes"] - size) / size

    by_metric = {
        metric: [error(one["metric"], one["peak_bytes"]) for one in [*cases, cases[0]] if one["metric"] == metric]
        for metric in factors
    }
    for metric, errors in by_metric.items():
        compare(summary["per_metric"][metric], errors)
    compare(summary["per_runtime"]["transformers"], [error(one["metric"], one["peak_bytes"]) for one in cases])
    compare(summary["per_runtime"]["pytorch"], [error("allocated", cases[0]["peak_bytes"])])


def test_the_predicted_outcome_is_beside_the_measured_one(tmp_path: Path) -> None:
    small = {**CARD, "memory": "600 MiB"}
    (right,) = validate(tmp_path, {"outcome": "fits"})["results"]
    (wrong,) = validate(tmp_path, {"outcome": "fits"}, gpu=small)["results"]
    assert (right["outcome"], wrong["outcome"]) == ("fits", "oom")
    assert (right["metric"], right["predicted_bytes"], right["relative_error"]) == (None, None, None)
    outcomes = validate(tmp_path, {"outcome": "fits"}, {"outcome": "oom"})["summary"]["outcomes"]
    assert outcomes == {"right": 1, "total": 2}


def test_use_says_what_a_case_is_good_for(peak: dict[str, int], tmp_path: Path) -> None:
    measured = {"metric": "allocated", "peak_bytes": 2 * peak["allocated_bytes"], "outcome": "fits"}
    (peak_only,) = validate(tmp_path, measured, use=["peak"])["results"]
    (fit_only,) = validate(tmp_path, measured, use=["fit"])["results"]
    assert (peak_only["relative_error"], peak_only["measured_outcome"]) == (pytest.approx(-0.5), None)
    assert (fit_only["relative_error"], fit_only["measured_outcome"]) == (None, "fits")


def test_an_absent_key_is_computed_with_its_default_and_listed(tmp_path: Path) -> None:
    (result,) = validate(tmp_path, {"outcome": "fits"}, inferred=["precision"], missing=["optimizer"])["results"]
    assert {"precision", "optimizer", "attention", "sequence_length"} <= {item["key"] for item in result["assumptions"]}


def test_a_case_that_cannot_be_computed_is_2_and_the_others_are_answered(tmp_path: Path) -> None:
    measured = {"metric": "allocated", "peak_bytes": 10**9}
    measured_job = {**JOB, "measured": measured}
    jobs = [measured_job, {**measured_job, "precision": "fsdp-bf16"}, {**JOB, "model": "gpt9"}]
    file = write_jobs(tmp_path / "cases.yaml", *jobs)
    ran = run("validate", file, *ESTIMATED, "--format", "json")
    answer = valid("validate", ran.document)
    assert ran.code == 2
    assert (answer["summary"]["computed"], answer["summary"]["errors"]) == (1, 2)
    assert [sorted(result.keys() & {"verdict", "error"}) for result in answer["results"]] == [
        ["verdict"],
        ["error"],
        ["error"],
    ]
    assert "fsdp-bf16" in answer["results"][1]["error"]["message"]
    assert ran.err.count("error: ") == 2
    text = run("validate", file)
    assert text.code == 2
    assert text.out.splitlines()[-1] == "3 cases: 1 computed, 2 errors"
    assert run("validate", file, "--job", "job 0").code == 0


def test_a_miss_is_no_failure(tmp_path: Path) -> None:
    file = write_jobs(tmp_path / "cases.yaml", {**JOB, "measured": {"metric": "device", "peak_bytes": 1}})
    assert run("validate", file).code == 0


@pytest.mark.parametrize(
    "measured",
    [{"peak_bytes": 0}, {"peak_bytes": "12 GB"}, {"metric": "nvml"}, {"outcome": "yes"}, {"peak": 1}, {"mfu": -1}],
)
def test_a_broken_measurement_is_2(measured: dict[str, Any], tmp_path: Path) -> None:
    err = refused("validate", write_jobs(tmp_path / "cases.yaml", {**JOB, "measured": measured})).err
    assert "measured." in err


def test_the_keys_of_a_case_are_no_options_of_fit() -> None:
    for option in ("--measured", "--expect", "--name", "--max-utilization"):
        refused("fit", "-m", "gpt2", "-g", "t4", option, "x")


def test_the_allocator_is_simulated_unless_told_otherwise(tmp_path: Path) -> None:
    job = {"name": "one", "model": "gpt2", "gpu": "v100", "micro_batch_size": 1, "global_batch_size": 1}
    file = write_jobs(tmp_path / "cases.yaml", job | {"activation_checkpointing": "none"})
    simulated = run("validate", file, "--print", "results.0.job.allocator")
    estimated = run("validate", file, *ESTIMATED, "--print", "results.0.job.allocator")
    assert (simulated.out.strip(), estimated.out.strip()) == ("simulate", "estimate")
    assert run("validate", file, "--allocator", "guess").code == 2
