"""The releases that a measured case names in its notes.

Published runs carry their software as text ("PyTorch 1.6", "bitsandbytes 0.41.1", "Run in January 2022"). A case with a
measured figure and no key for a release is computed with what it says so, and the assumptions tell.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vramplan.catalog.generations import GENERATIONS
from vramplan.job.software import version_of
from vramplan.replay.techniques.bitsandbytes import is_known

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.machine import Gpu

MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
RELEASED = (
    ("1.4", 2020, 1),
    ("1.5", 2020, 4),
    ("1.6", 2020, 7),
    ("1.7", 2020, 10),
    ("1.8", 2021, 3),
    ("1.9", 2021, 6),
    ("1.10", 2021, 10),
    ("1.11", 2022, 3),
    ("1.12", 2022, 6),
    ("1.13", 2022, 10),
    ("2.0", 2023, 3),
)
"""Year and month of releases of PyTorch, from its page of releases; later ones change nothing that is modelled."""

PYTORCH = re.compile(r"\b(?:PyTorch|torch)[ =v]*(\d+\.\d+)(?!\d)", re.IGNORECASE)
BITSANDBYTES = re.compile(r"\bbitsandbytes\b[^.;\d]{0,24}(\d+\.\d+\.\d+)", re.IGNORECASE)
RUN_IN = re.compile(rf"\brun in ({'|'.join(MONTHS)}) (20\d\d)\b", re.IGNORECASE)
FOUR_BITS = ("nf4", "nf4-double")


def take_releases(resolver: Resolver, gpu: Gpu | None) -> None:
    """Fill in the releases that the notes of a case name, where the job has no key for them."""
    raw = resolver.raw
    generation = None if gpu is None else GENERATIONS.get(gpu.architecture or "")
    if gpu is not None and gpu.architecture is not None and (generation is None or generation.vendor != "nvidia"):
        return  # of others no source says what a release changes
    notes = str(raw.case.get("notes") or "")
    if raw.pytorch_version is None and not raw.cuda_module_loading:
        found = _pytorch(notes)
        if found is not None:
            raw.pytorch_version, why = found
            resolver.assume("pytorch_version", raw.pytorch_version, why)
    if raw.bitsandbytes is None and raw.quantization in FOUR_BITS and raw.runtime != "torchtune":
        text = _first(BITSANDBYTES, notes)
        if text is not None and is_known(text):
            raw.bitsandbytes = text
            resolver.assume("bitsandbytes", raw.bitsandbytes, "the notes of the case name it")


def _pytorch(notes: str) -> tuple[str, str] | None:
    named = _first(PYTORCH, notes)
    version = None if named is None else version_of(named)
    if version is not None:
        return f"{version[0]}.{version[1]}", "the notes of the case name it"
    match = RUN_IN.search(notes)
    if match is None:
        return None
    when = int(match[2]), MONTHS.index(match[1].lower()) + 1
    before = [release for release, year, month in RELEASED if (year, month) <= when]
    newest = RELEASED[-1]
    if not before or when > newest[1:]:
        return None
    return before[-1], f"the release of {match[1]} {match[2]}, when the case was run"


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return None if match is None else match[1]
