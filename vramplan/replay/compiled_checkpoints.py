"""Checkpoints inside of a compiled graph: what their buffers and results become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.replay.checkpoints import Frame
from vramplan.replay.compiled_storages import DeferringTape
from vramplan.replay.deferred import Deferred
from vramplan.replay.tensors import BOOL, FP32, Shape, Storage, Tensor


class RecomputingTape(DeferringTape):
    """A tape whose checkpoints are parts of one graph."""

    def __init__(self, batch: int, *, direct: bool = False, unrolled: bool = False) -> None:
        super().__init__(batch, direct=direct, unrolled=unrolled)
        self._frame: Frame | None = None
        self._frames, self._again = 0, 0  # checkpoints of forward, and how many of them have been computed again
        self._drawn: Storage | None = None  # random numbers of the dropout whose result comes next
        self.returned: list[Deferred] = []  # what checkpoints gave to what is no checkpoint

    def _hold(self, storage: Storage | None) -> None:
        """What a block computes again is followed by as much of the next one, which takes the same buffers.

        Inductor does not free a buffer between, it hands it on: so it is there until the block's backward is over.
        Source: torch/_inductor/codegen/wrapper.py, FreeIfNotReusedLine.
        """
        frame = self.recomputing
        if frame is None or storage is None:
            return
        if frame is not self._frame:
            self._frame = frame
            self._again += 1
        if self._again < self._frames:
            storage.events = self.pool

    def release(self) -> None:
        """The buffers that were held go."""
        self.events.extend(self.pool)
        self.pool.clear()

    def _leave(self, inputs: Sequence[Tensor | None]) -> None:
        """What the last checkpoint gave goes when it has been read, since its backward makes it again.

        Source: torch/_functorch/partitioners.py, cleanup_recompute_tags.
        """
        for storage in self.returned:
            if storage.index >= 0 and not storage.entered:
                self.events.append(~storage.index)
                storage.index, storage.parents = -1, ()
        self.returned.clear()
        home = id(self.frame) if self.frame is not None else 0
        if self.frame is not None and self.frame is not self._frame:
            self._frame = self.frame
            self._frames += 1
        for x in inputs:
            read = None if x is None else x.storage
            if type(read) is Deferred and read.home not in (0, home):
                if home:
                    read.entered = True
                elif self.path == ():
                    self.returned.append(read)

    def _read_again(self, tensor: Tensor, normal: Storage | None) -> None:
        """Backward reads the normalised input, and what it was made from stays only if others need it."""
        taken = None if self.recomputing is None else self.recomputing.taken
        for i in range(len(taken or ()) - 1, -1, -1):
            if taken is not None and taken[i] is tensor:
                taken[i] = Tensor(self, normal, tensor.shape, FP32, tensor.batched, tensor.strides, tensor.node)
                break

    def _random(self, shape: Shape, batched: int, strides: Shape | None, node: Any) -> Tensor:
        """In place of a mask the random numbers that it is made from: inside of backward there is no cut that would
        choose the mask.

        Source: torch/_inductor/lowering.py, inductor_random.
        """
        result = super().new("native_dropout", shape, FP32, batched, strides, node)
        self._hold(result.storage)
        self._drawn = result.storage
        return Tensor(self, result.storage, shape, BOOL, batched, strides, node)
