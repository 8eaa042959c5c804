"""The command line in this process, streams captured: a process each would take fifty times as long."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from jsonschema import Draft202012Validator

from vramplan.cli.app import main
from vramplan.report.json import SCHEMAS, schema

COMMAND = (sys.executable, "-m", "vramplan")
VALIDATORS = {name: Draft202012Validator(schema(name)) for name in SCHEMAS}

# Small networks and cards of which everything is known, so that a test says what it is about and nothing else.
TINY = {
    "name": "tiny",
    "family": "llama",
    "layers": 5,
    "hidden_size": 64,
    "attention_heads": 2,
    "intermediate_size": 160,
    "vocabulary_size": 1000,
    "max_positions": 512,
}
ABLE = {"bf16": True, "flash_attention": True, "architecture": "ampere", "compute_capability": "8.0"}


class Ran(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout; anything beside it is an error."""
        assert self.out.endswith("\n")
        return json.loads(self.out)


def run(*words: object, stdin: str | bytes = b"") -> Ran:
    """`vramplan WORDS`, with `stdin` as standard input."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    try:
        with (
            mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8")),
            mock.patch("sys.stdout", out),
            mock.patch("sys.stderr", err),
        ):
            main([str(word) for word in words])
    except SystemExit as stopped:
        code = stopped.code
    assert isinstance(code, int)
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return Ran(code, *texts)


def process(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """The same as a process of its own."""
    return subprocess.run(
        [*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=60, check=False, **options
    )


def valid(name: str, document: Any) -> Any:
    """`document`, when it is one of that schema."""
    problems = [f"{error.json_path}: {error.message}" for error in VALIDATORS[name].iter_errors(document)]
    assert not problems, problems[:5]
    return document


def fit(*words: object) -> Any:
    """The JSON answer of `vramplan fit WORDS`."""
    ran = run("fit", *words, "--format", "json")
    assert ran.code in (0, 3), ran
    return valid("fit", ran.document)


def write_jobs(path: Path, *jobs: Mapping[str, Any], **top: Any) -> Path:
    """A job file (JSON is YAML)."""
    named = [{"name": f"job {number}", **job} for number, job in enumerate(jobs)]
    path.write_text(json.dumps({"version": 1, **top, "jobs": named}), "utf-8")
    return path


def feed(job: Mapping[str, Any], path: Path) -> Any:
    """The answer to an echoed job, fed back in through a file."""
    ran = run("check", write_jobs(path, job), "--format", "json")
    assert ran.code in (0, 3), ran
    return valid("check", ran.document)["results"][0]


def refused(*words: object, stdin: str | bytes = b"") -> Ran:
    """A command that must end as bad input, with a message and no traceback."""
    ran = run(*words, stdin=stdin)
    assert ran.code == 2, ran
    assert ran.err.startswith("error: "), ran
    assert "Traceback" not in ran.err
    assert "internal error" not in ran.err
    return ran


SAME = ("verdict", "peak", "components", "overheads", "capacity_bytes", "usable_bytes", "parameters", "checkpoints")


def same(answer: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """The two answers describe one run."""
    assert {key: other[key] for key in SAME} == {key: answer[key] for key in SAME}
