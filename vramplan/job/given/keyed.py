"""The keys of a job that came from options or from Python, as the tree that a file is read into."""

from __future__ import annotations

import re
from collections.abc import Mapping as MappingABC
from typing import Any

from vramplan.catalog import document
from vramplan.catalog.document import Mapping
from vramplan.catalog.fields import Sink
from vramplan.catalog.gpus import names_in
from vramplan.errors import InputError


def root_of(raw: MappingABC[str, Any], sink: Sink) -> Mapping:
    """The keys of a job as nodes without places; what no file could hold is a problem of `sink`."""
    gpu = raw.get("gpu")
    if isinstance(gpu, str) and (size := size_in(gpu)) is not None:
        raw = {**raw, "gpu": {"name": size, "memory": size}}
    root = Mapping()
    for key, value in raw.items():
        try:
            root.entries[key] = document.Entry(document.Scalar(key), document.from_value(value))
        except InputError as error:
            sink.problems += [problem._replace(key=key) for problem in error.problems]
    return root


def is_size(text: str) -> bool:
    """Whether a GPU is given as a bare size ("24 GiB"), not as a name ("4090", "v100", "4070 Ti")."""
    return size_in(text) is not None


def size_in(text: str) -> str | None:
    """The bare size that a GPU is given as, without the words around it: `24 GB` of `24 GB VRAM`."""
    return next((one for one in names_in(text) if _SIZE.fullmatch(one)), None)


def sold_as(text: str) -> str | None:
    """The number of a bare size in GB, as cards are sold: one of 24 GB has 24 GiB."""
    found = _SOLD.fullmatch(text)
    return None if found is None else found[1]


_SIZE = re.compile(r"\s*[\d.]+\s*(?:(?i:[kmgtp](?:i?b)?|[kmgp]i|gigs?|[kmgtp]?\w*(?:byte|bit)s?)|B)\s*")
_SOLD = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:GB|gb)\s*")
