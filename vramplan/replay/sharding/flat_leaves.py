"""FSDP1 around a frozen model with LoRA, by PEFT's policy: a unit of each block, and one of each thin layer in it.

A flat parameter needs a gradient or not as a whole, so that what is trained is wrapped apart from what is not: each
module without children whose weight is trained is a unit inside the unit of its block, as are the magnitudes of DoRA.
Source: peft 0.21.2, utils/other.py, fsdp_auto_wrap_policy (as the policy of accelerate's
FullyShardedDataParallelPlugin); torch 2.13, torch/distributed/fsdp/wrap.py (_or_policy, _recursive_wrap).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from vramplan.replay.autograd import whole_gradients
from vramplan.replay.recorder import Tape
from vramplan.replay.sharding.flat_parameter import FlatParameters
from vramplan.replay.sharding.fully_shard import UnitBlock
from vramplan.replay.sharding.units import GatheredUnit, OutsideBlocks, ShardPolicy, cast_bytes, is_packed
from vramplan.replay.tensors import Parameter, Tensor


class FlatLeaves(FlatParameters):
    """Units inside units: what is frozen is gathered and goes, what is trained is reduced too."""

    def __init__(
        self,
        tape: Tape,
        policy: ShardPolicy,
        outside: OutsideBlocks,
        redistribute: Callable[[Parameter], None] | None = None,
    ) -> None:
        self.leaves: dict[Parameter, GatheredUnit] = {}
        self.trained_units: set[GatheredUnit] = set()
        super().__init__(
            tape, policy, OutsideBlocks(tuple(one for one in outside.root if not one.trained)), redistribute
        )

    def is_trained(self, unit: GatheredUnit) -> bool:
        """A thin layer is, and nothing else."""
        return unit in self.trained_units

    def units(self, make: Callable[[int], Any]) -> Callable[[int], Any]:
        """Each block that `make` builds is a unit, and each weight in it that is trained."""

        def build(number: int) -> UnitBlock:
            start = len(self.tape.parameters)
            block = make(number)
            inside = self.tape.parameters[start:]
            for module in _modules(inside):
                self._leaf(*module)
            unit = GatheredUnit([one for one in inside if one.node is None])
            self._accumulate(unit)
            return UnitBlock(self, unit, block)

        return build

    def _leaf(self, weight: Parameter, *beside: Parameter) -> GatheredUnit:
        if weight not in self.leaves:
            unit = GatheredUnit((weight, *beside))
            self.leaves.update(dict.fromkeys(unit.parameters, unit))
            self.trained_units.add(unit)
            self._accumulate(unit)
        return self.leaves[weight]

    def wrapped(self, weight: Parameter, run: Callable[..., Tensor], *beside: Parameter) -> Tensor:
        """A module with trained weights of its own, with the hooks of its unit; the magnitudes of DoRA are one too.

        That of DoRA runs the thin layers inside, and each of them twice. A thin layer that is frozen is in the unit of
        its block.
        """
        if weight.node is None and weight not in self.leaves:
            return run(weight, *beside)
        unit = self._leaf(weight, *beside)
        weights = unit.parameters
        if not self.enter(unit):
            result = run(*(one.alias(one.shape, one.strides, one.node) for one in weights))
            self.leave_again(unit)
            return result
        made = [(one.shape, one.dtype, False) for one in weights]

        def gather_gradient(gradient: Any, _saved: Any) -> list[Tensor]:
            """The gradient of the flat parameter is made of those of its weights, were there one alone."""
            whole_gradients(self.tape, gradient if type(gradient) is list else [gradient], made)
            whole = self.tape.new("cat", (sum(prod(one.shape) for one in weights),), weights[0].dtype, False)
            return [whole.alias(weights[0].shape, None, None)]

        view = self.tape.record("split_with_sizes", weights[:1], gather_gradient)
        result = run(*(one.alias(one.shape, one.strides, view, i) for i, one in enumerate(weights)))
        left: Tensor = self.leave(unit, result)
        return left

    def after_accumulate(self, parameter: Parameter) -> None:
        """The hook of a flat parameter's accumulator (_runtime_utils.py, _post_backward_hook)."""
        assert parameter.grad is not None
        complete, parameter.grad = [parameter.grad], None
        self._reduce(complete, self.leaves[parameter])

    def reduce(self, unit: GatheredUnit) -> None:
        """Of what is trained the hook of its accumulator reduces the gradient."""
        self._reshard(unit)

    def _flat_shards(self, unit: GatheredUnit) -> list[Parameter]:
        """What bits need beside them is no parameter: every device has it whole, and not on the host."""
        (shard,) = super()._flat_shards(unit)
        if unit.parameters[0].idle:
            shard.idle, shard.node = True, None
        beside = [one.quantized[1:] for one in unit.parameters if is_packed(one)]
        beside += [cast_bytes(one, self.policy) for one in unit.parameters if cast_bytes(one, self.policy)]
        if beside:
            own = shard.quantized[0] if shard.quantized else shard.stored_bytes
            shard.quantized = (own, *(size for sizes in beside for size in sizes))
        return [shard]

    def drop(self) -> None:
        """Nothing more will be asked."""
        super().drop()
        self.leaves.clear()
        self.trained_units.clear()


def _modules(inside: Sequence[Parameter]) -> list[list[Parameter]]:
    """The trained weights of a block, module by module: a bias is in the unit of the weight beside it."""
    found: list[list[Parameter]] = []
    for one in inside:
        if one.node is None:
            continue
        first = found[-1][0] if found else None
        beside = first is not None and first.part == one.part and f"{one.name}".endswith(".bias")
        if beside and first is not None and first.name == f"{one.name.removesuffix('bias')}weight":
            found[-1].append(one)
        else:
            found.append([one])
    return found
