"""States that live on the host: which engine keeps them there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.evidence.cells import FSDP_FP8, FSDP_HALVES
from vramplan.replay.sharding.hosted import STATES
from vramplan.values.parallel import FSDP, FSDP_GRAD_OP, ZERO_STAGES, Sharded

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver

TOGETHER = ("parameters", "gradients", "optimizer")
"""What FSDP2's CPUOffloadPolicy keeps on the host: the optimizer steps shards where they are."""

MODELLED: dict[str, tuple[str, ...]] = {
    FSDP: TOGETHER,
    FSDP_GRAD_OP: TOGETHER,
    "zero1": ("gradients", "optimizer"),
    "zero2": ("gradients", "optimizer"),
    "zero3": TOGETHER,
}
"""For each kind of sharding what its engine can keep on the host."""


def share_on_host(resolver: Resolver) -> None:
    """States on the host are kept there by DeepSpeed's ZeRO, of one device too, where nothing else is asked for."""
    raw = resolver.raw
    states = [word for word in raw.offload if word != "activations"]
    if not states or raw.split is not None or raw.precision in (*FSDP_HALVES, FSDP_FP8):
        return
    raw.sharding = ZERO_STAGES[2 if "parameters" in states else 1]
    named = ["the optimizer's states" if word == "optimizer" else word for word in states]
    why = f"DeepSpeed's ZeRO keeps {' and '.join(named)} on the host, also with one GPU"
    resolver.assume("parallel.sharding", raw.sharding, why)


def check_offload_of_states(resolver: Resolver, words: tuple[str, ...], sharding: Sharded | None) -> None:
    """Refuse what no modelled engine offloads."""
    kind = "none" if sharding is None else sharding.kind
    others = [word for word in words if word not in MODELLED.get(kind, ())]
    if others:
        message = f"{', '.join(others)}: offloading is not modelled with parallel.sharding {kind}"
        hint = "offload: [activations] without sharding; [optimizer, gradients] with zero2; all with zero3 or fsdp"
        resolver.fields.refuse("offload", message, hint=hint)
        return
    if sharding is not None and sharding.kind in (FSDP, FSDP_GRAD_OP):
        missing = [word for word in TOGETHER if word not in words]
        if missing:
            message = f"{', '.join(words)} without {', '.join(missing)}: FSDP keeps all three on the host, or none"
            resolver.fields.refuse("offload", message, hint=f"offload: [{', '.join(TOGETHER)}]")
        if sharding.version == 1:
            _check_flat_parameters(resolver, sharding)
        elif (resolver.raw.optimizer or "adamw") not in STATES:
            message = f"{resolver.raw.optimizer} is not modelled with states on the host"
            resolver.fields.refuse("optimizer", message, hint="use adamw")
    if sharding is None or sharding.zero is None:
        return
    if "optimizer" not in words and words == ("parameters",) and not _on_drive(sharding):
        return  # stage3.py, _configure_offloading: the one does not need the other
    if "optimizer" not in words:
        message = f"{' and '.join(words)} on the host are modelled with the optimizer that steps them there"
        resolver.fields.refuse("offload", message, hint=f"offload: [{', '.join(('optimizer', *words))}]")
    elif "gradients" not in words:
        why = "the host steps the optimizer, so gradients go there"
        resolver.assume("offload", ", ".join((*words, "gradients")), why)


def _on_drive(sharding: Sharded) -> bool:
    return sharding.zero is not None and sharding.zero.parameter_drive is not None


def _check_flat_parameters(resolver: Resolver, sharding: Sharded) -> None:
    """Refuse what FSDP1 cannot do with its shards on the host.

    It puts the gradients of a micro-step in the place of those before, unless they were summed under no_sync. Source:
    torch 2.13, torch/distributed/fsdp: fully_sharded_data_parallel.py (limitations), _flat_param.py
    (FlatParamHandle.prepare_gradient_for_backward).
    """
    raw = resolver.raw
    if raw.gradient_accumulation_steps != 1 and not sharding.no_sync:
        parallel = raw.fields.fields("parallel") or raw.fields
        message = "false contradicts states on the host under fsdp_version 1, which loses earlier micro-steps"
        parallel.refuse("no_sync", message, hint="true, fsdp_version 2, or gradient_accumulation_steps: 1")
