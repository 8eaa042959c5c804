"""The record of one training iteration: who is born and dies when, and the graph that backward will walk."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from math import prod
from typing import Any, Protocol

from vramplan.replay.layouts import ALLOCATOR_BLOCK_BYTES, FP32, SQUARED, DType, Shape, dense_like, round_up

if sys.implementation.name != "cpython":  # pragma: no cover
    raise RuntimeError("vramplan follows lifetimes by CPython's reference counts; other interpreters free late")

Path = tuple[tuple[int, int], ...]  # the repeated units around an event: (identity, copies), outermost first
Saved = Sequence[Any]


ASKED = "input"  # the name of what was asked for its gradient, which is no weight


class Storage:
    """Memory with a birth and a death. Dying writes `~index` into the list of events."""

    __slots__ = ("events", "index")

    def __init__(self, events: list[int], index: int) -> None:
        self.events = events
        self.index = index
        events.append(index)

    def __del__(self) -> None:
        self.events.append(~self.index)


class Tensor:
    """A view of a storage. `node` is what receives its gradient; None means that it needs none.

    `strides` is None for a contiguous tensor. `storage` is None for tensors that outlive the iteration (weights,
    inputs, buffers): they are counted once, as states. `batched` says that the number of elements scales with the
    micro-batch, or with its square (SQUARED).
    """

    __slots__ = ("batched", "dtype", "node", "output_index", "shape", "storage", "strides", "tape")

    def __init__(
        self,
        tape: Tape,
        storage: Storage | None,
        shape: Shape,
        dtype: DType,
        batched: int,
        strides: Shape | None = None,
        node: Any = None,
        output_index: int = 0,
    ) -> None:
        self.tape = tape
        self.storage = storage
        self.shape = shape
        self.dtype = dtype
        self.batched = batched
        self.strides = strides
        self.node = node
        self.output_index = output_index

    def alias(self, shape: Shape, strides: Shape | None, node: Any, output_index: int = 0) -> Tensor:
        """Another view of the same storage."""
        return Tensor(self.tape, self.storage, shape, self.dtype, self.batched, strides, node, output_index)


class Parameter(Tensor):
    """A weight. It is its own gradient accumulator, as `AccumulateGrad` is of a leaf.

    `copies` is how many identical parameters of identical blocks this one stands for, `path` the repeated units that
    make it so. `part` is the part of the model that it belongs to, from the outer to the inner: `("vision_encoder",)`.
    """

    __slots__ = (
        *("copies", "grad", "grad_bytes", "idle", "in_linear", "is_table", "name"),
        *("part", "parts", "path", "pending", "quantized", "waiting"),
    )

    def __init__(self, tape: Tape, name: str, shape: Shape, dtype: DType, copies: int, trainable: bool) -> None:
        super().__init__(tape, None, shape, dtype, False)
        self.name = name
        self.copies = copies
        self.path = tape.path
        self.part = tape.part
        self.parts = 1  # devices that have a part of the weight each, as this one has
        self.idle = False  # trainable, and no gradient reaches it
        self.in_linear = False  # the weight of a linear layer
        self.is_table = False  # an embedding: rows are looked up in it
        self.quantized: tuple[int, ...] = ()  # bytes of each tensor of a quantized weight, in place of its own
        self.node = self if trainable else None
        self.grad: Tensor | None = None  # made in this backward pass; resident gradients are states
        self.grad_bytes = 0  # of the storage that it would be in, where that is known: it may be a view of a larger one
        self.pending = 0  # edges of the graph that will still bring a gradient
        self.waiting: Tensor | None = None  # the sum of those that came, while others are pending

    @property
    def elements(self) -> int:
        """Number of elements of one copy."""
        return prod(self.shape)

    @property
    def stored_bytes(self) -> int:
        """Bytes of one copy on the device, each of its tensors in allocator blocks."""
        sizes = self.quantized or (self.elements * self.dtype.itemsize,)
        return sum(round_up(size, ALLOCATOR_BLOCK_BYTES) for size in sizes)


Backward = Callable[[Any, Saved], Sequence[Tensor | None]]


class Node:
    """One recorded operator: where its gradients go, what it saved, and how it makes them.

    `fn(grad, saved)` returns one gradient per input. It closes over specifications only, never over tensors.
    """

    __slots__ = ("edges", "fn", "frame", "grads", "operator", "path", "saved", "slot", "width")

    def __init__(
        self, operator: str, fn: Backward, edges: list[tuple[Any, int, Shape, int, DType]], path: Path
    ) -> None:
        self.operator = operator
        self.fn = fn
        self.edges = edges
        self.path = path
        self.saved: list[Any] | None = None
        self.frame: Frame | None = None
        self.slot = 0
        self.width = 0
        self.grads: list[Tensor | None] | None = None


class Leaf(Node):
    """What gets the gradient of a leaf where a graph of its own begins, as that of a reentrant checkpoint."""

    __slots__ = ()


def begins_graph(node: Any) -> bool:
    """Whether what a tensor's gradient goes to makes it a leaf that is no weight."""
    return type(node) is Leaf or (type(node) is Parameter and node.name == ASKED)


class Recomputed:
    """Stands for the node of a tensor that is recomputed: such tensors need gradients, but nobody walks their graph."""


RECOMPUTED = Recomputed()


class StopRecomputation(Exception):
    """Everything that backward will ask for has been recomputed."""


# what a selective checkpoint keeps: the results of matrix products and of fused attention, as PyTorch's own list of
# compute-intensive operators has them (torch/_functorch/partitioners.py, get_default_op_list)
MATMULS = "matmuls"
ALTERNATE_MATMULS = "alternate-matmuls"  # the same, but of linear layers only the first, third, ... of the checkpoint


class Frame:
    """One non-reentrant checkpoint: how to compute again, and what that gave.

    It lives as long as a node of its segment that saved something has not run: so long its inputs stay alive, and so
    do the results that it keeps and that recomputation, which stops early, has not asked for.
    Source: torch/utils/checkpoint.py, _CheckpointFrame and create_selective_checkpoint_contexts.
    """

    __slots__ = (
        "__weakref__",
        "asked",
        "autocast",
        "function",
        "inputs",
        "keeps",
        "kept",
        "path",
        "products",
        "saves",
        "taken",
    )

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Saved,
        path: Path,
        autocast: DType | None,
        keeps: str | None = None,
    ) -> None:
        self.function = function
        self.inputs = inputs
        self.path = path
        self.autocast = autocast  # the element type of autocast, in recomputation too
        self.saves = 0
        self.taken: list[Any] | None = None
        self.keeps = keeps  # None: nothing; MATMULS or ALTERNATE_MATMULS
        self.kept: list[tuple[Tensor, ...] | None] = []  # in the order of the operators; None is computed again
        self.products = 0  # products of linear layers that forward has run
        self.asked = 0  # operators of its list that recomputation has come to


class Trained(Protocol):
    """What is trained of a model, and what becomes of its linear layers."""

    def parameter(self, tape: Tape, name: str, shape: Shape, dtype: DType) -> bool:
        """Whether a weight that is made now is trained."""

    def linear(self, tape: Tape, module: Any, name: str) -> Callable[[Any, Tensor], Tensor] | None:
        """What runs in place of a linear layer that was made now, with the layer and its input; None: the layer."""

    def convolution(self, tape: Tape, module: Any, name: str) -> Callable[[Any, Tensor], Tensor] | None:
        """The same of a convolution."""

    def tensors(self, tape: Tape, weights: dict[str, Parameter]) -> Callable[..., Any] | None:
        """What runs in place of a module of bare weights, by their names, that were made now; None: the module."""

    def block(self, number: int) -> object:
        """What of a block is trained: blocks with equal answers are alike."""

    def shared_bytes(self) -> int:
        """Bytes on the device beside the weights, in allocator blocks."""


class Observer:
    """Is told of what a tape records, and may act on it. As it stands, it does nothing.

    A method that a class does not override is never called.
    """

    unpacks = False  # whether what `recorded` gives unpacks saved tensors by itself
    walks_others = True  # whether it is told of another model than the one that trains, too

    def made(self, parameter: Parameter) -> None:
        """A parameter was made."""

    def made_linear(self, layer: Any) -> None:
        """A linear layer was made."""

    def recorded(self, inputs: Sequence[Tensor | None], fn: Backward) -> Backward:
        """An operator is about to run; its backward function, or one around it."""
        return fn

    def launched(self, operator: str, operands: Sequence[Any]) -> None:
        """An operator is about to run on these operands, in forward or in backward."""

    def packing(self, tensors: Saved) -> Saved:
        """Tensors are about to be saved for backward: what is saved in their place."""
        return tensors

    def unpacking(self, saved: Saved) -> Saved:
        """Backward asks for what was saved: the tensors again."""
        return saved

    def model_left(self) -> None:
        """What follows in forward is outside of contexts around the model's forward pass."""

    def worked(self, flops: int, again: int, head_size: int) -> None:
        """The operator that runs has counted floating-point operations of the representative batch.

        A fused attention gives the size of its heads, and `again`: those of scores that it makes a second time.
        """

    def checkpointed(self, function: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
        """A segment is checkpointed: what runs in place of the usual checkpoint gives its result."""

    def passed_by_name(self, tensor: Tensor) -> None:
        """Every block is given a tensor as an argument by its name, which no checkpoint takes for one of its inputs."""

    def recomputing(self, node: Node) -> None:
        """A checkpoint is about to run again, for the backward of a node."""

    def looked_up(self, tensor: Tensor, table: Parameter | None) -> Tensor:
        """What a table gave, or without one the first module of a model; what goes on in its place."""
        return tensor

    def leaf_reached(self, leaf: Parameter) -> None:
        """Backward has come to a leaf of the graph that is no weight."""

    def table_reached(self, table: Parameter) -> None:
        """Backward has come to what a table gave that was asked for its gradient."""

    def outputs_bound(self) -> None:
        """The training loop has bound the variables of its outputs to new ones."""

    def graph_walked(self, held: Sequence[Any]) -> None:
        """Backward is through; what lived until now is about to go."""

    def before_accumulate(self, parameter: Parameter) -> None:
        """A hook of the accumulator of a gradient: before it takes the gradient."""

    def after_accumulate(self, parameter: Parameter) -> None:
        """A hook of the accumulator of a gradient: when it has the gradient."""

    def reduced(self, shard: Parameter) -> None:
        """A hook of a shard in backward: when it has its part of the gradient, summed over the devices."""


EVENTS = tuple(name for name, method in vars(Observer).items() if callable(method) and name[0] != "_")


class Told:
    """Who is told of what: of each event, the methods of the observers that override it, in their order."""

    __slots__ = EVENTS

    made: tuple[Callable[[Parameter], None], ...]
    made_linear: tuple[Callable[[Any], None], ...]
    recorded: tuple[Callable[[Sequence[Tensor | None], Backward], Backward], ...]
    launched: tuple[Callable[[str, Sequence[Any]], None], ...]
    packing: tuple[Callable[[Saved], Saved], ...]
    unpacking: tuple[Callable[[Saved], Saved], ...]
    model_left: tuple[Callable[[], None], ...]
    checkpointed: tuple[Callable[[Callable[..., Any], tuple[Any, ...]], Any], ...]
    passed_by_name: tuple[Callable[[Tensor], None], ...]
    outputs_bound: tuple[Callable[[], None], ...]
    graph_walked: tuple[Callable[[Sequence[Any]], None], ...]
    worked: tuple[Callable[[int, int, int], None], ...]
    recomputing: tuple[Callable[[Node], None], ...]
    looked_up: tuple[Callable[[Tensor, Parameter | None], Tensor], ...]
    leaf_reached: tuple[Callable[[Parameter], None], ...]
    table_reached: tuple[Callable[[Parameter], None], ...]
    before_accumulate: tuple[Callable[[Parameter], None], ...]
    after_accumulate: tuple[Callable[[Parameter], None], ...]
    reduced: tuple[Callable[[Parameter], None], ...]

    def __init__(self, observers: Sequence[Observer]) -> None:
        for event in EVENTS:
            setattr(self, event, ())
        for one in observers:
            kind: Any = type(one)
            for event in _overridden(kind):
                setattr(self, event, (*getattr(self, event), getattr(one, event)))


@cache
def _overridden(kind: Any) -> tuple[str, ...]:
    """The events that a class of observers follows."""
    return tuple(event for event in EVENTS if getattr(kind, event) is not getattr(Observer, event))


NOBODY = Told(())


class Sharding(Observer):
    """How devices share the states of a model: what happens around each block. As it stands, nothing does."""

    every_block_of_a_checkpoint = False  # whether blocks of one checkpoint are not alike
    linear_is_function = False  # `F.linear` is a function of Python, which saves all of its operands
    weights_are_views = False  # of one tensor for several of them, so that they are no leaves of a graph
    buffer_dtype: DType | None = None  # of the model's buffers, where weights are gathered in another one
    thin: Callable[[Tensor, Parameter], Tensor] | None = None  # what runs the thin layers of an adapter
    rows_among = 1  # devices that have rows of each matrix when it is stepped
    hooks_stay_outside = False  # of checkpoints that a switch of the library makes
    reduces_in_backward = False  # shards have their gradients there, and tell `Observer.reduced`

    def units(self, make: Callable[[int], Any]) -> Callable[[int], Any]:
        """What builds a block, from what builds it on one device."""
        return make

    def around_checkpoints(self, make: Callable[[int], Any], names: Sequence[str]) -> Callable[[int], Any]:
        """What builds a block whose forward pass is a checkpoint, which is handed attributes of these names too.

        Asked for where `hooks_stay_outside`.
        """
        return make

    def apart(self) -> list[int]:
        """The blocks of the walk that `units` was last asked for which something happens in that others do not see."""
        return []

    def begin_other(self) -> None:
        """Another model runs, whose blocks are shared for themselves and which backward never comes to."""

    def end_other(self) -> None:
        """It has run."""

    def after_model(self, loss: Tensor) -> Tensor:
        """The model has returned its loss, or what one is made of; the same to go on with."""
        return loss


class Tape:
    """Records births, deaths, phases and repeated units of one iteration.

    `batch` is the representative micro-batch: 2 for every batch above 1, or 1. With `direct=True` it is the real one
    and all sizes are plain rounded bytes: the slow, literal replay that tests compare with. With `unrolled=True` every
    copy of a repeated unit is played, as the simulated allocator needs it; a direct replay is always unrolled.
    """

    def __init__(self, batch: int, *, direct: bool = False, unrolled: bool = False) -> None:
        self.batch = batch
        self.direct = direct
        self.unrolled = direct or unrolled
        self.events: list[int] = []  # index: birth, ~index: death
        self.fixed: list[int] = []  # bytes that do not depend on the batch, rounded to allocator blocks
        self.per_sample: list[int] = []  # bytes per sample, unrounded
        self.sized: dict[
            int, Callable[[int], int]
        ] = {}  # the rare sizes that are not affine, as functions of the batch
        self.not_affine: set[int] = set()  # those of them that no line approximates
        self.operators: list[str] = []  # what made each storage
        self.categories: list[str] = []
        self.marks: list[tuple[int, Path]] = [(0, ())]  # from this event on, inside these repeated units
        self.phases: list[tuple[int, str]] = []  # from this event on, this phase
        self.path: Path = ()
        self.copies = 1  # product of the copies of the path
        self.units = 0
        self.numbers: list[tuple[int, int]] = [(0, 1)]  # of each unit: its first item's number, items' distance
        self.elsewhere: set[int] = set()  # storages that were allocated on another stream than the model runs on
        self.unjoined: set[int] = set()  # storages that take no freed block, where none before them was as large
        self.relabelled: set[int] = set()  # storages that were born by changing their component, not by allocation
        self.nodes: list[Node] = []
        self.category = "activations"
        self.frame: Frame | None = None  # the checkpoint whose forward runs now
        self.recomputing: Frame | None = None
        self.no_grad = False  # torch.no_grad(): nothing is recorded
        self.autocast: DType | None = None
        self.pytorch: tuple[int, int] | None = None  # the release whose operators run; None: those that were traced
        self.kernels: Any = None  # what runs in place of a model's own norms, gated activations and rotary positions
        self.casts: dict[Any, Tensor] = {}  # by what gets the gradient of the tensor that was cast
        self.parameters: list[Parameter] = []
        self.part: tuple[str, ...] = ()  # of the model, that is being built
        self.leaves: dict[Parameter, bool] = {}  # made inside the model: whether others hold the gradient too
        self.trained: Trained | None = None  # what is trained, where that is not every weight
        self.sharding: Sharding | None = None  # how devices share the states, where they do: an observer too
        self.observers: tuple[Observer, ...] = ()
        self.told = NOBODY
        self.held: list[Any] = []  # what lives until backward is over; (node, tensor): with the node's graph
        self.aside: list[Any] | None = None  # what a graph holds that the loss does not hang on
        self.gradients_resident = False
        self.direction = "forward"  # what runs: forward, recompute or backward

    # ------------------------------------------------------------------------------------------------ storages
    def new(
        self,
        operator: str,
        shape: Shape,
        dtype: DType,
        batched: int,
        strides: Shape | None = None,
        node: Any = None,
        category: str | None = None,
    ) -> Tensor:
        """Allocate a tensor."""
        size = prod(shape) * dtype.itemsize
        index = len(self.fixed)
        if batched == SQUARED and not self.direct:
            self._square(index, size)
        elif batched and not self.direct:
            self.fixed.append(0)
            self.per_sample.append(size // self.batch)
        else:
            self.fixed.append(-(-size // ALLOCATOR_BLOCK_BYTES) * ALLOCATOR_BLOCK_BYTES)
            self.per_sample.append(0)
        self.operators.append(operator)
        self.categories.append(category or self.category)
        return Tensor(self, Storage(self.events, index), shape, dtype, batched, strides, node)

    def _square(self, index: int, size: int) -> None:
        """A size that is not affine: of one number for each pair of samples."""
        each = size // self.batch**2
        self.fixed.append(0)
        self.per_sample.append(0)
        self.sized[index] = lambda batch: rounded(each * batch * batch)
        self.not_affine.add(index)

    def several(self, operator: str, shape: Shape, dtype: DType, copies: int, category: str | None = None) -> Tensor:
        """Allocate several identical tensors that die together, as foreach kernels do for identical parameters."""
        tensor = self.new(operator, shape, dtype, False, category=category)
        self.fixed[-1] *= copies
        return tensor

    def like(self, operator: str, source: Tensor, dtype: DType | None = None, node: Any = None) -> Tensor:
        """Allocate a tensor of the shape and dimension order of another."""
        strides = None if source.strides is None else dense_like(source.shape, source.strides)
        return self.new(operator, source.shape, dtype or source.dtype, source.batched, strides, node)

    def workspace(self, operator: str, size: Callable[[int], int], per_sample: int | None = None) -> None:
        """Scratch of one kernel: `size` gives its bytes (already rounded) at a micro-batch; it dies at once.

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
        Storage(self.events, index)

    def size_of(self, storage: Storage) -> int:
        """Bytes of a storage at the representative batch, as the allocator hands them out."""
        return self.fixed[storage.index] + rounded(self.per_sample[storage.index] * self.batch)

    def on_another_stream(self, tensor: Tensor) -> Tensor:
        """A tensor that was allocated while another stream was current: its memory is of no use to the others.

        Source: c10/cuda/CUDACachingAllocator.cpp, BlockComparatorSize (blocks are ordered by stream first).
        """
        assert tensor.storage is not None
        self.elsewhere.add(tensor.storage.index)
        return tensor

    def relabel(self, tensor: Tensor, category: str) -> None:
        """Count a living storage under another component from now on."""
        storage = tensor.storage
        assert storage is not None
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

    def parameter(self, name: str, shape: Shape, dtype: DType, *, trainable: bool = True) -> Parameter:
        """A weight of the model, standing for one in each copy of the current unit."""
        if self.trained is not None:
            trainable = self.trained.parameter(self, name, shape, dtype)
        parameter = Parameter(self, name, shape, dtype, self.copies, trainable)
        self.parameters.append(parameter)
        for made in self.told.made:
            made(parameter)
        return parameter

    def observe(self, observer: Observer) -> None:
        """Tell an observer of all that comes, after those that are there."""
        self.tell((*self.observers, observer))

    def ignore(self, observer: Observer) -> None:
        """Tell an observer no more."""
        self.tell([one for one in self.observers if one is not observer])

    def tell(self, observers: Sequence[Observer]) -> None:
        """Tell these and no others."""
        self.observers = tuple(observers)
        self.told = Told(observers) if observers else NOBODY

    def looked_up(self, tensor: Tensor, table: Parameter | None = None) -> Tensor:
        """What a table gave, or the first module of a model, as it goes on: observers may change it."""
        for looked_up in self.told.looked_up:
            tensor = looked_up(tensor, table)
        return tensor

    def asked(self, tensor: Tensor) -> Tensor:
        """A tensor that was made to need a gradient: a leaf, which lives with its gradient until backward is over.

        Source: torch/csrc/autograd/functions/accumulate_grad.h: the accumulator holds the variable.
        """
        accumulator = Parameter(self, ASKED, tensor.shape, tensor.dtype, 1, trainable=True)
        accumulator.storage = tensor.storage
        self.held.append(accumulator)
        return tensor.alias(tensor.shape, tensor.strides, accumulator)

    @contextmanager
    def building(self, part: str) -> Iterator[None]:
        """Parameters that are made inside belong to this part of the model."""
        outer, self.part = self.part, (*self.part, part)
        try:
            yield
        finally:
            self.part = outer

    def drop_leaves(self) -> None:
        """The graph is gone, and with it the leaves that it held."""
        while self.leaves:
            leaf, _ = self.leaves.popitem()
            leaf.node = None  # it was its own accumulator

    @contextmanager
    def dropped(self) -> Iterator[list[Any]]:
        """What is recorded inside needs gradients, but no loss will hang on it.

        The list that it gives holds what that graph saved, and lives as long as the caller wants the graph to. Casts of
        weights that autocast keeps for others are no part of it.
        """
        graph: list[Any] = []
        start, outer, self.aside = len(self.nodes), self.aside, graph
        try:
            yield graph
        finally:
            self.aside = outer
            kept = {id(cast.node) for cast in self.casts.values()}
            for node in self.nodes[start:]:
                if id(node) in kept:
                    continue
                graph.append(node.saved)
                node.saved = None
                for target, *_ in node.edges:
                    if type(target) is Parameter:
                        target.pending -= 1

    def constant(self, shape: Shape, dtype: DType, batched: bool, name: str = "") -> Tensor:
        """A tensor that is alive before the iteration begins (inputs, buffers): counted as a state."""
        return Tensor(self, None, shape, dtype, batched)

    # --------------------------------------------------------------------------------------------------- units
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
        `apart` are items that hold what no item before them does: they are played on their own too.
        """
        outer = self.path
        if self.unrolled:
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
            self.units += 1
            self.numbers.append((start + index * stride, stride))
            self.enter((*outer, (self.units, times)))
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

    def phase(self, name: str) -> None:
        """From here on it is this phase: forward, backward or step."""
        self.phases.append((len(self.events), name))

    def work(self, flops: int, again: int = 0, head_size: int = 0) -> None:
        """The operator that runs counts its floating-point operations, as `Observer.worked` says."""
        for worked in self.told.worked:
            worked(flops, again, head_size)

    # --------------------------------------------------------------------------------------------------- graph
    def record(self, operator: str, inputs: Sequence[Tensor | None], fn: Backward, saves: Saved = ()) -> Any:
        """Make the node of an operator before its kernel runs; None if no input needs a gradient.

        Saved inputs are packed here, saved outputs by `save` afterwards: the order in which a checkpoint stops early.
        """
        told = self.told
        for launched in told.launched:
            launched(operator, inputs)
        for recorded in told.recorded:
            fn = recorded(inputs, fn)
        if self.no_grad:
            return None
        for tensor in inputs:
            if tensor is not None and tensor.node is not None:
                break
        else:
            return None
        if self.recomputing is not None:
            if saves:
                self._pack(self.recomputing, saves)
            return RECOMPUTED
        edges: list[tuple[Any, int, Shape, int, DType]] = []
        for tensor in inputs:
            if tensor is None or tensor.node is None:
                edges.append((None, 0, (), False, FP32))
                continue
            target = tensor.node
            if type(target) is Parameter:
                target.pending += 1
            edges.append((target, tensor.output_index, tensor.shape, tensor.batched, tensor.dtype))
        node = Node(operator, fn, edges, self.path)
        self.nodes.append(node)
        if saves:
            self.save(node, *saves)
        return node

    def abandon(self, first: int, last: int) -> None:
        """These nodes go with the results that nobody used: no gradient will come through them.

        A parameter that only they would have reached gets none: it is not stepped and has no states.
        """
        for node in self.nodes[first:last]:
            for target, _, _, _, _ in node.edges:
                if type(target) is Parameter:
                    target.pending -= 1
            node.saved = node.frame = None
        if self.held:
            gone = {*self.nodes[first:last]}
            self.held = [one for one in self.held if not (type(one) is tuple and one[0] in gone)]
        del self.nodes[first:last]

    def save(self, node: Any, *tensors: Any) -> None:
        """Keep tensors for backward (outputs, or further inputs)."""
        if node is None:
            return
        if self.told.packing and self.frame is None:
            tensors = tuple(self.packed(tensors))
        if node is RECOMPUTED:
            assert self.recomputing is not None
            self._pack(self.recomputing, tensors)
        elif self.frame is not None:
            frame = self.frame
            if node.frame is None:
                node.frame, node.slot = frame, frame.saves
            frame.saves += len(tensors)
            node.width += len(tensors)
        elif node.saved is None:
            node.saved = list(tensors)
        else:
            node.saved.extend(tensors)

    def packed(self, tensors: Saved) -> Saved:
        """What is saved in place of tensors: torch.autograd.graph.saved_tensors_hooks."""
        for packing in self.told.packing:
            tensors = packing(tensors)
        return tensors

    def unpacked(self, saved: Saved) -> Saved:
        """The tensors that were saved."""
        for unpacking in self.told.unpacking:
            saved = unpacking(saved)
        return saved

    def leave_model(self) -> None:
        """What follows in forward is outside of contexts around the model's forward pass."""
        for left in self.told.model_left:
            left()

    @property
    def selective(self) -> bool:
        """Whether the checkpoint that runs or is recomputed now keeps results."""
        frame = self.frame or self.recomputing
        return frame is not None and frame.keeps is not None

    def keep(self, product: bool, *results: Tensor) -> None:
        """Let a selective checkpoint keep what an operator of its list gave.

        `product` says that it is the product of a linear layer, of which ALTERNATE_MATMULS keeps every second one. A
        kept result is another view of the storage, which needs no gradient.
        """
        frame = self.frame
        if frame is None:
            return  # it was computed again because it is not kept
        frame.products += product
        kept = not product or frame.keeps == MATMULS or frame.products % 2 == 1
        frame.kept.append(tuple(x.alias(x.shape, x.strides, None) for x in results) if kept else None)

    def recall(self) -> tuple[Tensor, ...] | None:
        """What was kept of the operator that is computed again now, handed out once; None if it has to run."""
        frame = self.recomputing
        if frame is None:
            return None
        results, frame.kept[frame.asked] = frame.kept[frame.asked], None
        frame.asked += 1
        return results

    def joined(self, tensors: Sequence[Tensor], dim: int) -> Tensor | None:
        """What concatenating gives without a copy: only a compiled step knows that some tensors are empty."""
        return None

    def leave_graph(self, tensor: Tensor) -> Tensor:
        """What follows is not compiled with the model; the tensor to go on with. Compiled steps alone have graphs."""
        return tensor

    def meets(self, *gradients: Tensor) -> None:
        """Two gradients are about to be added: only a compiled step needs to know."""

    def accumulated(self, gradient: Tensor) -> None:
        """A gradient was added to one that was there, and goes: only a compiled step keeps it."""

    def _pack(self, frame: Frame, tensors: Saved) -> None:
        taken = frame.taken
        assert taken is not None
        for tensor in tensors:
            if self.aside is None:
                taken.append(tensor)
            else:  # nobody will ask for it, and it lives as long as its graph
                taken.append(None)
                self.aside.append(tensor)
            if len(taken) == frame.saves:
                raise StopRecomputation


def rounded(size: int) -> int:
    """Bytes as the caching allocator hands them out: multiples of 512."""
    return round_up(size, ALLOCATOR_BLOCK_BYTES)
