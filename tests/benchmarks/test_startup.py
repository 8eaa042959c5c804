"""The benchmark runs. What it measures is for people to read: no test depends on a clock."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.sweep
def test_the_benchmark_prints_a_row_for_every_command() -> None:
    script = ROOT / "tests" / "benchmarks" / "startup.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(script), "1"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()[2:]
    assert [row[:20].rstrip() for row in rows] == [
        *("fit --format json", "fit (text)", "--help", "fit, optimal", "check, 20 jobs", "check, 1 of 3,000"),
    ]
    for row in rows:
        assert len(re.findall(r"\d+\.\d+", row)) >= 4
