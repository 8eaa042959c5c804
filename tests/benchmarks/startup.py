"""How fast vramplan answers: `python tests/benchmarks/startup.py [REPETITIONS]`.

The time of a whole process, as a ratio to a trivial one-command Typer program that the same interpreter runs in turn
with it, so that the machine and its load cancel out; the median over pairs. And the largest resident memory of the
process. Nothing is asserted: times are looked at, never tested. For honest figures run it where vramplan is installed
without `--editable`, as users have it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ONE_COMMAND = """\
import typer

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def hello(name: str = "world") -> None:
    typer.echo(f"hello {name}")


app()
"""

MODELS = ("gpt2", "gpt2-medium", "gpt2-xl", "llama-3.2-1b", "bert-large-uncased")
GPUS = ("v100", "a100-40gb", "a100-80gb", "h100")


class Case(NamedTuple):
    """One command, and what it may cost."""

    name: str
    words: tuple[str, ...]
    ratio_limit: float | None  # times the one-command program
    memory_limit_mb: float | None = 45.0


class Run(NamedTuple):
    """One process."""

    seconds: float
    resident_mb: float


def twenty_jobs() -> str:
    """A job file: five models on four GPUs, each expected to get whatever verdict it gets."""
    lines = ["version: 1", "jobs:"]
    for model in MODELS:
        for gpu in GPUS:
            lines.append(f"  - {{name: {model} on {gpu}, model: {model}, gpu: {gpu}, max_utilization: 1.0}}")
    return "\n".join(lines) + "\n"


def many_jobs() -> str:
    """Half a megabyte of jobs, of which one is asked for: what reading costs."""
    row = (
        "  - {{name: job {0}, model: gpt2, gpu: v100, micro_batch_size: 4, sequence_length: 1024, precision: amp-fp16, "
    )
    row += "activation_checkpointing: none, global_batch_size: 512, max_utilization: 1.0}}"
    return "\n".join(["version: 1", "jobs:", *(row.format(number) for number in range(3000))]) + "\n"


def run(words: tuple[str, ...], folder: Path) -> Run:
    """Start a process, wait for it, and say how long it took and how large it grew."""
    started = time.perf_counter()
    process = subprocess.Popen(
        words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    complaints = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.stderr.close()
    process.returncode = code = os.waitstatus_to_exitcode(status)
    if code not in (0, 3):  # 3: a job of the twenty does not fit
        raise SystemExit(f"{' '.join(words)}: exit {code}\n{complaints.decode()}")
    kilobytes = usage.ru_maxrss / 1024 if sys.platform == "darwin" else usage.ru_maxrss
    return Run(seconds, kilobytes / 1024)


def measure(case: Case, base: tuple[str, ...], repetitions: int, folder: Path) -> tuple[list[Run], list[Run]]:
    """Runs of the case and of the base, in turn, each first in every second pair; one pair is thrown away."""
    run(base, folder)
    run(case.words, folder)
    ours, theirs = [], []
    for turn in range(repetitions):
        if turn % 2:
            ours.append(run(case.words, folder))
            theirs.append(run(base, folder))
        else:
            theirs.append(run(base, folder))
            ours.append(run(case.words, folder))
    return ours, theirs


def main(repetitions: int) -> None:
    """Measure every case and print the table."""
    script = Path(sys.executable).with_name("vramplan")
    vramplan = (str(script),) if script.exists() else (sys.executable, "-m", "vramplan")
    question = ("fit", "--model", "gpt2-xl", "--gpu", "v100")
    cases = (
        Case("fit --format json", (*vramplan, *question, "--format", "json"), 2.3),
        Case("fit (text)", (*vramplan, *question), None),
        Case("--help", (*vramplan, "--help"), 1.3),
        Case("fit, optimal", (*vramplan, *question, "--checkpointing", "optimal"), None),
        Case("check, 20 jobs", (*vramplan, "check", "twenty.yaml"), None, None),
        Case("check, 1 of 3,000", (*vramplan, "check", "many.yaml", "--job", "job 7"), None, None),
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "one_command.py").write_text(ONE_COMMAND, "utf-8")
        (folder / "twenty.yaml").write_text(twenty_jobs(), "utf-8")
        (folder / "many.yaml").write_text(many_jobs(), "utf-8")
        base = (sys.executable, "one_command.py")
        print(f"Median of {repetitions} pairs; the base is a one-command Typer program under the same interpreter.")
        print(f"{'command':<20}{'ms':>8}{'base ms':>9}{'ratio':>8}{'limit':>7}{'MB':>8}{'limit':>7}")
        for case in cases:
            ours, theirs = measure(case, base, repetitions, folder)
            ratio = statistics.median(a.seconds / b.seconds for a, b in zip(ours, theirs, strict=True))
            print(
                f"{case.name:<20}"
                f"{1000 * statistics.median(run.seconds for run in ours):>8.1f}"
                f"{1000 * statistics.median(run.seconds for run in theirs):>9.1f}"
                f"{ratio:>8.2f}{_limit(case.ratio_limit):>7}"
                f"{max(run.resident_mb for run in ours):>8.1f}{_limit(case.memory_limit_mb):>7}"
            )


def _limit(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
