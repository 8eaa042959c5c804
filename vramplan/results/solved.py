"""What was solved for, as frozen values."""

from __future__ import annotations

from vramplan.tuples import NamedTuple

NODE_DEVICES = 8
"""Devices of a node where their number is searched: above it, whole nodes alone are tried."""


class Solved(NamedTuple):
    """The largest value of a key that fits, or the smallest number of devices, and what the one after it needs."""

    key: str  # sequence_length | micro_batch_size | adapter.rank | model.layers | parallel.data
    value: int | None  # None: no value fits
    certain: bool  # whether it fits for certain; False: its likely figure is within the usable memory
    option: str  # the value, and what comes with it, as options of `vramplan fit`; empty where there is none
    next_value: int | None  # the next larger one, or the next smaller number of devices; None: there is none
    next_verdict: str | None  # of it
    next_device_bytes: int | None  # the peak with it
    next_usable_bytes: int | None
    bound: str | None  # why there is no next value
