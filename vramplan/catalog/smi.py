"""What the vendors' tools report of the GPUs of this machine: nvidia-smi, else rocm-smi, else amd-smi.

Nothing here is guessed: a tool that is missing, fails, hangs or prints something else ends in an InputError that says
what to do instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from shutil import which
from typing import Any

from vramplan.catalog.process import LONGEST_SHOWN, Failed, lines, run, shown
from vramplan.errors import InputError, Problem
from vramplan.tuples import NamedTuple

MIB = 1 << 20
REMEDY = "name the card, as in --gpu a100-80gb, or give its memory, as in --gpu '24 GiB'"


class LocalGpu(NamedTuple):
    """One GPU as reported. None is what the tool does not say."""

    number: int  # the tool's own number
    name: str | None
    total_bytes: int | None
    free_bytes: int | None
    tool: str
    reserved_bytes: int | None = None  # by the driver and the firmware
    uuid: str | None = None
    driver: str | None = None
    compute_capability: str | None = None
    gfx: str | None = None  # AMD's target: gfx942
    partitioned: bool = False  # MIG: a process sees an instance and not the card


def ask() -> list[LocalGpu]:
    """Every GPU that the first tool with an answer reports, in its order. Raises InputError."""
    said: list[str] = []
    for tool, report in _TOOLS.items():
        path = which(tool)
        if path is None:
            continue
        try:
            gpus = report(path)
        except Failed as failed:
            said.append(f"{tool} {failed}")
            continue
        if gpus:
            return gpus
        said.append(f"{tool} finds no GPU")
    if not said:
        raise refused(f"there is no tool to ask for a GPU: none of {', '.join(_TOOLS)} is on the path", hint=REMEDY)
    raise refused("; ".join(said), hint=REMEDY)


# NVIDIA

# The longest query that a driver understands: it refuses all fields if it does not know one.
_QUERIES = (
    (
        *("index", "uuid", "name", "memory.total", "memory.free", "memory.reserved"),
        *("driver_version", "compute_cap", "mig.mode.current"),
    ),
    ("index", "uuid", "name", "memory.total", "memory.free", "driver_version"),
    ("name", "memory.total", "memory.free"),
)


def _nvidia(path: str) -> list[LocalGpu]:
    failed = Failed("gave no answer")
    for query in _QUERIES:
        try:
            text = run(path, f"--query-gpu={','.join(query)}", "--format=csv,noheader,nounits")
            return [_nvidia_row(query, line, place) for place, line in enumerate(lines(text))]
        except Failed as error:
            failed = error
            if "no answer within" in str(error):
                break
    raise failed


def _nvidia_row(query: Sequence[str], line: str, place: int) -> LocalGpu:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(query):
        raise Failed(f"printed what is no list of GPUs: {shown(line)}")
    row = {key: None if _is_unknown(cell) else cell for key, cell in zip(query, cells, strict=True)}
    total, free, reserved = (_mib(row.get(f"memory.{part}"), line) for part in ("total", "free", "reserved"))
    if total is not None and (total == 0 or max(free or 0, reserved or 0) > total):
        raise Failed(f"printed memory that cannot be: {shown(line)}")
    index = row.get("index") or str(place)
    if not index.isdecimal() or row["name"] is None:
        raise Failed(f"printed what is no list of GPUs: {shown(line)}")
    capability = row.get("compute_cap")
    return LocalGpu(
        number=int(index),
        name=_one_line(row["name"]),
        total_bytes=total,
        free_bytes=free,
        tool="nvidia-smi",
        reserved_bytes=reserved,
        uuid=row.get("uuid"),
        driver=row.get("driver_version"),
        compute_capability=capability if capability and re.fullmatch(r"\d{1,2}\.\d", capability) else None,
        partitioned=row.get("mig.mode.current") == "Enabled",
    )


def _is_unknown(cell: str) -> bool:
    """`[N/A]`, `N/A`, `[Not Supported]`, `[Unknown Error]`, nothing."""
    return not cell or cell.startswith("[") or cell.upper() in {"N/A", "ERR!"}


def _mib(cell: str | None, line: str) -> int | None:
    if cell is None:
        return None
    number = re.fullmatch(r"(\d{1,9})(?: MiB)?", cell, re.ASCII)
    if number is None:
        raise Failed(f"printed memory that is no number of MiB: {shown(line)}")
    return int(number[1]) * MIB


# AMD

_SERIES = ("Card Series", "Card series", "Card Model", "Card model", "Device Name")


def _rocm(path: str) -> list[LocalGpu]:
    cards = _json(run(path, "--showproductname", "--showmeminfo", "vram", "--json"))
    if not isinstance(cards, dict):
        raise Failed("printed no table of cards")
    gpus = []
    for key, card in cards.items():
        number = re.fullmatch(r"card(\d{1,4})", str(key))
        if number is None or not isinstance(card, dict):
            continue  # "system", with the version of the driver
        total = _whole(card.get("VRAM Total Memory (B)"))
        used = _whole(card.get("VRAM Total Used Memory (B)"))
        gpus.append(_amd("rocm-smi", int(number[1]), [card.get(key) for key in _SERIES], total, used, card))
    return sorted(gpus)


def _amd_smi(path: str) -> list[LocalGpu]:
    static = _json(run(path, "static", "--asic", "--vram", "--json"))
    try:
        metric = {row.get("gpu"): row for row in _rows(_json(run(path, "metric", "--mem-usage", "--json")))}
    except Failed:
        metric = {}  # what is free is worth saying, not worth failing for
    gpus = []
    for place, row in enumerate(_rows(static)):
        asic, index = row.get("asic"), row.get("gpu", place)
        if not isinstance(asic, dict) or not isinstance(index, int):
            continue
        usage = metric.get(index, {}).get("mem_usage")
        total = _megabytes(row.get("vram"), "size")
        used = _megabytes(usage, "used_vram")
        target = {"GFX Version": asic.get("target_graphics_version")}
        gpus.append(_amd("amd-smi", index, [asic.get("market_name")], total, used, target))
    return gpus


def _amd(
    tool: str, index: int, names: Sequence[Any], total: int | None, used: int | None, card: Mapping[str, Any]
) -> LocalGpu:
    if total is None or total == 0 or (used or 0) > total:
        raise Failed(f"printed no memory for GPU {index} that can be: total {total}, used {used}")
    named = [name for name in names if isinstance(name, str) and not _is_unknown(name) and not name.startswith("0x")]
    gfx = card.get("GFX Version")
    return LocalGpu(
        number=index,
        name=_one_line(named[0]) if named else None,
        total_bytes=total,
        free_bytes=None if used is None else total - used,
        tool=tool,
        gfx=gfx if isinstance(gfx, str) and re.fullmatch(r"gfx[0-9a-f]{3,5}", gfx) else None,
    )


def _rows(document: Any) -> list[dict[str, Any]]:
    """The GPUs of amd-smi: a list, or since ROCm 7 a list under `gpu_data`."""
    rows = document.get("gpu_data") if isinstance(document, dict) else document
    if not isinstance(rows, list):
        raise Failed("printed no list of GPUs")
    return [row for row in rows if isinstance(row, dict)]


def _megabytes(table: Any, key: str) -> int | None:
    """`{"value": 196592, "unit": "MB"}`; its MB are MiB: the tool divides bytes by 1024 twice."""
    cell = table.get(key) if isinstance(table, dict) else None
    value = _whole(cell.get("value") if isinstance(cell, dict) else cell)
    return None if value is None else value * MIB


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    return int(value) if re.fullmatch(r"\d{1,15}", str(value), re.ASCII) else None


def _json(text: str) -> Any:
    """The document in `text`; rocm-smi may print warnings before it."""
    start = min((place for place in (text.find("{"), text.find("[")) if place >= 0), default=0)
    try:
        return json.loads(text[start:])
    except (ValueError, RecursionError):
        raise Failed(f"printed no JSON: {shown(text)}") from None


_TOOLS: dict[str, Callable[[str], list[LocalGpu]]] = {"nvidia-smi": _nvidia, "rocm-smi": _rocm, "amd-smi": _amd_smi}


def _one_line(text: str) -> str:
    """A name that is safe to print: it came from another program."""
    return "".join(char if char.isprintable() else "?" for char in text)[:LONGEST_SHOWN]


def refused(message: str, *, hint: str) -> InputError:
    """The error of a GPU that cannot be had, to be raised."""
    return InputError([Problem(message, "gpu", hint)])
