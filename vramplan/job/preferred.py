"""Defaults that give way: a job that names none of them is never refused because of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from vramplan.catalog.fields import Sink
from vramplan.values.job import ResolvedJob

ORDER = ("max_gradient_norm", "weight_dtype", "precision")
"""What is given up first: clipping costs a few bytes, the precision decides most."""


def without_preferred(
    sink: Sink,
    before: tuple[int, int],
    preferred: Sequence[str],
    attempt: Callable[[dict[str, str]], ResolvedJob | None],
) -> ResolvedJob | None:
    """The job with as few of the preferred defaults as possible given up; None if it is refused without any of them.

    `attempt` resolves the job without the defaults of some keys, each with the reason. `before` counts the problems and
    refusals of the sink before the first attempt. Those of that attempt are dropped: what stays in the sink is wrong
    with the job whatever the defaults are.
    """
    why: dict[str | None, str] = {}
    for problem in sink.refusals[before[1] :]:
        why.setdefault(problem.key, problem.message)
    reason = next(iter(why.values()), "")
    keys = [key for key in ORDER if key in preferred]
    for count in range(1, len(keys) + 1):
        for left in combinations(keys, count):
            del sink.problems[before[0] :], sink.refusals[before[1] :]
            job = attempt({key: why.get(key, reason) for key in left})
            if job is not None:
                return job
    return None
