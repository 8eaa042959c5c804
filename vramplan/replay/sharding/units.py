"""What FSDP gathers at once: its policy, the units of a model, and which parameters are in no block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vramplan.replay.inputs import inputs_of, make_inputs
from vramplan.replay.models import family
from vramplan.replay.models.modules import Recipe
from vramplan.replay.models.part_names import HEAD, NORMS
from vramplan.replay.observers import Sharding, Trained, train
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BF16, FP16, FP32, DType, Parameter, Shape, Tensor
from vramplan.tuples import NamedTuple

GATHERED, COMMUNICATION = "gathered", "communication"  # components of the answer
REDUCED = {"fp32": FP32, "bf16": BF16, "fp16": FP16}  # words of parallel.reduce_dtype
SHARDS, WHOLE = "shards", "whole"  # what earlier micro-steps left: sums over all devices, or this device's own


class ShardPolicy(NamedTuple):
    """What a job says of its shards."""

    shards: int  # devices that share the states
    stored: DType | None = None  # of the shards; None: of each its own, that of the gathered parameter
    frozen: DType | None = None  # of the shards of what is not trained; None: as the others
    storage: DType | None = None  # what weights of 4 bits are packed in: its size is that of one row of a shard
    reduce: DType | None = None  # of the gradients while they are summed; None: their own
    inputs: DType | None = None  # of what blocks are given, if it is fp32; None: as it is
    reshards_after_forward: bool = True  # else the gathered parameters stay until backward is done with them
    accumulated: str | None = None  # SHARDS or WHOLE: gradients that are there when the last micro-step begins
    reduces: bool = True  # else it is a micro-batch of a pipeline before the last one
    before_last: bool = False  # a micro-step under no_sync: whole gradients stay, and units go as ever
    reduces_after: bool = False  # unit after unit when backward is over, as the last micro-batch of a pipeline does
    table_parts: int = 1  # of a table, whose gradients are kept whole until they are reduced
    clips: bool = False  # the gradients by their norm
    hosted: str | None = None  # the optimizer that steps on the host, where shards and gradients are too
    averages: bool = False  # a copy of each shard, where the shard is
    replicated: bool = False  # several groups share the states, and sum over each other what they have summed
    prefetches_after: bool = False  # the next unit of backward is gathered when one is over, and not before it
    keeps_root: bool = False  # what is in no block stays whole from forward to backward
    reshards_root: bool = False  # it goes after forward, whatever blocks do
    kept_block: int | None = None  # the block whose parameters stay whole from forward to backward all the same
    own: tuple[str, ...] = ()  # parts of the model that are units of their own: EMBEDDINGS, HEAD
    norm_with_head: bool = False  # the last norm is in the head's unit
    keeps_head: bool = False  # the head's unit stays whole from forward to backward all the same
    gathers_ahead: bool = False  # as many units as the program comes to, of version 1
    gradients_go: bool = False  # the optimizer lets go of each gradient before its step is over
    keeps_whole: bool = False  # whole gradients of earlier micro-steps are states: none of them goes


def shard_shape(shape: Shape, shards: int) -> Shape:
    """The largest shard of a tensor: split along its first dimension, in equal parts but for the last.

    Source: _fsdp_param.py, FSDPParam._init_sharded_param; torch.chunk.
    """
    return (-(-shape[0] // shards), *shape[1:])


class ShardedWeight(NamedTuple):
    """What is to be known of a parameter to gather it."""

    shape: Shape
    dtype: DType  # of the gathered parameter
    trained: bool
    packed: bool = False  # several weights in each element


def is_packed(parameter: Parameter) -> bool:
    """Whether a parameter is several tensors, of which FSDP knows the first: weights of 4 bits.

    The others (maxima of the blocks, codes) are no parameters: every device has them whole.
    Source: bitsandbytes 0.50.2, nn/modules.py, Params4bit and fix_4bit_weight_quant_state_from_module.
    """
    return len(parameter.quantized) > 1


def cast_bytes(parameter: Parameter, policy: ShardPolicy) -> tuple[int, ...]:
    """Bytes of the copy that the first forward pass makes of a bias beside weights of 4 bits; () without one.

    The layer casts it in place, and from then on that copy is what it has, whole on every device.
    Source: bitsandbytes 0.50.2, nn/modules.py, Linear4bit.forward.
    """
    if policy.storage is None or is_packed(parameter) or not parameter.quantized:
        return ()
    return parameter.quantized if parameter.quantized[0] < parameter.elements * parameter.dtype.itemsize else ()


def packed_shape(parameter: Parameter, storage: DType) -> Shape:
    """The column that weights of 4 bits are packed in (functional.py, quantize_4bit, quant_storage)."""
    return (-(-parameter.quantized[0] // storage.itemsize), 1)


class GatheredUnit:
    """Parameters that one collective gathers, and which of their tensors exist at the moment."""

    def __init__(self, parameters: Sequence[Parameter], weights: Sequence[ShardedWeight] | None = None) -> None:
        self.parameters = tuple(parameters)
        self.weights = None if weights is None else tuple(weights)  # of parameters some of which are made later
        self.visits: list[int] = []  # when forward left it, among all units; backward takes them from the end
        self.arriving: Tensor | None = None  # what the collective writes
        self.gathered: list[Tensor] | None = None  # the parameters whole
        self.is_kept = False  # they stay so until backward is done with them
        self.is_awaited = False  # what it gave needs a gradient
        self.used_by_backward = False  # its gradients are being made
        self.is_reduced = False  # its backward is over
        self.gradient: Tensor | None = None  # its shards, one after the other
        self.others: list[Tensor] = []  # those of units that it stands for, where each is reduced for itself
        self.accumulated: list[Tensor] = []  # whole gradients of earlier micro-steps
        self.summed: Tensor | None = None  # over the groups of replicas, before it was cast
        self.moves = 0  # of its shard from the host to the device


def weight_of(parameter: Parameter, policy: ShardPolicy) -> ShardedWeight:
    """What is to be known of a parameter to gather it."""
    if policy.storage is not None and is_packed(parameter):
        return ShardedWeight(packed_shape(parameter, policy.storage), policy.storage, False, packed=True)
    return ShardedWeight(parameter.shape, parameter.dtype, parameter.node is not None)


def own_part(parameter: Parameter, policy: ShardPolicy) -> str | None:
    """The part of the model whose own unit a parameter outside of the blocks is in; None: it is in the root."""
    part = parameter.part[0] if parameter.part else None
    if part == NORMS and policy.norm_with_head:
        part = HEAD
    return part if part in policy.own else None


class OutsideBlocks(NamedTuple):
    """The parameters that are in no block."""

    root: tuple[ShardedWeight, ...]
    own: tuple[tuple[str, tuple[ShardedWeight, ...]], ...] = ()  # of each part that is a unit


def outside_weights(recipe: Recipe, trained: Trained, policy: ShardPolicy) -> OutsideBlocks:
    """The parameters that are in no block, some of which a forward pass makes when it uses them."""
    tape, noted = _run_once(recipe, trained)
    inside = {id(one) for one in noted.inside}
    groups: dict[str | None, list[ShardedWeight]] = {None: [], **{part: [] for part in policy.own}}
    for one in tape.parameters:
        if id(one) not in inside:
            groups[own_part(one, policy)].append(weight_of(one, policy))
    for one in tape.parameters:
        one.node = None
    return OutsideBlocks(tuple(groups.pop(None)), tuple((str(part), tuple(found)) for part, found in groups.items()))


def every_weight(recipe: Recipe, policy: ShardPolicy) -> OutsideBlocks:
    """All parameters of a model that is one unit."""
    tape, _ = _run_once(recipe, Trained())
    found = [weight_of(one, policy) for one in tape.parameters for _ in range(one.copies)]
    for one in tape.parameters:
        one.node = None
    return OutsideBlocks(tuple(found))


def _run_once(recipe: Recipe, trained: Trained) -> tuple[Tape, _UnitsNoted]:
    """A tape with all parameters of a model, which a forward pass over a few tokens has made."""
    tape = Tape(1)
    train(tape, trained.again())
    noted = _UnitsNoted(tape)
    tape.enlist(Sharding, noted)
    shape = recipe.shape
    parts = 1 if recipe.split is None else recipe.split.devices
    small = recipe._replace(sequence_length=shape.shortest * parts, target_length=None)
    network = family(shape.family)(tape, small)
    arguments, _ = make_inputs(tape, inputs_of(network, small))
    network(*arguments)
    return tape, noted


class _UnitsNoted(Sharding):
    """Notes which parameters are in blocks."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.inside: list[Parameter] = []

    def units(self, make: Callable[[int], Any]) -> Callable[[int], Any]:
        """Each block as it is."""

        def build(number: int) -> Any:
            start = len(self.tape.parameters)
            block = make(number)
            self.inside += self.tape.parameters[start:]
            return block

        return build
