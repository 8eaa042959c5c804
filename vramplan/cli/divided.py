"""GPUs beside files of training programs that split a replica over several of them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any

from vramplan.cli.runs.jobs import flat
from vramplan.job.given.spelled import counted
from vramplan.options import table, words
from vramplan.results.reading import ReadJob

SPLITS = tuple(f"parallel.{split}" for split in words.SPLITS)


def is_group(key: str, value: Any) -> bool:
    """Whether a value has keys of the job below it; a model that is a mapping has its own."""
    return key in table.GROUPS and isinstance(value, Mapping)


def counted_gpus(over: Mapping[str, Any]) -> int | None:
    """How many devices the GPU that is typed counts: `--gpu 8xh100`."""
    found = counted(over["gpu"]) if isinstance(over.get("gpu"), str) else None
    return None if found is None else found[0]


def without_divided(read: ReadJob, over: dict[str, Any]) -> dict[str, Any]:
    """The options with the replicas that the GPUs make where the file splits one over several of them.

    Without the GPUs where the file knew them, and has divided them already.
    """
    typed = flat(over)
    if any(key in typed for key in SPLITS):
        return over  # beside these a number of GPUs is that of the replicas
    each, devices = gpus_of_replica(read), str(typed.get("parallel.data"))
    if each == 1 or not devices.isdecimal():
        return over
    if "parallel.data" in read.open:
        if int(devices) % each:
            return over  # no whole replicas: the number of these
        return {**over, "parallel": {**over["parallel"], "data": int(devices) // each}}
    return {**over, "parallel": {key: value for key, value in over["parallel"].items() if key != "data"}}


def gpus_of_replica(read: ReadJob, typed: Mapping[str, Any] = MappingProxyType({})) -> int:
    """The GPUs of one replica, as the file splits it, with the options in place of the file's."""
    split = {**flat(read.job), **typed}
    sizes = [str(split.get(key, 1)) for key in SPLITS]
    return prod(int(size) for size in sizes if size.isdecimal())


def replicas_of(read: ReadJob, devices: int | None, each: int) -> int | None:
    """How many replicas of `each` GPUs all the devices make, those of the file where none are counted beside it.

    None: nobody says how many there are, or they make no whole replicas.
    """
    data = read.job.get("parallel", {}).get("data")
    if devices is None:
        return None if data is None else max(1, int(data) * gpus_of_replica(read) // each)
    return None if devices % each else devices // each
