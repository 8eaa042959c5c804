"""Answers of `vramplan profiles` made by hand, one of each kind."""

from __future__ import annotations

from typing import Any

from vramplan.errors import Problem
from vramplan.results.profiles import (
    DiffRow,
    DiffSide,
    DiffValue,
    Finding,
    Folder,
    Linted,
    NewProfile,
    ProfileDiff,
)

SHEET = ("a data sheet", "https://example.org/sheet.pdf")

LINTED = Linted(
    files=("mine/gpus/card.yaml", "mine/models/net.yaml", "mine/models/fine.yaml"),
    findings=(
        Finding(
            "error",
            Problem(
                "is still to be written",
                "fields.tdp.value",
                "write what you found, or {value: null, reason: why not}",
                "mine/gpus/card.yaml",
                12,
                17,
            ),
        ),
        Finding(
            "warning", Problem("declares 1,000, but the architecture has 1,001", None, None, "mine/models/net.yaml")
        ),
    ),
)
NEW = NewProfile(
    kind="gpu",
    name="v100",
    file="/home/me/my profiles/gpus/v100.yaml",
    copied_from="v100-16gb",
    shadows="/usr/share/vramplan/gpus/v100.yaml",
    to_do=("title", "tdp"),
    text="kind: gpu\n",
)
DIFF = ProfileDiff(
    kind="gpu",
    a=DiffSide("card", "A card of 48 GB", "mine/gpus/card.yaml", "mine"),
    b=DiffSide("other", None, "/usr/share/vramplan/gpus/other.yaml", "shipped"),
    rows=(
        DiffRow(
            "vendor", True, DiffValue(True, "amd", "amd", None, *SHEET), DiffValue(True, "amd", "amd", None, *SHEET)
        ),
        DiffRow(
            "memory",
            False,
            DiffValue(True, 48 << 30, "48 GiB", None, *SHEET),
            DiffValue(True, 24 << 30, "24 GiB", None, "a message", "https://example.org/issues/1"),
        ),
        DiffRow(
            "bf16",
            False,
            DiffValue(True, None, None, reason="nobody says"),
            DiffValue(True, True, "true", None, *SHEET),
        ),
        DiffRow("layers", False, DiffValue(True, 12, "12", "blocks", *SHEET), DiffValue(False)),
    ),
)
PATH = (
    Folder("/home/me/profiles", "VRAMPLAN_PROFILES", True, 2, 1, 0, 0, ("gpus/v100",)),
    Folder("/home/me/.config/vramplan/profiles", "configuration", False, 0, 0, 0, 0, ()),
    Folder("/usr/share/vramplan", "shipped", True, 80, 60, 2, 0, ()),
)
ANSWERS: dict[str, Any] = {"lint": LINTED, "new": NEW, "diff": DIFF, "path": PATH}
