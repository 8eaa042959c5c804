"""PyTorch's FSDP2, `fully_shard` on each block and on the model: gathered when used, reduced when done.

A unit is a block, or the root: all that is in no block. Between its uses a device holds its shard of each parameter
alone. Source: torch 2.13, torch/distributed/fsdp/_fully_shard: _fsdp_param_group.py (FSDPParamGroup), _fsdp_state.py
(FSDPState), _fsdp_collectives.py (foreach_all_gather, foreach_all_gather_copy_out, foreach_reduce).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from vramplan.replay.inputs import inputs_of, make_inputs
from vramplan.replay.models import family
from vramplan.replay.models.checkpointed import checkpointed_blocks
from vramplan.replay.models.modules import Recipe
from vramplan.replay.observers import Sharding, Trained, train
from vramplan.replay.record import Record, State
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.sharding.hosted import HostStates, Shard, host_states
from vramplan.replay.techniques import Shards
from vramplan.replay.tensors import BF16, BYTE, FP16, FP32, DType, Parameter, Shape, Tensor
from vramplan.tuples import NamedTuple

GATHERED, COMMUNICATION = "gathered", "communication"  # components of the answer
REDUCED = {"fp32": FP32, "bf16": BF16, "fp16": FP16}  # words of parallel.reduce_dtype
SHARDS, WHOLE = "shards", "whole"  # what earlier micro-steps left: sums over all devices, or this device's own


class Policy(NamedTuple):
    """What a job says of its shards."""

    shards: int  # devices that share the states
    stored: DType | None = None  # of the shards; None: of each its own, that of the gathered parameter
    frozen: DType | None = None  # of the shards of what is not trained; None: as the others
    storage: DType | None = None  # what weights of 4 bits are packed in: its size is that of one row of a shard
    reduce: DType | None = None  # of the gradients while they are summed; None: their own
    reshards_after_forward: bool = True  # else the gathered parameters stay until backward is done with them
    accumulated: str | None = None  # SHARDS or WHOLE: gradients that are there when the last micro-step begins
    reduces: bool = True  # else it is a micro-step before the last one
    reduces_after: bool = False  # unit after unit when backward is over, as the last micro-batch of a pipeline does
    table_parts: int = 1  # of a table, whose gradients are kept whole until they are reduced
    clips: bool = False  # the gradients by their norm
    hosted: str | None = None  # the optimizer that steps on the host, where shards and gradients are too
    replicated: bool = False  # several groups share the states, and sum over each other what they have summed
    prefetches_after: bool = False  # the next unit of backward is gathered when one is over, and not before it
    keeps_root: bool = False  # what is in no block stays whole from forward to backward
    kept_block: int | None = None  # the block whose parameters stay whole from forward to backward all the same


def shard_shape(shape: Shape, shards: int) -> Shape:
    """The largest shard of a tensor: split along its first dimension, in equal parts but for the last.

    Source: _fsdp_param.py, FSDPParam._init_sharded_param; torch.chunk.
    """
    return (-(-shape[0] // shards), *shape[1:])


class Weight(NamedTuple):
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


def packed_shape(parameter: Parameter, storage: DType) -> Shape:
    """The column that weights of 4 bits are packed in (functional.py, quantize_4bit, quant_storage)."""
    return (-(-parameter.quantized[0] // storage.itemsize), 1)


class Unit:
    """Parameters that one collective gathers, and which of their tensors exist at the moment."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = tuple(parameters)
        self.arriving: Tensor | None = None  # what the collective writes
        self.gathered: list[Tensor] | None = None  # the parameters whole
        self.is_kept = False  # they stay so until backward is done with them
        self.used_by_backward = False  # its gradients are being made
        self.is_reduced = False  # its backward is over
        self.gradient: Tensor | None = None  # its shards, one after the other
        self.others: list[Tensor] = []  # those of units that it stands for, where each is reduced for itself
        self.accumulated: list[Tensor] = []  # whole gradients of earlier micro-steps
        self.summed: Tensor | None = None  # over the groups of replicas, before it was cast
        self.moves = 0  # of its shard from the host to the device


class FullyShard(Shards):
    """The walk of one iteration over units: what is gathered, and when it goes."""

    # when a checkpoint of several blocks is run again, the last but one is there already, and the others are not
    every_block_of_a_checkpoint = True
    reduces_in_backward = True
    hooks_stay_outside = True
    hooks_every_input = True  # else the hidden state alone
    keeps_root = False  # whole from forward to backward

    def __init__(
        self,
        tape: Tape,
        policy: Policy,
        root: Sequence[Weight],
        redistribute: Callable[[Parameter], None] | None = None,
    ) -> None:
        self.tape, self.policy = tape, policy
        self.rows_among = policy.shards
        self.root = Unit(())
        self.root_weights = tuple(root)  # some of which are made when they are used
        self.order: list[Unit] = []  # in which forward left the units
        self.outer: tuple[Unit, list[Unit]] | None = None  # root and order of the model that trains, where another runs
        self.kept: Tensor | None = None  # what the last collective of forward wrote, until the next has copied out
        self.reducing: Tensor | None = None  # what the last reduction read
        self.on_host: list[Shard] = []
        self.host_states: HostStates | None = None
        self.is_over = False  # backward
        self.ends_in_backward = not policy.reduces_after  # _fsdp_state.py, _register_root_post_backward_final_callback
        self.redistribute = redistribute  # brings a gradient to the layout that its parameter has in tensor parallelism

    # ------------------------------------------------------------------------------------------------ the model
    def units(self, make: Callable[[int], Any]) -> Callable[[int], Any]:
        """Each block that `make` builds is a unit."""

        def build(number: int) -> UnitBlock:
            start = len(self.tape.parameters)
            block = make(number)
            unit = Unit(self.tape.parameters[start:])
            unit.is_kept = number == self.policy.kept_block
            self._accumulate(unit)
            return UnitBlock(self, unit, block)

        return build

    def around_checkpoints(self, make: Callable[[int], Any], names: Sequence[str]) -> Callable[[int], Any]:
        """Transformers checkpoints a block's forward pass, and the hooks are around that."""
        return checkpointed_blocks(self.tape, make, names)

    def begin_other(self) -> None:
        """A model that is wrapped by itself has a root and an order of its own (_fsdp_state.py, FSDPStateContext)."""
        self.outer = self.root, self.order
        self.root, self.order = Unit(()), []

    def end_other(self) -> None:
        """What it has gathered goes with the iteration."""
        assert self.outer is not None
        for unit in self.order:
            unit.gathered = None
        (self.root, self.order), self.outer = self.outer, None

    def before_forward(self) -> None:
        """The root is gathered first."""
        self._accumulate(self.root)
        self._gather(self.root)
        self._copy_out(self.root, in_forward=True)

    def after_model(self, loss: Tensor) -> Tensor:
        """The root's forward is over: backward begins with it. A model whose loss is made outside says so itself."""
        if self.order and self.order[-1] is self.root:
            return loss
        if self.policy.reshards_after_forward and not (self.keeps_root or self.policy.keeps_root):
            self.root.gathered = None
        self.order.append(self.root)
        self.kept = None
        inside = {id(one) for unit in self.order for one in unit.parameters}
        self.root.parameters = tuple(one for one in self.tape.parameters if id(one) not in inside)
        return self._before_backward(self.root, loss)

    def before_step(self) -> None:
        """The host steps, and clips; the norm is summed over the devices."""
        if self.policy.hosted is not None and self.policy.clips:
            norm = self.tape.new("all_reduce", (), FP32, False, category="temporaries")
            del norm

    def after_backward(self) -> list[Parameter]:
        """What is stepped are the shards.

        The root's inputs have no gradients, nor have those of a unit that only frozen weights come before: theirs are
        reduced when all is over. What was gathered for a unit that backward never came to goes then, too.
        Source: _fsdp_state.py, FSDPState._root_post_backward_final_callback.
        """
        self.is_over = True
        for unit in (self.root, *self.order[:-1]):
            if not unit.is_reduced or self.policy.reduces_after:
                self.reduce(unit)
            unit.arriving = None
        if not self.policy.reduces:
            for unit in self.order:
                unit.gathered = None
                unit.accumulated.clear()
        for unit in self.order:
            unit.summed = None
        self.reducing = None
        found = [self._shard(one) for one in self.tape.parameters]
        self._tell_host()
        return found

    def _tell_host(self) -> None:
        """What the host has of the states."""
        if self.policy.hosted is not None:
            sums_each = self.policy.accumulated != WHOLE
            self.host_states = host_states(self.on_host, self.policy.hosted, sums_each=sums_each)

    def _shard(self, whole: Parameter) -> Parameter:
        """The shard of a parameter, as the optimizer sees it."""
        shape = shard_shape(whole.shape, self.policy.shards)
        dtype = self._stored(whole.dtype, whole.node is not None or whole.idle)
        storage = self.policy.storage
        if storage is not None and is_packed(whole):
            shape, dtype = shard_shape(packed_shape(whole, storage), self.policy.shards), storage
        hosted = self.policy.hosted is not None
        shard = Parameter(self.tape, whole.name, shape, dtype, whole.copies, whole.node is not None and not hosted)
        if is_packed(whole):
            shard.quantized = (prod(shape) * dtype.itemsize, *whole.quantized[1:])
        if hosted:
            self.on_host.append(Shard(prod(shape), dtype, whole.copies, whole.node is not None, self._moves()))
            shard.quantized = (0, *shard.quantized[1:])  # nothing of it is on the device
        shard.path, shard.part, shard.idle, shard.is_table = whole.path, whole.part, whole.idle, whole.is_table
        return shard

    def _moves(self) -> int:
        """How often a parameter comes to the device in a micro-step: for forward, and for backward."""
        return 2 if self.policy.reshards_after_forward else 1

    def _stored(self, dtype: DType, trained: bool) -> DType:
        """The element type of the shards of a parameter that is gathered in a type."""
        policy = self.policy
        return (policy.stored if trained else policy.frozen or policy.stored) or dtype

    def states(self) -> list[State]:
        """The shards of the gradients of earlier micro-steps: those of a unit lie in one piece."""
        if self.policy.accumulated != SHARDS or self.policy.hosted is not None:
            return []
        size = 0
        for unit in self.order:
            trained = [one for one in unit.parameters if one.node is not None]
            if trained:
                dtype = self.policy.stored or trained[0].dtype
                shapes = [one.shape for one in trained]
                size += rounded(self._elements(shapes) * dtype.itemsize) * trained[0].copies
        return [State("gradients", size, 0)]

    def after_step(self) -> None:
        """The gradients go."""
        for unit in self.order:
            unit.gradient = None
            unit.others.clear()

    def drop(self) -> None:
        """Nothing more will be asked."""
        self.order.clear()

    def annotate(self, record: Record) -> None:
        """What is on the host."""
        record.host_states = self.host_states

    def _accumulate(self, unit: Unit) -> None:
        """Whole gradients of earlier micro-steps, summed in the element type of the reduction.

        Source: _fsdp_param.py, FSDPParam.to_accumulated_grad_if_needed, under set_requires_gradient_sync(False).
        """
        if self.policy.accumulated == WHOLE:
            trained = [weight for weight in self._weights(unit) if weight.trained]
            kept = [(self._kept_shape(unit, weight), self.policy.reduce or weight.dtype) for weight in trained]
            unit.accumulated = [
                self.tape.new("add_", shape, dtype, False, category="gradients") for shape, dtype in kept
            ]

    def _first_of_several(self, one: Parameter) -> Tensor:
        """Its gradient in the element type of the reduction, to which those of later micro-steps are added.

        Source: _fsdp_param.py, FSDPParam.to_accumulated_grad_if_needed.
        """
        assert one.grad is not None
        reduce = self.policy.reduce or one.grad.dtype
        return one.grad if reduce is one.grad.dtype else self.tape.like("to", one.grad, reduce)

    def _kept_shape(self, unit: Unit, weight: Weight) -> Shape:
        """That of a gradient between micro-steps: a table's is of all rows that tensor parallelism splits."""
        if unit is not self.root or len(weight.shape) == 1:
            return weight.shape
        return (weight.shape[0] * self.policy.table_parts, *weight.shape[1:])

    # ---------------------------------------------------------------------------------------------- collectives
    def _weights(self, unit: Unit) -> Sequence[Weight]:
        return self.root_weights if unit is self.root else [weight_of(one, self.policy) for one in unit.parameters]

    def _elements(self, shapes: Sequence[Shape]) -> int:
        """Of one shard of each."""
        return sum(prod(shard_shape(shape, self.policy.shards)) for shape in shapes)

    def _gather(self, unit: Unit) -> None:
        """Start to gather a unit, unless that was done: the shards are copied into the buffer of the collective.

        Source: _fsdp_collectives.py, foreach_all_gather and _get_all_gather_input_metadatas.
        """
        if unit.arriving is not None or unit.gathered is not None:
            return
        if not self.policy.reduces or self.policy.reduces_after:  # an earlier micro-batch has gathered it
            unit.gathered = self._copies(self._weights(unit))
            return
        tape, policy = self.tape, self.policy
        weights = self._weights(unit)
        if policy.hosted is not None:
            unit.arriving = self._gather_from_host(weights)
            return
        cast: Tensor | None = None
        changed = [one for one in weights if not one.packed and self._stored(one.dtype, one.trained) is not one.dtype]
        if changed:
            elements = self._elements([one.shape for one in changed])
            cast = tape.new("_foreach_copy_", (elements,), changed[0].dtype, False, category=COMMUNICATION)
            tape.on_another_stream(cast)  # of the copies into the collective's buffer
        unit.arriving = self._all_gather(weights)
        del cast

    def _all_gather(self, weights: Sequence[Weight]) -> Tensor:
        """The buffer that the collective writes; parameters of several element types are gathered as bytes."""
        dtypes = {one.dtype for one in weights}
        size = sum(self._elements([one.shape]) * one.dtype.itemsize for one in weights) * self.policy.shards
        dtype = dtypes.pop() if len(dtypes) == 1 else BYTE
        arriving = self.tape.new("all_gather", (size // dtype.itemsize,), dtype, False, category=COMMUNICATION)
        return self.tape.on_another_stream(arriving)

    def _gather_from_host(self, weights: Sequence[Weight]) -> Tensor:
        """Each shard comes to the device, and is cast there, one by one.

        Source: _fsdp_param.py, FSDPParam.all_gather_inputs.
        """
        arrived: list[Tensor] = []
        for one in weights:
            stored = one.dtype if one.packed else self._stored(one.dtype, one.trained)
            shape = (self._elements([one.shape]),)
            shard: Tensor = self.tape.new("to", shape, stored, False, category=COMMUNICATION)
            if stored is not one.dtype:
                shard = self.tape.new("to", shape, one.dtype, False, category=COMMUNICATION)
            arrived.append(self.tape.on_another_stream(shard))
            del shard
        return self._all_gather(weights)

    def _copy_out(self, unit: Unit, *, in_forward: bool) -> None:
        """Wait for a unit: each parameter is copied out of the buffer, which in forward stays until the next is.

        Source: _fsdp_param_group.py, FSDPParamGroup.wait_for_unshard.
        """
        if unit.arriving is None:
            return
        _previous = self.kept if in_forward else None  # a local of the original
        unit.gathered = self._copies(self._weights(unit))
        if in_forward:
            self.kept = unit.arriving
        unit.arriving = None

    def _copies(self, weights: Sequence[Weight]) -> list[Tensor]:
        """Each parameter whole, with room for as many equal shards as there are."""
        shards, new = self.policy.shards, self.tape.new
        sizes = [(prod(shard_shape(one.shape, shards)) * shards,) for one in weights]
        return [
            new("split_with_sizes_copy", size, one.dtype, False, category=GATHERED)
            for one, size in zip(weights, sizes, strict=True)
        ]

    def reduce(self, unit: Unit) -> None:
        """A unit's gradients are complete: they are summed over the devices, and each keeps its shard.

        Source: _fsdp_param_group.py, FSDPParamGroup.post_backward; _fsdp_collectives.py, foreach_reduce.
        """
        tape, policy = self.tape, self.policy
        with_gradients = [one for one in unit.parameters if one.node is not None and not one.idle]
        if not policy.reduces or (policy.reduces_after and not self.is_over):  # they are added to those that are kept
            for one in with_gradients:
                if policy.accumulated is None:  # it is the first one
                    unit.accumulated.append(self._first_of_several(one))
                one.grad = None
            unit.is_reduced = True
            return
        if policy.reduces_after:
            kept, unit.accumulated = unit.accumulated, []
            for one in with_gradients:
                one.grad = kept.pop(0)
        if self.redistribute is not None:
            for one in with_gradients:
                self.redistribute(one)
        unit.gathered = None
        unit.used_by_backward = False
        unit.is_reduced = True
        self.reducing = None
        if not with_gradients:
            unit.accumulated.clear()  # of a block whose output nobody uses
            return
        if unit.accumulated:
            for one in with_gradients:
                one.grad = None
        elements = self._elements([one.shape for one in with_gradients])
        size = (elements * policy.shards,)
        own = with_gradients[0].dtype  # FSDP takes one element type of all that is trained in a unit
        reduce, stored = policy.reduce or own, policy.stored or own
        self.reducing = tape.new("_chunk_cat", size, reduce, False, category=COMMUNICATION)
        # a variable of the loop over them in foreach_reduce, which has the last one until the shards are there
        _unsharded_grad = unit.accumulated[-1] if unit.accumulated else with_gradients[-1].grad
        for one in with_gradients:
            one.grad = None
        unit.accumulated.clear()
        shard: Tensor = tape.new("reduce_scatter", (elements,), reduce, False)
        if policy.replicated and (reduce is not stored or policy.accumulated == SHARDS):
            unit.summed = shard  # _fsdp_param_group.py, AllReduceState
        if reduce is not stored:
            tape.on_another_stream(shard)
            shard = tape.like("to", shard, stored)
        tape.on_another_stream(shard)  # of the reductions
        if policy.accumulated != SHARDS and policy.hosted is None:
            tape.relabel(shard, "gradients")
            unit.gradient = shard
            if tape.told.reduced:
                self._step_now(unit, with_gradients)
            if policy.reduces_after:  # blocks that this one stands for: one by one, where others are no more
                unit.others = [self._reduced_alike(shard) for _ in range(with_gradients[0].copies - 1)]

    def _step_now(self, unit: Unit, with_gradients: Sequence[Parameter]) -> None:
        """Each shard is stepped, and none keeps its gradient: they lie in one piece, which goes when all are through.

        Source: _fsdp_collectives.py, foreach_reduce.
        """
        shards = [self._shard(one) for one in with_gradients]
        for shard in shards:
            for reduced in self.tape.told.reduced:
                reduced(shard)
            shard.node = None  # it was its own accumulator
        unit.gradient = None

    def _reduced_alike(self, shard: Tensor) -> Tensor:
        """The gradients of another block of the same kind, on the stream of the reductions."""
        made = self.tape.new("reduce_scatter", shard.shape, shard.dtype, False, category="gradients")
        return self.tape.on_another_stream(made)

    # ----------------------------------------------------------------------------------------------------- hooks
    def enter(self, unit: Unit) -> bool:
        """A unit's forward begins, the first time or again; whether it is the first time."""
        if self.tape.recomputing is None:
            self._gather(unit)
            self._copy_out(unit, in_forward=self.tape.direction != "recompute")
            return True
        self._gather(unit)
        self._copy_out(unit, in_forward=not unit.used_by_backward)
        return False

    def leave(self, unit: Unit, result: Any) -> Any:
        """A unit's forward is over: the first, or that of a reentrant checkpoint, in which it stays gathered.

        Source: _fsdp_state.py, FSDPState._post_forward; _fsdp_param_group.py, FSDPParamGroup.post_forward.
        """
        if self.tape.direction != "recompute":
            if self.policy.reshards_after_forward and not unit.is_kept:
                unit.gathered = None
            self.order.append(unit)
        return self.through(result, lambda tensor: self._before_backward(unit, tensor))

    def leave_again(self, unit: Unit) -> None:
        """A unit's forward is over that ran again: it was the outermost module of its own forward."""
        self.kept = None

    def _before_backward(self, unit: Unit, tensor: Tensor) -> Tensor:
        """The result of a unit, whose gradient brings its parameters, and starts to gather those of the next unit.

        Source: _fsdp_param_group.py, FSDPParamGroup.pre_backward and _backward_prefetch.
        """

        def fn(gradient: Any, _saved: Any) -> list[Any]:
            if not unit.used_by_backward:
                unit.used_by_backward = True
                self._gather(unit)
                self._copy_out(unit, in_forward=False)
                if not self.policy.prefetches_after:
                    self._gather_next(unit)
            return [gradient]

        return self._hook("pre_backward", tensor, fn)

    def _gather_next(self, unit: Unit) -> None:
        """Gather ahead of time the unit that backward comes to after this one."""
        index = self.order.index(unit)
        if index and not self.order[index - 1].is_reduced:
            self._gather(self.order[index - 1])

    def after_inputs(self, unit: Unit, given: Any, other: Tensor | None = None) -> tuple[Any, Tensor | None]:
        """The inputs of a unit: when their gradients are there, so are those of its parameters.

        All go through one node, in which the gradients of each meet.
        Source: _fsdp_param_group.py, FSDPParamGroup._register_post_backward_hook.
        """
        hidden = given[0] if type(given) is tuple else given
        inputs = [one for one in (hidden, other) if one is not None and one.node is not None]
        count = len(inputs)

        def fn(gradient: Any, _saved: Any) -> list[Any]:
            self.reduce(unit)
            gradients = gradient if type(gradient) is list else [gradient]
            return [*gradients, None][:count]

        node = self.tape.record("post_backward", inputs, fn)
        if node is not None:
            hooked = [one.alias(one.shape, one.strides, node, i) for i, one in enumerate(inputs)]
            if other is not None and other.node is not None:
                other = hooked.pop()
            if hooked:
                hidden = hooked.pop()
        del inputs
        return (hidden, *given[1:]) if type(given) is tuple else hidden, other

    def _hook(self, name: str, tensor: Tensor, fn: Callable[[Any, Any], list[Any]]) -> Tensor:
        node = self.tape.record(name, (tensor,), fn)
        return tensor if node is None else tensor.alias(tensor.shape, tensor.strides, node)

    @staticmethod
    def through(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
        """The hidden state, or a tuple that begins with it, changed."""
        if isinstance(value, tuple):
            return (change(value[0]), *value[1:])
        return change(value)


def weight_of(parameter: Parameter, policy: Policy) -> Weight:
    """What is to be known of a parameter to gather it."""
    if policy.storage is not None and is_packed(parameter):
        return Weight(packed_shape(parameter, policy.storage), policy.storage, False, packed=True)
    return Weight(parameter.shape, parameter.dtype, parameter.node is not None)


def root_weights(recipe: Recipe, trained: Trained, policy: Policy) -> list[Weight]:
    """The parameters that are in no block, some of which a forward pass makes when it uses them."""
    tape = Tape(1)
    train(tape, trained)
    noted = _Noted(tape)
    tape.enlist(Sharding, noted)
    shape = recipe.shape
    parts = 1 if recipe.split is None else recipe.split.devices
    small = recipe._replace(sequence_length=(shape.image_tokens + 3) * parts, target_length=None)
    network = family(shape.family)(tape, small)
    arguments, _ = make_inputs(tape, inputs_of(network, small))
    network(*arguments)
    inside = {id(one) for one in noted.inside}
    found = [weight_of(one, policy) for one in tape.parameters if id(one) not in inside]
    for one in tape.parameters:
        one.node = None
    return found


class _Noted(Sharding):
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


class UnitBlock:
    """A block with the hooks of its unit."""

    def __init__(self, shard: FullyShard, unit: Unit, block: Any) -> None:
        self.shard, self.unit, self.block = shard, unit, block

    def __call__(self, hidden: Any) -> Any:
        """The block, between what its unit does before and after it."""
        if not self.shard.enter(self.unit):
            result = self.block(hidden)
            self.shard.leave_again(self.unit)
            return result
        # the other argument that needs a gradient
        attended = getattr(self.block, "encoder", None) if self.shard.hooks_every_input else None
        hidden, other = self.shard.after_inputs(self.unit, hidden, attended)
        if attended is None:
            result = self.block(hidden)
        else:
            self.block.encoder = other
            del other
            result = self.block(hidden)
            self.block.encoder = attended
        return self.shard.leave(self.unit, result)
