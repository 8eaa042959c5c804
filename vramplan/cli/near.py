"""The one name that a mistyped name of a model or a GPU can only be: `lama-3.1-8b`, `qwen2p5-7b`, `laptop 4080`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from vramplan.catalog.locate import Kind, aliases_by_name, slug
from vramplan.catalog.scope import out_of

LEAST_LETTERS = 3  # of a word in which one may be wrong
_POINT = re.compile(r"(?<=\d)p(?=\d)")
_AROUND = re.compile(r"(?<![\d-])-|-(?!\d)|(?<=[a-z])-(?=\d)")


def near(kind: Kind, name: str) -> str | None:
    """The name of the only shipped or own profile that is so called but for points, dashes or one letter.

    Digits are never corrected. None where there is none, or several.
    """
    word = slug(name)
    if "/" in word or not re.fullmatch(r"[a-z0-9.+_-]{3,60}", word) or out_of(kind, word) is not None:
        return None
    spelled = list(_names(kind))
    for same in (_plain, _without_points):
        found = {profile for one, profile in spelled if same(one) == same(word)}
        if found:
            return found.pop() if len(found) == 1 else None
    digits = _digits(word)
    found = {profile for one, profile in spelled if digits and _digits(one) == digits and _is_mistyped(one, word)}
    return found.pop() if len(found) == 1 else None


def same(kind: Kind, name: str) -> str | None:
    """The only profile that is so called but for dashes beside letters: `qwen-2.5-7b`, `4070ti super`."""
    word = _plain(slug(name))
    found = {profile for one, profile in _names(kind) if _plain(one) == word}
    return found.pop() if len(found) == 1 else None


def of_words(kind: Kind, words: Sequence[str]) -> str | None:
    """The only profile whose name or alias has these words in another order; None where there is none, or several."""
    wanted = sorted(slug(" ".join(words)).split("-"))
    found = {profile for one, profile in _names(kind) if sorted(one.split("-")) == wanted}
    return found.pop() if len(found) == 1 else None


def _names(kind: Kind) -> Iterator[tuple[str, str]]:
    """Every name and alias without an organisation, and the profile that it is of."""
    for profile, aliases in aliases_by_name(kind, ()).items():
        for one in (profile, *map(slug, aliases)):
            if "/" not in one:
                yield one, profile


def _plain(name: str) -> str:
    """A name with a point for `p` between digits, and without the dashes that stand beside letters."""
    return _AROUND.sub("", _POINT.sub(".", name))


def _without_points(name: str) -> str:
    return _plain(name).replace(".", "")


def _digits(name: str) -> list[str]:
    return re.findall(r"\d+", name)


def _is_mistyped(one: str, word: str) -> bool:
    """Whether one word of letters in a name differs by a letter from that of another, and nothing else does.

    A word that is more or less is another name: the M of a 4090M.
    """
    runs = [re.findall(r"[a-z]+", name) for name in (one, word)]
    if len(runs[0]) != len(runs[1]):
        return False
    unlike = [(a, b) for a, b in zip(*runs, strict=True) if a != b]
    return len(unlike) == 1 and min(map(len, unlike[0])) >= LEAST_LETTERS and _is_one_off(*unlike[0])


def _is_one_off(one: str, other: str) -> bool:
    """Whether two texts differ by one letter that is missing, more, another, or changed places with the next."""
    if one == other or abs(len(one) - len(other)) > 1:
        return False
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    rest, behind = one[at:], other[at:]
    swapped = rest[:2] == behind[:2][::-1] and rest[2:] == behind[2:]
    return rest[1:] == behind[1:] or rest[1:] == behind or rest == behind[1:] or swapped
