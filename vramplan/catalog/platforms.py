"""Platform profiles: what a usual machine of a generation of GPUs has beside them: its network and host link.

Shares are what collectives reach of the rates of links, as somebody measured them.

A platform has the name of an architecture. `other` has what the others do not say, and the network of machines whose
GPUs have no NVLink. Rates are in one direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vramplan.catalog import locate, profile
from vramplan.catalog.fields import Fields
from vramplan.catalog.profile import Profile, Read
from vramplan.catalog.reading import once
from vramplan.units import parse_bandwidth_bytes_per_s
from vramplan.values.machine import Gpu, LinkShares

OTHER = "other"


def _bandwidth(fields: Fields, name: str) -> float | None:
    return fields.parsed(name, parse_bandwidth_bytes_per_s)


def _share(fields: Fields, name: str) -> float | None:
    found = fields.number(name, minimum=0, maximum=1)
    return None if found is None else float(found)


def _peers(fields: Fields, name: str) -> int | None:
    return fields.integer(name, minimum=1)


RATES = ("network", "host_link")
SHARES = ("nvlink_share", "network_share", "pcie_share", "host_share")
PEERS = "link_peers"
FIELDS = (*RATES, *SHARES, PEERS)
_READERS: dict[str, Read] = {
    **dict.fromkeys(RATES, _bandwidth),
    **dict.fromkeys(SHARES, _share),
    PEERS: _peers,
}


@once
def load_platform(path: Path | str) -> Profile:
    """Read one platform profile. Raises InputError with every problem of the file."""
    fields = profile.open_profile(Path(path))
    found = profile.read(fields, "platform", _READERS)
    fields.sink.raise_all()
    return found


def on_platform(gpu: Gpu, dirs: Sequence[Path] = ()) -> Gpu:
    """The GPU with the links of its usual machine. Raises InputError for a broken profile."""
    own = locate.find("platforms", gpu.architecture, dirs, load_platform) if gpu.architecture else None
    other = locate.find("platforms", OTHER, dirs, load_platform)
    assert other is not None
    found: dict[str, Any] = {key: None if own is None else own.value(key) for key in FIELDS}
    if not gpu.has_nvlink:
        found["network"] = None
    for key in (*RATES, *SHARES):  # no peers is an answer: GPUs are linked by a switch
        found[key] = other.value(key) if found[key] is None else found[key]
    return gpu._replace(
        network_bytes_per_s=found["network"],
        host_bytes_per_s=found["host_link"],
        link_shares=LinkShares(**{key.removesuffix("_share"): found[key] for key in SHARES}),
        link_peers=found[PEERS] if gpu.link_peers is None else gpu.link_peers,
    )
