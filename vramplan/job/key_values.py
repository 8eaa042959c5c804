"""Keys and values that a model returns with its outputs: which jobs may ask for them."""

from __future__ import annotations

from vramplan.job.resolver import Resolver
from vramplan.options import words
from vramplan.values.model import ModelShape

LEAVE = "leave use_cache out"


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
    elif raw.compile or raw.split is not None or raw.checkpoint_reentrant or raw.offload_activations:
        problem = "is not modelled with compiled steps, split models, reentrant checkpoints and offloaded activations"
    elif model.state_space or model.linear_attention or model.short_convolution or model.latent_attention:
        problem = "is modelled for attention with keys and values alone"
    if problem is not None:
        fields.refuse("use_cache", f"true {problem}", hint=LEAVE)
