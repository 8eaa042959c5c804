"""Tensors without data, and the tape that records what happens to them: the graph that backward will walk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

from vramplan.replay.checkpoints import RECOMPUTED, Frame, Saved
from vramplan.replay.guests import Guests
from vramplan.replay.layouts import (
    ALLOCATOR_BLOCK_BYTES,
    FP32,
    DType,
    Shape,
    dense_like,
    normalised,
    round_up,
    view_strides,
)
from vramplan.replay.ledger import Ledger, Path, Storage, rounded

__all__ = (
    "Backward",
    "Leaf",
    "Node",
    "Parameter",
    "Path",
    "Saved",
    "Storage",
    "Tape",
    "Tensor",
    "reshape_gradient",
    "rounded",
)

_blank = object.__new__  # half of the time of a constructor in Python, in the two methods that each operator calls
_NO_EDGE: tuple[Any, int, Shape, int, DType] = (None, 0, (), False, FP32)  # of an input that needs no gradient

# the names of accumulators of tensors that are no weights
ASKED = "input"  # after `requires_grad_`
ASKED_VIEW = "view"  # the same of a view of another tensor, whose cast autocast does not keep
ARGUMENT = "argument"  # of a reentrant checkpoint, which it computes its segment again from


class Tensor:
    """A view of a storage. `node` receives its gradient, and is None for a tensor that needs none.

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
        view: Tensor = _blank(Tensor)
        view.tape = self.tape
        view.storage = self.storage
        view.shape = shape
        view.dtype = self.dtype
        view.batched = self.batched
        view.strides = strides
        view.node = node
        view.output_index = output_index
        return view


IN_ANOTHERS = -1
"""As the bytes of a gradient: it is a view of a tensor that another gradient, which counts them, is one of, too."""


class Parameter(Tensor):
    """A weight. It is its own gradient accumulator, as `AccumulateGrad` is of a leaf.

    `copies` is how many identical parameters of identical blocks this one stands for, `path` the repeated units that
    make it so. `part` is the part of the model that it belongs to, from the outer to the inner: `("vision_encoder",)`.
    `inside` is the last parameter of the modules that lie in the module whose own it is, where there are some.
    """

    __slots__ = (
        *("copies", "grad", "grad_bytes", "grad_index", "idle", "in_linear", "inside", "is_table", "name"),
        *("part", "parts", "path", "pending", "quantized", "shared", "waiting"),
    )

    def __init__(self, tape: Tape, name: str, shape: Shape, dtype: DType, copies: int, trainable: bool) -> None:
        super().__init__(tape, None, shape, dtype, False)
        self.name = name
        self.copies = copies
        self.path = tape.path
        self.part = tape.part
        self.parts = 1  # number of devices that have a part of the weight each
        self.idle = False  # it is trainable, and no gradient reaches it
        self.in_linear = False  # it is the weight of a linear layer
        self.inside: Parameter | None = None
        self.is_table = False  # it is an embedding, whose rows are looked up
        self.quantized: tuple[int, ...] = ()  # bytes of each tensor that a quantized weight consists of
        self.node = self if trainable else None
        self.grad: Tensor | None = None  # made in this backward pass; resident gradients are states
        self.grad_bytes = 0  # of the storage of its gradient, if known: the gradient may be a view of a larger tensor
        self.grad_index = -1  # the number of that storage, likewise
        self.pending = 0  # edges of the graph that will still bring a gradient
        self.shared: bool | None = None  # for a leaf made inside a model: whether another tensor holds its gradient too
        self.waiting: Tensor | None = None  # the sum of the gradients until now, while others are pending

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

    __slots__ = (
        *("__weakref__", "edges", "fn", "frame", "grads", "operator", "path", "saved", "slot", "viewed", "views_input"),
        "width",
    )

    def __init__(
        self, operator: str, fn: Backward, edges: list[tuple[Any, int, Shape, int, DType]], path: Path
    ) -> None:
        self.operator = operator
        self.fn = fn
        self.edges = edges
        self.path = path
        self.saved: list[Any] | None = None  # None under a checkpoint, whose frame has the tensors
        self.frame: Frame | None = None
        self.slot = 0  # the number of its first saved tensor in the frame
        self.width = 0  # how many it saved there
        self.viewed: Shape | None = None  # the shape of its result, where that is viewed in another at once
        self.views_input = False  # its input is viewed in another shape, behind what its weights go through
        self.grads: list[Tensor | None] | None = None


class Leaf(Node):
    """Receives the gradient of an input of an inner graph, such as that of a reentrant checkpoint."""

    __slots__ = ()


def begins_graph(node: Any) -> bool:
    """Whether a tensor with this node is a leaf that is not a weight."""
    return type(node) is Leaf or (type(node) is Parameter and node.name in (ASKED, ARGUMENT))


def reshape_gradient(grad: Tensor, shape: Shape) -> Tensor:
    """A gradient in another shape: a view if its strides allow it, else one copy.

    Source: aten/src/ATen/native/TensorShape.cpp, reshape.
    """
    possible, strides = view_strides(grad.shape, grad.strides, shape)
    if possible:
        return grad.alias(shape, strides, None)
    return grad.tape.new("clone", shape, grad.dtype, grad.batched)


class Tape(Ledger, Guests):
    """Records one iteration: storages and units in its ledger, and the graph of the operators.

    The tape has the state of autograd. It does not know how devices share the states, or what is trained: guests of the
    iteration observe the tape, and play the roles that models and operators ask for.
    """

    def __init__(self, batch: int, *, direct: bool = False, unrolled: bool = False) -> None:
        Ledger.__init__(self, batch, direct=direct, unrolled=unrolled)
        Guests.__init__(self)
        self.nodes: list[Node] = []
        self.frame: Frame | None = None  # the checkpoint whose forward runs now
        self.recomputing: Frame | None = None  # the checkpoint that backward computes again now
        self.no_grad = False  # torch.no_grad(): nothing is recorded
        self.autocast: DType | None = None
        self.casts: dict[Any, Tensor] = {}  # autocast's cache, by the node of the tensor that was cast
        self.direction = "forward"  # what runs: forward, recompute or backward
        self.held: list[Any] = []  # tensors that live until backward is over; (node, tensor) if they hang on a node
        self.leaves: list[Parameter] = []  # leaves made inside the model, which live as long as the graph
        self.parameters: list[Parameter] = []
        self.part: tuple[str, ...] = ()  # the part of the model that is being built, from the outer to the inner

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
        tensor: Tensor = _blank(Tensor)
        tensor.tape = self
        tensor.storage = self.allocate(operator, prod(shape) * dtype.itemsize, batched, category)
        tensor.shape = shape
        tensor.dtype = dtype
        tensor.batched = batched
        tensor.strides = strides
        tensor.node = node
        tensor.output_index = 0
        return tensor

    def several(self, operator: str, shape: Shape, dtype: DType, copies: int, category: str | None = None) -> Tensor:
        """Allocate several identical tensors that die together, as foreach kernels do for identical parameters."""
        tensor = self.new(operator, shape, dtype, False, category=category)
        self.fixed[-1] *= copies
        return tensor

    def like(self, operator: str, source: Tensor, dtype: DType | None = None, node: Any = None) -> Tensor:
        """Allocate a tensor of the shape and dimension order of another."""
        strides = None if source.strides is None else dense_like(source.shape, source.strides)
        return self.new(operator, source.shape, dtype or source.dtype, source.batched, strides, node)

    def by_position(self, operator: str, source: Tensor, node: Any = None, width: int | None = None) -> Tensor:
        """Allocate [B, a, S, d] that is stored as [B, S, a, d]; d is that of the source unless said otherwise."""
        batch, heads, length, own = source.shape
        width = width or own
        shape = (batch, heads, length, width)
        strides = normalised(shape, (length * heads * width, width, heads * width, 1))
        return self.new(operator, shape, source.dtype, source.batched, strides, node)

    def on_another_stream(self, tensor: Tensor) -> Tensor:
        """A tensor that was allocated while another stream was current: its memory is of no use to the others.

        Source: c10/cuda/CUDACachingAllocator.cpp, BlockComparatorSize (blocks are ordered by stream first).
        """
        assert tensor.storage is not None
        self.elsewhere.add(tensor.storage.index)
        return tensor

    def freed_late(self, tensor: Tensor, *, in_forward: bool = True) -> None:
        """A tensor that another stream uses: its memory is free when that has come so far, behind the program.

        `in_forward`: where it is freed there, too.
        Source: c10/cuda/CUDACachingAllocator.cpp, DeviceCachingAllocator.free and insert_events (record_stream).
        """
        assert tensor.storage is not None
        self.unseen.awaited[tensor.storage.index] = in_forward

    def waits_for_device(self) -> None:
        """The program waits until the device is behind it by no more than the last few of these moments."""
        self.unseen.waits.append(len(self.events))

    def relabel(self, tensor: Tensor, category: str) -> None:
        """Count a living storage under another component from now on."""
        storage = tensor.storage
        assert storage is not None
        self.recount(storage, category)

    def constant(self, shape: Shape, dtype: DType, batched: bool, name: str = "") -> Tensor:
        """A tensor that is alive before the iteration begins (inputs, buffers): counted as a state."""
        return Tensor(self, None, shape, dtype, batched)

    # --------------------------------------------------------------------------------------------------- model
    def parameter(self, name: str, shape: Shape, dtype: DType, *, trainable: bool = True) -> Parameter:
        """A weight of the model, standing for one in each copy of the current unit."""
        for making in self.told.making:
            trainable = making(self, name, shape, dtype, trainable)
        parameter = Parameter(self, name, shape, dtype, self.copies, trainable)
        self.parameters.append(parameter)
        for made in self.told.made:
            made(parameter)
        return parameter

    def beside_modules(self, *own: Parameter) -> None:
        """These are a module's own, and what was made since then belongs to the modules inside of it."""
        for one in own:
            one.inside = self.parameters[-1]

    def looked_up(self, tensor: Tensor, table: Parameter | None = None, module: tuple[Parameter, ...] = ()) -> Tensor:
        """What a table gave, or the first module of a model, as it goes on: observers may change it."""
        for looked_up in self.told.looked_up:
            tensor = looked_up(tensor, table, module)
        return tensor

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
            leaf = self.leaves.pop()
            leaf.node = None  # it was its own accumulator

    def work(self, flops: int, again: int = 0, head_size: int = 0) -> None:
        """The operator that runs counts its floating-point operations, as `Observer.worked` says."""
        for worked in self.told.worked:
            worked(flops, again, head_size)

    def launch(self, operator: str, operands: Sequence[Tensor | None]) -> None:
        """A further kernel of an operator runs, on operands that are no inputs of its node."""
        for launched in self.told.launched:
            launched(operator, operands)

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
        if self.recomputing is not None:
            for tensor in inputs:
                if tensor is not None and tensor.node is not None:
                    break
            else:
                return None
            if saves:
                self._pack(self.recomputing, saves)
            return RECOMPUTED
        edges: list[tuple[Any, int, Shape, int, DType]] = []
        needed = False
        for tensor in inputs:
            if tensor is None or (target := tensor.node) is None:
                edges.append(_NO_EDGE)
                continue
            needed = True
            if type(target) is Parameter:
                target.pending += 1
            edges.append((target, tensor.output_index, tensor.shape, tensor.batched, tensor.dtype))
        if not needed:
            return None
        node = Node(operator, fn, edges, self.path)
        self.nodes.append(node)
        if saves:
            self.save(node, *saves)
        return node

    def view_result(self, node: Any, shape: Shape) -> None:
        """What an operator gives has this shape, and is viewed in another at once: a further node in front of its own.

        That node brings the gradient back to the shape. If it has to copy it, the gradient is gone when the operator's
        own node runs.
        """
        if type(node) is Node:
            node.viewed = shape

    def view_input(self, node: Any) -> None:
        """An operator's input is viewed in another shape first: a further node, which runs after the weights' own.

        So weights have their gradients before that of the input meets others.
        Source: torch/csrc/autograd/engine.cpp, CompareNodeTaskTime.
        """
        if type(node) is Node:
            node.views_input = True

    def abandon(self, first: int, last: int) -> None:
        """These nodes go with the results that nobody used: no gradient will come through them.

        A parameter that only they would have reached gets none: it is not stepped and has no states.
        """
        for node in self.nodes[first:last]:
            for target, _, _, _, _ in node.edges:
                if type(target) is Parameter:
                    target.pending -= 1
                    for abandoned in self.told.abandoned:
                        abandoned(target)
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
        """The forward pass of the model is over, and so are the contexts around it."""
        for left in self.told.model_left:
            left()

    @property
    def selective(self) -> bool:
        """Whether the checkpoint that runs or is recomputed now keeps results."""
        frame = self.frame or self.recomputing
        return frame is not None and frame.keeps is not None

    def keep(self, product: bool, *results: Tensor) -> None:
        """Let a selective checkpoint keep what an operator of its list gave: `Frame.keep`.

        Where no checkpoint runs, it is computed again because it was not kept.
        """
        if self.frame is not None:
            self.frame.keep(product, results)

    def recall(self) -> tuple[Tensor, ...] | None:
        """What was kept of the operator that runs now, if it is computed again; None if it has to run."""
        return None if self.recomputing is None else self.recomputing.recall()

    def joined(self, tensors: Sequence[Tensor], dim: int) -> Tensor | None:
        """What concatenating gives without a copy: only a compiled step knows that some tensors are empty."""
        return None

    def leave_graph(self, tensor: Tensor) -> Tensor:
        """What follows is not compiled with the model; the tensor to go on with. Compiled steps alone have graphs."""
        return tensor

    def graph(self, run: Callable[[Tensor], Tensor], given: Tensor) -> Tensor:
        """What a function gives that is compiled by itself; without a compiler nothing is."""
        return run(given)

    def multiplies_by_expert(self, dtype: DType) -> bool:
        """Whether products of experts with weights of this type are one by one: PyTorch's operator is compiled with
        bf16 alone.
        """
        return False

    def meets(self, *operands: Tensor) -> None:
        """What is made next comes of these alone: only a compiled step needs to know."""

    def accumulated(self, gradient: Tensor) -> None:
        """A gradient was added to one that was there, and goes: only a compiled step keeps it."""

    def _pack(self, frame: Frame, tensors: Saved) -> None:
        frame.take(tensors)
