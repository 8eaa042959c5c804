"""PyTorch's FSDP1, `FullyShardedDataParallel` around each block and the model: a unit is one flat parameter.

All weights of a unit are laid into one tensor of one dimension, padded to a multiple of the devices. It is gathered
into one tensor, which the weights are views of, and its gradient is one tensor too. Defaults of PyTorch:
`use_orig_params` False, `backward_prefetch` BACKWARD_PRE, `forward_prefetch` False. Source: torch 2.13,
torch/distributed/fsdp: _flat_param.py (FlatParamHandle), _runtime_utils.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from vramplan.replay.recorder import Node, Tape, rounded
from vramplan.replay.sharding.fully_shard import PRE_BACKWARD, FullyShard
from vramplan.replay.sharding.hosted import Shard
from vramplan.replay.sharding.units import (
    COMMUNICATION,
    GATHERED,
    SHARDS,
    GatheredUnit,
    OutsideBlocks,
    ShardedWeight,
    ShardPolicy,
)
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques.clipping import Clips
from vramplan.replay.tensors import ALLOCATOR_BLOCK_BYTES, FP32, DType, Parameter, Tensor


class FlatParameters(FullyShard):
    """The same walk over units, each of which is one tensor."""

    has_alike_in_checkpoint = False
    weights_are_views = True
    casts_buffers = True
    reduces_in_backward = gradients_in_pieces = others_are_one = False  # as FSDP2 alone does
    keeps_root = True  # _runtime_utils.py, _post_forward_reshard: backward begins with it

    def __init__(
        self,
        tape: Tape,
        policy: ShardPolicy,
        outside: OutsideBlocks,
        redistribute: Callable[[Parameter], None] | None = None,
    ) -> None:
        super().__init__(tape, policy, outside, redistribute)
        self.sources: list[tuple[int, ...]] = []  # of the shards that are stepped
        self.here: set[GatheredUnit] = set()  # units whose parameter is what was gathered, and not the shard
        self.behind: set[GatheredUnit] = set()  # units that are given the result of another one
        self.going: GatheredUnit | None = None  # a frozen one that goes when the hooks on that result are over

    def _elements_of(self, weights: Sequence[ShardedWeight]) -> tuple[int, int]:
        """Of a flat parameter: all, and those of one device (_flat_param.py, FlatParamHandle._get_shard)."""
        total = sum(prod(one.shape) for one in weights)
        return total, -(-total // self.policy.shards)

    def _dtype_of(self, weights: Sequence[ShardedWeight]) -> DType:
        """Of the gathered parameter: one, which FSDP1 asks for (_validate_tensors_to_flatten)."""
        return weights[0].dtype

    def is_trained(self, unit: GatheredUnit) -> bool:
        """Whether the flat parameter of a unit needs a gradient: all its weights do, or none."""
        if unit.weights is not None:
            return any(one.trained for one in unit.weights)
        return any(one.node is not None or one.idle for one in unit.parameters)

    def _gather(self, unit: GatheredUnit) -> None:
        """Gather a unit, unless it is there: the shard is cast first, and that copy goes when all is gathered.

        A shard on the host comes to the device, and the whole one is cast. It comes again for a unit that was kept
        whole: between forward and backward, too, the parameter is its shard.
        Source: _flat_param.py, FlatParamHandle.pre_unshard, _use_low_precision_shard, unshard and post_unshard;
        _runtime_utils.py, _unshard and _reshard (which forgets that a unit was prefetched).
        """
        if unit in self.here:
            return
        self.here.add(unit)
        hosted = self.policy.hosted is not None
        if unit.gathered is not None and not hosted:
            return
        weights = self._weights(unit)
        dtype, shards = self._dtype_of(weights), self.policy.shards
        stored = self._stored(dtype, self.is_trained(unit))
        _, own = self._elements_of(weights)
        shard: Tensor | None = None
        if stored is not dtype:
            shard = self.tape.on_another_stream(self.tape.new("copy_", (own,), dtype, False, category=COMMUNICATION))
        if hosted:
            unit.moves += 1
            arrived: Tensor | None = self.tape.new("to", (own,), stored, False, category=COMMUNICATION)
            assert arrived is not None
            self.tape.on_another_stream(arrived)
            shard = shard or arrived
            del arrived
        if unit.gathered is None:
            gathered = self.tape.new("all_gather", (own * shards,), dtype, False, category=GATHERED)
            unit.gathered = [self.tape.on_another_stream(gathered)]
            self._await(gathered)
            del gathered
        del shard

    def _await(self, tensor: Tensor) -> None:
        """What another stream uses is free when that has come so far, which no limit of units holds near the program.

        Source: _flat_param.py, FlatParamHandle._free_unsharded_flat_param, and _runtime_utils.py, _reduce_grad
        (record_stream), and PyTorch 2.0, _unshard without a limit (limit_all_gathers).
        """
        if self.policy.gathers_ahead and tensor.storage is not None:
            self.tape.freed_late(tensor)

    def _copy_out(self, unit: GatheredUnit, *, in_forward: bool) -> None:
        """The collective writes to where the weights are."""

    def leave(self, unit: GatheredUnit, result: Any) -> Any:
        """A unit's first forward is over: its parameter is the shard again, whether what was gathered stays or not.

        Source: _runtime_utils.py, _post_forward_reshard.
        """
        self.here.discard(unit)
        if self.tape.direction == "recompute" and self.policy.reshards_after_forward:
            unit.gathered = None  # inside of a reentrant checkpoint
        return super().leave(unit, result)

    def end_other(self) -> tuple[int, bool]:
        """The shards of its units; and its root whole, which no backward will shard, or all units where none is.

        A unit stands for the copies of a block.
        Source: _runtime_utils.py, _post_forward_reshard.
        """
        units = [(self.root, 1), *((one, one.parameters[0].copies) for one in self.order if one.parameters)]
        size = 0
        for unit, copies in units:
            weights = self._weights(unit)
            if not weights:
                continue
            (_, own), dtype = self._elements_of(weights), self._dtype_of(weights)
            size += rounded(own * self._stored(dtype, trained=False).itemsize) * copies
            if self.is_whole or unit is self.root:
                size += rounded(own * self.policy.shards * dtype.itemsize) * copies
        self.here -= {self.root, *self.order}
        super().end_other()
        return size, True

    def after_model(self, loss: Tensor) -> Tensor:
        """The root's forward is over."""
        self.here.discard(self.root)
        return super().after_model(loss)

    def leave_again(self, unit: GatheredUnit) -> None:
        """A unit that runs again before its own backward has begun goes again, gathered ahead or not.

        Source: _runtime_utils.py, _pre_forward and _post_forward.
        """
        if unit.used_by_backward:
            return
        self.here.discard(unit)
        if self.policy.reshards_after_forward:
            unit.gathered = None

    def _before_backward(self, unit: GatheredUnit, tensor: Tensor) -> Tensor:
        """Whether the parameter is expected again is known then (_runtime_utils.py, _register_pre_backward_hooks)."""
        unit.is_awaited = unit.is_awaited or tensor.node is not None
        return super()._before_backward(unit, tensor)

    def hooks_every_input(self, unit: GatheredUnit) -> bool:
        """A flat parameter that is trained waits for its own gradient."""
        return not self.is_trained(unit)

    def after_inputs(self, unit: GatheredUnit, given: Any, other: Tensor | None = None) -> tuple[Any, Tensor | None]:
        """A frozen unit goes when the last of its inputs has its gradient: what an encoder gave, where it gave some.

        That comes to what made it when all who read it are through. The gradient of the hidden state waits for it.
        Source: _runtime_utils.py, _register_post_backward_reshard_only_hook; torch/autograd/graph.py,
        register_multi_grad_hook.
        """
        if other is None or type(other.node) is not Node:
            hidden = given[0] if type(given) is tuple else given
            if type(hidden.node) is Node and hidden.node.operator == PRE_BACKWARD:
                self.behind.add(unit)
            return super().after_inputs(unit, given, other)
        node, inner = other.node, other.node.fn
        waiting: list[Tensor] = []

        def keep(gradient: Any, _saved: Any) -> list[Any]:
            waiting.append(gradient)
            return [gradient]

        def fn(gradient: Any, saved: Any) -> Sequence[Tensor | None]:
            if not unit.is_reduced:
                self.reduce(unit)
            waiting.clear()
            return inner(gradient, saved)

        node.fn = fn
        return self.through(given, lambda tensor: self._hook("multi_grad", tensor, keep)), other

    def hooks_over(self) -> None:
        """A frozen unit that was given that result goes: its hook on the same tensor was registered later."""
        if self.going is not None:
            unit, self.going = self.going, None
            self._reshard(unit)

    def _gather_next(self, unit: GatheredUnit) -> None:
        """The unit that forward left before it left this one the first time, if backward comes to it.

        What is asked is whether its number says something, which that of the first unit of all does not: where that
        runs again, it has the number of the second time.
        Source: _exec_order_utils.py, record_post_forward and get_handle_to_backward_prefetch.
        """
        index = next((one for one in unit.visits if one), 0) if self._weights(unit) else 0
        if not index:
            return
        before = self.visits[index - 1]
        if before.is_awaited and not before.is_reduced:
            self._gather(before)

    def _accumulate(self, unit: GatheredUnit) -> None:
        """The whole gradient of earlier micro-steps, in the element type of the products, under no_sync.

        Shards of gradients are states, unless the optimizer lets go of them.

        What forward does not free, no micro-step under no_sync frees: it is there when the last one begins.
        Source: _runtime_utils.py, _should_free_in_backward.
        """
        if self.policy.accumulated is None:
            return
        weights = self._weights(unit)
        (total, own), dtype = self._elements_of(weights), self._dtype_of(weights)
        if self.policy.accumulated == SHARDS:
            if self.policy.gradients_go and self.is_trained(unit):
                stored = self.policy.stored or dtype
                unit.gradient = self.tape.new("gradients", (own,), stored, False, category="gradients")
            return
        if self.policy.keeps_whole:
            unit.gathered = None if self.policy.reshards_after_forward else []  # among the states
            return
        if self.is_trained(unit):
            unit.accumulated = [self.tape.new("gradients", (total,), dtype, False, category="gradients")]
            self._were_there(unit.accumulated)
        if not self.policy.reshards_after_forward:
            gathered = self.tape.new("all_gather", (own * self.policy.shards,), dtype, False, category=GATHERED)
            unit.gathered = [self.tape.on_another_stream(gathered)]

    def reduce(self, unit: GatheredUnit) -> None:
        """A unit's gradients are complete: they become one tensor, the weights go, and each device keeps its part.

        Weights that the loss does not hang on have zeros in their place. A shard that goes to the host stays here until
        backward is over, as it does where earlier micro-steps would be added to it.
        Source: torch/csrc/autograd/FunctionsManual.cpp, split_with_sizes_backward; _runtime_utils.py,
        _post_backward_hook, _reduce_grad, _cast_grad_to_param_dtype, _accumulate_sharded_grad and _offload_grad.
        """
        if not self.is_trained(unit):
            if unit in self.behind:
                self.going = unit
            else:
                self._reshard(unit)
            return
        tape = self.tape
        weights = self._weights(unit)
        total, _ = self._elements_of(weights)
        dtype = self._dtype_of(weights)
        zeros: list[Tensor] = [tape.new("zeros", one.shape, dtype, False) for one in unit.parameters if one.idle]
        zeros += self._padding(unit)
        whole: Tensor = tape.new("cat", (total,), dtype, False, category="gradients")
        zeros.clear()
        for one in unit.parameters:
            one.grad = None
        self._reduce([whole], unit)

    def _reshard(self, unit: GatheredUnit) -> None:
        """Of what is frozen, or is reached by no gradient, the gathered parameter goes.

        Source: _runtime_utils.py, _post_backward_reshard_only_hook and _catch_all_reshard.
        """
        unit.used_by_backward, unit.is_reduced = False, True
        self._go(unit)

    def _go(self, unit: GatheredUnit) -> None:
        """Backward is done with the gathered parameter.

        Source: _runtime_utils.py, _post_backward_reshard and _should_free_in_backward.
        """
        if not self.policy.before_last or self.policy.reshards_after_forward:
            unit.gathered = None
        self.here.discard(unit)
        if self.policy.prefetches_after:
            self._gather_next(unit)

    def _reduce(self, complete: list[Tensor], unit: GatheredUnit) -> None:
        """The gradient of a flat parameter is complete."""
        tape, policy = self.tape, self.policy
        unit.used_by_backward, unit.is_reduced = False, True
        whole = complete.pop()
        self._await(whole)
        weights = self._weights(unit)
        total, own = self._elements_of(weights)
        dtype = self._dtype_of(weights)
        _added: Tensor | None = None  # the engine holds what it gave to the accumulator until the hooks are over
        if unit.accumulated:
            _added, whole = whole, unit.accumulated.pop()
        if policy.before_last and not policy.keeps_whole:
            unit.accumulated = [whole]
        self._go(unit)
        if policy.before_last:
            return
        reduce, stored = policy.reduce or dtype, policy.stored or dtype
        elsewhere = tape.on_another_stream  # _post_backward_stream
        sent = whole if reduce is dtype else elsewhere(tape.new("to", (total,), reduce, False, category=COMMUNICATION))
        padded: Tensor | None = None
        if own * policy.shards != total:
            padded = elsewhere(tape.new("pad", (own * policy.shards,), reduce, False, category=COMMUNICATION))
        shard: Tensor = tape.new("reduce_scatter", (own,), reduce, False)
        if reduce is not stored:
            tape.on_another_stream(shard)
            shard = tape.like("to", shard, stored)
        tape.on_another_stream(shard)  # of what comes after backward
        if policy.accumulated != SHARDS:
            tape.relabel(shard, "gradients")
            unit.gradient = shard
        del whole, sent, padded

    def after_backward(self) -> list[Parameter]:
        """What is stepped is one flat shard of each unit; units that only frozen weights come before end here.

        One that forward does not free and backward does not come to stays whole: its parameter is the shard already.
        Source: _runtime_utils.py, _catch_all_reshard.
        """
        for unit in (*self.order[:-1], self.root):
            if not unit.is_reduced and (self.policy.reshards_after_forward or unit.is_awaited or unit is self.root):
                self.reduce(unit)
        for unit in self.order if self.policy.before_last else ():
            unit.gathered = None
            unit.accumulated.clear()
        if self.policy.hosted is not None:  # _flat_param.py, FlatParamHandle.prepare_gradient_for_optim
            for unit in self.order:
                unit.gradient = None
        units = [unit for unit in (self.root, *self.order[:-1]) if unit.parameters]
        found, self.sources = [], []
        for unit in units:
            shards = self._flat_shards(unit)
            found += shards
            self.sources += [self._laid_flat(unit), *(() for _ in shards[1:])]
        self._tell_host()
        return found

    def before_step(self) -> None:
        """Norms of gradients on the host are taken there; what they sum to comes to the device, to be summed over all.

        Source: torch/distributed/fsdp/fully_sharded_data_parallel.py, clip_grad_norm_ and _get_grad_norm.
        """
        if self.policy.hosted is None or not self.policy.clips:
            return
        tape = self.tape
        own = tape.new("to", (), FP32, False, category="temporaries")
        squared = tape.new("pow", (), FP32, False, category="temporaries")
        total = tape.new("pow", (), FP32, False, category="temporaries")
        del own, squared, total

    def _laid_flat(self, unit: GatheredUnit) -> tuple[int, ...]:
        """The weights of a unit, and behind them the flat parameter that they are copied into and that is cut.

        Source: _flat_param.py, FlatParamHandle.flatten_tensors_into_flat_param and shard.
        """
        weights = self._weights(unit)
        dtype = self._stored(self._dtype_of(weights), self.is_trained(unit))
        sizes = [*(prod(one.shape) for one in weights), self._elements_of(weights)[0]]
        return tuple(rounded(size * dtype.itemsize) for size in sizes)

    def cut_from(self) -> list[tuple[int, ...]]:
        """Each unit whole."""
        return [] if self.policy.hosted is not None else self.sources

    def _padding(self, unit: GatheredUnit) -> list[Tensor]:
        """What stands for the gradients of padding between the weights of a unit, of which there is none."""
        return []

    def _flat_shards(self, unit: GatheredUnit) -> list[Parameter]:
        """What the optimizer steps of a unit: its flat shard."""
        first, weights = unit.parameters[0], self._weights(unit)
        _, own = self._elements_of(weights)
        is_trained = self.is_trained(unit)
        dtype = self._stored(weights[0].dtype, is_trained)
        hosted = self.policy.hosted is not None
        shard = Parameter(self.tape, "flat_param", (own,), dtype, first.copies, trainable=is_trained and not hosted)
        if hosted:
            self.on_host.append(Shard(own, dtype, first.copies, is_trained, unit.moves, has_gradient=True))
            shard.quantized = (0,)  # nothing of it is on the device
        shard.path, shard.part = first.path, first.part[:-1]
        if self.policy.gradients_go:  # which the optimizer has then
            shard.grad, unit.gradient = unit.gradient, None
        return [shard]

    def states(self) -> list[StandingState]:
        """The shards of the gradients of earlier micro-steps, and what clipping keeps."""
        kept = [StandingState("buffers", ALLOCATOR_BLOCK_BYTES, 0)] if self.policy.clips else []  # clip_flat_parameters
        if self.policy.keeps_whole:
            return [StandingState("gradients", sum(self._whole_bytes(unit) for unit in self.order), 0), *kept]
        if self.policy.accumulated != SHARDS or self.policy.hosted is not None or self.policy.gradients_go:
            return kept
        size = 0
        for unit in filter(self.is_trained, self.order):
            weights = self._weights(unit)
            _, own = self._elements_of(weights)
            dtype = self.policy.stored or self._dtype_of(weights)
            size += rounded(own * dtype.itemsize) * unit.parameters[0].copies
        return [StandingState("gradients", size, 0), *kept]

    def _whole_bytes(self, unit: GatheredUnit) -> int:
        """Of a unit's whole gradient, and of its parameter where no micro-step under no_sync lets it go.

        Source: _runtime_utils.py, _should_free_in_backward.
        """
        if not unit.parameters:
            return 0
        weights = self._weights(unit)
        (total, own), itemsize = self._elements_of(weights), self._dtype_of(weights).itemsize
        size = rounded(total * itemsize) if self.is_trained(unit) else 0
        if not self.policy.reshards_after_forward:
            size += rounded(own * self.policy.shards * itemsize)
        return size * unit.parameters[0].copies


def clip_flat_parameters(tape: Tape) -> Tensor:
    """`FullyShardedDataParallel.clip_grad_norm_`: a norm of each flat shard in fp32, and their total over the devices.

    A zero that it would need without gradients is there from the first call on.
    Source: torch/distributed/fsdp/fully_sharded_data_parallel.py, clip_grad_norm_ and _get_grad_norm.
    """
    tape.category = "temporaries"
    trained = [one for one in tape.parameters if one.node is not None]
    count, dtype = sum(one.copies for one in trained), trained[0].dtype
    norms = [tape.several("linalg_vector_norm", (), FP32, one.copies) for one in trained]
    stacked = tape.new("stack", (count,), FP32, False)
    norms.clear()
    own = tape.new("linalg_vector_norm", (), FP32, False)
    del stacked
    squared = tape.new("pow", (), FP32, False)
    total = tape.new("pow", (), FP32, False)
    del squared
    increased = tape.new("add", (), FP32, False)
    reciprocal = tape.new("reciprocal", (), FP32, False)
    coefficient = tape.new("mul", (), FP32, False)
    del increased, reciprocal
    clamped = tape.new("clamp", (), FP32, False)
    if dtype is not FP32:
        scale = tape.new("to", (), dtype, False)
        del scale
        total = tape.new("to", (), dtype, False)
    del own, coefficient, clamped
    return total


class ClipsFlat(Clips):
    """The method of FSDP1 in place of PyTorch's function."""

    def norm_of_gradients(self) -> Tensor:
        """The norm over all devices."""
        return clip_flat_parameters(self.tape)
