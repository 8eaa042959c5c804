"""Keys and values that a model returns with its outputs: which jobs may ask for them."""

from __future__ import annotations

from vramplan.job.given.read import RawJob
from vramplan.job.resolver import Resolver
from vramplan.options import words
from vramplan.values.model import ModelShape

LEAVE = "leave use_cache out"


def _untraced(raw: RawJob, model: ModelShape) -> dict[str, bool]:
    """Keys beside which nobody traced a cache, and whether a job has them."""
    return {
        "compile": bool(raw.compile),
        "a model that devices split": raw.split is not None,
        "mamba_kernels": bool(raw.mamba_kernels) and model.state_space is not None,
    }


def check_cache(resolver: Resolver, model: ModelShape, loss: str) -> None:
    """Refuse a cache where no model of Transformers would return one, and where it is not modelled."""
    raw, fields = resolver.raw, resolver.fields
    problem = None
    if model.engine is not None:
        problem = "is of models in the code of Transformers"
    elif model.task != "lm":
        problem = f"is modelled for causal language models, not for the task {model.task}"
    elif loss in words.PREFERENCE_LOSSES or raw.teacher is not None:
        problem = f"contradicts {loss}, whose trainer turns it off"
    elif beside := [key for key, given in _untraced(raw, model).items() if given]:
        problem = f"is not modelled with {' and '.join(beside)}"
    if problem is not None:
        fields.refuse("use_cache", f"true {problem}", hint=LEAVE)
