"""Techniques of a job that were never traced together: composed of what each does, and said."""

from __future__ import annotations

from vramplan.replay.models import takes_packing
from vramplan.replay.techniques.evidence import Gap, untraced
from vramplan.replay.techniques.vocabulary import key_of
from vramplan.values.job import Job

PADDING = "padding: right"


def composed_of(job: Job) -> tuple[str, ...]:
    """Of each pair of which no row says that the two compose, a sentence: what the band of the answer is wider for."""
    sentences = [f"{key_of(gap.technique)} {gap.sentence(job)}" for gap in untraced(job) if not _is_dropped(job, gap)]
    if job.attention == "flash" and job.padding == "right":
        sentences.append("padding right was never traced together with attention flash, which removes it")
    if job.attention == "flash" and job.packing and not takes_packing(job.model.family):
        sentences.append("packing true was never traced together with attention flash, which tells lengths")
    return tuple(sentences)


def _is_dropped(job: Job, gap: Gap) -> bool:
    """Whether a gap is about the mask of padded sequences, which flash has none of."""
    return job.attention == "flash" and PADDING in (gap.technique, gap.beside)
