"""What a replay ran, as kernels: operator, direction, shapes, bytes read and written, floating-point operations.

`Launches` notes every operator that a tape is about to run with the shapes of its operands and the operations that it
counts. What an operator writes is what was born until the next one began. All figures
are polynomials in the micro-batch, as sizes are: each operand is fixed, in proportion to it, or to its square.

Views launch nothing: an operator that gives no tensor, and counts nothing, is one, unless it writes in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd, prod
from typing import Any

from vramplan.replay.layouts import DType, Shape
from vramplan.replay.observers import Observer
from vramplan.replay.recorder import Path, Tape
from vramplan.replay.tensors import Parameter, Tensor
from vramplan.tuples import NamedTuple

PRODUCT, ATTENTION, CONVOLUTION, BYTES, COLLECTIVE = "product", "attention", "convolution", "bytes", "collective"
KINDS = (PRODUCT, ATTENTION, CONVOLUTION, BYTES, COLLECTIVE)
"""Kinds of kernels. BYTES reads and writes, and what it computes costs less than that."""

FORWARD, RECOMPUTE, BACKWARD = "forward", "recompute", "backward"

# Operators that write one of their operands and give no tensor.
IN_PLACE = frozenset({"index_copy"})  # and all whose name ends with an underscore
# Operators that hand tensors to other devices, as autograd sees them.
COLLECTIVES = frozenset({"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send", "copy_to_region"})
# Products of operands that were cast to eight bits first.
EIGHT_BITS = frozenset({"float8_linear", "te_linear", "fp8_gemm"})
FP8 = "float8"
# Makes numbers of 4-bit codes, one after another: it takes as long as it has numbers, not bytes.
DEQUANTIZED = "dequantize_4bit"
# Batched products whose operands lie one after another in the batch, in 16 bits: tensor cores want each, and each of
# its rows, to begin at a multiple of 16 bytes.
BATCHED = frozenset({"bmm", "baddbmm"})
ALIGNED_ELEMENTS = 8
UNALIGNED = "unaligned"

# an operator that ran: the events before it, its name, its direction, where, and shape, dtype, whether batched and
# strides of each operand
Launch = tuple[int, str, str, Path, list[tuple[Shape, DType, int, Shape | None]]]
Counted = tuple[int, int, int, int]  # the number of a launch, its FLOPs, those made again, the head of an attention

Operand = tuple[Shape, DType, int, Shape | None]  # shape, element type, batched, strides
Poly = tuple[int, int, int]  # of the micro-batch: fixed, for each sample, for each pair of samples
NOTHING: Poly = (0, 0, 0)


class Kernel(NamedTuple):
    """Equal operators of one iteration: `times` of them, in as many copies of a repeated unit."""

    operator: str
    direction: str  # forward | recompute | backward
    kind: str  # one of KINDS
    unit: int  # the outermost repeated unit that it runs in; 0: in none
    dtype: str  # element type of its first operand, FP8, or UNALIGNED where its 16 bits are not as tensor cores want
    head_size: int  # of an attention; else 0
    launches: int  # of the device, each time
    flops: Poly
    again: Poly  # of `flops` those that a fused attention spends on scores that it has made before
    read: Poly  # bytes
    written: Poly  # bytes, those of tensors that die inside it too
    shapes: tuple[Shape, ...]  # of its operands, at the representative micro-batch
    times: int
    samples: int = 0  # where each sample has a kernel of its own, how many of them `times` counts
    aligned: int = 0  # of a product in 16 bits: at multiples of how many elements rows begin, up to ALIGNED_ELEMENTS

    def at(self, figure: int, batch: int) -> int:
        """A figure of one run, for all runs of a micro-batch."""
        return figure * self.times * batch // self.samples if self.samples else figure * self.times


class Stepped(NamedTuple):
    """Equal weights that the optimizer steps: of which shape, whole where devices share them, in or outside of the
    blocks, and how many. Its kernels are not noted; these decide them.
    """

    shape: Shape
    in_block: bool
    copies: int


def stepped_of(parameters: Sequence[Parameter]) -> tuple[Stepped, ...]:
    """Those that have a gradient."""
    found: dict[tuple[Shape, bool], int] = {}
    for one in parameters:
        if one.node is not None and not one.idle:
            key = (one.shape, bool(one.path))
            found[key] = found.get(key, 0) + one.copies * one.parts
    return tuple(Stepped(shape, in_block, copies) for (shape, in_block), copies in found.items())


class Launches(Observer):
    """Notes what a tape runs. Shapes are noted, never tensors: those have lifetimes."""

    def __init__(self, tape: Tape) -> None:
        self.tape, self.events = tape, tape.events
        self.flops: dict[str, int] = {FORWARD: 0, RECOMPUTE: 0, BACKWARD: 0}
        self.launches: list[Launch] = []
        self.counted: list[Counted] = []
        self.recomputed: dict[tuple[int, int], int] = {}  # by the outermost units around, of one of their copies
        self.is_apart = False
        self.of_one: set[int] = set()  # numbers of the launches that are of one sample, and have the like for each
        self.stand_ins: set[int] = set()  # storages in place of those of samples that are not played
        tape.observe(self)

    def launched(self, operator: str, operands: Sequence[Any]) -> None:
        """An operator is about to run on these operands."""
        tape = self.tape
        read = [(x.shape, x.dtype, x.batched, x.strides) for x in operands if isinstance(x, Tensor)]
        if self.is_apart:
            self.of_one.add(len(self.launches))
        self.launches.append((len(self.events), operator, tape.direction, tape.path, read))

    def worked(self, flops: int, again: int, head_size: int) -> None:
        """It counts its operations."""
        tape = self.tape
        self.flops[tape.direction] += flops * tape.copies
        if self.launches:
            self.counted.append((len(self.launches) - 1, flops, again, head_size))
        if tape.direction == RECOMPUTE:
            (unit, times), (inner, each), *_ = (*tape.path, (0, 1), (0, 1))
            key = (unit, inner)
            self.recomputed[key] = self.recomputed.get(key, 0) + flops * tape.copies // (times * each)

    def one_by_one(self, begins: bool) -> None:
        """Samples are taken one by one, or no longer."""
        if self.is_apart and not begins:
            self.of_one.discard(len(self.launches) - 1)
        self.is_apart = begins

    def stood_in(self, tensor: Tensor) -> None:
        """What it stands for is written by the kernels of the samples that are played."""
        assert tensor.storage is not None
        self.stand_ins.add(tensor.storage.index)


def at(poly: Poly, batch: int) -> int:
    """A polynomial at a micro-batch."""
    return poly[0] + batch * (poly[1] + batch * poly[2])


class Noted(NamedTuple):
    """What a tape has noted of its operators."""

    batch: int  # the representative micro-batch
    launches: Sequence[Launch]
    counted: Sequence[Counted]
    events: Sequence[int]
    fixed: Sequence[int]
    per_sample: Sequence[int]
    of_one: frozenset[int]  # numbers of launches that each sample has for itself
    not_written: frozenset[int]  # storages that are scratch or stand-ins, or were born elsewhere or renamed
    squared: Mapping[int, Any]  # storages with a size for each pair of samples
    end: int  # the first event of the optimizer's step


def kernels_of(noted: Noted) -> tuple[Kernel, ...]:
    """The kernels of forward, recomputation and backward, equal ones together, in the order of their first run."""
    return _kernels(noted, by_place=True)


def classes_of(noted: Noted) -> tuple[Kernel, ...]:
    """The same without where they run and on which shapes: fewer, for who asks for the time of all alone."""
    return _kernels(noted, by_place=False)


def together(kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """Equal ones of several parts of a model as one."""
    found: dict[Kernel, int] = {}
    for kernel in kernels:
        one = kernel._replace(times=0)
        found[one] = found.get(one, 0) + kernel.times
    return tuple(one._replace(times=times) for one, times in found.items())


def _kernels(noted: Noted, *, by_place: bool) -> tuple[Kernel, ...]:
    counts: dict[int, tuple[int, int, int]] = {}
    for number, flops, again, head in noted.counted:
        one = counts.get(number)
        counts[number] = (flops, again, head) if one is None else (one[0] + flops, one[1] + again, head or one[2])
    found: dict[tuple[int, int], int] = {}  # runs, by the number of a kernel and the unit
    numbers: dict[Kernel, int] = {}
    known: dict[tuple[Any, ...], int] = {}  # by what a launch is seen to do: most are like one before
    end, events = noted.end, noted.events
    stops = [min(launch[0], end) for launch in noted.launches[1:]]
    stops.append(end)
    path: Path | None = None
    copies = unit = 0
    for number, ((start, operator, direction, around, operands), stop) in enumerate(
        zip(noted.launches, stops, strict=False)
    ):
        births = [one for one in events[start:stop] if one >= 0] if start < stop else ()
        written, born = _written(noted, births) if births else (NOTHING, 0)
        count = counts.get(number)
        if not born and count is None and not _is_in_place(operator) and operator not in COLLECTIVES:
            continue
        if around is not path:
            path, copies = around, _copies(around)
            unit = around[0][0] if around and by_place else 0
        samples = noted.batch if number in noted.of_one else 0
        seen = (operator, direction, written, born, count, samples, *operands)
        kernel = known.get(seen)
        if kernel is None:
            made = _kernel(seen, operands, noted.batch, by_place=by_place)
            kernel = known[seen] = numbers.setdefault(made, len(numbers))
        key = (kernel, unit)
        found[key] = found.get(key, 0) + copies
    kernels = list(numbers)
    return tuple(kernels[kernel]._replace(unit=unit, times=times) for (kernel, unit), times in found.items())


def _is_in_place(operator: str) -> bool:
    return operator.endswith("_") or operator in IN_PLACE


def _kernel(seen: tuple[Any, ...], operands: Sequence[Operand], batch: int, *, by_place: bool) -> Kernel:
    """A kernel that does not yet say in which unit and how often it runs."""
    operator, direction, written, born, count, samples = seen[:6]
    read = _of(operands, batch)
    flops, again, head = count or (0, 0, 0)
    pairs = written[2] or (head and _in_one_row(operands, batch))
    order = 2 if pairs else max((batched for _, _, batched, _ in operands), default=0)
    if not born and _is_in_place(operator):
        written = _of(operands[:1], batch)
    figures = _at_order(flops, order, batch), _at_order(again, order, batch), read, written
    if samples:  # whatever of them grows with the micro-batch elsewhere: here it is the number of kernels
        figures = (flops, 0, 0), (again, 0, 0), (at(read, batch), 0, 0), (at(written, batch), 0, 0)
    return Kernel(
        operator,
        direction,
        _kind(operator, flops, head),
        0,
        _dtype(operator, operands),
        head,
        max(born, 1),
        *figures,
        tuple(operand[0] for operand in operands[:3]) if by_place else (),
        0,
        samples,
        _alignment(operator, operands) if _kind(operator, flops, head) == PRODUCT else 0,
    )


def _in_one_row(operands: Sequence[Operand], batch: int) -> bool:
    """Whether attention is over the samples of a micro-batch behind each other, each against all."""
    shape, _, batched, _ = operands[0]
    return bool(batched) and len(shape) == len(("B", "a", "S", "d")) and shape[0] < batch


def _kind(operator: str, flops: int, head: int) -> str:
    if operator in COLLECTIVES:
        return COLLECTIVE
    if head:
        return ATTENTION
    if flops:
        return CONVOLUTION if operator == "convolution" else PRODUCT
    return BYTES


def _dtype(operator: str, operands: Sequence[Operand]) -> str:
    if operator in EIGHT_BITS:
        return FP8
    floats = [dtype.name for shape, dtype, _, _ in operands if len(shape) > 1 and "float" in dtype.name]
    if operator in BATCHED and floats and floats[0] != "float32":
        ends = [size for shape, *_ in operands for size in shape[-2:]]
        if any(size % ALIGNED_ELEMENTS for size in ends):
            return UNALIGNED
    return floats[0] if floats else "float32"


def _alignment(operator: str, operands: Sequence[Operand]) -> int:
    """At multiples of how many elements the rows of a product's matrices begin: 1, 2, 4 or 8; 0 where it says nothing.

    Matrices of weights lie along either of their dimensions, those of tokens along the last one.
    """
    widths = [
        size
        for shape, dtype, batched, _ in operands
        if len(shape) > 1 and "float" in dtype.name and dtype.itemsize == 2
        for size in (shape[-1:] if batched else shape[-2:])
    ]
    if operator in BATCHED or not widths:
        return 0
    return gcd(ALIGNED_ELEMENTS, *widths)


def _written(noted: Noted, births: Sequence[int]) -> tuple[Poly, int]:
    """Bytes of what is born, which is written, those read again by what follows included, and in how many tensors."""
    fixed = sample = pair = born = 0
    not_written = noted.not_written
    for index in births:
        if index not in not_written:
            fixed += noted.fixed[index]
            sample += noted.per_sample[index]
            if index in noted.squared:
                pair += noted.squared[index](noted.batch) // noted.batch**2
            born += 1
    return (fixed, sample, pair), born


def _of(operands: Iterable[Operand], batch: int) -> Poly:
    """Bytes of operands; a dimension along which one is expanded is read once, also where that is the micro-batch."""
    orders = [0, 0, 0]
    for shape, dtype, batched, strides in operands:
        size, order = prod(shape), int(batched)
        if strides is not None and 0 in strides:
            size = _distinct(shape, strides)
            order = 0 if shape[0] == batch and not strides[0] else order
        orders[order] += size * dtype.itemsize
    return orders[0], orders[1] // batch, orders[2] // batch**2


def _distinct(shape: Shape, strides: Shape) -> int:
    return prod(size for size, stride in zip(shape, strides, strict=True) if stride)


def _at_order(figure: int, order: int, batch: int) -> Poly:
    orders = [0, 0, 0]
    orders[order] = figure // batch**order
    return orders[0], orders[1], orders[2]


def _copies(path: Path) -> int:
    copies = 1
    for _, times in path:
        copies *= times
    return copies
