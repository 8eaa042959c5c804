"""Job keys as options of `vramplan fit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.options import table
from vramplan.options.read import NO_TEXTS

QLORA = "nf4"  # the weights of --qlora
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%_+=:,./-")


def arguments_of(change: Mapping[str, Any]) -> list[str]:
    """The arguments that set these job keys, one list item per word, in the order of `change`."""
    words: list[str] = []
    lora = _is_lora(change)
    quantized = lora and change.get("quantization") == QLORA
    for key, value in change.items():
        if key == "adapter" and lora:
            words.append("--qlora" if quantized else "--lora")
            value = {name: part for name, part in value.items() if name != "kind"}
        elif key == "quantization" and quantized:
            continue
        if key in table.GROUPS and isinstance(value, Mapping):
            for inner, part in value.items():
                words += _option(f"{key}.{inner}", part)
        elif key in ("model", "gpu", "teacher") and isinstance(value, Mapping):
            words += _option(key, value.get("name"))
        else:
            words += _option(key, value)
    return words


def _is_lora(change: Mapping[str, Any]) -> bool:
    adapter = change.get("adapter")
    return isinstance(adapter, Mapping) and adapter.get("kind") == "lora"


def flags_of(change: Mapping[str, Any]) -> str:
    """The same as one text to paste into a shell, quoted where a shell would read more than the word."""
    return " ".join(quoted(word) for word in arguments_of(change))


def quoted(word: str) -> str:
    """`word` as a shell reads it back. (`shlex` would do; it costs an import on the hot path.)"""
    if word and _SAFE.issuperset(word):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


def _option(key: str, value: Any) -> list[str]:
    row = table.find(key)
    if value is True:
        return [row.option]
    if value is False:
        return [row.negation]
    if value is None:
        return [row.option, "null"]
    if isinstance(value, (list, tuple)):
        return [row.option, ",".join(str(item) for item in value) or NO_TEXTS]
    return [row.option, str(value)]
