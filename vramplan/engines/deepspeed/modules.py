"""Modules with several parameters that operators use one after the other: stage 3 of ZeRO gathers them together.

Experts are one module, and a block of them with its router is one where DeepSpeed takes it for a leaf, whose modules
inside it does not look at. Where such a module ends is told by its last parameter: the few operators behind it, which
have none, count as outside.

Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/leaf_module_config.py (DEFAULT_LEAF_MODULE_CLASSES);
partitioned_param_coordinator.py, fetch_sub_module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LEAVES = ("mixtral", "qwen_moe")
"""Families whose blocks of experts are: MixtralSparseMoeBlock, Qwen2MoeSparseMoeBlock and Qwen3MoeSparseMoeBlock."""

EXPERTS, ROUTER, BEHIND = "experts.", "gate.weight", "input_layernorm"
"""How parameters of such blocks are called, and the first one behind them in a block."""

Members = tuple[Any, ...]


class Modules:
    """The parameters of each such module, told as the parameters are made."""

    def __init__(self, family: str) -> None:
        self.is_leaf = family in LEAVES
        self.found: list[list[Any]] = []
        self.is_open = False

    def made(self, parameter: Any) -> None:
        """The next parameter of the model."""
        begins = parameter.name.startswith(EXPERTS) or (self.is_leaf and parameter.name == ROUTER)
        stays = self.is_open and self.is_leaf and not parameter.name.startswith(BEHIND)
        if begins and not self.is_open:
            self.found.append([])
        self.is_open = begins or stays
        if self.is_open:
            self.found[-1].append(parameter)


class Inside:
    """Which module with several parameters an iteration is in, and which of them are yet to be used."""

    def __init__(self) -> None:
        self.module: Members = ()
        self.left: set[Any] = set()

    def come(self, members: Members, module: Members) -> bool:
        """An operator of a module has these parameters: whether the module is another than before."""
        if self.module and module == self.module:
            self.left.difference_update(members)
            if not self.left:
                self.module = ()
            return False
        self.left = {*module}.difference(members)
        self.module = module if self.left else ()
        return True


class Entry:
    """One run of a module of several operators: its parameters, and whether one of its inputs needs a gradient."""

    def __init__(self, members: Members, inputs: Sequence[Any]) -> None:
        self.members = members
        self.is_told = any(one.storage is not None and one.node is not None for one in inputs)
