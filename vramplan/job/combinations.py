"""Techniques of a job that were never traced together: refused, each where it was given."""

from __future__ import annotations

from vramplan.catalog.fields import Fields
from vramplan.replay.techniques.evidence import untraced
from vramplan.replay.techniques.vocabulary import key_of
from vramplan.values.job import Job


def check_combinations(fields: Fields, job: Job) -> None:
    """Refuse the second of each pair of which no row says that the two compose, naming the first."""
    for gap in untraced(job):
        fields.refuse(key_of(gap.technique), gap.sentence(job), hint="leave one of the two out")
