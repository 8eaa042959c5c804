"""Blocks of a model that trains less than every weight: each with its number, and which are played on their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vramplan.replay.models.part_names import LAYERS
from vramplan.replay.recorder import Tape


def in_its_part(tape: Tape, make: Callable[[int], Any], first: int = 0) -> Callable[[int], Any]:
    """A block is made as a part of the model that has its number; `first` is that of the first one."""

    def made(number: int) -> Any:
        with tape.building(f"{LAYERS}.{first + number}"):
            return make(number)

    return made


def blocks_apart(
    segments: Sequence[tuple[int, int, bool, object]],
    trained: Callable[[int], object],
    kind: Callable[[int], object] | None,
) -> list[int]:
    """Blocks that are played on their own, because they are not like their neighbours.

    Blocks in a row that are trained alike form a run; blocks of other modules are trained otherwise. The first block of
    a run may get an input that needs no gradient, and the second be the first that keeps what all of a kind share; the
    last hands its output to another run. Each of the `segments` is a `Segment` of the model.
    """
    found: dict[tuple[int, object, bool], int] = {}
    apart: list[int] = []
    run, before, at = 0, None, 0
    for times, size, checkpointed, _ in segments:
        for i in range(at, at + times * size):
            now = trained(i)
            if i and now != before:
                run += 1
                apart.append(i - 1)
            before = now
            key = (run, None if kind is None else kind(i), checkpointed)
            found[key] = found.get(key, 0) + 1
            if found[key] <= 2:
                apart.append(i)
        at += times * size
    return apart
