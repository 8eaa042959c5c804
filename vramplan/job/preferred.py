"""Defaults that give way: a job that names none of them is never refused because of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from vramplan.job.read import RawJob
from vramplan.values.job import Job

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver

ORDER = ("max_gradient_norm", "weight_dtype", "precision")
"""What is given up first: clipping costs a few bytes, the precision decides most."""


def without_preferred(
    raw: RawJob, before: tuple[int, int], preferred: Sequence[str], resolver_of: Callable[[RawJob], Resolver]
) -> Job | None:
    """The job with as few of the preferred defaults as possible given up; None if it is refused without any of them.

    `before` counts the problems and refusals of the sink before the first attempt. Those of that attempt are dropped:
    what stays in the sink is wrong with the job whatever the defaults are.
    """
    sink = raw.fields.sink
    why = {}
    for problem in sink.refusals[before[1] :]:
        why.setdefault(problem.key, problem.message)
    reason = next(iter(why.values()), "")
    keys = [key for key in ORDER if key in preferred]
    for count in range(1, len(keys) + 1):
        for left in combinations(keys, count):
            del sink.problems[before[0] :], sink.refusals[before[1] :]
            resolver = resolver_of(raw.copy())
            resolver.given_up = {key: why.get(key, reason) for key in left}
            job = resolver.job()
            if job is not None:
                return job
    return None
