"""Modules that consist of several operators, and are followed as one."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.tensors import Parameter, Tensor


def entered(run: Callable[[Tensor], Tensor], hidden: Tensor, *parameters: Parameter) -> Tensor:
    """What a module of several operators gives; whoever follows modules is told when it begins and when it is over."""
    told = hidden.tape.told
    if not told.module_entered:
        return run(hidden)
    for tell in told.module_entered:
        tell((hidden,), parameters)
    try:
        return run(hidden)
    finally:  # a recomputation may stop inside
        for tell in told.module_over:
            tell()
