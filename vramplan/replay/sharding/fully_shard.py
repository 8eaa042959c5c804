"""PyTorch's FSDP2, `fully_shard` on each block and on the model: gathered when used, reduced when done.

A unit is a block, a part of the model that its program wraps too (the embedding, the head), or the root: all that is in
no other. Between its uses a device holds its shard of each parameter alone. What the collectives allocate is in
collectives.py. Source: torch 2.13, torch/distributed/fsdp/_fully_shard: _fsdp_param_group.py (FSDPParamGroup),
_fsdp_state.py (FSDPState).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from vramplan.replay.autograd import whole_gradients
from vramplan.replay.models.checkpointed import checkpointed_blocks
from vramplan.replay.observers import Trained
from vramplan.replay.operators.views import to
from vramplan.replay.record import Record
from vramplan.replay.recorder import Node, Tape, rounded
from vramplan.replay.sharding.collectives import Collectives
from vramplan.replay.sharding.hosted import HostStates, host_states
from vramplan.replay.sharding.units import (
    SHARDS,
    WHOLE,
    GatheredUnit,
    OutsideBlocks,
    ShardPolicy,
    every_weight,
    is_packed,
    outside_weights,
    own_part,
)
from vramplan.replay.standing import StandingState
from vramplan.replay.tensors import FP32, Parameter, Shape, Tensor

PRE_BACKWARD = "pre_backward"  # a hook on the result of a unit


class FullyShard(Collectives):
    """The walk of one iteration over units: what is gathered, and when it goes."""

    # when a checkpoint of several blocks is run again, the last but one is there already, and the others are not
    last_in_checkpoint = 2
    has_alike_in_checkpoint = True  # of the other ones one stands for all
    reduces_in_backward = True
    hooks_stay_outside = True
    gradients_in_pieces = True
    keeps_root = False  # whole from forward to backward
    others_are_one = True  # a second model is one unit; else each of its blocks is

    def __init__(
        self,
        tape: Tape,
        policy: ShardPolicy,
        outside: OutsideBlocks,
        redistribute: Callable[[Parameter], None] | None = None,
    ) -> None:
        super().__init__(tape, policy, outside, redistribute)
        self.every_block_of_a_checkpoint = tape.makes_late or not self.has_alike_in_checkpoint
        self.order: list[GatheredUnit] = []  # in which forward left the units, the first time each
        self.visits: list[GatheredUnit] = []  # the same each time: a module may run several times
        self.outer: tuple[Any, ...] | None = None  # units and order of the model that trains, where another runs
        self.is_one = False  # the model that runs is one unit
        self.is_whole = False  # its units are gathered already
        self.again: list[GatheredUnit] = []  # the next blocks of the model that trains, where it runs once more
        self.hook: tuple[Node | None, list[GatheredUnit]] = (
            None,
            [],
        )  # the last one of a part of the model, and whose it is
        self.host_states: HostStates | None = None
        self.wholes: tuple[Parameter, ...] = ()  # of the shards that are stepped
        self.shards: list[Parameter] = []
        self.whole_shapes: dict[int, Shape] = {}
        self.last_shards: dict[int, GatheredUnit] = {}  # of each unit the last of them, in the order of the model
        self.inputs_dtype, self.norm_with_head = policy.inputs, policy.norm_with_head
        self.ends_in_backward = not policy.reduces_after  # _fsdp_state.py, _register_root_post_backward_final_callback

    # ------------------------------------------------------------------------------------------------ the model
    def units(self, make: Callable[[int], Any]) -> Callable[[int], Any]:
        """Each block that `make` builds is a unit, if it has weights of its own."""
        if self.is_one:
            return make

        def build(number: int) -> Any:
            start = len(self.tape.parameters)
            block = make(number)
            own = self.again.pop(0).parameters if self.again else self.tape.parameters[start:]
            if not own:  # ALBERT's blocks are one layer, which Transformers does not name as a unit
                return block
            unit = GatheredUnit(own)  # of an adapter that is switched off too
            unit.is_kept = number == self.policy.kept_block
            if self.is_whole:
                unit.gathered = []
            if self.outer is None:
                self._accumulate(unit)
            return UnitBlock(self, unit, block)

        return build

    def within(self, part: str, run: Callable[[Any], Any], given: Any) -> Any:
        """The module of a part of the model, between the hooks of its unit if it is one."""
        unit = self.own.get(part)
        if unit is None:
            return run(given)
        if not unit.parameters:
            inside = {id(one) for other in self.order for one in other.parameters}
            outside = (one for one in self.tape.parameters if id(one) not in inside)
            unit.parameters = tuple(one for one in outside if own_part(one, self.policy) == part)
        self.enter(unit)
        if given is not None:
            given, _ = self.after_inputs(unit, given)
        return self.leave(unit, run(given))

    def around_checkpoints(self, make: Callable[[int], Any], names: Sequence[str]) -> Callable[[int], Any]:
        """Transformers checkpoints a block's forward pass, and the hooks are around that."""
        return checkpointed_blocks(self.tape, make, names)

    def taken(self, tensor: Tensor) -> Tensor:
        """Source: _fsdp_state.py, FSDPState._pre_forward, cast_forward_inputs."""
        dtype = None if self.is_one else self.policy.inputs
        return to(tensor, dtype) if dtype is not None and tensor.dtype is FP32 else tensor

    def begin_other(self, recipe: Any) -> None:
        """A model that is wrapped by itself has a root and an order of its own (_fsdp_state.py, FSDPStateContext).

        Its root is gathered first. Of the model that trains itself the root is there. TRL wraps a reference as a
        whole, with no unit in it; where it is not resharded, it stays whole after the first iteration. A program with
        code of its own shards it as the model that trains.
        Source: trl 1.16.0, models/utils.py, prepare_fsdp; torchtune 0.6.1, recipes/full_dpo_distributed.py.
        """
        self.outer = self.root, self.own, self.order, self.visits
        self.is_one = recipe is not None and recipe.shape.engine is None and self.others_are_one
        if self.is_one:
            outside = every_weight(recipe, self.policy)
        else:
            outside = self.outside if recipe is None else outside_weights(recipe, Trained(), self.policy)
        (self.root, self.own), self.order, self.visits = self._units_outside(outside), [], []
        if recipe is None:
            ends = {id(self.outer[0]), *map(id, self.outer[1].values())}
            self.again = [unit for unit in self.outer[2] if id(unit) not in ends]
        stays = not self.policy.reshards_after_forward
        self.is_whole = stays and (recipe is None or not self.is_one)
        if self.keeps_root or (stays and (recipe is None or self.is_one)):
            self.root.gathered = []
        else:
            self._gather(self.root)
            self._copy_out(self.root, in_forward=True)

    def end_other(self) -> tuple[int, bool]:
        """What it has gathered goes, with the last buffer of its own."""
        assert self.outer is not None
        for unit in (*self.order, self.root):
            unit.gathered = None
        self.kept = None
        (self.root, self.own, self.order, self.visits), self.outer = self.outer, None
        self.is_one = self.is_whole = False
        self.again.clear()
        return 0, False

    def before_forward(self) -> None:
        """The root is gathered first."""
        for unit in (self.root, *self.own.values()):
            self._accumulate(unit)
        self._gather(self.root)
        self._copy_out(self.root, in_forward=True)

    def after_model(self, loss: Tensor) -> Tensor:
        """The root's forward is over: backward begins with it. A model whose loss is made outside says so itself."""
        if self.order and self.order[-1] is self.root:
            return loss
        goes = self.policy.reshards_after_forward or self.policy.reshards_root
        if goes and not (self.keeps_root or self.policy.keeps_root):
            self.root.gathered = None
        self._visit(self.root)
        self.kept = None
        inside = {id(one) for unit in self.order for one in unit.parameters}
        self.root.parameters = tuple(one for one in self.tape.parameters if id(one) not in inside)
        result = self._before_backward(self.root, loss)
        self.hook = None, []
        return result

    def _visit(self, unit: GatheredUnit) -> None:
        """Forward leaves a unit.

        Source: _fsdp_param_group.py, FSDPParamGroup._record_post_forward.
        """
        if unit not in self.order:
            self.order.append(unit)
        unit.visits.append(len(self.visits))
        self.visits.append(unit)

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
        if not self.policy.reduces or self.policy.before_last:
            for unit in self.order:
                unit.gathered = None
                unit.accumulated.clear()
        for unit in self.order:
            unit.summed = None
        self.reducing = None
        self.wholes = tuple(self.tape.parameters)
        found = [self._shard(one) for one in self.wholes]
        self.shards = found
        self.whole_shapes = {id(own): whole.shape for own, whole in zip(found, self.wholes, strict=True)}
        self._tell_host()
        return found

    def _tell_host(self) -> None:
        """What the host has of the states."""
        if self.policy.hosted is not None:
            sums_each = self.policy.accumulated != WHOLE
            averages = self.policy.averages
            self.host_states = host_states(self.on_host, self.policy.hosted, sums_each=sums_each, averages=averages)

    def cut_from(self) -> list[tuple[int, ...]]:
        """Each parameter whole, in the element type of its shards.

        Source: accelerate 1.15, utils/fsdp_utils.py, fsdp2_load_full_state_dict; torchtune 0.6.1,
        training/_distributed.py, load_from_full_model_state_dict: one by one.
        """
        if self.policy.hosted is not None:
            return []
        dtypes = [self._stored(one.dtype, one.node is not None or one.idle) for one in self.wholes]
        pairs = zip(self.wholes, dtypes, strict=True)
        return [
            (one.stored_bytes if is_packed(one) else rounded(prod(one.shape) * dtype.itemsize),) for one, dtype in pairs
        ]

    def states(self) -> list[StandingState]:
        """The gradients of earlier micro-steps: shards, of which those of a unit lie in one piece, or whole ones."""
        if self.policy.keeps_whole:
            return [StandingState("gradients", sum(self._whole_bytes(unit) for unit in self.order), 0)]
        if self.policy.accumulated != SHARDS or self.policy.hosted is not None:
            return []
        size = 0
        for unit in self.order:
            trained = [one for one in unit.parameters if one.node is not None]
            if trained:
                dtype = self.policy.stored or trained[0].dtype
                shapes = [one.shape for one in trained]
                size += rounded(self._elements(shapes) * dtype.itemsize) * trained[0].copies
        return [StandingState("gradients", size, 0)]

    def unreached(self, weights: Sequence[Parameter]) -> None:
        """The whole gradients that stand for those of earlier micro-steps are of none of these."""
        gone = {id(one) for one in weights}
        for unit in self.order if gone else ():
            trained = [one for one in unit.parameters if one.node is not None or one.idle]
            if len(trained) != len(unit.accumulated):
                continue
            kept = list(zip(trained, unit.accumulated, strict=True))
            unit.accumulated = [gradient for one, gradient in kept if id(one) not in gone]
            for one, gradient in kept:
                if id(one) in gone and gradient.storage is not None:
                    self.tape.resize(gradient.storage.index, 0)

    def _whole_bytes(self, unit: GatheredUnit) -> int:
        """Of a unit's whole gradients, in the element type of the reduction."""
        trained = [one for one in unit.parameters if one.node is not None and not one.idle]
        sizes = [rounded(prod(one.shape) * (self.policy.reduce or one.dtype).itemsize) for one in trained]
        return sum(size * one.copies for size, one in zip(sizes, trained, strict=True))

    def gradients(self) -> list[Any]:
        """Those of the shards, which lie in one piece for each unit."""
        return [one for unit in self.order for one in (unit.gradient, *unit.others)]

    def let_gradients_go(self) -> None:
        """With the last view of a piece."""
        for unit in self.order:
            unit.gradient = None
            unit.others.clear()

    def whole_shape(self, parameter: Parameter) -> Shape:
        """That of all rows."""
        return self.whole_shapes.get(id(parameter), parameter.shape)

    def let_gradient_go(self, shard: Parameter) -> None:
        """With the last shard of a unit its piece."""
        if not self.last_shards:
            units = {id(one): unit for unit in self.order for one in unit.parameters}
            last = {
                id(units[id(whole)]): (own, units[id(whole)])
                for whole, own in zip(self.wholes, self.shards, strict=True)
                if own.node is not None
            }
            self.last_shards = {id(own): unit for own, unit in last.values()}
        unit = self.last_shards.get(id(shard))
        if unit is not None:
            unit.gradient = None
            unit.others.clear()

    def after_step(self) -> None:
        """The gradients go, and what no backward has freed."""
        for unit in self.order:
            unit.gradient = unit.gathered = None
            unit.others.clear()

    def drop(self) -> None:
        """Nothing more will be asked."""
        self.order.clear()
        self.visits.clear()
        self.last_shards.clear()
        self.whole_shapes.clear()
        self.shards = []
        self.wholes = ()

    def annotate(self, record: Record) -> None:
        """What is on the host."""
        record.host_states = self.host_states

    # ----------------------------------------------------------------------------------------------------- hooks
    def enter(self, unit: GatheredUnit) -> bool:
        """A unit's forward begins, the first time or again; whether it is the first time."""
        if self.tape.recomputing is None:
            self._gather(unit)
            self._copy_out(unit, in_forward=True)
            return True
        self._gather(unit)
        self._copy_out(unit, in_forward=not unit.used_by_backward)
        return False

    def leave(self, unit: GatheredUnit, result: Any) -> Any:
        """A unit's forward is over: the first, or that of a reentrant checkpoint, in which it stays gathered.

        Source: _fsdp_state.py, FSDPState._post_forward; _fsdp_param_group.py, FSDPParamGroup.post_forward.
        """
        if self.tape.direction != "recompute":
            if self.policy.reshards_after_forward and not unit.is_kept:
                unit.gathered = None
            self._visit(unit)
        else:  # it was the outermost module of its own forward
            self.kept = None
        return self.through(result, lambda tensor: self._before_backward(unit, tensor))

    def leave_again(self, unit: GatheredUnit) -> None:
        """A unit's forward is over that ran again: it was the outermost module of its own forward."""
        self.kept = None

    def _before_backward(self, unit: GatheredUnit, tensor: Tensor) -> Tensor:
        """The result of a unit, whose gradient brings its parameters, and starts to gather those of the next unit.

        Where a unit ends the model, the root's hook is one more on the same tensor, and comes after it.
        Source: _fsdp_param_group.py, FSDPParamGroup.pre_backward and _backward_prefetch.
        """
        before, others = self.hook
        if before is not None and tensor.node is before:
            others.append(unit)
            return tensor
        units = [unit]

        def fn(gradient: Any, _saved: Any) -> list[Any]:
            for one in units:
                if not one.used_by_backward:
                    one.used_by_backward = True
                    self._gather(one)
                    self._copy_out(one, in_forward=False)
                    if not self.policy.prefetches_after:
                        self._gather_next(one)
            self.hooks_over()
            return [gradient]

        hooked = self._hook(PRE_BACKWARD, tensor, fn)
        if unit in self.own.values():
            self.hook = hooked.node, units
        return hooked

    def hooks_over(self) -> None:
        """The hooks of a unit on its result have run, and those of what was given that result are next."""

    def _gather_next(self, unit: GatheredUnit) -> None:
        """Gather ahead of time the unit that backward comes to after this one."""
        index = unit.visits.pop() if unit.visits and self._weights(unit) else 0
        if index and not self.visits[index - 1].is_reduced:
            self._gather(self.visits[index - 1])

    def after_inputs(self, unit: GatheredUnit, given: Any, other: Tensor | None = None) -> tuple[Any, Tensor | None]:
        """The inputs of a unit: when their gradients are there, so are those of its parameters.

        All go through one node, in which the gradients of each meet. It makes zeros of one that has none: a block may
        be given what it does not look at.
        Source: _fsdp_param_group.py, FSDPParamGroup._register_post_backward_hook, RegisterPostBackwardFunction;
        torch/csrc/autograd/python_function.cpp, PyNode::apply.
        """
        hidden = given[0] if type(given) is tuple else given
        inputs = [one for one in (hidden, other) if one is not None and one.node is not None]
        made = [(one.shape, one.dtype, one.batched) for one in inputs]

        def fn(gradient: Any, _saved: Any) -> list[Any]:
            gradients = whole_gradients(self.tape, gradient if type(gradient) is list else [gradient], made)
            self.reduce(unit)
            return gradients

        node = self.tape.record("post_backward", inputs, fn)
        if node is not None:
            hooked = [one.alias(one.shape, one.strides, node, i) for i, one in enumerate(inputs)]
            if other is not None and other.node is not None:
                other = hooked.pop()
            if hooked:
                hidden = hooked.pop()
        del inputs
        return (hidden, *given[1:]) if type(given) is tuple else hidden, other

    def hooks_every_input(self, unit: GatheredUnit) -> bool:
        """Whether a unit waits for the gradients of all its inputs, or for that of the hidden state alone."""
        return True

    def _hook(self, name: str, tensor: Tensor, fn: Callable[[Any, Any], list[Any]]) -> Tensor:
        node = self.tape.record(name, (tensor,), fn)
        return tensor if node is None else tensor.alias(tensor.shape, tensor.strides, node)

    @staticmethod
    def through(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
        """The hidden state, or a tuple that begins with it, changed."""
        if isinstance(value, tuple):
            return (change(value[0]), *value[1:])
        return change(value)


class UnitBlock:
    """A block with the hooks of its unit."""

    def __init__(self, shard: FullyShard, unit: GatheredUnit, block: Any) -> None:
        self.shard, self.unit, self.block = shard, unit, block

    def __call__(self, hidden: Any) -> Any:
        """The block, between what its unit does before and after it.

        What it is given is cast first, but not when it runs again in its own backward. A block that runs again for the
        backward of a later one, in a checkpoint of several, has yet to come to that.
        Source: _fsdp_state.py, FSDPState._pre_forward (TrainingState.PRE_BACKWARD).
        """
        shard, names = self.shard, ()
        if shard.inputs_dtype is not None and not (shard.tape.direction == "recompute" and self.unit.used_by_backward):
            names = getattr(self.block, "floats", names)
            hidden = shard.taken(hidden) if isinstance(hidden, Tensor) else hidden  # of blocks that give fp32
        if not names:
            return self._run(hidden)
        given = [getattr(self.block, name) for name in names]
        for name, one in zip(names, given, strict=True):
            setattr(self.block, name, shard.taken(one))
        result = self._run(hidden)
        for name, one in zip(names, given, strict=True):
            setattr(self.block, name, one)
        return result

    def _run(self, hidden: Any) -> Any:
        if not self.shard.enter(self.unit):
            result = self.block(hidden)
            self.shard.leave_again(self.unit)
            return result
        # the other argument that needs a gradient
        name = getattr(self.block, "reads", "encoder")
        read = getattr(self.block, name, None) if self.shard.hooks_every_input(self.unit) else None
        hidden, other = self.shard.after_inputs(self.unit, hidden, read)
        if read is None:
            result = self.block(hidden)
        else:
            setattr(self.block, name, other)
            del other
            result = self.block(hidden)
            setattr(self.block, name, read)
        return self.shard.leave(self.unit, result)
