"""`vramplan timeline` as a whole: what it says is what `fit` says, wherever it goes."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.running import fit, refused, run, valid
from vramplan.planner.budget import footprint

FEW = 100  # samples that are compared with the schema: it takes a second for ten thousand numbers
GPT2_XL = ("-m", "gpt2-xl", "-g", "v100")
NO = (*GPT2_XL, "--micro-batch", "32", "--checkpointing", "full")
TINY_BERT = ("-m", "bert-tiny", "-g", "t4")
JOBS = {
    "fits": GPT2_XL,
    "does not fit": NO,
    "states alone do not fit": ("-m", "llama-3-8b", "-g", "t4"),
    "micro-batch 1": (*GPT2_XL, "--micro-batch", "1", "--steps", "1"),
    "tiny": TINY_BERT,
    "peak in the step": (*TINY_BERT, "--micro-batch", "1", "--seq", "8", "--optimizer-implementation", "foreach"),
    "80 blocks": ("-m", "llama-3-70b", "-g", "2000 GiB", "--checkpointing", "none"),
    "sizes": ("-m", "gpt2", "-g", "6 GiB", "--optimizer-implementation", "for-loop", "--checkpointing", "every:5"),
}


def timeline(*words: object) -> Any:
    ran = run("timeline", *words, "--format", "json")
    assert (ran.code, ran.err) == (0, ""), ran
    made = ran.document
    columns = made["samples"]
    few = {key: columns[key][-FEW:] for key in ("phase", "block", "operator", "allocated_bytes")}
    parts = [{**part, "bytes": part["bytes"][-FEW:]} for part in columns["components"]]
    valid("timeline", {**made, "samples": {**columns, **few, "components": parts}})
    return made


@pytest.mark.sweep(8)
@pytest.mark.parametrize("words", JOBS.values(), ids=JOBS)
def test_it_says_what_fit_says(words: tuple[str, ...]) -> None:
    made, judged = timeline(*words), fit(*words)
    for key in ("verdict", "job", "capacity_bytes", "usable_bytes", "warnings"):
        assert made[key] == judged[key]
    for key in ("allocated_bytes", "device_bytes", "phase", "operator"):
        assert made["peak"][key] == judged["peak"][key]
    assert {f"{phase['name']}_bytes": phase["peak_bytes"] for phase in made["phases"]} == judged["peak"]["phases"]
    assert {part["name"]: part["bytes"] for part in made["components"] if part["bytes"]} == {
        part["name"]: part["bytes"] for part in judged["components"]
    }
    forward, backward, step = made["phases"]
    assert forward["end_bytes"] - forward["start_bytes"] == judged["peak"]["saved_bytes"]
    assert (forward["end_bytes"], backward["end_bytes"]) == (backward["start_bytes"], step["start_bytes"])
    assert forward["start_bytes"] == step["end_bytes"]


@pytest.mark.sweep(4)
@pytest.mark.parametrize("words", JOBS.values(), ids=JOBS)
def test_the_samples_are_the_step(words: tuple[str, ...]) -> None:
    made = timeline(*words)
    samples, peak = made["samples"], made["peak"]
    levels = samples["allocated_bytes"]
    columns = [part["bytes"] for part in samples["components"]]
    assert [part["name"] for part in samples["components"]] == [part["name"] for part in made["components"]]
    assert {len(column) for column in (*columns, samples["phase"], samples["block"], samples["operator"])} == {
        len(levels)
    }
    assert [sum(parts) for parts in zip(*columns, strict=True)] == levels
    assert levels.index(max(levels)) == peak["sample"]
    for key, column in (("phase", "phase"), ("block", "block"), ("operator", "operator")):
        assert samples[column][peak["sample"]] == peak[key]
    for phase in made["phases"]:
        part = slice(phase["first_sample"], phase["first_sample"] + phase["samples"])
        assert set(samples["phase"][part]) == {phase["name"]}
        assert max(levels[part]) == phase["peak_bytes"]
    assert levels[0] == levels[-1] == made["phases"][0]["start_bytes"]
    blocks = len({block for block in samples["block"] if block is not None})
    assert set(samples["block"]) == {None, *range(blocks)}
    assert blocks == int({"gpt2-xl": 48, "llama-3-8b": 32, "bert-tiny": 2, "llama-3-70b": 80, "gpt2": 12}[words[1]])


@pytest.mark.plain
@pytest.mark.sweep(3)
@pytest.mark.parametrize("words", [GPT2_XL, NO, TINY_BERT], ids=["fits", "does not fit", "tiny"])
def test_the_limit_is_the_last_that_fits_by_the_device_figure(words: tuple[str, ...]) -> None:
    made, judged = timeline(*words), fit(*words)
    context = next(part["bytes"] for part in judged["overheads"] if part["name"] == "context")
    limit = made["allocated_limit_bytes"]
    assert footprint(limit, context).device <= made["usable_bytes"] < footprint(limit + 1, context).device


@pytest.mark.sweep(8)
@settings(max_examples=5, deadline=None)
@given(st.integers(1, 9), st.integers(1, 5), st.sampled_from(["none", "full", "every:2"]), st.booleans())
def test_any_micro_batch_has_its_timeline(micro: int, steps: int, strategy: str, held: bool) -> None:
    words = ["-m", "smollm-135m", "-g", "24 GiB", "--seq", "40", "--micro-batch", micro, "--steps", steps]
    words += ["--checkpointing", strategy, "--hold-outputs" if held else "--no-hold-outputs"]
    made, judged = timeline(*words), fit(*words)
    assert max(made["samples"]["allocated_bytes"]) == judged["peak"]["allocated_bytes"]


def test_the_json_of_80_blocks_is_a_few_megabytes_and_its_picture_is_small(tmp_path: Path) -> None:
    words = (
        "-m",
        "llama-3-70b",
        "-g",
        "2000 GiB",
        "--json",
        tmp_path / "a.json",
        "--svg",
        tmp_path / "a.svg",
        "--quiet",
    )
    assert run("timeline", *words).code == 0
    assert (tmp_path / "a.json").stat().st_size < 4_000_000
    assert (tmp_path / "a.svg").stat().st_size < 200_000


@pytest.mark.plain
@pytest.mark.parametrize("words", [GPT2_XL, NO], ids=["fits", "does not fit"])
def test_text_begins_as_fit_does(words: tuple[str, ...]) -> None:
    mine, judged = run("timeline", *words), run("fit", *words, "--details")
    assert mine.code == 0
    assert mine.out.splitlines()[:4] == judged.out.splitlines()[:4]
    assert max(map(len, mine.out.splitlines())) <= 80
    peak = fit(*words)["peak"]
    assert f"{peak['phase']}, {peak['operator']}" in mine.out


def test_formats_say_the_same() -> None:
    made = timeline(*TINY_BERT)
    assert yaml.safe_load(run("timeline", *TINY_BERT, "--format", "yaml").out) == made
    lines = run("timeline", *TINY_BERT, "--format", "csv").out.splitlines()
    assert len(lines) == 1 + len(made["samples"]["operator"])
    assert "```text" in run("timeline", *TINY_BERT, "--format", "markdown").out
    assert run("timeline", *TINY_BERT, "--print", "peak.sample").out == f"{made['peak']['sample']}\n"
    assert run("timeline", *TINY_BERT, "--quiet").out == ""


def test_height_is_the_rows_of_the_chart() -> None:
    def rows(*words: object) -> int:
        lines = run("timeline", *TINY_BERT, *words).out.splitlines()
        top = next(n for n, line in enumerate(lines) if line.startswith(" GiB"))
        return next(n for n, line in enumerate(lines) if line.lstrip().startswith("+---")) - top - 1

    assert [rows(), rows("--height", "4"), rows("--height", "50")] == [16, 4, 50]
    for height in ("3", "201", "-1", "x", "2.5"):
        assert "--height" in refused("timeline", *TINY_BERT, "--height", height).err


def test_zoom_changes_the_picture_and_nothing_else(tmp_path: Path) -> None:
    files = ("--svg", tmp_path / "a.svg", "--json", tmp_path / "a.json", "--quiet")
    assert run("timeline", *GPT2_XL, "--zoom", *files).code == 0
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == timeline(*GPT2_XL)
    assert "the axis begins at 23.21 GiB" in run("timeline", *GPT2_XL, "--zoom").out
    plain, zoomed = (run("timeline", *GPT2_XL, "--svg", "-", *more).out for more in ((), ("--zoom",)))
    assert "the axis begins at 23.21 GiB" in zoomed
    assert "the axis begins" not in plain
    assert (tmp_path / "a.svg").read_text("utf-8") == zoomed


# Files


def test_the_files_are_what_is_printed_and_the_picture_is_printed_too(tmp_path: Path) -> None:
    files = ("--svg", tmp_path / "step.svg", "--json", tmp_path / "step.json")
    ran = run("timeline", *TINY_BERT, *files)
    assert ran == run("timeline", *TINY_BERT)
    assert (tmp_path / "step.json").read_text("utf-8") == run("timeline", *TINY_BERT, "--format", "json").out
    assert (tmp_path / "step.svg").read_text("utf-8") == run("timeline", *TINY_BERT, "--svg", "-").out
    ElementTree.parse(tmp_path / "step.svg")
    assert sorted(os.listdir(tmp_path)) == ["step.json", "step.svg"]
    assert run("timeline", *TINY_BERT, *files, "--quiet") == (0, "", "")


def test_an_existing_file_is_replaced_through_links_and_keeps_its_mode(tmp_path: Path) -> None:
    file, link = tmp_path / "real.json", tmp_path / "link.json"
    file.write_text("old", "utf-8")
    file.chmod(0o640)
    link.symlink_to(file)
    assert run("timeline", *TINY_BERT, "--json", link, "-q").code == 0
    assert link.is_symlink()
    assert json.loads(file.read_text("utf-8"))["verdict"] == "fits"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link.json", "real.json"]


def test_a_device_is_written_to() -> None:
    assert run("timeline", *TINY_BERT, "--svg", os.devnull, "-q") == (0, "", "")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_what_cannot_be_written_is_bad_input_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("old", "utf-8")
    for option in ("--svg", "--json"):
        for path in (tmp_path, tmp_path / "nowhere" / "a", tmp_path / "file" / "a", tmp_path / ("x" * 300), ""):
            assert f"{option}: " in refused("timeline", *TINY_BERT, option, path).err
    ran = refused("timeline", *TINY_BERT, "--json", tmp_path, "--format", "json")
    assert valid("error", ran.document)["error"]["problems"][0]["key"] == "--json"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert "no space left on device" in refused("timeline", *TINY_BERT, "--svg", tmp_path / "file").err
    assert (tmp_path / "file").read_text("utf-8") == "old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--json", "-"), "--format json prints the JSON answer"),
        (("--svg", "-", "--format", "json"), "--svg: - prints the picture, and --format asks for something else"),
        (("--svg", "-", "--print", "verdict"), "--print asks"),
        (("--svg", "-", "--quiet"), "--quiet asks"),
        (("--svg", "same", "--json", "./same"), "they need a file each"),
        (("--height", "9", "--format", "json"), "--format text or markdown draws it"),
        (("--height", "9", "--svg", "-"), "the SVG has its own size"),
        (("--height", "9", "--quiet"), "no chart is printed"),
        (("--zoom", "--print", "verdict"), "--zoom: nothing is drawn"),
    ],
)
def test_options_that_contradict_each_other_or_would_be_ignored_are_refused(
    words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    assert message in refused("timeline", *TINY_BERT, *words).err


def test_a_job_that_cannot_be_computed_is_refused_as_fit_refuses_it(tmp_path: Path) -> None:
    for words in (("-m", "gpt2-xxl", "-g", "v100"), (*GPT2_XL, "--sharding", "fsdp"), ("-g", "v100")):
        ran = refused("timeline", *words, "--svg", tmp_path / "a.svg")
        assert ran.err == refused("fit", *words).err
    assert "textbook" in refused("timeline", *GPT2_XL, "--runtime", "textbook").err
    assert not os.listdir(tmp_path)


def test_a_model_file_of_odd_shape_has_a_timeline(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1}), "utf-8")
    made = timeline("-m", file, "-g", "1 GiB", "--micro-batch", "1", "--steps", "1", "--seq", "1")
    assert {*made["samples"]["block"]} == {None, 0}
