"""Storages of a compiled step that are not there until something needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

from vramplan.replay.tensors import DType, Parameter, Storage, Tensor

READS = 4  # what is made from more is not made again for each reader (_inductor/config.py, realize_reads_threshold)

STATISTICS = 2  # of a layer norm: the mean and the deviation of each row


class Deferred(Storage):
    """A storage that is not there until something needs it; until then it holds what it is computed from."""

    __slots__ = (
        "__weakref__",
        "batched",
        "birth",
        "casts",
        "closed",
        "entered",
        "gradient",
        "home",
        "origins",
        "parents",
        "read",
        "size",
    )

    def __init__(
        self, events: list[int], birth: tuple[Any, ...], parents: tuple[Storage, ...], elements: int, batched: int
    ) -> None:
        self.events = events
        self.index = -1
        self.birth = birth
        self.parents = parents
        self.size = elements
        self.batched = batched
        self.gradient = False
        self.home = 0  # the checkpoint that made it, in forward or again
        self.entered = False  # whether another checkpoint begins with it
        self.read = False  # whether an operator that is not fused has read it, or what was computed from it
        self.closed = False  # whether that is so of all that it was computed from, too
        self.casts: dict[DType, ref[Deferred]] | None = None
        self.origins: tuple[ref[Deferred], ...] = ()  # what it was computed from, once it is stored, unless closed

    def __del__(self) -> None:
        if self.index >= 0:
            self.events.append(~self.index)


def before_casts(storage: Deferred) -> Deferred:
    """What a chain of casts that are not stored began with."""
    while storage.birth[0] == "to" and storage.parents:
        wide = storage.parents[0]
        if type(wide) is not Deferred or wide.index >= 0:
            break
        storage = wide
    return storage


class UnkeptCasts(dict[Parameter, Tensor]):
    """Casts of weights are not kept for later uses: whoever saves one keeps it."""

    def __setitem__(self, parameter: Parameter, cast: Tensor) -> None:
        pass


def sources_of(storage: Storage) -> list[Storage]:
    """The stored tensors that it is computed from."""
    found: dict[int, Storage] = {}
    stack = list(storage.parents) if type(storage) is Deferred else []
    seen: set[int] = set()  # several may come from one: each is walked through once
    while stack:
        one = stack.pop()
        if one.index >= 0:
            found[one.index] = one
        elif type(one) is Deferred and id(one) not in seen:
            seen.add(id(one))
            stack.extend(one.parents)
    return list(found.values())


def made_of_many(parents: Sequence[Storage], beside: int = 0) -> bool:
    """Whether a kernel that makes something of these reads too many tensors to make it again for each reader.

    `beside`: how many more it reads. Source: torch/_inductor/ir.py, StorageBox.should_realize_on_reuse.
    """
    found = {one.index for one in parents if one.index >= 0}
    for parent in parents:
        if parent.index < 0:
            found.update(one.index for one in sources_of(parent))
    return len(found) + beside > READS


def unstored(gradients: Sequence[Any]) -> list[Deferred]:
    """Those that are not there yet."""
    storages = [one.storage for one in gradients if type(one) is Tensor]
    return [one for one in storages if type(one) is Deferred and one.index < 0]
