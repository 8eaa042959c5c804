"""Saved tensors in pinned memory of the host, as torch.autograd.graph.save_on_cpu keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from vramplan.replay.observers import Observer
from vramplan.replay.operators.ragged import PLAYED
from vramplan.replay.record import Record
from vramplan.replay.recorder import Saved, Tape, rounded
from vramplan.replay.techniques import Technique
from vramplan.replay.tensors import SQUARED, DType, Shape, Tensor
from vramplan.tuples import NamedTuple


class Away(NamedTuple):
    """A tensor that is on the host: what comes back is a contiguous copy."""

    tape: Tape
    shape: Shape
    dtype: DType
    batched: bool
    node: Any  # what gets its gradient
    sized: HostTensor | None = None  # what it is on the host, if not as many times what it is of one sample


class HostTensor(NamedTuple):
    """Bytes of one kind of tensor on the host, and how many there are of it, or of it in each further image."""

    fixed_bytes: int
    per_sample_bytes: int
    copies: int
    is_of_further_images: bool = False
    sized: Callable[[int], int] | None = None  # its bytes where they are not as many times those of one sample

    def at(self, batch: int) -> int:
        """Bytes of one of them at a micro-batch."""
        if self.sized is not None:
            return self.sized(batch)
        return self.fixed_bytes + self.per_sample_bytes * batch

    def copies_at(self, batch: int) -> int:
        """How many there are at a micro-batch."""
        return self.copies * max(0, batch - PLAYED) if self.is_of_further_images else self.copies


def to_host(tape: Tape, host: list[HostTensor], tensors: Saved) -> list[Any]:
    """A copy of each tensor on the host, also of weights, and one for each operator that saves it.

    A mask that is none stays none. Some blocks hand several tensors to the next one together.

    Source: torch/autograd/graph.py, save_on_cpu.
    """
    gone: list[Any] = []
    for x in tensors:
        if x is None:
            gone.append(None)
            continue
        if type(x) is tuple:
            gone.append(tuple(to_host(tape, host, x)))
            continue
        index = -1 if x.storage is None else x.storage.index
        of_row = tape.unseen.rows.get(index)
        if of_row is not None or (x.batched == SQUARED and index >= 0):  # some are empty at some micro-batches
            sized = of_row or tape.sized.get(index)
            host.append(HostTensor(0 if of_row else tape.fixed[index], 0, tape.copies, sized=sized))
            gone.append(Away(tape, x.shape, x.dtype, x.batched, x.node, host[-1]))
            continue
        size = x.dtype.itemsize
        for n in x.shape:
            size *= n
        batched = x.batched or _is_for_every_sample(x)
        sampled = batched and not tape.direct
        fixed, per_sample = (0, size // tape.batch) if sampled else (size, 0)
        host.append(HostTensor(fixed, per_sample, tape.copies))
        gone.append(Away(tape, x.shape, x.dtype, batched, x.node))
    return gone


def _is_for_every_sample(x: Tensor) -> bool:
    """Whether one row stands for all samples, as in an expanded mask: a copy has a row for each."""
    strides = x.strides
    return strides is not None and strides[:1] == (0,) and x.shape[0] == x.tape.batch


def to_device(saved: Iterable[Any]) -> list[Any]:
    """All that was saved, on the device again, in the order in which it was saved."""
    return [_back(x) for x in saved]


def _back(x: Any) -> Any:
    if type(x) is Away:
        back = x.tape.new("_to_copy", x.shape, x.dtype, x.batched, None, x.node)
        if x.sized is not None and back.storage is not None:
            one = x.sized
            size = None if one.sized is None else lambda batch: rounded(one.at(batch))
            x.tape.resize(back.storage.index, one.fixed_bytes, 0, size, is_affine=False)
        return back
    return tuple(to_device(x)) if type(x) is tuple else x


def pinned_bytes(tensors: Iterable[HostTensor], batch: int) -> int:
    """Pinned memory: each tensor has a block of a power of two.

    Source: aten/src/ATen/core/CachingHostAllocator.h, allocate.
    """
    total = 0
    for one in tensors:
        size = one.at(batch)
        total += (1 << (size - 1).bit_length() if size else 0) * one.copies_at(batch)
    return total


class Packs(Observer):
    """Inside of the context: what is saved goes to the host."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.host: list[HostTensor] = []
        self.began: int | None = None  # what the first of several images saves begins here

    def one_by_one(self, begins: bool) -> None:
        """Several images are looked at one after another."""
        self.began = len(self.host) if begins else None

    def stood_in(self, tensor: Tensor) -> None:
        """The first image has been looked at: each of those that a tensor stands for saves what it did."""
        if self.began is not None:
            self.host += [one._replace(is_of_further_images=True) for one in self.host[self.began :]]
        self.began = None

    def packing(self, tensors: Saved) -> Saved:
        """A copy of each is saved."""
        return to_host(self.tape, self.host, tensors)


class OffloadsActivations(Technique, Observer):
    """The model's forward pass runs inside of save_on_cpu."""

    def before_forward(self) -> None:
        """The context begins."""
        self.packs = Packs(self.tape)
        self.tape.observe(self.packs)
        self.tape.observe(self)

    def unpacking(self, saved: Saved) -> Saved:
        """Backward asks for what was saved inside."""
        return to_device(saved)

    def model_left(self) -> None:
        """The context ends."""
        self.tape.ignore(self.packs)

    def after_forward(self) -> None:
        """It has ended, at the latest."""
        self.model_left()

    def annotate(self, record: Record) -> None:
        """What is on the host."""
        record.host = self.packs.host
