"""What a job may say of experts: how unevenly tokens are spread over them, and how many an expert takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.engines import engine_of, with_code_of
from vramplan.replay.models import drops_tokens, splits_of
from vramplan.values.job import Assumption
from vramplan.values.machine import Runtime
from vramplan.values.model import ModelShape

if TYPE_CHECKING:
    from vramplan.job.given.read import RawJob

NO_EFFECT = "one product over all tokens, sorted by expert, needs the same memory for every routing"
HERE = "one device has all experts, and so all tokens"
PADDED = "each expert gets as many tokens as it takes, whatever was chosen"


def check_capacity(raw: RawJob, model: ModelShape | None, runtime: Runtime | None) -> None:
    """Refuse a capacity where no tokens are dropped, and one that Megatron's code cannot pad to.

    Source: megatron-core, TransformerConfig; moe_utils.py, permute with drop_and_pad, whose list of places has no more
    rows than there are tokens.
    """
    if model is None or runtime is None:
        return
    fields, factor, pads = raw.fields, raw.expert_capacity_factor, raw.expert_pad_to_capacity
    for key, given in (("expert_capacity_factor", factor is not None), ("expert_pad_to_capacity", pads)):
        if given and model.experts is None:
            message = f"belongs to models with experts, and {model.name} has none"
            fields.refuse(key, message, hint="leave it out")
        elif given and not drops_tokens(model.family):
            shown = "true" if key == "expert_pad_to_capacity" else f"{factor:g}"
            message = f"{shown} is not modelled for {model.code} under {runtime.name}"
            others = [
                name for name in with_code_of(model.family) if drops_tokens(engine_of(name).families[model.family])
            ]
            hint = f"--runtime {others[0]}, or leave it out" if others else "leave it out"
            fields.refuse(key, message, hint=hint)
    if model.experts is None or not drops_tokens(model.family) or not pads:
        return
    most = model.experts.routed / model.experts.active
    if factor is None:
        hint = "--expert-capacity-factor 1.25"
        fields.refuse("expert_pad_to_capacity", "belongs to expert_capacity_factor, which is not given", hint=hint)
    elif factor > most:
        message = f"{factor:g} is more than {most:g}, which is all tokens, and Megatron cannot pad beyond them"
        fields.refuse("expert_capacity_factor", message, hint=f"use {most:g}, or --no-expert-pad-to-capacity")


def expert_imbalance(
    raw: RawJob, model: ModelShape | None, assumptions: list[Assumption], warnings: list[str]
) -> float | None:
    """Tokens of the most loaded expert over the mean; None for a model without experts, where it is refused.

    Where no devices share the experts, or all get the same, no figure depends on it, which is said where it is assumed
    and where it is given. A capacity bounds it.
    """
    given = raw.expert_imbalance
    if model is None:
        return None
    if model.experts is None:
        if given is not None:
            message = f"belongs to models with experts, and {model.name} has none"
            raw.fields.refuse("expert_imbalance", message, hint="leave it out")
        return None
    spread = raw.split is not None and raw.split.expert > 1
    here = HERE if "expert" in splits_of(model.family) else NO_EFFECT
    why = PADDED if raw.expert_pad_to_capacity else None if spread else here
    if given is None:
        assumptions.append(Assumption("expert_imbalance", 1.0, "balanced" if why is None else f"balanced; {why}"))
        return 1.0
    most = model.experts.routed / model.experts.active
    if given > most:
        message = (
            f"{given:g} is more than {most:g}: an expert gets no token twice, and there are {model.experts.routed}"
        )
        raw.fields.refuse("expert_imbalance", f"{message} of which each token takes {model.experts.active}")
    elif given > 1 and why is not None:
        warnings.append(f"expert_imbalance {given:g} changes no figure: {why}")
    elif raw.expert_capacity_factor is not None and given > max(raw.expert_capacity_factor, 1):
        taken = f"an expert takes {raw.expert_capacity_factor:g} times the mean, and drops the rest"
        warnings.append(f"expert_imbalance {given:g} counts as {raw.expert_capacity_factor:g}: {taken}")
    return given
