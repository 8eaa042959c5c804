"""A reference of preference training under stage 3 of ZeRO: an engine of its own, which has no optimizer.

Each parameter is cut by itself, and gathered as those of the model that trains are; as gradients are off, the order of
modules that DeepSpeed knows is that of one forward pass. While it learns that order it lets go of all; small parameters
are gathered in the second pass, as all others are, and stay from then on.
The engine is made before the Trainer sizes what its configuration leaves to it (`Zero.beside`).

Source: trl 1.16.0, models/utils.py, prepare_deepspeed; DeepSpeed 0.19.8, deepspeed/runtime/zero/parameter_offload.py
(DeepSpeedZeRoOffload) and partitioned_param_coordinator.py (reset_step, fetch_sub_module).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vramplan.engines.deepspeed.modules import OuterEntry
from vramplan.engines.deepspeed.order import Order
from vramplan.engines.deepspeed.zero import COMMUNICATION
from vramplan.engines.deepspeed.zero3_gathered import GATHERED, Handle, NoTape
from vramplan.engines.deepspeed.zero3_gathering import Gathering
from vramplan.engines.deepspeed.zero3_policy import OUTER_MODULES, Zero3Policy
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.techniques import Shards
from vramplan.replay.tensors import Parameter


class Reference3(Gathering, Shards):
    """The walk of one forward pass over the modules of a reference."""

    def __init__(self, tape: Tape, policy: Zero3Policy, order: Order, *, hosts_parameters: bool) -> None:
        super().__init__(tape, policy, order)
        self.linear_is_function = policy.zero.memory_efficient_linear
        self.hosts_parameters = hosts_parameters
        self.walks = 0

    def units(self, make: Callable[[int], Any]) -> Callable[[int], Any]:
        """Blocks stay what they are."""
        self.walks += 1
        return make

    def apart(self) -> list[int]:
        """All blocks of this walk: each finds something else gathered ahead."""
        return sorted({place[1] for place in self.order.places if place is not None and place[0] == self.walks - 1})

    def made(self, parameter: Parameter) -> None:
        """A parameter of the reference was made."""
        self.created.append(parameter)

    def begin_other(self, recipe: Any) -> None:
        """Small parameters are there, and the modules around all others begin to gather them."""
        self.whole.update({one: None for one, stays in enumerate(self.stays) if stays})
        self.model_asks()
        self._prefetch()

    def end_other(self) -> tuple[int, bool]:
        """Its forward pass is over; bytes of all that stays."""
        self.model_over()
        self.whole.clear()
        self.coming.clear()
        itemsize = self.policy.dtype.itemsize
        parts = [] if self.hosts_parameters else [rounded(part * itemsize) for part in self.parts]
        small = _Arrivals(self.policy, self.order).elements() if self.policy.shards > 1 else []
        return sum(parts) + sum(rounded(size * itemsize) for size in small) + self.order.kept_bytes, True

    def _gather(self, wanted: Sequence[int]) -> None:
        """Parts that are on the host are copied to the device first."""
        super()._gather(wanted)
        if self.hosts_parameters and self.policy.shards > 1:
            copies = [self._new("_to_copy", self.parts[one], COMMUNICATION) for one in wanted]
            del copies


class Again3(Reference3):
    """The walk of a pass of the model that trains, with its adapter switched off.

    It comes between forward and backward, and its modules are others than those that DeepSpeed has recorded: each step
    the recorded order is given up there, and recorded anew from the next forward on. So nothing is gathered ahead, and
    what a module has used goes at once. Only the modules before the first adapter run as recorded: what they leave
    whole, as it is small or the adapter would need it, stays until backward has used it.
    Source: partitioned_param_coordinator.py, trace_prologue, reset_step and release_sub_module.
    """

    def __init__(self, model: Gathering, order: Order, *, hosts_parameters: bool) -> None:
        super().__init__(model.tape, model.policy, order, hosts_parameters=hosts_parameters)
        self.model_walk = model
        self.base = [one for one, is_trained in enumerate(model.order.trained) if not is_trained]
        self.known_steps = 0  # modules with parameters that run before the order is given up

    def begin_other(self, recipe: Any) -> None:
        """The module of the whole model begins."""
        model = self.model_walk
        numbers = {one: number for number, one in enumerate(self.base)}
        for one in self._left():
            model.whole[one] = model._new("cat", model.wholes[one], GATHERED)
            if one in numbers:
                self.whole[numbers[one]] = None
        for one in self.order.asked:  # of the model inside PEFT's modules, which gather it ahead with others
            if self.policy.outer_modules > OUTER_MODULES and self.sizes[one] < self.policy.zero.prefetch_bucket_size:
                self.whole[one] = self._new("cat", self.wholes[one], GATHERED)
        self.model_asks()

    def _left(self) -> list[int]:
        """What the modules before the first adapter leave whole: the first use of what is trained is its layer's."""
        model, uses = self.model_walk, self.model_walk.order.uses
        trained = frozenset(model.trained)
        with_trained = [step for step, module in enumerate(uses) if trained.intersection(module)]
        if len(with_trained) < len(("layer", "adapter")):
            return []
        asked, first = set(model.order.asked), with_trained[1]
        self.known_steps = sum(not trained.issuperset(module) for module in uses[:first])
        again = set(uses[first])
        used = dict.fromkeys(one for module in uses[:first] for one in module)
        return [one for one in used if one not in asked and (model.stays[one] or one in again)]

    def _end_outer(self, entry: OuterEntry) -> None:
        """A module around the first adapter is over when the order is given up already."""
        super()._end_outer(entry)
        if self.step >= self.known_steps:
            for one in entry.members:
                self.model_walk.whole.pop(self.base[one], None)

    def end_other(self) -> tuple[int, bool]:
        """Its forward pass is over, and nothing of it stays."""
        self.model_over()
        self.whole.clear()
        return 0, False


class _Arrivals(Gathering):
    """The walk of the first pass from which small parameters stay: how they come, without a tensor."""

    def __init__(self, policy: Zero3Policy, order: Order) -> None:
        nothing: Any = NoTape()
        super().__init__(nothing, policy, order)
        self.small: list[int] = []

    def elements(self) -> list[int]:
        """Of each small parameter: one that comes alone has the padded buffer of its collective."""
        self.model_asks()
        self._prefetch()
        for step in range(self.step, len(self.order.uses)):
            self._let_go()
            self._fetch(self.order.uses[step])
        return self.small

    def _wait(self, handle: Handle) -> None:
        if not handle.is_complete:
            alone = len(handle.members) == 1
            own = (one for one in handle.members if self.stays[one])
            self.small += [self.parts[one] * self.policy.shards if alone else self.wholes[one] for one in own]
        super()._wait(handle)

    def _new(self, operator: str, elements: int, category: str) -> Any:
        return elements
