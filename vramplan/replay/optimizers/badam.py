"""BAdam (arXiv:2404.02827): one block is trained at a time, in fp32, and its states go when another one is.

Read off badam 1.4, block_optim.py, class BlockOptimizer.
"""

from __future__ import annotations

from vramplan.replay.observers import Sharding, Trained
from vramplan.replay.optimizers import Optimizer, one_by_one, optimizer_states, shared_states, step_group
from vramplan.replay.precision import precision_of
from vramplan.replay.recorder import rounded
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques.adapters import OWN
from vramplan.replay.tensors import FP32, Parameter, Tensor

BIAS = "bias"


class StepsABlock(Optimizer):
    """Steps an fp32 copy of what is trained. The iteration that is replayed is the last one before a switch.

    Source: badam 1.4, block_optim.py, step_single_gpu, _grad_to_hp, _update_param and switch_trainable_params.
    """

    def states(self) -> list[StandingState]:
        """The copy in fp32, and what the optimizer has for it."""
        copies = [self._wide(one) for one in self._trained()]
        held = sum(rounded(one.elements * FP32.itemsize) * one.copies for one in copies)
        for one in copies:
            one.node = one  # which states are asked of; it is its own accumulator
        found = optimizer_states(copies, self.name, self.implementation, precision_of("fp32"))
        found += shared_states(copies, self.name)
        for one in copies:
            one.node = None
        return [StandingState("master", held, 0), *found]

    def managed_bytes(self) -> int:
        """None: what the host pages in is of a block alone."""
        return 0

    def step(self) -> None:
        """Gradients become fp32 and go, the copy is stepped, cast and copied back; then the next block has its copy.

        That is made while the one before and its moments are still held.
        """
        tape = self.tape
        tape.category = "temporaries"
        shards = tape.role(Sharding)
        stepped: list[Parameter] = []
        for one in one_by_one(tape, self._trained()):
            gradient, one.grad = one.grad, None
            wide = self._wide(one)
            if one.dtype is not FP32 or (gradient is None and not shards.gradients_in_pieces):
                wide.grad = tape.new("to", one.shape, FP32, False)
            else:
                wide.grad = gradient
            del gradient
            stepped.append(wide)
        are_views = any(one.grad is None for one in stepped)
        if shards.gradients_in_pieces and not are_views:
            shards.let_gradients_go()
        for group in (False, True):  # with weight decay, and biases without
            step_group(tape, [one for one in stepped if (BIAS in one.name) is group], self.name, self.implementation)
        for one in one_by_one(tape, self._trained()):
            if one.dtype is not FP32:
                cast = tape.new("to", one.shape, one.dtype, False)
                del cast
        for wide in stepped:
            wide.grad = None
        stepped.clear()
        if are_views:
            shards.let_gradients_go()
        self._switch()

    def _switch(self) -> None:
        """The copies of the next block: of the others the largest, as their order is drawn; a single one is its own."""
        tape = self.tape
        if self.setup.offload:
            return  # the host has them
        copies: list[Tensor] = []
        for one in one_by_one(tape, self._next()):
            cloned = tape.new("clone", one.shape, one.dtype, False)
            copies.append(cloned if one.dtype is FP32 else tape.new("to", one.shape, FP32, False))
            del cloned
        copies.clear()

    def _wide(self, one: Parameter) -> Parameter:
        wide = Parameter(self.tape, one.name, one.shape, FP32, one.copies, trainable=False)
        wide.path, wide.is_table = one.path, one.is_table
        return wide

    def _next(self) -> list[Parameter]:
        """Of a frozen model with LoRA the weights of the adapter alone."""
        trained = self._trained()
        own, adapted = {one.path for one in trained}, self.tape.role(Trained).adapter is not None
        others: dict[object, list[Parameter]] = {}
        for one in self.tape.parameters:
            if one.path and one.path not in own and (not adapted or OWN in one.part):
                others.setdefault(one.path, []).append(one)
        return max(others.values(), key=lambda block: sum(one.elements for one in block), default=trained)

    def _trained(self) -> list[Parameter]:
        return [one for one in self.tape.parameters if one.node is not None]
