"""Whose forward pass is replayed, where a runtime does not train the models of Transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.engines import engine_of, with_code_of
from vramplan.job.behaviour import under
from vramplan.replay.models import stands_for
from vramplan.replay.models.capable import drops_out
from vramplan.replay.models.parts import is_only_compiled
from vramplan.values.engine import Engine
from vramplan.values.machine import Runtime
from vramplan.values.model import ModelShape

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver


def as_written(own: str, model: ModelShape, engine: str) -> ModelShape:
    """The model in the code of an engine's module, which may have no dropout at all."""
    model = model._replace(family=own, published_family=model.family, engine=engine)
    if not drops_out(own):
        return model._replace(embedding_dropout=0.0, attention_dropout=0.0, hidden_dropout=0.0, activation_dropout=0.0)
    return model


def in_its_own_code(resolver: Resolver, model: ModelShape, runtime: Runtime, engine: Engine) -> ModelShape:
    """The model in the code of its runtime, where that is written down; else as Transformers computes it."""
    own = engine.families.get(model.family)
    if own is not None and is_only_compiled(own) and not resolver.raw.compile:
        own = None
    if own is not None and stands_for(own, model):
        under(runtime).check_own_code(resolver, own, model, runtime)
        return as_written(own, model, engine.name)
    if engine.only_own_code:
        kind = model.family if own is None else f"{model.family} of this kind"  # with parts that its code has not
        message = f"{kind} is not modelled as {runtime.name} computes it"
        known = [name for name in engine.families if own is None or name != model.family]
        hint = under(runtime).models_hint or f"modelled: {', '.join(known)}"
        resolver.fields.refuse("model", message, hint=f"{hint}; or another --runtime")
        return model
    why = f"the operators of Transformers: {runtime.name}'s own code of {model.family} is not modelled"
    resolver.assume("model.code", "transformers", why)
    return model


def refuse_class(resolver: Resolver, model: ModelShape, runtime: Runtime) -> ModelShape:
    """Refuse a model that Transformers has no class for, in a program that has no code of it either.

    The model is returned in the code that there is.
    """
    name = with_code_of(model.family)[0]
    message = f"only {name} has this model: {runtime.name} is not modelled with it"
    resolver.fields.refuse("model", message, hint=f"runtime: {name}, as an option --runtime {name}")
    return as_written(engine_of(name).families[model.family], model, name)
