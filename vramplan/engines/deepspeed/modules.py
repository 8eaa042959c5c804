"""Modules of several operators, and those with others inside: stage 3 of ZeRO gathers the parameters of each together.

Experts are one module, and a block of them with its router is one where DeepSpeed takes it for a leaf, whose modules
inside it does not look at.

Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/leaf_module_config.py (DEFAULT_LEAF_MODULE_CLASSES);
partitioned_param_coordinator.py, fetch_sub_module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.tuples import NamedTuple

LEAVES = ("mixtral", "qwen_moe")
"""Families whose blocks of experts are: MixtralSparseMoeBlock, Qwen2MoeSparseMoeBlock and Qwen3MoeSparseMoeBlock."""

STACKED = 3  # dimensions of the weights of several experts

Members = tuple[Any, ...]


def is_parametrized(weight: Any) -> bool:
    """Whether what runs in a weight's place is a module with that weight: it has few bits and no linear layer."""
    return len(weight.shape) >= STACKED and bool(weight.quantized)


class ModuleRun:
    """One run of a module of several operators: its parameters, and whether one of its inputs needs a gradient."""

    def __init__(self, members: Members, inputs: Sequence[Any]) -> None:
        self.members = members
        self.is_told = any(one.storage is not None and one.node is not None for one in inputs)


class OuterEntry(NamedTuple):
    """One run of a module that has others inside, with what it asks for outside of them.

    The first time that it asks for a parameter of another module, that becomes one of its own, which is gathered with
    them from then on. That it only looks at the element type makes no difference.
    Source: deepspeed/runtime/zero/parameter_offload.py, ZeROOrderedDict.__getitem__; partition_parameters.py,
    register_external_parameter.
    """

    own: Members  # what its operators compute with
    members: Members  # these and what it only looks at
    is_told: bool  # an input needs a gradient
    is_leaf: bool = False  # DeepSpeed does not look at the modules inside it


class Around:
    """The modules around the operator that runs, from the outermost on: in forward, and as backward comes to them."""

    def __init__(self) -> None:
        self.forward: tuple[OuterEntry, ...] = ()
        self.backward: tuple[OuterEntry, ...] = ()
        self.inside_leaf = 0  # modules that run inside of one whose inside is not looked at

    def enter(self, entry: OuterEntry) -> bool:
        """A module inside of those that run: whether it is looked at."""
        if self.forward and self.forward[-1].is_leaf:
            self.inside_leaf += 1
            return False
        self.forward = (*self.forward, entry)
        return True

    def leave(self) -> OuterEntry | None:
        """The innermost one has run; None: it was not looked at."""
        if self.inside_leaf:
            self.inside_leaf -= 1
            return None
        *outer, entry = self.forward
        self.forward = tuple(outer)
        return entry

    def owns(self, members: Members) -> bool:
        """Whether an operator with these parameters is one of such a module itself."""
        return bool(members) and not self.left(members)

    def left(self, members: Members) -> Members:
        """Of parameters those that no other module has taken, as a change that is folded into a weight takes it.

        Stacked weights in few bits are those of the modules that dequantize them.
        Source: torch/nn/utils/parametrize.py, register_parametrization, which moves the weight.
        """
        own = [one for one in members if not is_parametrized(one)]
        return tuple([one for one in own if not any(one in outer.own for outer in self.forward)])

    def come_back(self, entries: tuple[OuterEntry, ...]) -> tuple[list[OuterEntry], list[OuterEntry]]:
        """Backward comes to an operator inside these: those that are over, and those that begin."""
        before = self.backward
        if entries is before:
            return [], []
        same = 0
        while same < min(len(before), len(entries)) and before[same] is entries[same]:
            same += 1
        self.backward = entries
        return [*reversed(before[same:])], [*entries[same:]]
