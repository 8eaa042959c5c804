"""Verdict and input decide the exit code, in every format; `--strict` is the only option that moves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.running import ABLE, TINY, process, refused, run, valid, write_jobs

FITS = ("-m", "gpt2-xl", "-g", "v100")
TIGHT = ("-m", "gpt2-xl", "-g", "29 GiB", "--precision", "amp-fp16")
ABOVE = ("-m", "gpt2-xl", "-g", "28 GiB", "--precision", "amp-fp16", "--allocator", "estimate")
TIGHT_BY_RESERVE = ("-m", "gpt2-xl", "-g", "v100", "--reserve", "2.5 GiB", "--allocator", "estimate")
DOES_NOT_FIT = ("-m", "gpt2-xl", "-g", "v100", "--micro-batch", "32", "--checkpointing", "full")
FORMATS: dict[str, tuple[str, ...]] = {
    "text": (),
    "json": ("--format", "json"),
    "yaml": ("--format", "yaml"),
    "csv": ("--format", "csv"),
    "markdown": ("--format", "markdown"),
    "print": ("--print", "verdict"),
    "quiet": ("--quiet",),
}
BAD_INPUT = {
    "nothing": (),
    "no gpu": ("-m", "gpt2-xl"),
    "unknown model": ("-m", "gpt2-xxl", "-g", "v100"),
    "unknown gpu": ("-m", "gpt2-xl", "-g", "v101"),
    "unknown option": (*FITS, "--frobnicate"),
    "option without value": (*FITS, "--seq"),
    "one word too many": (*FITS, "again"),
    "not a number": (*FITS, "--micro-batch", "two"),
    "not a size": (*FITS, "--reserve", "1"),
    "unknown word": (*FITS, "--optimizer", "adamv"),
    "not modelled": (*FITS, "--tensor", "2"),
    "unreachable batch": (*FITS, "--micro-batch", "3", "--global-batch", "512"),
    "no such folder": (*FITS, "--profiles", "/nowhere"),
}


@pytest.mark.sweep(64)
@pytest.mark.parametrize("output", FORMATS)
@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
@pytest.mark.parametrize(
    ("words", "verdict", "code", "strict_code"),
    [
        (FITS, "fits", 0, 0),
        (TIGHT, "tight", 0, 4),
        (TIGHT_BY_RESERVE, "tight", 0, 4),
        (ABOVE, "tight", 3, 3),
        (DOES_NOT_FIT, "does-not-fit", 3, 3),
    ],
    ids=["fits", "tight", "tight by reserve", "tight above", "does not fit"],
)
def test_the_verdict_decides_the_exit_code_in_every_format(
    words: tuple[str, ...], verdict: str, code: int, strict_code: int, strict: bool, output: str
) -> None:
    ran = run("fit", *words, *FORMATS[output], *(["--strict"] if strict else []))
    assert ran.code == (strict_code if strict else code)
    assert ran.err == ""
    if output == "quiet":
        assert ran.out == ""
    elif output == "print":
        assert ran.out == f"{verdict}\n"
    elif output in ("json", "yaml"):
        document = yaml.safe_load(ran.out)
        assert (document["verdict"], document["exit_code"]) == (verdict, ran.code)
    elif output == "csv":
        assert ran.out.startswith("name,recommended,activation_checkpointing,verdict,")
    else:
        assert ran.out.removeprefix("## ").startswith(verdict.upper().replace("-", " "))


@pytest.mark.sweep(8)
@pytest.mark.parametrize("output", FORMATS)
@pytest.mark.parametrize("words", BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_bad_input_is_2_in_every_format(words: tuple[str, ...], output: str) -> None:
    ran = refused("fit", *words, *FORMATS[output])
    if output in ("json", "yaml"):
        message = valid("error", yaml.safe_load(ran.out))["error"]["message"]
        assert ran.err == "".join(f"error: {line}\n" for line in message.split("\n"))
    else:
        assert ran.out == ""


@pytest.mark.parametrize(
    "words",
    [
        ("frobnicate",),
        ("--frobnicate",),
        ("check",),
        ("validate",),
        ("check", "nowhere.yaml"),
        ("validate", "nowhere.yaml"),
        ("check", "one.yaml", "one.yaml"),
        ("gpus", "v1000"),
        ("gpus", "--min-memory", "40"),
        ("gpus", "--architecture", "volt"),
        ("gpus", "show"),
        ("gpus", "show", "v1000"),
        ("gpus", "--profiles", "/nowhere"),
        ("gpus", "--bf16", "show", "v100"),
        ("models", "--family", "lama"),
        ("models", "show", "gpt-5"),
        ("models", "show", "gpt2", "--format", "junit"),
        ("models", "--profiles", "/nowhere", "--print", "models"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("json_mode", [False, True], ids=["text", "json"])
def test_bad_input_is_2_in_every_command(words: tuple[str, ...], json_mode: bool) -> None:
    printing = "--print" in words or "junit" in words
    ran = refused(*words, *(["--format", "json"] if json_mode and not printing else []))
    assert ran.err.count("\n") == 1
    if json_mode and not printing:
        message = valid("error", ran.document)["error"]["message"]
        assert ran.err == f"error: {message}\n"
    else:
        assert ran.out == ""


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("fit", *FITS), "--quiet"),
        (("gpus",), "--quiet"),
        (("models", "show", "gpt2"), "-q"),
    ],
)
def test_quiet_and_print_contradict_each_other(command: tuple[str, ...], name: str) -> None:
    ran = refused(*command, name, "--print", "name")
    assert ran.out == ""
    assert "--print" in ran.err


def test_quiet_does_not_silence_errors() -> None:
    ran = refused("fit", "-m", "gpt2-xxl", "-g", "v100", "--quiet", "--format", "json")
    assert ran.out == ""
    assert "gpt2-xl" in ran.err  # the near match


def test_the_codes_of_a_real_process() -> None:
    for words, code in ((FITS, 0), (DOES_NOT_FIT, 3), ((*TIGHT, "--strict"), 4), (("-m", "x"), 2)):
        done = process("fit", *words, "--quiet")
        assert (done.returncode, done.stdout) == (code, "")
        assert bool(done.stderr) is (code == 2)


def test_version_and_help_are_0_and_on_stdout() -> None:
    for words in (["--version"], ["--help"], ["fit", "-h"], ["check", "--help"], ["gpus", "show", "--help"]):
        ran = run(*words)
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.strip()
        assert max(map(len, ran.out.splitlines())) <= 80
    assert run("--version").out.startswith("vramplan 0.")


def test_no_command_at_all_shows_the_help() -> None:
    ran = run()
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == run("--help").out
    assert all(name in ran.out for name in ("fit", "check", "validate", "gpus", "models"))


PRINTED = {
    "verdict": "fits",
    "exit_code": "0",
    "recommended.micro_batch_size": "2",
    "recommended.activation_checkpointing": "sqrt",
    "checkpoints.0.first": "0",
    "checkpoints.6": '{"first":42,"last":47}',
    "remedies": "[]",
    "job.adapter": "null",
    "job.hold_outputs": "false",
    "job.parallel.data": "1",
    "parameters": '{"total":1557611200,"trainable":1557611200,"active":null}',
}


@pytest.mark.parametrize(("key", "text"), PRINTED.items(), ids=PRINTED)
def test_print_gives_one_bare_value(key: str, text: str) -> None:
    for extra in ((), ("--format", "json"), ("--format", "text")):  # it wins over --format
        ran = run("fit", *FITS, "--print", key, *extra)
        assert ran == (0, f"{text}\n", "")


def test_print_knows_every_key_of_the_json() -> None:
    document = run("fit", *FITS, "--format", "json").document

    def check(value: Any, path: str) -> None:
        printed = run("fit", *FITS, "--print", path).out.removesuffix("\n")
        assert printed == (value if isinstance(value, str) else json.dumps(value, separators=(",", ":")))

    for key, value in document.items():
        check(value, key)
        if isinstance(value, dict) and key != "job":
            for inner, part in value.items():
                check(part, f"{key}.{inner}")


@pytest.mark.parametrize(
    "key",
    ["verdit", "peak.device", "checkpoints.7.first", "checkpoints.-1", "checkpoints.x", "verdict.x", "", ".", "a b"],
)
def test_print_of_an_unknown_key_is_2_and_prints_nothing(key: str) -> None:
    ran = refused("fit", *FITS, "--print", key, "--format", "json")
    assert ran.out == ""
    assert ran.err.startswith("error: --print: ")
    assert ran.err.count("\n") == 1


@pytest.mark.sweep
def test_print_of_what_does_not_apply_is_null_and_keeps_the_code() -> None:
    ran = run("fit", *DOES_NOT_FIT, "--print", "recommended.micro_batch_size")
    assert ran == (3, "null\n", "")


def test_print_works_in_every_command(tmp_path: Path) -> None:
    gpu = {"name": "x", "memory": "1 GiB", **ABLE}
    file = write_jobs(tmp_path / "jobs.yaml", {"model": TINY, "gpu": gpu, "micro_batch_size": 8})
    assert run("check", file, "--print", "summary.passed").out == "1\n"
    assert run("check", file, "--print", "results.0.verdict").out == "fits\n"
    assert run("validate", file, "--print", "summary.per_metric").out == "{}\n"
    assert run("gpus", "--name", "v100-16", "--print", "gpus.0.name").out == "v100-16gb\n"
    assert run("models", "show", "gpt2-xl", "--print", "fields.parameters.value").out == "1557611200\n"


def test_near_matches_for_typos() -> None:
    for words, right in (
        (("fit", "-m", "gpt2-xll", "-g", "v100"), "gpt2-xl"),
        (("fit", "-m", "gpt2", "-g", "v10"), "v100"),
        (("fit", "--modle", "gpt2"), "--model"),
        (("fti",), "fit"),
        (("fit", *FITS, "--optimizer", "adamv"), "adamw"),
        (("fit", *FITS, "--print", "verdct"), "verdict"),
        (("gpus", "show", "a100-81gb"), "a100-80gb"),
        (("gpus", "a100-81gb"), "a100-80gb"),
    ):
        assert right in refused(*words).err
