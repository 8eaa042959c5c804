"""Closed form: what nothing decides the job has as it was given, or as its field's default says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vramplan.job import build_job, whole
from vramplan.options.option import FLAG
from vramplan.options.table import TABLE
from vramplan.values.job import ResolvedJob

PLAIN: dict[str, Any] = {"model": "gpt2", "gpu": "v100", "attention": "eager"}


@pytest.mark.parametrize(
    ("key", "value", "left_out"),
    [
        ("channels_last", True, False),
        ("label_smoothing", 0.1, 0.0),
        ("eval_batch_size", 4, None),
        ("micro_batch_size", 2, None),
        ("expect", "tight", "fits"),
    ],
)
def test_a_key_that_nothing_decides_is_taken_as_it_is(key: str, value: Any, left_out: Any) -> None:
    job = {**PLAIN, "model": "resnet-50"} if key == "channels_last" else PLAIN
    assert getattr(build_job({**job, key: value}), key) == value
    assert getattr(build_job(job), key) == left_out


def test_what_is_decided_is_left_to_what_decided_it() -> None:
    draft: Any = SimpleNamespace(**{row.attribute: None for row in TABLE if row.attribute in ResolvedJob._fields})
    taken = whole.as_given(draft, {"loss": "fused"})
    assert "loss" not in taken
    needed = {name for name in ResolvedJob._fields if name not in ResolvedJob._field_defaults}
    flags = {row.attribute for row in TABLE if row.kind == FLAG}
    assert {name: value for name, value in taken.items() if name in needed} == taken
    assert all(value is (False if name in flags else None) for name, value in taken.items())
