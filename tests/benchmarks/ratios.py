"""Run commands in turn with a trivial Typer program, and say what they cost as ratios to it.

What the benchmarks of this folder share. The same interpreter runs both, so that the machine and its load cancel out.
Nothing is asserted: times are looked at, never tested.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
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
ANSWERED = (0, 3, 4)  # exit codes of a program that answered: a job may fail its gate or be tight


class Case(NamedTuple):
    """One command, and what it may cost. `words` follow `vramplan`."""

    name: str
    words: tuple[str, ...]
    ratio_limit: float | None = None  # times the trivial program
    seconds_limit: float | None = None  # user CPU time
    memory_limit_mb: float | None = None  # largest resident memory


class Run(NamedTuple):
    """One process: its user CPU time and its largest resident memory."""

    user_seconds: float
    resident_mb: float


def run(words: tuple[str, ...], folder: Path) -> Run:
    """Run a process to its end. Raises SystemExit with its complaints if it did not answer."""
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=complaints
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        if code not in ANSWERED:
            complaints.seek(0)
            raise SystemExit(f"{' '.join(words)}: exit {code}\n{complaints.read().decode()}")
    kilobytes = usage.ru_maxrss / 1024 if sys.platform == "darwin" else usage.ru_maxrss
    return Run(usage.ru_utime, kilobytes / 1024)


def program() -> tuple[str, ...]:
    """How `vramplan` is started under this interpreter."""
    script = Path(sys.executable).with_name("vramplan")
    return (str(script),) if script.exists() else (sys.executable, "-m", "vramplan")


def print_ratios(cases: Iterable[Case], files: Mapping[str, str], repetitions: int = 5) -> None:
    """Measure each case in a folder with these files (name to text), and print one line for each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in {"one_command.py": ONE_COMMAND, **files}.items():
            (folder / file).write_text(text, "utf-8")
        base = (sys.executable, "one_command.py")
        print(f"Median user CPU time of {repetitions} pairs; the base is a trivial Typer program.")
        print(f"{'command':<28}{'s':>8}{'limit':>7}{'base s':>8}{'ratio':>8}{'limit':>7}{'MB':>8}{'limit':>7}")
        run(base, folder)
        for case in cases:
            ours, theirs = [], []
            for _ in range(repetitions):
                theirs.append(run(base, folder))
                ours.append(run((*program(), *case.words), folder))
            ratio = statistics.median(a.user_seconds / b.user_seconds for a, b in zip(ours, theirs, strict=True))
            print(
                f"{case.name:<28}"
                f"{statistics.median(one.user_seconds for one in ours):>8.2f}{_limit(case.seconds_limit):>7}"
                f"{statistics.median(one.user_seconds for one in theirs):>8.3f}"
                f"{ratio:>8.2f}{_limit(case.ratio_limit):>7}"
                f"{max(one.resident_mb for one in ours):>8.1f}{_limit(case.memory_limit_mb):>7}"
            )


def _limit(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
