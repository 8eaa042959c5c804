"""The collectives of FSDP2: how a unit is gathered from its shards, and how its gradients are reduced to them.

Source: torch 2.13, torch/distributed/fsdp/_fully_shard: _fsdp_param.py (FSDPParam), _fsdp_collectives.py
(foreach_all_gather, foreach_all_gather_copy_out, foreach_reduce).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from vramplan.replay.models.part_names import HEAD
from vramplan.replay.recorder import Tape
from vramplan.replay.sharding.hosted import Shard
from vramplan.replay.sharding.units import (
    COMMUNICATION,
    GATHERED,
    SHARDS,
    WHOLE,
    GatheredUnit,
    OutsideBlocks,
    ShardedWeight,
    ShardPolicy,
    cast_bytes,
    is_packed,
    packed_shape,
    shard_shape,
    weight_of,
)
from vramplan.replay.techniques import Shards
from vramplan.replay.tensors import BYTE, DType, Parameter, Shape, Tensor


class Collectives(Shards):
    """Gathers and reduces units, of which a device has its shards in between.

    `outside` are the parameters that are in no block. `redistribute` brings a gradient to the layout that its parameter
    has in tensor parallelism.
    """

    def __init__(
        self,
        tape: Tape,
        policy: ShardPolicy,
        outside: OutsideBlocks,
        redistribute: Callable[[Parameter], None] | None = None,
    ) -> None:
        self.tape, self.policy = tape, policy
        self.rows_among = policy.shards
        self.outside = outside
        self.root, self.own = self._units_outside(outside)
        self.kept: Tensor | None = None  # what the last collective of forward wrote, until the next has copied out
        self.reducing: Tensor | None = None  # what the last reduction read
        self.on_host: list[Shard] = []
        self.is_over = False  # backward
        self.redistribute = redistribute

    def _units_outside(self, outside: OutsideBlocks) -> tuple[GatheredUnit, dict[str, GatheredUnit]]:
        """The root, and the parts of the model that are units of their own."""
        own = {part: GatheredUnit((), weights) for part, weights in outside.own}
        if HEAD in own:
            own[HEAD].is_kept = self.policy.keeps_head
        return GatheredUnit((), outside.root), own

    # --------------------------------------------------------------------------------------------------- shards
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
        elif cast_bytes(whole, self.policy):
            shard.quantized = (prod(shape) * dtype.itemsize, *cast_bytes(whole, self.policy))
        if hosted:
            self.on_host.append(Shard(prod(shape), dtype, whole.copies, whole.node is not None, self._moves()))
            shard.quantized = (0, *shard.quantized[1:])  # nothing of it is on the device
        shard.path, shard.part, shard.idle, shard.is_table = whole.path, whole.part, whole.idle, whole.is_table
        shard.in_linear = whole.in_linear
        return shard

    def _moves(self) -> int:
        """How often a parameter comes to the device in a micro-step: for forward, and for backward."""
        return 2 if self.policy.reshards_after_forward else 1

    def _stored(self, dtype: DType, trained: bool) -> DType:
        """The element type of the shards of a parameter that is gathered in a type."""
        policy = self.policy
        return (policy.stored if trained else policy.frozen or policy.stored) or dtype

    def _weights(self, unit: GatheredUnit) -> Sequence[ShardedWeight]:
        if unit.weights is not None:
            return unit.weights
        return [weight_of(one, self.policy) for one in unit.parameters]

    def _elements(self, shapes: Sequence[Shape]) -> int:
        """Of one shard of each."""
        return sum(prod(shard_shape(shape, self.policy.shards)) for shape in shapes)

    # ------------------------------------------------------------------------------------------------- gathering
    def _gather(self, unit: GatheredUnit) -> None:
        """Start to gather a unit, unless that was done: the shards are copied into the buffer of the collective.

        Source: _fsdp_collectives.py, foreach_all_gather and _get_all_gather_input_metadatas.
        """
        if unit.arriving is not None or unit.gathered is not None or not self._weights(unit):
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

    def _all_gather(self, weights: Sequence[ShardedWeight]) -> Tensor:
        """The buffer that the collective writes; parameters of several element types are gathered as bytes."""
        dtypes = {one.dtype for one in weights}
        size = sum(self._elements([one.shape]) * one.dtype.itemsize for one in weights) * self.policy.shards
        dtype = dtypes.pop() if len(dtypes) == 1 else BYTE
        arriving = self.tape.new("all_gather", (size // dtype.itemsize,), dtype, False, category=COMMUNICATION)
        return self.tape.on_another_stream(arriving)

    def _gather_from_host(self, weights: Sequence[ShardedWeight]) -> Tensor:
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

    def _copy_out(self, unit: GatheredUnit, *, in_forward: bool) -> None:
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

    def _copies(self, weights: Sequence[ShardedWeight]) -> list[Tensor]:
        """Each parameter whole, with room for as many equal shards as there are."""
        shards, new = self.policy.shards, self.tape.new
        sizes = [(prod(shard_shape(one.shape, shards)) * shards,) for one in weights]
        return [
            new("split_with_sizes_copy", size, one.dtype, False, category=GATHERED)
            for one, size in zip(weights, sizes, strict=True)
        ]

    # -------------------------------------------------------------------------------------------------- reducing
    def _accumulate(self, unit: GatheredUnit) -> None:
        """Whole gradients of earlier micro-steps, summed in the element type of the reduction.

        Source: _fsdp_param.py, FSDPParam.to_accumulated_grad_if_needed, under set_requires_gradient_sync(False).
        """
        if self.policy.accumulated == WHOLE and not self.policy.keeps_whole:
            trained = [weight for weight in self._weights(unit) if weight.trained]
            kept = [(self._kept_shape(unit, weight), self.policy.reduce or weight.dtype) for weight in trained]
            unit.accumulated = [
                self.tape.new("gradients", shape, dtype, False, category="gradients") for shape, dtype in kept
            ]
            self._were_there(unit.accumulated)

    def _were_there(self, gradients: Sequence[Tensor]) -> None:
        """They are there when the walk begins, which makes them where it comes to their unit."""
        self.tape.unseen.left_whole.update(one.storage.index for one in gradients if one.storage is not None)

    def _first_of_several(self, one: Parameter) -> Tensor:
        """Its gradient in the element type of the reduction, to which those of later micro-steps are added.

        Source: _fsdp_param.py, FSDPParam.to_accumulated_grad_if_needed.
        """
        assert one.grad is not None
        reduce = self.policy.reduce or one.grad.dtype
        return one.grad if reduce is one.grad.dtype else self.tape.like("to", one.grad, reduce)

    def _leave_whole(self, unit: GatheredUnit, with_gradients: Sequence[Parameter]) -> None:
        """Gradients are added to those that are kept, or are the first of them: they are cast one by one, and go.

        Source: _fsdp_param_group.py, FSDPParamGroup.post_backward; _fsdp_param.py,
        FSDPParam.accumulate_unsharded_grad_if_needed and to_accumulated_grad_if_needed.
        """
        is_first = self.policy.accumulated is None
        for one in with_gradients:
            if is_first:
                unit.accumulated.append(self._first_of_several(one))
            one.grad = None

    def _kept_shape(self, unit: GatheredUnit, weight: ShardedWeight) -> Shape:
        """That of a gradient between micro-steps: a table's is of all rows that tensor parallelism splits."""
        if unit.weights is None or len(weight.shape) == 1:
            return weight.shape
        return (weight.shape[0] * self.policy.table_parts, *weight.shape[1:])

    def reduce(self, unit: GatheredUnit) -> None:
        """A unit's gradients are complete: they are summed over the devices, and each keeps its shard.

        Source: _fsdp_param_group.py, FSDPParamGroup.post_backward; _fsdp_collectives.py, foreach_reduce.
        """
        tape, policy = self.tape, self.policy
        if not unit.parameters:  # of a root whose parameters are all in other units
            unit.is_reduced = True
            return
        with_gradients = [one for one in unit.parameters if one.node is not None and not one.idle]
        if unit.visits and not unit.accumulated:  # a module that runs several times gets its gradients with the last
            with_gradients = [one for one in with_gradients if one.grad is not None]
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
        if policy.before_last:
            self._leave_whole(unit, with_gradients)
            return
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
        last = _last(with_gradients)
        _unsharded_grad = unit.accumulated[last] if unit.accumulated else with_gradients[last].grad
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

    def _step_now(self, unit: GatheredUnit, with_gradients: Sequence[Parameter]) -> None:
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


def _last(parameters: Sequence[Parameter]) -> int:
    """The place of the parameter that FSDP2 has last: a module's own are behind those of the modules inside of it.

    Source: torch/distributed/fsdp/_fully_shard/_fsdp_init.py, _get_managed_modules, which appends children first.
    """
    end = len(parameters) - 1
    return next((at for at in range(end, -1, -1) if parameters[at].inside is parameters[end]), end)
