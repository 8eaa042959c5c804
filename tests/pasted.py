"""Values as the source of an explicit example: what differs from a small model or a plain setup, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.engine.examples import model, setup
from vramplan.replay.step import Setup
from vramplan.values.model import ModelShape


class NotWritten(Exception):
    """A value of which no source is known."""


def source_of(value: Any) -> str:
    """Source that gives an equal value, with the helpers of tests/engine/examples.py; raises NotWritten."""
    try:
        return _source_of(value)
    except RecursionError:  # a value that holds itself
        raise NotWritten(type(value).__name__) from None


def _source_of(value: Any) -> str:
    if isinstance(value, Setup):
        plain = setup(value.model)
        return f"setup({', '.join([_source_of(value.model), *_changes(value, plain)])})"
    if isinstance(value, ModelShape):
        plain_model = model(value.transformers_model_type)
        return f"model({', '.join([repr(value.transformers_model_type), *_changes(value, plain_model)])})"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        given = [
            f"{name}={_source_of(each)}"
            for name, each in zip(value._fields, value, strict=True)
            if name not in value._field_defaults or value._field_defaults[name] != each
        ]
        return f"{type(value).__name__}({', '.join(given)})"
    if isinstance(value, Mapping):
        pairs = [f"{_source_of(key)}: {_source_of(each)}" for key, each in value.items()]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_source_of(each) for each in value)}]"
    if isinstance(value, tuple):
        return f"({', '.join(_source_of(each) for each in value)}{',' * (len(value) == 1)})"
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}([{', '.join(sorted(_source_of(each) for each in value))}])"
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"float({str(value)!r})"
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return repr(value)
    raise NotWritten(type(value).__name__)


def _changes(value: Any, plain: Any) -> list[str]:
    """The fields that differ; the model type and the model of a setup are named before them."""
    named = ("transformers_model_type", "model")
    return [
        f"{name}={_source_of(each)}"
        for name, each, before in zip(value._fields, value, plain, strict=True)
        if name not in named and (each != before or type(each) is not type(before))
    ]
