"""Job keys as options of `vramplan fit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Where an option is not the key with dashes: the short form that a person types every day.
_OPTIONS = {
    "micro_batch_size": "--micro-batch",
    "sequence_length": "--seq",
    "activation_checkpointing": "--checkpointing",
    "global_batch_size": "--global-batch",
}
_PARALLEL = {"data": "--gpus"}
_ADAPTER = {"kind": "--adapter", "dropout": "--adapter-dropout", "dtype": "--adapter-dtype"}
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%_+=:,./-")


def arguments_of(change: Mapping[str, Any]) -> list[str]:
    """The arguments that set these job keys, one list item per word, in the order of `change`."""
    words: list[str] = []
    for key, value in change.items():
        if key in ("parallel", "adapter") and isinstance(value, Mapping):
            names = _PARALLEL if key == "parallel" else _ADAPTER
            for inner, part in value.items():
                words += _option(names.get(inner) or _dashed(inner), part)
        elif key in ("model", "gpu") and isinstance(value, Mapping):
            words += _option(_dashed(key), value.get("name"))
        else:
            words += _option(_OPTIONS.get(key) or _dashed(key), value)
    return words


def flags_of(change: Mapping[str, Any]) -> str:
    """The same as one text to paste into a shell, quoted where a shell would read more than the word."""
    return " ".join(quoted(word) for word in arguments_of(change))


def quoted(word: str) -> str:
    """`word` as a shell reads it back. (`shlex` would do; it costs an import on the hot path.)"""
    if word and _SAFE.issuperset(word):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


def _dashed(key: str) -> str:
    return "--" + key.replace("_", "-")


def _option(option: str, value: Any) -> list[str]:
    if value is True:
        return [option]
    if value is False:
        return ["--" + option[5:] if option.startswith("--no-") else "--no-" + option[2:]]
    if value is None:
        return [option, "null"]
    if isinstance(value, (list, tuple)):
        return [option, ",".join(str(item) for item in value)]
    return [option, str(value)]
