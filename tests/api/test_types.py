"""Type checkers know the API: what is right passes, and what is wrong is found before it is run."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

from vramplan.api import Job, JobKeys
from vramplan.options import table

ROOT = Path(__file__).resolve().parents[2]

USE = """\
from dataclasses import replace
from pathlib import Path

from vramplan import FitResult, InputError, Job, Problem, __version__, fit

job = Job(model="gpt2-xl", gpu={"memory": "24 GiB"}, micro_batch_size=4, parallel={"data": 2}, frozen=["embeddings"])
result: FitResult = fit(job)
other = fit(model=Path("config.json"), gpu="v100", profiles=[Path("profiles"), "more"], dropout=0)
again: FitResult = fit(replace(job, gpu="h100"), profiles="profiles")
back = fit(**result.job)
verdict: str = result.verdict
allocated: int = result.peak.allocated_bytes
micro: int | None = result.recommended.micro_batch_size
given: int | None = job.micro_batch_size
names: list[str] = [part.name for part in other.components]
code: object = result.to_dict(strict=True)["exit_code"]
version: str = __version__
try:
    fit(job)
except InputError as error:
    problem: Problem = error.problems[0]
    hint: str | None = problem.hint
"""

WRONG = {
    'Job(modle="gpt2-xl", gpu="v100")': 'Unexpected keyword argument "modle"',
    'Job(model="gpt2-xl")': 'Missing named argument "gpu"',
    'fit(model="gpt2-xl", gpu="v100", micro_batch_size="four")': "No overload variant",
    'Job(model="gpt2-xl", gpu="v100", parallel=2)': "incompatible type",
    'Job(model="gpt2-xl", gpu="v100").gpu = "h100"': "is read-only",
    'fit(model="gpt2-xl", gpu="v100").verdict = "fits"': "is read-only",
    'fit(model="gpt2-xl", gpu="v100").job["gpu"] = "h100"': "Unsupported target for indexed assignment",
    'fit(model="gpt2-xl", gpu="v100").peak.bytes': 'has no attribute "bytes"',
    'fit({"model": "gpt2-xl"})': "No overload variant",
}


def checked(program: str, folder: Path) -> list[str]:
    """What `mypy --strict` says about a program that uses the package."""
    file = folder / "program.py"
    file.write_text(program, "utf-8")
    words = ("-m", "mypy", "--strict", "--no-incremental", "--hide-error-context", "--no-error-summary", str(file))
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


@pytest.mark.sweep
def test_a_program_that_uses_it_rightly_passes_and_each_misuse_is_found(tmp_path: Path) -> None:
    lines = USE.count("\n")
    said = checked(USE + "".join(f"{line}\n" for line in WRONG), tmp_path)  # once: mypy takes seconds
    problems = [line for line in said if ": error: " in line]
    assert not [line for line in problems if int(line.split(":")[1]) <= lines]
    for number, (line, message) in enumerate(WRONG.items(), lines + 1):
        assert [one for one in problems if one.split(":")[1] == str(number) and message in one], (line, problems)


def test_the_keywords_are_the_keys_of_the_job_format() -> None:
    assert set(get_type_hints(JobKeys)) == set(table.inside())
    assert [field.name for field in fields(Job)] == list(get_type_hints(JobKeys)), "Job and JobKeys"


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "vramplan" / "py.typed").is_file()


# What an import costs


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import vramplan", ("vramplan.api", "vramplan.results", "vramplan.errors", "typer", "dataclasses")),
        ("from vramplan import InputError, Problem", ("vramplan.api", "vramplan.results", "typer")),
        ("from vramplan import fit, Job; fit(model='gpt2', gpu='v100')", ("typer", "rich", "pint", "vramplan.cli")),
    ],
    ids=["import", "errors", "fit"],
)
def test_an_import_loads_what_it_needs(program: str, absent: tuple[str, ...]) -> None:
    command = [sys.executable, "-S", "-c", f"{program}; import sys; print(*sys.modules)"]
    if "fit" in program:
        command.remove("-S")  # it reads YAML, which is in site-packages
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "vramplan" in done.stdout.split()
    assert not set(absent) & set(done.stdout.split())
