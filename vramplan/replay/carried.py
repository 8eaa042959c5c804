"""What the iteration before has left: its outputs, what hangs on their graph, and gradients that are zeroed late.

A loop that keeps outputs in a variable binds it anew only when the next forward pass has made new ones. Until then the
old ones live, and with them their graph. What backward has saved is gone by then, but a graph holds more than that:
attributes of the context of a `torch.autograd.Function`, the leaf of an accumulator, arguments of a checkpoint.
A loop that calls `zero_grad` between forward and backward has the gradients of the step before beside its forward.
The first iteration finds nothing, so its forward needs less than that of all others.
Source: torch/csrc/autograd/python_function.cpp, PyNode::release_variables, which lets go of saved variables alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.replay.observers import Observer
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.tensors import FP32, Storage, Tensor
from vramplan.tuples import NamedTuple

OUTPUTS, GRADIENTS = "outputs of the iteration before", "gradients of the iteration before"


class Left(NamedTuple):
    """What an iteration leaves to the next, in a record."""

    name: str
    stand_in: int  # the storage that stands for what the iteration before has left
    storages: frozenset[int]  # that this iteration leaves


class Carried(Observer):
    """One storage that stands for tensors of the iteration before that are still alive.

    Every iteration leaves the same tensors, so the size is known when this iteration is over. `index` is the storage,
    and `left` are the storages that this iteration leaves to the next.
    """

    name = OUTPUTS
    category: str | None = None  # that of the tape where it is made

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._before: Tensor | None = tape.new(self.name, (), FP32, False, category=self.category)
        assert self._before.storage is not None
        self.index = self._before.storage.index
        tape.resize(self.index, 0)
        self.left: tuple[int, ...] = ()
        self._kept: list[Storage] = []
        tape.observe(self)

    def let_go(self) -> None:
        """What the iteration before has left goes."""
        self._before = None

    def outputs_bound(self) -> None:
        """The loop has new outputs: the old ones go, and their graph."""
        self.let_go()

    def graph_walked(self, held: Sequence[Any]) -> None:
        """What hangs on the graph, after backward."""
        for one in held:
            tensor = one[1] if type(one) is tuple else one
            self._take(tensor)
            self._take(getattr(tensor, "grad", None))

    def end(self, left: Sequence[Any]) -> None:
        """The iteration is over: what it leaves is what the one before has left."""
        self.let_go()
        self._take(left)
        tape, kept = self.tape, list(dict.fromkeys(self._kept))
        self._kept.clear()
        self.left = tuple(one.index for one in kept)
        copies = self._copies()
        parts = [(copies[one], tape.fixed[one], tape.per_sample[one], tape.sized.get(one)) for one in self.left]
        tape.resize(
            self.index,
            sum(times * fixed for times, fixed, _, _ in parts),
            sum(times * each for times, _, each, _ in parts),
            lambda batch: sum(
                times * (fixed + rounded(each * batch) if own is None else own(batch))
                for times, fixed, each, own in parts
            ),
            is_affine=not any(one in tape.not_affine for one in self.left),
        )

    def _take(self, found: Any) -> None:
        if isinstance(found, Tensor):
            if found.storage is not None and found.storage.index >= 0:  # else a compiler never stores it
                self._kept.append(found.storage)
        elif isinstance(found, tuple | list):
            for one in found:
                self._take(one)

    def _copies(self) -> dict[int, int]:
        """How many each of the storages stands for: as many as the units that it was born in."""
        tape, wanted = self.tape, {*self.left}
        found: dict[int, int] = {}
        ends = [position for position, _ in tape.marks[1:]] + [len(tape.events)]
        for (start, path), end in zip(tape.marks, ends, strict=True):
            copies = 1
            for _, times in path:
                copies *= times
            found.update((one, copies) for one in tape.events[start:end] if one in wanted)
        return found

    def told(self) -> Left:
        """The same for a record."""
        return Left(self.name, self.index, frozenset(self.left))


class LateZeroing(Carried):
    """Gradients that are there until `zero_grad` is called between forward and backward."""

    name = GRADIENTS
    category = "gradients"

    def outputs_bound(self) -> None:
        """Gradients stay."""

    def graph_walked(self, held: Sequence[Any]) -> None:
        """Nothing of a graph stays."""
