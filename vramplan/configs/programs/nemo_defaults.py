"""The files that `defaults` of a NeMo file names, taken in as Hydra composes them.

Source: facebookresearch/hydra 1.3, hydra/core/default_element.py and hydra/_internal/defaults_list.py: `NAME`,
`GROUP/NAME`, `NAME@PACKAGE` and `GROUP@PACKAGE: NAME`; what stands behind `_self_` goes before the file's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vramplan.configs.sheet import Meaning, Sheet
from vramplan.configs.written import Written, interpolated

OWN = "_self_"
KNOWN = ("megatron_model_base_config",)
"""Files whose values are among the defaults of this reader."""

KEY = "defaults"
DEEPEST = 5


def compose(sheet: Sheet, meaning: Meaning) -> None:
    """Take in the settings of the files that `defaults` names; those that are not here are told."""
    if KEY not in sheet.written:
        return
    found = dict(_composed(sheet, meaning, sheet.written, 0))
    if found != sheet.written:
        sheet.written = interpolated(found)


def _composed(sheet: Sheet, meaning: Meaning, own: Mapping[str, Written], depth: int) -> dict[str, Written]:
    """The settings of a file over those that it names before `_self_`, and under those behind it."""
    below: dict[str, Written] = {}
    above: dict[str, Written] = {}
    behind = False
    for path, package, optional in _named(own[KEY].value if KEY in own else None):
        if path == OWN:
            behind = True
            continue
        if path.rsplit("/", 1)[-1] in KNOWN:
            continue
        text = sheet.opened(f"{path}.yaml")
        if depth >= DEEPEST:
            sheet.problem(KEY, f"{path} names files that name others, more than {DEEPEST} deep, or itself")
            break
        if text is None:
            if not optional:
                meaning.note(f"{KEY}: {path}.yaml is not here, and what it says is not read (give that file too)")
            continue
        inner = _composed(sheet, meaning, text, depth + 1)
        placed = {f"{package}.{key}" if package else key: item for key, item in inner.items() if key != KEY}
        (above if behind else below).update(placed)
    return {**below, **own, **above}


def _named(listed: Any) -> Iterator[tuple[str, str, bool]]:
    """The files of a list of defaults: the path, the place that their settings get, and whether one may be missing."""
    for item in listed if isinstance(listed, list) else ():
        (head, choice), *_ = item.items() if isinstance(item, Mapping) and item else ((item, ""),)
        head = str(head)
        optional = head.startswith("optional ")
        for word in ("optional ", "override "):
            head = head.removeprefix(word)
        if head == OWN:
            yield OWN, "", True
            continue
        group, _, package = head.strip("/").partition("@")
        if choice is None or "${" in str(choice) or group.startswith("hydra"):
            continue
        if choice:  # GROUP@PACKAGE: NAME
            folder = group.strip("./")
            path = f"{folder}/{choice}" if folder else str(choice)
        else:
            folder, path = group.rpartition("/")[0], group
        yield path, "" if package == "_global_" else package or folder.replace("/", "."), optional
