"""A job under Unsloth, whose own kernels are not replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.behaviour import JobBehaviour

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.job import ResolvedJob

UPPER = "the operators of Transformers are replayed, not Unsloth's own kernels: the answer is an upper estimate"


class UnslothJob(JobBehaviour):
    """Says that the figures are an upper estimate."""

    has_own_attention = True  # models/llama.py: xformers, or keys and values that are expanded

    def check(self, resolver: Resolver, job: ResolvedJob) -> ResolvedJob:
        """The job with a note of what is not replayed."""
        return job._replace(warnings=(*job.warnings, UPPER))


BEHAVIOUR = UnslothJob()
