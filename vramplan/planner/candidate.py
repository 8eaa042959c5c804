"""What people change when a run does not fit: a change of keys as they would be typed, and what it costs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vramplan.results import MONEY, NOTHING, OPTIMIZER, TIME, TRAINING
from vramplan.tuples import NamedTuple

COSTS = (NOTHING, TIME, OPTIMIZER, TRAINING, MONEY)
"""What a change costs, the least first: the order in which remedies are listed."""

NUMBERS = ("weight_dtype", "gradient_dtype", "master_dtype", "optimizer_state_dtype", "compute_dtype")
"""Keys of element types: another precision has its own."""


class Candidate(NamedTuple):
    """One change that may be a remedy."""

    change: Mapping[str, Any]
    costs: str
    """One of `COSTS`."""

    words: str | Callable[[], str]
    """What it costs, for people; a function where that takes a replay."""

    group: str = ""
    """Of several changes of a group one remedy is offered: the first that is certain to fit, else the first tight."""

    resets: tuple[str, ...] = ()
    """Keys that belong to what is replaced: those that were typed go, where the change is refused beside them."""


def rank_of(costs: str) -> int:
    """The place among `COSTS`."""
    return COSTS.index(costs)
