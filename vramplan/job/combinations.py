"""Techniques of a job that were never traced together: refused, each where it was given."""

from __future__ import annotations

from vramplan.catalog.fields import Fields
from vramplan.replay.techniques.combinations import techniques, untraced
from vramplan.values.job import Job


def check_combinations(fields: Fields, job: Job) -> None:
    """Refuse the second of each pair that is not modelled, naming the first."""
    has = techniques(job)
    for one, other in untraced(job):
        message = f"{has[other]} is not modelled together with {one} {has[one]}"
        fields.refuse(other, message, hint="leave one of the two out")
