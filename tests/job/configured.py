"""A job with one small model, and configurations of one type: shared by the tests of a family's keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramplan.catalog.hf_config import read_hf_config
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.values.job import ResolvedJob


def job_of(model: Any, **keys: Any) -> ResolvedJob:
    """A job of a model on one GPU."""
    built = build_job({"gpu": "a100-80gb", "sequence_length": 64, "model": model, **keys})
    assert isinstance(built, ResolvedJob)
    return built


def shape_of(folder: Path, model_type: str, **keys: Any) -> Any:
    """The model that a config.json of these keys means."""
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, **keys}))
    return read_hf_config(folder)[0]


def refusal_of(folder: Path, model_type: str, **keys: Any) -> str:
    """Why a config.json of these keys is refused."""
    with pytest.raises(InputError) as caught:
        shape_of(folder, model_type, **keys)
    return str(caught.value)
