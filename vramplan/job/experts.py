"""What a job may say of experts: how unevenly tokens are spread over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.spec import Assumption, ModelShape

if TYPE_CHECKING:
    from vramplan.job.read import RawJob

NO_EFFECT = "one product over all tokens, sorted by expert, needs the same memory for every routing"


def expert_imbalance(
    raw: RawJob, model: ModelShape | None, assumptions: list[Assumption], warnings: list[str]
) -> float | None:
    """Tokens of the most loaded expert over the mean; None for a model without experts, where it is refused.

    Where no devices share the experts no figure depends on it, which is said where it is assumed and where it is given.
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
    if given is None:
        assumptions.append(Assumption("expert_imbalance", 1.0, "balanced" if spread else f"balanced; {NO_EFFECT}"))
        return 1.0
    most = model.experts.routed / model.experts.active
    if given > most:
        message = (
            f"{given:g} is more than {most:g}: an expert gets no token twice, and there are {model.experts.routed}"
        )
        raw.fields.refuse("expert_imbalance", f"{message} of which each token takes {model.experts.active}")
    elif given > 1 and not spread:
        warnings.append(f"expert_imbalance {given:g} changes no figure: {NO_EFFECT}")
    return given
