"""The JSON documents as YAML: the same keys in the same order, ASCII, no anchors, one line per value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

WIDE = 1 << 30  # nothing is folded: one line per value can be searched
# What another reader of YAML may take for a number or a date is put in quotes, whatever PyYAML makes of it.
_NUMERIC = re.compile(r"[-+.]?[\d.]")

_Base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_Base):  # type: ignore[misc]
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: Any, text: str) -> Any:
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair, from a name that is not UTF-8
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if _NUMERIC.match(text) else None)


_Dumper.add_representer(str, _text)


def dumps(document: Mapping[str, Any]) -> str:
    """The text of a document, with a line break at the end."""
    text: str = yaml.dump(
        document, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=False, width=WIDE
    )
    return text
