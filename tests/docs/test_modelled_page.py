"""docs/modelled.md: the model types that it says are not modelled are none of the program's."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from vramplan.catalog import document
from vramplan.catalog.config_classes import MODEL_TYPES
from vramplan.catalog.fields import Fields, Sink
from vramplan.catalog.hf_config import shape_of_config

pytestmark = pytest.mark.contract

PAGE = Path(__file__).parents[2] / "docs" / "modelled.md"
KEYS = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100, "rms_norm_eps": 1e-6}


def listed() -> dict[str, list[str]]:
    """The model types of each kind, by what the page says of it."""
    _, _, table = PAGE.read_text("utf-8").partition("| Kind | Answered | Model types |\n|---|---|---|\n")
    rows = [line.strip("| ").split(" | ") for line in table.partition("\n\n")[0].splitlines()]
    return {answered: re.findall("`([^`]+)`", types) for _, answered, types in rows}


def test_what_is_not_modelled_is_said_once() -> None:
    named = Counter(name for several in listed().values() for name in several)
    assert len(named) > 300
    assert {name: times for name, times in named.items() if times > 1} == {}
    assert set(named) & set(MODEL_TYPES) == set()


def test_decoders_are_answered_by_their_usual_keys() -> None:
    for name in listed()["yes, with a wider range"]:
        keys: dict[str, Any] = {**KEYS, "model_type": name}
        root = document.from_value(keys)
        assert isinstance(root, document.Mapping)
        shape, _ = shape_of_config(Fields(root, Sink(None)), default_name=name)
        assert shape.unknown_type == name
