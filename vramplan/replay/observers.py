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
    """Is told of the events of a tape, and may act on them. The class as it stands does nothing.

    A subclass overrides the methods of the events that concern it. The tape calls no other method.
    """

    follows: tuple[str, ...] = ()  # the events whose methods the class overrides

    unpacks = False  # the functions that `recorded` returns unpack saved tensors themselves
    weights_first = False  # modules have functions of their own before their inputs, which run after the weights' own
    walks_others = True  # the observer is also told of models that do not train, such as a reference model
    replaces_layers = False  # the observer makes other layers of those of the model that trains, and of no second one

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.follows = tuple(event for event in EVENTS if getattr(cls, event) is not getattr(Observer, event))

    def making(self, tape: Tape, name: str, shape: Shape, dtype: DType, trainable: bool) -> bool:
        """A parameter is about to be made. Returns whether it is trained; `trainable` is the answer until now."""
        return trainable

    def made(self, parameter: Parameter) -> None:
        """A parameter was made."""

    def made_linear(self, layer: Any) -> None:
        """A linear layer was made."""

    def module_entered(self, inputs: tuple[Tensor, ...], parameters: tuple[Parameter, ...]) -> None:
        """A module of several operators, which has these parameters of its own, is about to run on these inputs."""

    def module_over(self) -> None:
        """The operators of that module have run."""

    def outer_entered(
        self, is_told: bool, own: tuple[Parameter, ...], read: tuple[Parameter, ...], whole: tuple[Parameter, ...]
    ) -> None:
        """A module of several operators is about to run, which may have others inside.

        Its operators compute with its `own` parameters; of those that it only `read`s it looks at the element type.
        `whole` are all parameters of a block of experts, those of the modules inside too. `is_told`: an input needs a
        gradient, so that the module is told when its backward is over.
        """

    def outer_over(self) -> None:
        """The innermost of these modules has run."""

    def asked_by_model(self, weight: Parameter) -> None:
        """The module of the whole model asks for a weight of another, which does not run."""

    def recorded(self, inputs: Sequence[Tensor | None], fn: Backward) -> Backward:
        """An operator is about to run. Returns its backward function, or a function around it."""
        return fn

    def launched(self, operator: str, operands: Sequence[Any]) -> None:
        """An operator is about to run on these operands, in forward or in backward."""

    def packing(self, tensors: Saved) -> Saved:
        """Tensors are about to be saved for backward. Returns what is saved in their place."""
        return tensors

    def unpacking(self, saved: Saved) -> Saved:
        """Backward asks for saved tensors. Returns the tensors, from what `packing` has returned."""
        return saved

    def model_left(self) -> None:
        """The forward pass of the model is over, and so are the contexts around it; the loss comes next."""

    def worked(self, flops: int, again: int, head_size: int) -> None:
        """The running operator has counted its floating-point operations at the representative batch.

        A fused attention also gives the size of its heads and, as `again`, the operations that compute scores a second
        time.
        """

    def one_by_one(self, begins: bool) -> None:
        """Samples are taken one by one. The operators after the one that runs are of one sample each.

        Those that are played stand for all of the micro-batch. Where it no longer `begins`, the operator that runs and
        those after it are of all samples again.
        """

    def stood_in(self, tensor: Tensor) -> None:
        """A tensor was made in place of those of samples that are not played."""

    def checkpointed(self, function: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
        """A segment is checkpointed. The observer runs it in place of the usual checkpoint, and returns its result."""

    def passed_by_name(self, tensor: Tensor) -> None:
        """Blocks get a tensor as an argument by name. A checkpoint does not count such a tensor among its inputs."""

    def abandoned(self, weight: Parameter) -> None:
        """An operator over a weight goes with its result, which nobody used."""

    def recomputing(self, node: Node) -> None:
        """A checkpoint is about to be computed again, because the backward of this node needs it."""

    def looked_up(self, tensor: Tensor, table: Parameter | None, module: tuple[Parameter, ...]) -> Tensor:
        """A table was looked up, or, without a table, the first module of a model has run, which has these weights.

        Returns the tensor that the model goes on with.
        """
        return tensor

    def leaf_reached(self, leaf: Parameter) -> None:
        """Backward has reached a leaf of the graph that is not a weight."""

    def module_reached(self, module: tuple[Parameter, ...]) -> None:
        """Backward has reached the output of a module, which was asked for its gradient (`requires_grad_`)."""

    def outputs_bound(self) -> None:
        """The training loop has assigned new outputs to its variables, which frees the outputs before."""

    def graph_walked(self, held: Sequence[Any]) -> None:
        """Backward is over. The tensors in `held` live until now, and are about to be freed."""

    def before_accumulate(self, parameter: Parameter) -> None:
        """The gradient of a parameter is complete, and its accumulator is about to take it."""

    def after_accumulate(self, parameter: Parameter) -> None:
        """The accumulator of a parameter has taken its gradient."""

    def partly_accumulated(self, parameter: Parameter) -> None:
        """The accumulator of a parameter has taken a gradient that others will be added to."""

    def reduced(self, shard: Parameter) -> None:
        """A shard has its part of a gradient, summed over the devices, while backward still runs."""


class Release:
    """The role of the PyTorch release whose operators run. Without a number it is the release that was traced.

    With `composed_norms`, `nn.RMSNorm` consists of several operators, as it did before it had a kernel of its own. With
    `adam_denominators`, foreach Adam makes denominators of square roots that are still there. With `first_flash`, the
    flash kernel of scaled_dot_product_attention is FlashAttention 1.
    """

    def __init__(
        self,
        pytorch: tuple[int, int] | None = None,
        *,
        composed_norms: bool = False,
        adam_denominators: bool = False,
        first_flash: bool = False,
    ) -> None:
        self.pytorch, self.composed_norms = pytorch, composed_norms
        self.adam_denominators, self.first_flash = adam_denominators, first_flash


class Kernels:
    """What a library runs in place of a model's own modules, by the module; None: the model's own."""

    gated: Callable[[Tensor, Tensor], Tensor] | None = None  # an activation, of gate and up projection
    rotary: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    """Rotary positions, of queries, keys, cosines and sines."""
    rotary_of_images: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    """The same in a vision encoder, where all images stand behind each other."""

    def norm(self, name: str) -> Callable[[Tensor, Parameter], Tensor] | None:
        """An RMSNorm of that name, of its input and its weight."""
        return None

    def layer_norm(self, name: str) -> Callable[[Tensor, Parameter, Parameter | None], Tensor] | None:
        """A LayerNorm of that name, of its input, its weight and its bias."""
        return None


class Rounding:
    """The role of who rounds weights and inputs in forward. As it stands, nothing is rounded."""

    head: Callable[[Tensor, Parameter, Parameter | None], Tensor] | None = None  # in place of the product of a head
    operands: Callable[[Parameter, Tensor], tuple[Tensor, Tensor]] | None = None  # of a layer: of weight and input
    table: Callable[[Parameter], Tensor] | None = None  # what is looked up in, in place of a table of embeddings


class Accumulation:
    """The role of gradients that exist before backward. The class as it stands says that there are none."""

    resident = False  # each weight has a gradient or a buffer already: the new gradient is added to it, and freed
    waits = False  # more of the same gradients come, and until then they count as parts


Comparing = Callable[[Sequence[Any], Tensor], Tensor]


class Teacher:
    """The role of a second model whose predictions those of the model that trains are compared with; there is none."""

    def asked(self) -> Comparing | None:
        """The model has its logits. Returns what compares them with the teacher's, given the labels too."""
        return None


class KeyValues:
    """The role of who keeps the keys and values of each block, or its states, which the model returns; nobody does."""

    keeps = False
    past = 0  # tokens whose keys and values stand before those of the tokens that the model is given

    def kept(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """What a block goes on with."""
        return key, value

    def convolves(self, x: Tensor, kernel: int) -> None:
        """A convolution over tokens is about to run on `x`, of whose last tokens a state is kept."""

    def recurs(self, state: Tensor, graph: Sequence[Any] = ()) -> None:
        """A block has come to this state. `graph`: what was saved for the backward of the state alone."""


class VirtualTokens:
    """The role of who puts virtual tokens before those of a text. The class as it stands puts none."""

    puts_some = False  # so that the model is given embedded tokens, and none of their numbers

    def embedded(self, ids: Tensor, look_up: Callable[[Tensor], Tensor]) -> Tensor:
        """What the model goes on with: `look_up` gives the embeddings of token ids."""
        return look_up(ids)


class HiddenStates:
    """The role of who returns the hidden states of all blocks. The class as it stands does not."""

    def asked(self) -> list[Tensor] | None:
        """Where they are kept: what the first block is given, and what each block gives."""
        return None


class TiledWeights:
    """The role of who wants to know which weights run in tiles. The class as it stands does not."""

    def tiled(self, weights: Sequence[Parameter]) -> None:
        """An MLP with these weights has run, tile by tile and without a graph; backward will come to it."""


class Resident(Accumulation):
    """Every weight has a gradient of earlier micro-steps, or a buffer that stays."""

    resident = True


class Trained(Observer):
    """The role of who decides what is trained, and what replaces layers. The class as it stands trains every weight."""

    walks_others = False
    adapter: Adapter | None = None
    places: Sequence[tuple[int, int]] = ()  # buffers of adapters: bytes, and how many of the same size

    def again(self) -> Trained:
        """The same for another build of the model, of which nothing is counted."""
        return self

    def linear(self, tape: Tape, module: Any, name: str) -> Callable[[Any, Tensor], Tensor] | None:
        """The function that runs in place of a new linear layer, of the layer and its input; None: the layer runs."""
        return None

    def convolution(self, tape: Tape, module: Any, name: str) -> Callable[[Any, Tensor], Tensor] | None:
        """The same for a convolution."""
        return None

    def at_once(self, layers: Sequence[Any], output: Any) -> Callable[[Tensor], list[Tensor]] | None:
        """The function that runs in place of queries, keys and values, of their input; None: each layer runs."""
        return None

    def gated_at_once(self, layers: Sequence[Any]) -> Callable[[Tensor], Tensor] | None:
        """The same in place of a gated MLP of three layers."""
        return None

    def tensors(self, tape: Tape, weights: dict[str, Parameter]) -> Callable[..., Any] | None:
        """The function that runs in place of a new module of bare weights, given by name; None: the module runs."""
        return None

    def block(self, number: int) -> object:
        """A value that stands for what is trained of a block. Blocks with equal values are alike."""
        return None

    def tied(self, tape: Tape, table: Parameter, name: str) -> Parameter:
        """The weight of that name of a head that is tied to the table of the embeddings, made in the head's part."""
        return table

    def table(self, weight: Parameter) -> Callable[[Tensor, Parameter, Tensor | None], Tensor] | None:
        """The function that runs in place of a table of embeddings, of token ids, the table and what its module scales
        rows by; None: the table is looked up in.
        """
        return None

    head: Callable[[Tensor, Parameter, Parameter | None], Tensor] | None = None
    """What runs in place of the product of a head, of its input, its weight and its bias; None: the product runs."""

    def makes_head(self, tape: Tape, weight: Parameter) -> None:
        """The head of a language model is made: its weight, which may be the table of the embeddings."""

    def shared_bytes(self) -> int:
        """Bytes that quantized weights share on the device, in allocator blocks."""
        return 0


def train(tape: Tape, trained: Trained) -> None:
    """Let `trained` decide about the model that is built next. The plain role, which trains everything, is left out."""
    if type(trained) is not Trained:
        tape.enlist(Trained, trained)
        tape.observe(trained)


class Sharding(Observer):
    """The role of who shares the states of a model among devices. The class as it stands shares nothing."""

    every_block_of_a_checkpoint = False  # the blocks of one checkpoint differ, so that each is played
    last_in_checkpoint = 0  # how many of its last blocks find what those before them do not
    linear_is_function = False  # `F.linear` is an autograd.Function, which saves all operands
    weights_are_views = False  # several weights are views of one tensor, and so no leaves of the graph
    casts_buffers = False  # the model's buffers have the element type of the weights that are gathered
    buffer_dtype: DType | None = None  # element type of the model's buffers, if weights are gathered in another type
    wrapped: Callable[..., Tensor] | None = None  # runs a module whose trained weights are a unit, which are given it
    rows_among = 1  # number of devices that share the rows of each matrix in the optimizer's step
    hooks_stay_outside = False  # hooks run outside of the checkpoints that Transformers makes
    inputs_dtype: DType | None = None  # what blocks are given beside the hidden state is cast to, if it is fp32
    norm_with_head = False  # the last norm and the head are a unit
    reduces_in_backward = False  # gradients of shards are complete in backward, which `Observer.reduced` tells

    def whole_shape(self, parameter: Parameter) -> Shape:
        """That of the matrix of which a parameter that is stepped may be the rows of one device."""
        return parameter.shape

    gradients_in_pieces = False  # those of shards lie in one piece for each unit, and not with the parameters

    def let_gradients_go(self) -> None:
        """No shard has its gradient any more, before the step is over."""

    def let_gradient_go(self, shard: Parameter) -> None:
        """This shard has its gradient no more: with the last one of its unit the piece goes that they lie in."""

    def unreached(self, weights: Sequence[Parameter]) -> None:
        """The loss does not depend on these weights: no gradient of an earlier micro-step was ever there."""

    def units(self, make: Callable[[int], Any]) -> Callable[[int], Any]:
        """The function that builds a block, given the one that builds it on a single device."""
        return make

    def within(self, part: str, run: Callable[[Any], Any], given: Any) -> Any:
        """Run the module of that part of the model, which may share its states for itself. `given` is its input.

        An input that takes no part in backward, such as token ids, may be None. A model whose `own_units` has the part
        calls this around it.
        """
        return run(given)

    def around_checkpoints(self, make: Callable[[int], Any], names: Sequence[str]) -> Callable[[int], Any]:
        """The function that builds a block whose forward pass is a checkpoint, if `hooks_stay_outside`.

        `names` are attributes of the block that are inputs of the checkpoint as well.
        """
        return make

    def taken(self, tensor: Tensor) -> Tensor:
        """What a block is given of a tensor that stands beside the hidden state."""
        return tensor

    def given(self, tensor: Tensor) -> Tensor:
        """What a module is given by place of a tensor that others take too."""
        return tensor

    def apart(self) -> list[int]:
        """Numbers of the blocks, of those that `units` built last, that have to be played on their own."""
        return []

    def turn(self, block: int) -> int:
        """Which one a block is of several after which the same comes again."""
        return 0

    def beside(self, recipe: Any, same: Trained | None) -> Sharding | None:
        """Who shares another model, which is about to run without gradients, where that is not each device for itself.

        `same`: it is the model that trains, with its adapter switched off by this.
        """
        return self if self.walks_others else None

    def begin_other(self, recipe: Any) -> None:
        """A second model is about to run, which shares its blocks for itself and has no backward.

        `recipe` says what it is; None: it is the model that trains.
        """

    def end_other(self) -> tuple[int, bool]:
        """The second model has run. Returns the bytes of what stays of it from step to step beside its weights, and
        whether what it has of these is in them.
        """
        return 0, False

    def held_whole(self, weight: Parameter) -> Tensor | None:
        """What lives on after the weight was let go of, if a function's context still looks at it; None: nothing."""
        return None

    def takes_own(self, weight: Parameter) -> None:
        """A layer has run that looks at data of its own in the place of what was gathered of its weight."""

    def after_model(self, loss: Tensor) -> Tensor:
        """The model has returned its loss, or its logits. Returns the tensor that the step goes on with."""
        return loss


def entered(run: Callable[[Tensor], Tensor], hidden: Tensor, *parameters: Parameter) -> Tensor:
    """What a module of several operators gives; whoever follows modules is told when it begins and when it is over."""
    told = hidden.tape.told
    if not told.module_entered:
        return run(hidden)
    for tell in told.module_entered:
        tell((hidden,), parameters)
    try:
        return run(hidden)
    finally:  # a recomputation may stop inside
        for tell in told.module_over:
            tell()


class Outer:
    """The time in which a module runs that may have others inside; whoever follows modules is told of both its ends.

    It does not hold the inputs of the module. `by_name`: these are given by name, and whoever looks for a module's end
    in backward looks at those alone that are given by place.
    """

    def __init__(
        self,
        x: Tensor,
        *others: Tensor,
        own: tuple[Parameter, ...] = (),
        read: tuple[Parameter, ...] = (),
        whole: tuple[Parameter, ...] = (),
        by_name: bool = False,
    ) -> None:
        self.told = x.tape.told
        for tell in self.told.outer_entered:
            tell(not by_name and any(one.node is not None for one in (x, *others)), own, read, whole)

    def __enter__(self) -> None:
        """It is told of already."""

    def __exit__(self, *_: object) -> None:
        for tell in self.told.outer_over:  # also where a recomputation stops inside
            tell()
