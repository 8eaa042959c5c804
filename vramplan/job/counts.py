"""A count of parameters as texts write it."""

from __future__ import annotations

import re

_COUNT = re.compile(r"(\d{1,20})(?:\.(\d{1,20}))?(?:[eE]\+?(\d{1,2}))?\s*([KMBT]?)", re.ASCII | re.IGNORECASE)
_GROUPED = re.compile(r"\d{1,3}(?:[_,]\d{3})+(?!\d)", re.ASCII)
_POWERS = {"": 0, "K": 3, "M": 6, "B": 9, "T": 12}


def ungrouped(text: str) -> str:
    """`10_000_000` and `10,000,000` without what groups their digits; any other text as it is."""
    found = _GROUPED.match(text)
    return text if found is None else re.sub("[_,]", "", found[0]) + text[found.end() :]


def parameter_count(text: str) -> int | None:
    """`1.5B`, `7e9` or `1500000000` as a whole number of parameters; None for any other text."""
    found = _COUNT.fullmatch(ungrouped(text.strip()))
    if found is None:
        return None
    whole, part, power, prefix = found[1], found[2] or "", int(found[3] or 0), found[4].upper()
    digits, shift = int(whole + part), power + _POWERS[prefix] - len(part)
    count, rest = (digits * 10**shift, 0) if shift >= 0 else divmod(digits, 10**-shift)
    return count if not rest and 1 <= count <= 10**18 else None
