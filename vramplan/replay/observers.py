"""What a guest of an iteration can be: an observer of a tape, and the roles that others ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vramplan.replay.guests import Told
from vramplan.replay.layouts import DType, Shape
from vramplan.replay.recorder import Backward, Node, Parameter, Saved, Tape, Tensor
from vramplan.values.job import Adapter

EVENTS = tuple(Told.__annotations__)


class Observer:
    """Is told of what a tape records, and may act on it. As it stands, it does nothing.

    A method that a class does not override is never called.
    """

    follows: tuple[str, ...] = ()  # the events whose methods a class overrides

    unpacks = False  # whether what `recorded` gives unpacks saved tensors by itself
    walks_others = True  # whether it is told of another model than the one that trains, too

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.follows = tuple(event for event in EVENTS if getattr(cls, event) is not getattr(Observer, event))

    def making(self, tape: Tape, name: str, shape: Shape, dtype: DType, trainable: bool) -> bool:
        """A parameter is about to be made: whether it is trained."""
        return trainable

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


class Release:
    """The release of PyTorch whose operators run; None: the one that was traced.

    `composed_norms`: `nn.RMSNorm` is composed of its parts, as it was before it had a kernel.
    """

    def __init__(self, pytorch: tuple[int, int] | None = None, *, composed_norms: bool = False) -> None:
        self.pytorch, self.composed_norms = pytorch, composed_norms


class Kernels:
    """What a library runs in place of a model's own modules, by the module; None: the model's own."""

    gated: Callable[[Tensor, Tensor], Tensor] | None = None  # an activation, of gate and up projection
    rotary: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    """Rotary positions, of queries, keys, cosines and sines."""

    def norm(self, name: str) -> Callable[[Tensor, Parameter], Tensor] | None:
        """An RMSNorm of that name, of its input and its weight."""
        return None


class Accumulation:
    """What the accumulator of a weight's gradient finds in backward. As it stands, nothing."""

    resident = False  # a gradient of earlier micro-steps or a buffer: the new one is added to it, and freed


class Resident(Accumulation):
    """It finds a gradient."""

    resident = True


class Trained(Observer):
    """What is trained of a model, and what becomes of its layers. As it stands, every weight is, and nothing."""

    walks_others = False
    adapter: Adapter | None = None

    def linear(self, tape: Tape, module: Any, name: str) -> Callable[[Any, Tensor], Tensor] | None:
        """What runs in place of a linear layer that was made now, with the layer and its input; None: the layer."""
        return None

    def convolution(self, tape: Tape, module: Any, name: str) -> Callable[[Any, Tensor], Tensor] | None:
        """The same of a convolution."""
        return None

    def tensors(self, tape: Tape, weights: dict[str, Parameter]) -> Callable[..., Any] | None:
        """What runs in place of a module of bare weights, by their names, that were made now; None: the module."""
        return None

    def block(self, number: int) -> object:
        """What of a block is trained: blocks with equal answers are alike."""
        return None

    def shared_bytes(self) -> int:
        """Bytes on the device beside the weights, in allocator blocks."""
        return 0


def train(tape: Tape, trained: Trained) -> None:
    """Train this of the model that is built next. Where that is every weight, nobody needs to be asked."""
    if type(trained) is not Trained:
        tape.enlist(Trained, trained)
        tape.observe(trained)


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
