"""What a run holds in the memory of the host, and what crosses the link to it."""

from __future__ import annotations

from vramplan.replay.offload import pinned_bytes
from vramplan.replay.record import Record
from vramplan.results import Host
from vramplan.values.job import ResolvedJob


def host_of(record: Record, job: ResolvedJob, micro_batch: int, steps: int | None) -> Host:
    """The host's side of the most loaded device, and of its node; `steps` are those of an accumulation.

    What forward saves goes there once in each micro-step, and comes back once.
    """
    times = steps or 1
    saved = sum(one.at(micro_batch) * one.copies_at(micro_batch) for one in record.host)
    pinned = pinned_bytes(record.host, micro_batch)
    pageable = states = 0
    to_host = to_device = saved * times
    kept = record.host_states
    if kept is not None:
        pinned += kept.pinned_bytes
        pageable, states = kept.pageable_bytes, kept.bytes
        to_host += kept.to_host_bytes + kept.each_to_host_bytes * (times - 1)
        to_device += kept.to_device_bytes + kept.each_to_device_bytes * (times - 1)
    return Host(
        saved_bytes=saved,
        pinned_bytes=pinned,
        states_bytes=states,
        node_bytes=(pinned + pageable) * job.devices_per_node,
        devices_per_node=job.devices_per_node,
        to_host_bytes=to_host,
        to_device_bytes=to_device,
        drive_bytes=0 if kept is None else kept.drive_bytes,
        to_drive_bytes=0 if kept is None else kept.to_drive_bytes,
        from_drive_bytes=0 if kept is None else kept.from_drive_bytes + kept.each_from_drive_bytes * (times - 1),
    )
