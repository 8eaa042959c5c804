"""The ledger of an iteration: which storages are born and die, how large they are, in which phase and repeated unit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from vramplan.replay.layouts import ALLOCATOR_BLOCK_BYTES, SQUARED, UnevenRows, round_up

if TYPE_CHECKING:
    from vramplan.replay.compared_sizes import ComparedSizes

if sys.implementation.name != "cpython":  # pragma: no cover
    raise RuntimeError("vramplan follows lifetimes by CPython's reference counts; other interpreters free late")

_blank = object.__new__

Path = tuple[tuple[int, int], ...]  # the repeated units around an event: (identity, copies), outermost first


def _times(each: int, batch: int) -> int:
    return rounded(each * batch)


class NotAlike(Exception):
    """Blocks that were played once are not alike after all; each has to be played."""


class Storage:
    """Memory with a birth and a death. Dying writes `~index` into the list of events."""

    __slots__ = ("events", "index")

    def __init__(self, events: list[int], index: int) -> None:
        self.events = events
        self.index = index
        events.append(index)

    def __del__(self) -> None:
        self.events.append(~self.index)


class Unseen:
    """What no storage shows, most of it seen by a caching allocator alone.

    `unjoined` are storages that take no freed block, where none before them was as large. `summed` has the two
    gradients that met of each sum. `turned` has, of what a convolution makes, the bytes of the
    copies in another layout that its kernel takes meanwhile: fixed ones, and those for each sample. `rows` has the
    bytes of what one row of all samples has, at a micro-batch, before they are rounded. `handed_on` are storages of a
    unit's copies each of which lets go of that of the one before. `awaited` are storages that another stream uses, and
    that are free when it has come so far; of each whether it is so in forward, too. `waits`: before which events the
    program waits until the device is behind it by no more than the last few of these moments. `left_whole` are
    gradients that an earlier micro-step has left: they are there when the walk begins, which makes them where it comes
    to their unit. `deaths_besides`: of what copies of a unit that are not played have made, without those that these
    have freed.
    """

    __slots__ = (
        "awaited",
        "deaths_besides",
        "handed_on",
        "left_whole",
        "rows",
        "summed",
        "turned",
        "unjoined",
        "waits",
    )

    def __init__(self) -> None:
        self.unjoined: set[int] = set()
        self.summed: dict[int, tuple[int | None, int | None]] = {}
        self.turned: dict[int, tuple[int, int]] = {}
        self.rows: dict[int, Callable[[int], int]] = {}
        self.handed_on: set[int] = set()
        self.awaited: dict[int, bool] = {}
        self.left_whole: set[int] = set()
        self.waits: list[int] = []
        self.deaths_besides = 0


class Ledger:
    """The events of one iteration, the size of each storage, and the phases and repeated units that they belong to.

    `batch` is the representative micro-batch: 2 for every batch above 1, or 1. With `direct=True` it is the real one
    and all sizes are plain rounded bytes: the slow, literal replay that tests compare with. With `unrolled=True` every
    copy of a repeated unit is played, as the simulated allocator needs it; a direct replay is always unrolled.
    """

    periodic = True  # whether several blocks that come in turns may be one repeated unit
    loops = True  # whether the code of a block may repeat a unit
    makes_late = False  # whether a tensor is made when something needs it, which may be in another unit
    is_certain = False  # whether an iteration is not played again if blocks turn out not to be alike
    compared: ComparedSizes | None = (
        None  # where sizes decide what is stored: the micro-batches at which they do so too
    )

    def __init__(self, batch: int, *, direct: bool = False, unrolled: bool = False) -> None:
        self.batch = batch
        self.direct = direct
        self.unrolled = direct or unrolled
        self.events: list[int] = []  # index: birth, ~index: death
        # of each storage
        self.fixed: list[int] = []  # bytes that do not depend on the batch, rounded to allocator blocks
        self.per_sample: list[int] = []  # bytes per sample, unrounded
        self.operators: list[str] = []  # what made it
        self.categories: list[str] = []  # the component that it is counted under
        # of some storages
        self.sized: dict[int, Callable[[int], int]] = {}  # the rare sizes that are functions of the batch, not affine
        self.not_affine: set[int] = set()  # those of them that no line approximates
        self.elsewhere: set[int] = set()  # allocated on another stream than the model runs on
        self.unseen = Unseen()
        self.relabelled: set[int] = set()  # born by changing their component, not by allocation
        self.category = "activations"  # of storages that are born now
        self.phases: list[tuple[int, str]] = []  # from this event on, this phase
        self.marks: list[tuple[int, Path]] = [(0, ())]  # from this event on, inside these repeated units
        self.path: Path = ()
        self.copies = 1  # product of the copies of the path
        self.numbers: list[tuple[int, int]] = [(0, 1)]  # of each unit: its first item's number, items' distance

    # ------------------------------------------------------------------------------------------------ storages
    def allocate(self, operator: str, size_bytes: int, batched: int, category: str | None) -> Storage:
        """A storage of a size at the representative batch; `batched` as of a tensor."""
        fixed = self.fixed
        index = len(fixed)
        if not batched or self.direct:
            fixed.append(-(-size_bytes // ALLOCATOR_BLOCK_BYTES) * ALLOCATOR_BLOCK_BYTES)
            self.per_sample.append(0)
        elif batched == SQUARED:
            self._square(index, size_bytes)
        elif type(batched) is UnevenRows:
            self._in_rows(index, size_bytes, batched)
        else:
            fixed.append(0)
            self.per_sample.append(size_bytes // self.batch)
        self.operators.append(operator)
        self.categories.append(category or self.category)
        storage: Storage = _blank(Storage)  # half of the time of the constructor
        storage.events = events = self.events
        storage.index = index
        events.append(index)
        return storage

    def _square(self, index: int, size_bytes: int) -> None:
        """A size that is not affine: of one number for each pair of samples."""
        each = size_bytes // self.batch**2
        self.fixed.append(0)
        self.per_sample.append(0)
        self.sized[index] = lambda batch: rounded(each * batch * batch)
        self.not_affine.add(index)

    def _in_rows(self, index: int, size_bytes: int, rows: UnevenRows) -> None:
        """A size that is affine but for how many rows of all samples there are."""
        each = size_bytes // rows.here
        self.fixed.append(0)
        self.per_sample.append(size_bytes // self.batch)
        self.sized[index] = lambda batch: rounded(each * rows.at(batch))

    def scratch(self, operator: str, per_sample: Sequence[int]) -> None:
        """Several tensors that one kernel's code makes, by their bytes per sample; the last one goes first."""
        alive = [self.scratch_of(operator, partial(_times, each), each) for each in per_sample]
        while alive:
            alive.pop()

    def workspace(self, operator: str, size: Callable[[int], int], per_sample: int | None = None) -> None:
        """Scratch of one kernel, which dies at once; the arguments are those of `scratch_of`."""
        self.scratch_of(operator, size, per_sample)

    def scratch_of(self, operator: str, size: Callable[[int], int], per_sample: int | None = None) -> Storage:
        """Scratch of one kernel: `size` gives its bytes (already rounded) at a micro-batch.

        `per_sample` is given where the size is affine but for its rounding.
        """
        index = len(self.fixed)
        self.fixed.append(size(self.batch) if self.direct else 0)
        self.per_sample.append(0 if self.direct else per_sample or 0)
        if not self.direct:
            self.sized[index] = size
            if per_sample is None:
                self.not_affine.add(index)
        self.operators.append(operator)
        self.categories.append("workspace")
        return Storage(self.events, index)

    def resize(
        self,
        index: int,
        fixed_bytes: int,
        per_sample_bytes: int = 0,
        size: Callable[[int], int] | None = None,
        *,
        is_affine: bool = True,
    ) -> None:
        """Give a storage another size than its tensor has, for example because it stands for several tensors.

        `size` gives its rounded bytes at a micro-batch, where rounding the sum of them would be wrong. A direct
        replay has one micro-batch, and takes the fixed bytes alone.
        """
        self.fixed[index], self.per_sample[index] = fixed_bytes, per_sample_bytes
        if size is not None and not self.direct:
            self.sized[index] = size
            if not is_affine:
                self.not_affine.add(index)

    def size_of(self, storage: Storage) -> int:
        """Bytes of a storage at the representative batch, as the allocator hands them out."""
        return self.fixed[storage.index] + rounded(self.per_sample[storage.index] * self.batch)

    def recount(self, storage: Storage, category: str) -> None:
        """Count a living storage under another component from now on."""
        old = storage.index
        if self.categories[old] == category:
            return
        self.events.append(~old)
        storage.index = len(self.fixed)
        self.relabelled.add(storage.index)
        if old in self.elsewhere:
            self.elsewhere.add(storage.index)
        self.fixed.append(self.fixed[old])
        self.per_sample.append(self.per_sample[old])
        self.operators.append(self.operators[old])
        self.categories.append(category)
        self.events.append(storage.index)

    # what the copies of a unit that are not played make and free, where that is not as much of each
    def twin(self, storage: Storage) -> Storage:
        """A storage that one of these copies has made: the birth of `storage`, which each copy counts, is its own.

        Each of the twins dies by itself.
        """
        self.unseen.handed_on.add(storage.index)
        self.unseen.deaths_besides += 1
        other: Storage = _blank(Storage)
        other.events, other.index = self.events, storage.index
        return other

    def freed_unseen(self, storage: Storage) -> None:
        """One of these copies has freed this storage: the death that it plays, of one as large, counts for it."""
        self.unseen.deaths_besides -= 1
        storage.events = []

    # ---------------------------------------------------------------------------------------- phases and units
    def phase(self, name: str) -> None:
        """From here on it is this phase: forward, backward or step."""
        self.phases.append((len(self.events), name))

    def release(self) -> None:
        """Buffers that are held for others go: there are none but in a compiled step."""

    def repeat(
        self,
        count: int,
        *,
        first: bool = True,
        last: bool = True,
        start: int = 0,
        stride: int = 1,
        apart: Sequence[int] = (),
    ) -> Iterator[tuple[int, int]]:
        """Walk `count` identical items, replaying one inner item for all inner ones; yields (index, copies).

        The first item of all is played on its own, and the last one (`first`, `last` say whether this run holds them):
        they meet the outside. Inner items only differ in what they are called, so the first and the last copy of their
        slice bound every level in between: levels are linear in the copy index.

        `start` and `stride` number the blocks: item i begins `start + i * stride` blocks after the unit around it does.
        `apart` are items that hold what no item before them does: they are played on their own too. A loop inside of
        a block has no stride: all of its items are in that block.
        """
        outer = self.path
        if self.unrolled or not (stride or self.loops):
            plan = [(i, 1) for i in range(count)]
        else:
            alone = {*apart, 0} if first else {*apart}
            if last:
                alone.add(count - 1)
            plan = []
            at = 0
            for i in sorted(i for i in alone if 0 <= i < count):
                if i > at:
                    plan.append((at, i - at))
                plan.append((i, 1))
                at = i + 1
            if count > at:
                plan.append((at, count - at))
        for index, times in plan:
            unit = len(self.numbers)
            self.numbers.append((start + index * stride, stride))
            self.enter((*outer, (unit, times)))
            yield index, times
        self.enter(outer)

    def enter(self, path: Path) -> None:
        """Go on inside these repeated units."""
        if path != self.path:
            self.path = path
            self.marks.append((len(self.events), path))
            copies = 1
            for _, times in path:
                copies *= times
            self.copies = copies


def rounded(size: int) -> int:
    """Bytes as the caching allocator hands them out: multiples of 512."""
    return round_up(size, ALLOCATOR_BLOCK_BYTES)
