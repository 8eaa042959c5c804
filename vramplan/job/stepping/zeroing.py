"""Gradients that a loop zeroes between forward and backward: which jobs may say so."""

from __future__ import annotations

from vramplan.engines import engine_of
from vramplan.job.resolver import Resolver
from vramplan.values.machine import Runtime
from vramplan.values.parallel import DDP, FSDP, FSDP_GRAD_OP

KEY = "zero_grad"
OF_LOOP = (None, "none", DDP, FSDP, FSDP_GRAD_OP)  # whose optimizer is the loop's


def check_zeroing(resolver: Resolver, runtime: Runtime, in_backward: bool) -> None:
    """Refuse `before-backward` where a program zeroes gradients itself, and where none of them outlive the step."""
    raw = resolver.raw
    problem, hint = None, "leave it out"
    if not engine_of(runtime.engine).is_own_loop:
        problem = f"contradicts {runtime.name}, which zeroes gradients after the step"
        hint = "runtime: pytorch, if the loop is your own; or leave it out"
    elif raw.sharding not in OF_LOOP:
        problem = f"contradicts {raw.sharding}, whose engine zeroes gradients itself"
    elif in_backward:
        problem = "contradicts a step in backward, after which each gradient goes at once"
    elif raw.split is not None:
        problem = "is not modelled for a model that devices split"
    if problem is not None:
        resolver.fields.refuse(KEY, f"{raw.zero_grad} {problem}", hint=hint)
