"""Runs side by side, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.results import FITS, TIGHT
from vramplan.tuples import NamedTuple


class Cell(NamedTuple):
    """One of the runs. Figures are null where the job is refused, or where no peak rate of the GPU is known."""

    options: Mapping[str, str]  # what is special about it: the value of each option that is a list
    verdict: str | None
    error: str | None
    devices: int | None
    device_bytes: int | None
    usable_bytes: int | None
    micro_batch_size: int | None
    gradient_accumulation_steps: int | None
    activation_checkpointing: str | None
    largest_micro_batch_size: int | None
    step_seconds: float | None
    tokens_per_second: float | None  # of all devices
    samples_per_second: float | None
    tokens_per_second_per_device: float | None
    mfu_percent: float | None
    bound: str | None
    usd_per_hour: float | None  # of all devices, at the likely price
    usd_per_million_tokens: float | None
    wall_seconds: float | None  # of the whole run, where the job says how long it is
    cost_usd: float | None
    keeps_limits: bool | None  # deadline and budget; null where they cannot be judged
    is_composed: bool | None = None  # of techniques that were never traced together, so that less is known of it
    efficiency: float | None = None  # rate of a device over that of the smallest run that fits; `scale` alone
    is_estimated: bool | None = None  # what the allocator reserves, where `fit` simulates it
    unjudged: str | None = None  # why its deadline or its budget cannot be judged
    precision: str | None = None
    weight_dtype: str | None = None  # the element type of most weights
    host_bytes: int | None = None  # that a node needs of its host, of what fits; null: nothing is kept there

    @property
    def is_possible(self) -> bool:
        """Whether it fits, and keeps its deadline and its budget for all that is known."""
        return self.verdict == FITS and self._keeps_limits

    @property
    def is_likely(self) -> bool:
        """Whether `fit` ends it as one that fits: it may be tight, with an estimate within the usable memory."""
        if self.verdict != TIGHT or self.device_bytes is None or self.usable_bytes is None:
            return self.is_possible
        return self.device_bytes <= self.usable_bytes and self._keeps_limits

    @property
    def _keeps_limits(self) -> bool:
        return self.keeps_limits is not False and self.unjudged is None


class Comparison(NamedTuple):
    """All of them, in the order of the options, and which win. Numbers count the cells from 0; None: none does."""

    axes: tuple[str, ...]
    cells: tuple[Cell, ...]
    fastest: int | None
    cheapest: int | None  # by tokens; by hours where there are no tokens
    cheapest_hour: int | None
    advice: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As the JSON documents have it."""
        cells = [{**cell._asdict(), "options": dict(cell.options)} for cell in self.cells]
        return {**self._asdict(), "axes": list(self.axes), "cells": cells, "advice": list(self.advice)}
