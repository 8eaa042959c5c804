"""Where the figures of a run with DeepSpeed's ZeRO come from, in words."""

from __future__ import annotations

from vramplan.replay.record import Record
from vramplan.values.job import ResolvedJob, trains_all


def basis_of_zero(record: Record, job: ResolvedJob, alone: dict[str, str]) -> dict[str, str]:
    """What each device has of the states, and its buffers; `alone` says what one device would have."""
    assert job.sharding is not None
    if job.sharding.zero is None:
        return {"communication": "copies of gradients that are averaged, of 500,000,000 elements and more"}
    kind, zero, devices = job.sharding.kind, job.sharding.zero, job.sharding.shards
    part = f"/ {devices} devices"
    buckets = "2 buckets" if zero.overlap_comm else "a bucket"
    if not zero.contiguous_gradients and "optimizer" not in job.offload:
        buckets = "copies"
    flat = "all in one buffer" if trains_all(job) else "what is trained in one buffer"
    basis = {
        "weights": f"{alone['weights']}, {flat}",
        "master": f"{alone['master']} {part}",
        "optimizer": f"{alone['optimizer']}, {part}",
        "gradients": "whole ones of this device's part" if kind == "zero2" else "whole, until they are averaged",
        "communication": f"{buckets} of {zero.reduce_bucket_size:,} gradients",
    }
    if kind == "zero3":
        basis |= {"weights": f"{alone['weights']} {part}", "gathered": "whole parameters of the modules in use"}
        basis["gradients"] = f"{record.reached_parameters:,} {part}"
        basis["communication"] = f"a bucket of {zero.reduce_bucket_size:,} gradients, and prefetched weights"
        if "optimizer" in job.offload:
            basis["gradients"] = "parts on their way to the host"
        if "parameters" in job.offload:
            small = zero.param_persistence_threshold
            where = "on the host" if zero.parameter_drive is None else "on the host and on NVMe"
            basis["weights"] = f"small parameters of at most {small:,} elements; the rest is {where}"
    return basis
