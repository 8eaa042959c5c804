"""Storages of a compiled step that are not there until something needs them."""

from __future__ import annotations

from typing import Any
from weakref import ref

from vramplan.replay.tensors import DType, Parameter, Storage, Tensor


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

    def __init__(self, birth: tuple[Any, ...], parents: tuple[Storage, ...], elements: int, batched: int) -> None:
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
        self.casts: dict[DType, ref[Deferred]] = {}
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
