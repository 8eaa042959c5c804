"""What is on the host, in words: for each device, for its node, and what crosses the link."""

from __future__ import annotations

from vramplan.report.numbers import gib_up, text_of
from vramplan.results import Host


def host_facts(host: Host) -> list[tuple[str, str]]:
    """Names and values, in the order in which they are read."""
    kept = []
    if host.saved_bytes or not host.states_bytes:
        kept.append(f"{_gib(host.saved_bytes)} of what forward saves")
    if host.states_bytes:
        kept.append(f"{_gib(host.states_bytes)} of states")
    facts = [("host", f"{' and '.join(kept)}; pinned blocks take {_gib(host.pinned_bytes)}")]
    if not host.states_bytes:
        facts = [("host", f"{kept[0]}, in {_gib(host.pinned_bytes)} of pinned memory")]
    devices = "1 device" if host.devices_per_node == 1 else f"{host.devices_per_node} devices"
    facts.append(("node", f"{_gib(host.node_bytes)} of the host's memory for {devices}"))
    away, back = _gib(host.to_host_bytes), _gib(host.to_device_bytes)
    facts.append(("link", f"{away} to the host and {back} back, for each device in each step"))
    if host.drive_bytes:
        written, read = _gib(host.to_drive_bytes), _gib(host.from_drive_bytes)
        facts.append(("drive", f"{_gib(host.drive_bytes)} on NVMe; {written} written and {read} read in each step"))
    return facts


def _gib(size: int) -> str:
    return f"{text_of(gib_up(size))} GiB"
