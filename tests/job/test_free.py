"""A card that others use too: as large as what is free on it."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.answers.fit import answer
from vramplan.catalog.gpus import list_gpus
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.report.memory import ShownFigures, memory_rows
from vramplan.results import FitResult

GIB = 1 << 30


def run(**keys: Any) -> FitResult:
    return answer(build_job({"model": "gpt2", "gpu": "v100", **keys}), lambda: [one.gpu() for one in list_gpus()])


@pytest.mark.closed_form
@pytest.mark.parametrize(
    ("keys", "usable"),
    [
        ({"gpu_free": "19 GiB"}, 19 * GIB),
        ({"gpu_free": "19GiB", "reserve": "2 GiB"}, 17 * GIB),
        ({"gpu_free": "20 GB"}, 20 * 10**9),
    ],
)
def test_usable_is_what_is_free_less_what_is_held_back(keys: dict[str, str], usable: int) -> None:
    result = run(**keys)
    assert result.usable_bytes == usable
    assert result.capacity_bytes == run().capacity_bytes
    assert result.peak.high_bytes <= usable  # what is chosen is chosen for it
    assert result.headroom_bytes == usable - result.peak.device_bytes


def test_all_of_the_card_may_be_free() -> None:
    capacity = run().capacity_bytes
    assert run(gpu_free=f"{capacity} B").usable_bytes == capacity
    assert run(gpu_free=None).usable_bytes == capacity


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"gpu_free": "32 GiB"}, "gpu_free: 32.00 GiB is more than the 31.74 GiB of v100 .leave it out"),
        ({"gpu_free": "now"}, "gpu_free: now asks the GPU of this machine, and the job is for v100 .--gpu local"),
        ({"gpu_free": "19"}, "gpu_free: '19' has no unit of bytes"),
        ({"gpu_free": "0 GiB"}, "gpu_free: "),
        ({"gpu_free": "nwo"}, "gpu_free: "),
        ({"gpu_free": "2 GiB", "reserve": "2 GiB"}, "reserve: leaves nothing of the 2.00 GiB that are free on v100"),
        ({"gpu_fre": "2 GiB"}, "gpu_fre: unknown key .did you mean gpu_free"),
    ],
)
def test_contradictions_are_refused_with_a_remedy(keys: dict[str, str], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        build_job({"model": "gpt2", "gpu": "v100", **keys})


def test_the_resolved_job_has_it_and_gives_the_same_answer() -> None:
    first = run(gpu_free="19 GiB")
    assert first.job["gpu_free"] == f"{19 * GIB} B"
    again = answer(build_job(first.job))
    assert (again.usable_bytes, again.peak, again.verdict) == (first.usable_bytes, first.peak, first.verdict)
    assert run().job["gpu_free"] is None


def test_on_a_no_the_whole_card_is_a_remedy() -> None:
    result = run(model="gpt2-xl", gpu_free="19 GiB")
    assert result.verdict == "does-not-fit"
    change = [dict(remedy.change) for remedy in result.remedies]
    assert {"gpu_free": None} in change
    assert any("gpu" in one and one["gpu_free"] is None for one in change)  # another card is free, for all we know
    assert {"gpu_free": None} not in [dict(remedy.change) for remedy in run(model="gpt2-xl", gpu="t4").remedies]


@pytest.mark.closed_form
@pytest.mark.parametrize("reserve", ["0 GiB", "1 GiB"])
def test_the_report_says_what_is_not_ours(reserve: str) -> None:
    result = run(gpu_free="19 GiB", reserve=reserve)
    rows = {row.name: row for row in memory_rows(result, ShownFigures(result))}
    assert rows["in use"].bytes == result.capacity_bytes - 19 * GIB
    assert ("reserve" in rows) == (reserve != "0 GiB")
    below = [row.hundredths for name, row in rows.items() if name in ("usable", "in use", "reserve")]
    assert sum(below) == rows["capacity"].hundredths
