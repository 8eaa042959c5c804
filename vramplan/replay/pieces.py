"""What each repeated unit of a record adds to the level, so that other arrangements of the same units can be computed.

A forward pass sends its hidden state through units: stored blocks, or segments that are checkpoints. A unit changes the
level by the same amount and has the same highest level above its start wherever it stands; the few tensors that all
units share go with the first unit that holds them. `tests/planner/test_optimal.py` holds that sums of pieces equal
replays to the byte.
"""

from __future__ import annotations

from vramplan.replay.record import Record
from vramplan.replay.recorder import Path
from vramplan.replay.tree import Events, Item, climb, outside_of
from vramplan.tuples import NamedTuple

AUTOCAST_COPIES = "weight_casts"  # born in a unit, gone at the end of forward unless that unit keeps them


class UnitBytes(NamedTuple):
    """Bytes that one unit adds, each against the level at its start."""

    forward_net: int
    forward_top: int
    leaving: int  # of what it leaves, what goes when forward ends (negative)
    backward_net: int
    backward_top: int


class OutsideBytes(NamedTuple):
    """Bytes of what happens before, between and after the units, each against the level at its start."""

    before_net: int
    before_top: int
    between_top: int  # from the last unit to the end of forward: head and loss
    loss_net: int  # from the end of forward to the first unit's backward: the loss's and the head's
    loss_top: int
    after_net: int  # from the last unit's backward to the end of backward: the embeddings'
    after_top: int


def take_apart(record: Record, batch: int) -> tuple[list[UnitBytes], OutsideBytes]:
    """The units of a record in the order of the model, one of each run of equal ones, and what is outside of them."""
    sizes, signed = record.sizes(batch), record.signed(batch)
    births = births_of(record)
    slices = {name: slices_of(record, start, end) for name, start, end in phases_of(record)}
    order = units_of(record)
    times = {path[0][0]: path[0][1] for _, path in record.marks if path}
    forward = {unit: climb(items, signed) for unit, items in slices["forward"] if unit}
    backward = {unit: climb(items, signed) for unit, items in slices["backward"] if unit}
    between, gone = without_casts(record, outer_events(slices["forward"], last=True), births, sizes, times)
    leaving = dict.fromkeys(order, 0) | gone
    before_net, before_top = climb([outer_events(slices["forward"], last=False)], signed)
    loss_net, loss_top = climb([outer_events(slices["backward"], last=False)], signed)
    after_net, after_top = climb([outer_events(slices["backward"], last=True)], signed)
    outside = OutsideBytes(
        before_net, before_top, climb([between], signed)[1], loss_net, loss_top, after_net, after_top
    )
    return [UnitBytes(*forward[unit], leaving[unit], *backward[unit]) for unit in order], outside


def without_casts(
    record: Record, events: Events, births: dict[int, int], sizes: list[int], times: dict[int, int]
) -> tuple[Events, dict[int, int]]:
    """Events without the deaths of what autocast cast in units, and for each unit the bytes of those."""
    leaving: dict[int, int] = {}
    between: Events = []
    for position, storage, copies in events:
        unit = births[storage]
        if unit and copies < 0 and record.categories[storage] == AUTOCAST_COPIES:
            leaving[unit] = leaving.get(unit, 0) + sizes[storage] * copies // times[unit]
        else:
            between.append((position, storage, copies))
    return between, leaving


def units_of(record: Record) -> list[int]:
    """The units of a record in the order of the model: their identities."""
    (_, start, end), *_ = phases_of(record)
    return list(dict.fromkeys(path[0][0] for _, _, path in record.nesting.pieces(start, end) if path))


def phases_of(record: Record) -> list[tuple[str, int, int]]:
    """The phases of an iteration with their first event and the one after their last."""
    ends = [position for position, _ in record.phases[1:]] + [len(record.events)]
    return [(name, start, end) for (start, name), end in zip(record.phases, ends, strict=True)]


def slices_of(record: Record, start: int, end: int) -> list[tuple[int, list[Item]]]:
    """Runs of events by the outermost unit they are in; 0 is outside of all."""
    groups: list[tuple[int, list[tuple[int, int, Path]]]] = []
    for low, high, path in record.nesting.pieces(start, end):
        unit = path[0][0] if path else 0
        if not groups or groups[-1][0] != unit:
            groups.append((unit, []))
        groups[-1][1].append((low, high, path))
    return [(unit, record.nesting.nest(pieces, 1 if unit else 0)) for unit, pieces in groups]


def outer_events(slices: list[tuple[int, list[Item]]], *, last: bool) -> Events:
    """The events outside of all units: those before the first unit, or those after the last."""
    if not any(unit for unit, _ in slices):
        return []
    index = -1 if last else 0
    unit, items = slices[index]
    return [] if unit else outside_of(items)


def births_of(record: Record) -> dict[int, int]:
    """The outermost unit in which each storage was born; 0 is outside of all."""
    births = {}
    for low, high, path in record.nesting.pieces(0, len(record.events)):
        unit = path[0][0] if path else 0
        for index in record.events[low:high]:
            if index >= 0:
                births[index] = unit
    return births
