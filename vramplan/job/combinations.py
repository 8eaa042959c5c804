"""Techniques of a job that were never traced together: composed of what each does, and said."""

from __future__ import annotations

from vramplan.replay.techniques.evidence import untraced
from vramplan.replay.techniques.vocabulary import key_of
from vramplan.values.job import Job


def composed_of(job: Job) -> tuple[str, ...]:
    """Of each pair of which no row says that the two compose, a sentence: what the band of the answer is wider for."""
    return tuple(f"{key_of(gap.technique)} {gap.sentence(job)}" for gap in untraced(job))
