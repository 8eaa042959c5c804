"""The norms of which LN tuning trains copies: PEFT's own of a model type, or those that a job names."""

from __future__ import annotations

from vramplan.catalog.fields import Fields, nearest, shown
from vramplan.job.given.read import RawJob
from vramplan.job.trained.adapter_targets import peft_of
from vramplan.replay.models.part_names import NORMS
from vramplan.replay.techniques.adapters import is_end
from vramplan.replay.techniques.trained import Names
from vramplan.values.job import Assumption
from vramplan.values.model import ModelShape


def targets_of(raw: RawJob, fields: Fields, model: ModelShape, names: Names, told: list[Assumption]) -> tuple[str, ...]:
    """The targets, each of which names a norm; PEFT passes over those of its own that name none."""
    norms = [".".join(path) for path in names.paths if NORMS in path]
    known = tuple(dict.fromkeys(name.rpartition(".")[2] for name in norms))
    model_type, given = model.transformers_model_type, raw.adapter_targets
    hint = "known: " + ", ".join(known)
    if model.published_family is not None or model.engine is not None:
        fields.refuse("kind", "ln-tuning is PEFT's, over models of Transformers", hint="runtime: transformers")
        return ()
    if given is None:
        own = tuple(word for word in peft_of(model).norms if any(is_end(name, (word,)) for name in norms))
        if not own:
            fields.refuse("targets", f"is missing: PEFT has no norms of its own for {model_type}", hint=hint)
        else:
            told.append(Assumption("adapter.targets", list(own), f"PEFT's own for {model_type}"))
        return own
    if not given:
        fields.refuse("targets", "is empty: nothing would be trained", hint=hint)
    for word in given:
        if not any(is_end(name, (word,)) for name in norms):
            near = nearest(word, known)
            fields.refuse(
                "targets", f"{shown(word)} names no norm of {model.name}", hint=f"{near} {hint}" if near else hint
            )
    return tuple(given)
