"""What a search among plans found, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.results.compared import Cell
from vramplan.tuples import NamedTuple


class Plan(NamedTuple):
    """One way to run a job: what was chosen, and the run that comes of it."""

    cell: Cell
    complexity: int  # of what it asks for beside a plain script; 0 is the plain script
    flags: str  # the choices as options
    is_estimated: bool = False  # what the allocator reserves, although it is simulated in this program

    def to_dict(self) -> dict[str, Any]:
        """As the JSON documents have it."""
        return {
            "complexity": self.complexity,
            "flags": self.flags,
            **self.cell._asdict(),
            "is_estimated": self.is_estimated or bool(self.cell.is_estimated),
            "options": dict(self.cell.options),
        }


class Bought(NamedTuple):
    """One choice of the winner on top of those before it."""

    option: str
    verdict: str | None
    device_bytes: int | None
    samples_per_second: float | None
    gain: float | None  # rate over that of the step before; null where one of the two does not fit


class Search(NamedTuple):
    """The plans that fit, the fastest first, and what was looked at."""

    axes: Mapping[str, tuple[str, ...]]  # the values of each choice that was open
    combinations: int  # of these values
    candidates: int  # with every way to divide the batch of a step into micro-batches
    refused: int  # combinations that the program cannot run, or that are not modelled
    too_large: int
    over_limits: int  # that fit, and break a deadline or a budget
    slower: int  # than `within` of the fastest for certain, so that they were not looked at, or were left out
    within: float  # the part of the rate of the fastest by which others may be slower
    fits: int  # of which the answer has the fastest, those on the front and the simple one
    complete: bool  # False: it was interrupted
    plans: tuple[Plan, ...]
    fastest: int | None  # places in `plans`: the least complex of those that rates cannot tell from the first
    simplest: int | None  # the least complex within 10 % of the fastest
    front: tuple[int, ...]  # that no other plan beats in both memory and rate, the smallest first
    ladder: tuple[Bought, ...]  # from the plain script to the fastest plan
    nearest: Plan | None = None  # where none keeps the deadline and the budget: the fastest of those that fit

    def to_dict(self) -> dict[str, Any]:
        """As the JSON documents have it."""
        return {
            **self._asdict(),
            "axes": {key: list(values) for key, values in self.axes.items()},
            "plans": [plan.to_dict() for plan in self.plans],
            "front": list(self.front),
            "ladder": [step._asdict() for step in self.ladder],
            "nearest": None if self.nearest is None else self.nearest.to_dict(),
        }
