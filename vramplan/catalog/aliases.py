"""The other names in a profile, read from its text: to parse it would take twenty times as long.

For hints and completion, where a name more or less does no harm; what finds a profile is the parsed file.
"""

from __future__ import annotations

import re

_ALIASES = re.compile(r"^\s*[\"']?aliases[\"']?:\s*(?:\[(?P<flow>.*?)\]|\n(?P<block>(?:\s*-\s.*\n)+))", re.M | re.S)


def aliases_in(text: str) -> list[str]:
    """The aliases in the text of a profile, as written."""
    found = _ALIASES.search(text)
    if found is None:
        return []
    if found["flow"] is not None:
        items = found["flow"].split(",")
    else:
        items = [item.strip().removeprefix("-") for item in found["block"].splitlines()]
    return [stripped for item in items if (stripped := item.strip().strip("\"'"))]
