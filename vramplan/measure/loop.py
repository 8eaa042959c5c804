"""What a real step needs: a model, its optimizer, and a micro-batch."""

from __future__ import annotations

from typing import Any

from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob


class Loop(NamedTuple):
    """A model, its optimizer and a micro-batch, ready to be stepped."""

    job: ResolvedJob
    model: Any
    optimizer: Any  # None: each weight is stepped in backward
    batch: dict[str, Any]
    device: str
    micro_steps: int  # of an iteration
    outputs: list[Any]  # those that the loop holds until the next forward pass has made new ones
    scaler: Any = None
    average: Any = None
    reference: Any = None  # a model beside the one that trains, which scores the same sequences
    teacher: Any = None
