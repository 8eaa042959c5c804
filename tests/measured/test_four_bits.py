"""Measured truth: LitGPT's published peaks with 4-bit weights, multiplied by the bitsandbytes of 2023."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramplan.answer import answer
from vramplan.job import read_job_file
from vramplan.validation import compare

FOUR_BITS = Path(__file__).with_name("four_bits.yaml")
PEAKS, WITHOUT_MEMORY = 8, 2
WORST = 0.005  # the printed figures are rounded to 10 MB, 0.13 % of the smallest


@pytest.mark.truth
def test_the_peaks_are_met_and_what_ran_out_of_memory_does_not_fit() -> None:
    met = refused = 0
    for entry in read_job_file(FOUR_BITS):
        assert entry.job is not None, entry.problems
        row = compare(answer(entry.job), entry.job)
        if row.relative_error is None:
            assert row.result is not None
            assert row.result.verdict == "does-not-fit", row.name
            refused += 1
        else:
            assert abs(row.relative_error) < WORST, row.name
            met += 1
    assert (met, refused) == (PEAKS, WITHOUT_MEMORY)
