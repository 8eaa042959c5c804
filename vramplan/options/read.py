"""Reads the value of a key as its row says: type, range and words are checked, nothing is looked up or defaulted."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, Literal, Protocol

from vramplan.options.option import COUNT, FLAG, MAX_COUNT, NUMBER, SIZE, TEXTS, WORD, Option
from vramplan.options.spellings import OPEN, bare, meaning
from vramplan.options.table import has_the_word
from vramplan.options.words import LOW_RANK_OPTIMIZERS, pattern_of


class FieldReader(Protocol):
    """What is read from: `vramplan.catalog.fields.Fields`. Each method gives None for what is absent or wrong."""

    def given(self, name: str) -> bool: ...  # noqa: D102
    def text(self, name: str) -> str | None: ...  # noqa: D102
    def texts(self, name: str) -> list[str] | None: ...  # noqa: D102
    def boolean(self, name: str) -> bool | None: ...  # noqa: D102
    def word(self, name: str, known: Collection[str], *, any_case: bool = False) -> str | None: ...  # noqa: D102
    def integer(self, name: str, *, minimum: int, maximum: int) -> int | None: ...  # noqa: D102
    def number(  # noqa: D102
        self,
        name: str,
        *,
        minimum: float | None = None,
        maximum: float | None = None,
        below: float | None = None,
    ) -> int | float | None: ...
    def size_bytes(  # noqa: D102
        self, name: str, *, rounding: Literal["up", "down"], allow_zero: bool = False
    ) -> int | None: ...
    def problem(self, name: str | None, message: str, *, hint: str | None = None) -> None: ...  # noqa: D102
    def unknown_word(self, name: str, text: str, known: Collection[str], hint: str | None = None) -> None: ...  # noqa: D102


def read(option: Option, fields: FieldReader, name: str | None = None, *, more: tuple[str, ...] = ()) -> Any:
    """The value of `option` at `name` in `fields`; None where it is absent, null or wrong, which is noted.

    `name`: of a field of a runtime profile, if it is not that of the key; `more`: words that are taken there too.
    """
    if more:
        option = option._replace(words=(*option.words, *more))
    reader: Callable[[Option, FieldReader, str], Any] = READERS.get(option.kind, _text)
    return reader(option, fields, name or option.name)


def _text(option: Option, fields: FieldReader, name: str) -> str | None:
    return fields.text(name)


def _word(option: Option, fields: FieldReader, name: str) -> str | None:
    if any(":" in word for word in option.words):
        return _pattern(option, fields, name)
    text = fields.text(name)
    found = None if text is None else meaning(text, option.words, option.spellings)
    if found is not None:  # in a job it is in our words already; a runtime profile comes as it is
        return found.word
    if text is not None and text not in option.words:
        hint = OPEN.get(bare(text)) if option.spellings else None
        fields.unknown_word(name, text, option.words, hint or _of_another_key(text))
        return None
    return text


def _flag(option: Option, fields: FieldReader, name: str) -> bool | None:
    return fields.boolean(name)


def _count(option: Option, fields: FieldReader, name: str) -> int | None:
    least = 1 if option.minimum is None else int(option.minimum)
    most = MAX_COUNT if option.maximum is None else int(option.maximum)
    count = fields.integer(name, minimum=least, maximum=most)
    if count == 0 and option.zero is not None:
        fields.problem(name, option.zero)
    if count is not None and option.words and str(count) not in option.words:
        fields.unknown_word(name, str(count), option.words, option.hint)
        return None
    return count


def _number(option: Option, fields: FieldReader, name: str) -> float | None:
    number = fields.number(name, minimum=option.minimum, maximum=option.maximum, below=option.below)
    if number == 0 and option.zero is not None:
        fields.problem(name, option.zero)
    return None if number is None else float(number)


def _size(option: Option, fields: FieldReader, name: str) -> int | None:
    rounding: Literal["up", "down"] = "down" if option.rounding == "down" else "up"
    return fields.size_bytes(name, rounding=rounding, allow_zero=option.minimum == 0)


def _texts(option: Option, fields: FieldReader, name: str) -> tuple[str, ...] | None:
    texts = fields.texts(name) if fields.given(name) else None
    if texts and len(texts) == 1 and texts[0].lower() == NO_TEXTS and NO_TEXTS not in option.words:
        return ()
    if texts and not any(text.strip() for text in texts):  # [] is how an answer writes "none"
        fields.problem(name, "is an empty list", hint="leave it out, or write null")
        return None
    if texts is None or not option.words:
        return None if texts is None else tuple(texts)
    for text in texts:
        if text not in option.words:
            fields.unknown_word(name, text, option.words, OPEN.get(bare(text)) if option.spellings else None)
    return tuple(text for text in dict.fromkeys(texts) if text in option.words)


NO_TEXTS = "none"  # an empty list, where a shell has only words
READERS: dict[str, Callable[[Option, FieldReader, str], Any]] = {
    WORD: _word,
    FLAG: _flag,
    COUNT: _count,
    NUMBER: _number,
    SIZE: _size,
    TEXTS: _texts,
}
"""By kind; a key of another kind is a text."""


def _pattern(option: Option, fields: FieldReader, name: str) -> str | None:
    """A word, or a parametrised word such as `chunked:8`."""
    text, known = fields.text(name), option.words
    is_form = text is not None and re.search(r":[A-Z]+$", text) is not None  # `every:K` as it stands in a list of words
    if text is None or (text in known and not is_form):
        return text
    word = pattern_of(text, known)
    if word in known and re.fullmatch(r"[a-z0-9-]+:[1-9]\d{0,8}", text, re.ASCII):
        return text
    if word in known and (word != text or is_form):
        message = f"{text[:60]!r} is not of the form {word}, with a number from 1"
        if is_form:
            message = f"{text} has a number from 1 in the place of {text.partition(':')[2]}"
        fields.problem(name, message, hint=f"for example {_example(word)}")
        return None
    heads = [one for one in known if one.partition(":")[0] == text and "[" not in one]
    hint = f"{heads[0]}, for example {_example(heads[0])}" if heads else OPEN.get(bare(text))
    fields.unknown_word(name, text, known, hint or _of_another_key(text))
    return None


def _of_another_key(text: str) -> str | None:
    """A hint for a word that only another key has: whoever writes it means that one, however near another word is."""
    other = has_the_word(text)
    if other is None:
        return None
    option_too = f" ({other.option})" if other.options else ""
    return f"it is a value of {other.key}{option_too}"


EXAMPLES = dict.fromkeys(LOW_RANK_OPTIMIZERS, 128)  # numbers that people use, where 4 is none


def _example(word: str) -> str:
    """`galore-adamw:RANK` -> `galore-adamw:128`."""
    return f"{word.partition(':')[0]}:{EXAMPLES.get(word, 4)}"
