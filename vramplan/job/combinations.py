"""Techniques of a job that were never traced together, or not with its model: refused, each where it was given."""

from __future__ import annotations

from vramplan.catalog.fields import Fields
from vramplan.memory.combinations import UNTRACED_HALF_WEIGHTS, techniques, untraced
from vramplan.spec import Job


def check_combinations(fields: Fields, job: Job) -> None:
    """Refuse the second of each pair that is not modelled, naming the first."""
    has = techniques(job)
    for one, other in untraced(job):
        message = f"{has[other]} is not modelled together with {one} {has[one]}"
        fields.refuse(other, message, hint="leave one of the two out")
    model_type = job.model.transformers_model_type
    if job.half_weights and model_type in UNTRACED_HALF_WEIGHTS:
        message = f"half weights under autocast are not modelled for {model_type}"
        fields.refuse("weight_dtype", message, hint=f"leave it out, or use pure-{has['weight_dtype']}")
