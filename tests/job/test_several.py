"""Jobs that are made together are those that are made one by one."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.errors import InputError
from vramplan.job import build_any_job
from vramplan.job.lookup import Catalog
from vramplan.job.several import Jobs
from vramplan.options import words

pytestmark = pytest.mark.contract

KEYS: tuple[dict[str, Any], ...] = (
    {"model": "gpt2", "gpu": "h100"},
    {"model": "llama-3.2-1b", "gpu": "a100-80gb", "parallel": {"data": 8}, "global_batch_size": 64},
    {"model": "modded-nanogpt-2024-12-17", "gpu": "h100", "parallel": {"data": 8}},
    {"model": "gpt2", "gpu": "h100", "global_batch_size": 8, "gradient_accumulation_steps": 2},
    {"model": "gpt2", "gpu": "t4", "precision": "pure-bf16"},
)
SIZES = (1, "2", 3, "4k", "none", 0)  # of micro-batches; some are wrong


def made(make: Any, keys: dict[str, Any]) -> object:
    try:
        return make(keys)
    except InputError as error:
        return error.problems


@pytest.mark.parametrize("runtime", [None, *words.RUNTIMES])
def test_jobs_made_together_are_those_made_one_by_one(runtime: str | None) -> None:
    catalog = Catalog()
    together = Jobs(catalog)
    ran = {} if runtime is None else {"runtime": runtime}
    for keys in KEYS:
        for size in SIZES:
            one = {**keys, **ran, "micro_batch_size": size}
            assert made(together.job, one) == made(lambda keys: build_any_job(keys, catalog=catalog), one)
