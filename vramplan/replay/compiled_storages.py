"""When a compiled step stores what its kernels make, and what they write over: the storages of compiled.py."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any
from weakref import ref

from vramplan.replay.compared_sizes import ComparedSizes
from vramplan.replay.deferred import Deferred, made_of_many, sources_of
from vramplan.replay.recorder import Node, Tape
from vramplan.replay.tensors import DType, Storage, Tensor

UNCHANGED = ("clone", "view")  # a gradient goes through these as it is
HELD_HERE = 3  # references to what is held by one list alone, in a loop over it: the list, the variable, the argument


class DeferringTape(Tape):
    """A tape with storages that are not there until something needs them."""

    makes_late = True

    def __init__(self, batch: int, *, direct: bool = False, unrolled: bool = False) -> None:
        super().__init__(batch, direct=direct, unrolled=unrolled)
        self.compared: ComparedSizes = ComparedSizes(batch)
        self.pool: list[int] = []  # deaths of buffers that are held for the next checkpoint
        self.kept: set[int] = set()  # outputs of the model, which no kernel writes over
        self.kernel: list[Deferred] | None = None  # gradients that go two ways, while a kernel looks for its results

    def store(self, tensor: Tensor) -> None:
        """Allocate a deferred tensor."""
        if type(tensor.storage) is Deferred and tensor.storage.index < 0:
            self._store(tensor.storage)

    def on_another_stream(self, tensor: Tensor) -> Tensor:
        """What a program makes on a stream of its own is in no graph, and there at once."""
        self.store(tensor)
        return super().on_another_stream(tensor)

    def freed_late(self, tensor: Tensor, *, in_forward: bool = True) -> None:
        """The same of what another stream uses."""
        self.store(tensor)
        super().freed_late(tensor, in_forward=in_forward)

    def _store(self, storage: Deferred) -> None:
        """What only it was computed from goes.

        A kernel writes over an input of the same size that nobody needs after it
        (torch/_inductor/scheduler.py, decide_inplace_update).
        """
        others = self._overwrites(storage, is_alone=True)
        self._allocate(storage)
        del others

    def _overwrites(self, storage: Deferred, *, is_alone: bool = False) -> list[Storage]:
        """From here on it holds nothing that it is computed from; what no kernel writes over is returned.

        None writes over what it reads in parts (scheduler.py, single_index_in_fused_node). `is_alone`: the kernel makes
        nothing else. What somebody else holds stays anyway, so that its size decides nothing.
        """
        operator, shape, dtype, batched, _ = storage.birth
        size, scales, each = prod(shape) * dtype.itemsize, bool(batched), self.per_sample
        in_parts = operator == "cat"  # which reads a tensor of its own size at several places
        sources = sources_of(storage)
        others = [one for one in sources if in_parts or self._bytes(one) != size or one.index in self.kept]
        decides = [] if in_parts else [one.index for one in sources if (each[one.index] != 0) is not scales]
        del sources
        storage.origins = self._origins(storage)
        if not decides:
            storage.parents = ()
            return others
        before, held = len(self.events), len(self.pool)
        storage.parents = ()
        gone = {~event for event in (*self.events[before:], *self.pool[held:])}
        gone.update(one.index for one in others if sys.getrefcount(one) == HELD_HERE)  # in `others`, and by the loop
        for index in decides:
            if (index in gone or not is_alone) and index not in self.kept:
                self.compared.differ(self.fixed[index] + each[index] * self.batch, not scales, size, scales)
        return others

    def _allocate(self, storage: Deferred) -> None:
        operator, shape, dtype, batched, category = storage.birth
        inner = super().new(operator, shape, dtype, batched, None, None, category).storage
        assert inner is not None
        storage.index = inner.index
        inner.events = []  # its death is that of the deferred one
        self._hold(storage)

    def _store_together(self, storages: Sequence[Deferred], *, again: bool) -> None:
        """All that one kernel makes. Each is written over what it alone is made from.

        What a checkpoint computes `again` of the same tensors is one more result of that kernel, so that none is read
        for one result alone.
        Source: torch/_inductor/scheduler.py, decide_inplace_update (the only user that is left).
        """
        read = Counter(one.index for storage in storages for one in sources_of(storage))
        shared = [one for storage in storages for one in sources_of(storage) if again or read[one.index] > 1]
        others = [self._overwrites(one) for one in storages]
        for one in storages:
            self._allocate(one)
        del others, shared

    def _bytes(self, storage: Storage) -> int:
        i = storage.index
        return self.fixed[i] + self.per_sample[i] * self.batch

    def _origins(self, storage: Deferred) -> tuple[ref[Deferred], ...]:
        """All deferred tensors that it was computed from, and itself, but for those that are closed or gone.

        What a product has read closes all that is behind it, so that a deep model is not walked through again.
        """
        found: dict[int, Deferred] = {id(storage): storage}
        stack = [storage]
        while stack:
            one = stack.pop()
            for other in one.parents:
                if type(other) is Deferred and not other.closed and id(other) not in found:
                    found[id(other)] = other
                    stack.append(other)
            for origin in one.origins:
                older = origin()
                if older is not None and not older.closed and id(older) not in found:
                    found[id(older)] = older
                    stack.append(older)
        return tuple(map(ref, found.values()))

    def consume(self, tensors: Sequence[Any]) -> None:
        """An operator that is not fused reads these."""
        for tensor in tensors:
            if type(tensor) is not Tensor or type(tensor.storage) is not Deferred:
                continue
            self.store(tensor)
            if tensor.storage.closed:
                continue
            for one in tensor.storage.origins:  # found when it was stored; nothing that it comes from is made later
                found = one()
                if found is not None:
                    found.read = found.closed = True

    def _hold(self, storage: Storage | None) -> None:
        """A buffer has been made; who keeps it longer than its tensor lives says so here."""

    def _share(self, node: Node, results: Sequence[Tensor | None]) -> None:
        """A gradient that goes two ways is stored if it reads more than a few tensors, and not made twice.

        Both inputs of a residual sum get the same one: a product reads it, or what a dropout leaves of it, and later
        the sum before this one does. Where both ways begin with the same cast, the cast alone reads it.
        Source: torch/_inductor/ir.py, StorageBox.should_realize_on_reuse; graph.py, GraphLowering.run_node.
        """
        if self.recomputing is not None or len(results) != 2 or results[0] is not results[1]:
            return
        shared, ways = results[0], [one for one in node.edges if type(one[0]) is Node]
        if shared is None or len(ways) < 2 or type(shared.storage) is not Deferred or shared.storage.index >= 0:
            return
        dtypes = {_first_cast(shared.dtype, way) for way in ways}
        alone = len(dtypes) == 1 and shared.dtype not in dtypes
        if shared.batched and not alone and made_of_many([shared.storage]):
            if self.kernel is None:
                self._store(shared.storage)
            else:
                self.kernel.append(shared.storage)


def _first_cast(dtype: DType, edge: tuple[Any, ...]) -> DType:
    """What a gradient of `dtype` becomes first on its way into a node."""
    wanted: DType = edge[-1]
    while wanted is dtype and type(edge[0]) is Node and edge[0].operator in (*UNCHANGED, "to"):
        edge = edge[0].edges[0]
        wanted = edge[-1]
    return wanted
