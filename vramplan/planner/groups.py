"""The groups of devices that talk to each other."""

from __future__ import annotations

from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import Split

GROUPS = {
    "data": "data-parallel devices, or those of them that share the states",
    "replicas": "those that have the same shards in other groups",
    "tensor": "those that share matrices",
    "pipeline": "neighbours in the pipeline",
    "context": "those that share a sequence",
    "expert": "those that share the experts",
}
"""Communicators that a device is part of, by what makes it."""


def process_groups(job: ResolvedJob) -> tuple[str, ...]:
    """The groups of devices that a device talks to, each through a communicator of its own.

    Replicas whose communication is not counted have none.
    """
    split = job.split or Split()
    sizes = {key: getattr(split, key) for key in ("tensor", "pipeline", "context", "expert")}
    if job.sharding is not None:
        sizes["data"] = job.data_parallel_size * split.context  # gradients are summed over both
        sizes["replicas"] = job.sharding.replicas
    return tuple(key for key in GROUPS if sizes.get(key, 1) > 1)
