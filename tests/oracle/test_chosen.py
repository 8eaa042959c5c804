"""CONTRACT. Which traced rows everybody runs."""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.oracle.chosen import _words, chosen, cover, row_files, written

pytestmark = pytest.mark.contract

SETS = [{1, 2}, {2, 3}, {1, 2, 3}, {3, 4}, {4}]


@pytest.mark.parametrize(
    ("prices", "taken"),
    [
        ([1, 1, 1, 1, 1], [2, 3]),
        ([1, 1, 9, 1, 1], [0, 3]),  # the large one costs more than both
        ([1, 9, 9, 9, 1], [0, 4, 1]),
    ],
)
def test_the_cheapest_sets_are_taken_until_they_have_everything(prices: list[float], taken: list[int]) -> None:
    found = list(cover(SETS, prices))
    assert found == taken
    assert set().union(*(SETS[at] for at in found)) == {1, 2, 3, 4}


def test_words_of_a_row_are_its_techniques_and_not_its_sizes() -> None:
    row = {"name": "a", "gpu": {"memory": "1 GiB"}, "precision": "amp-bf16", "adapter": {"rank": 8, "targets": ["q"]}}
    row |= {"activation_checkpointing": "every:3", "frozen": ["layers.0-5", "head"], "transformers_version": "4.57"}
    row |= {"ema": True, "sequence_length": 333, "micro_batch_size": 1, "trace": {"phase_peaks": {"step": 1}}}
    assert set(_words(row, "")) == {
        *("precision=amp-bf16", "adapter.rank=even", "adapter.targets=q", "activation_checkpointing=every"),
        *("frozen=layers", "frozen=head", "transformers_version=4.57", "ema=True", "sequence_length=odd"),
        "micro_batch_size=1",
    }


def test_everybody_runs_rows_of_every_file_and_fewer_than_half() -> None:
    counts = {path.stem: len(written(path)) for path in row_files()}
    taken = {file: len(rows) for file, rows in chosen().items()}
    assert taken.keys() == counts.keys()
    assert min(taken.values()) > 0
    assert sum(taken.values()) < sum(counts.values()) / 2


@pytest.mark.sweep
def test_every_two_techniques_that_meet_meet_in_a_row_that_everybody_runs() -> None:
    def pairs(rows: list[dict[str, object]]) -> set[tuple[str, str]]:
        return {pair for row in rows for pair in combinations(sorted({*_words(row | {"model": {}}, "")}), 2)}

    every = pairs([row for path in row_files() for row in written(path)])
    assert len(every) > 30_000
    assert pairs([row for rows in chosen().values() for row in rows]) == every
