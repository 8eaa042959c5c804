"""Platform profiles: what a usual machine of a generation of GPUs has beside them: its network and host link.

A platform has the name of an architecture. `other` has what the others do not say, and the network of machines whose
GPUs have no NVLink. Rates are in one direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vramplan.catalog import locate, profile
from vramplan.catalog.fields import Fields
from vramplan.catalog.profile import Profile
from vramplan.catalog.reading import once
from vramplan.units import parse_bandwidth_bytes_per_s
from vramplan.values.machine import Gpu

OTHER = "other"


def _bandwidth(fields: Fields, name: str) -> float | None:
    return fields.parsed(name, parse_bandwidth_bytes_per_s)


FIELDS = ("network", "host_link")


@once
def load_platform(path: Path | str) -> Profile:
    """Read one platform profile. Raises InputError with every problem of the file."""
    fields = profile.open_profile(Path(path))
    found = profile.read(fields, "platform", dict.fromkeys(FIELDS, _bandwidth))
    fields.sink.raise_all()
    return found


def on_platform(gpu: Gpu, dirs: Sequence[Path] = ()) -> Gpu:
    """The GPU with the network and the host link of its usual machine. Raises InputError for a broken profile."""
    own = locate.find("platforms", gpu.architecture, dirs, load_platform) if gpu.architecture else None
    network = own.value("network") if own is not None and gpu.has_nvlink else None
    host = own.value("host_link") if own is not None else None
    if network is None or host is None:
        other = locate.find("platforms", OTHER, dirs, load_platform)
        assert other is not None
        network, host = network or other.value("network"), host or other.value("host_link")
    return gpu._replace(network_bytes_per_s=network, host_bytes_per_s=host)
