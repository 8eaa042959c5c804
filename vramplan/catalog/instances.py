"""Instances of clouds: how many of which GPU a machine has that is rented by its name, its memory and its network.

A field of a profile has the name of an instance: `8 x a100-40gb, 1152 GiB, 400 Gbit/s, 21.96 USD/h`. What a cloud does
not say is left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from vramplan.catalog import locate, profile
from vramplan.catalog.fields import Fields
from vramplan.catalog.profile import Profile
from vramplan.catalog.reading import once
from vramplan.errors import UsageError
from vramplan.tuples import NamedTuple
from vramplan.units import parse_bandwidth_bytes_per_s, parse_size_bytes

_VALUE = re.compile(
    r"([1-9]\d?) x ([\w.-]+)(?:, ([\d.]+ (?:GiB|GB)))?(?:, ([\d.]+ Gbit/s))?(?:, ([\d.]+) USD/h)?", re.ASCII
)
_PREFIX = "standard-"
_MAKER = "nvidia-"  # of its own machines
_SAGEMAKER = "ml."  # before the name of an instance of EC2, which costs more there


class Instance(NamedTuple):
    """A machine that is rented by its name. Sizes and rates are as they were published."""

    name: str
    cloud: str
    gpus: int
    gpu: str  # the name of a profile
    host_memory: str | None
    network: str | None  # of all its network cards together, each way
    usd_per_hour: float | None


class MachineFigures(NamedTuple):
    """The figures of an instance, of which its profile has the name."""

    gpus: int
    gpu: str
    host_memory: str | None
    network: str | None
    usd_per_hour: float | None


def _machine(fields: Fields, name: str) -> MachineFigures | None:
    text = fields.text(name)
    if text is None:
        return None
    found = _VALUE.fullmatch(text.strip())
    hint = "as in 8 x a100-40gb, 1152 GiB, 400 Gbit/s, 21.96 USD/h"
    if found is None:
        fields.problem(name, f"{text[:60]!r} is no machine", hint=hint)
        return None
    gpus, gpu, memory, network, usd = found.groups()
    try:
        if memory is not None:
            parse_size_bytes(memory, rounding="down")
        if network is not None:
            parse_bandwidth_bytes_per_s(network)
    except UsageError as error:
        fields.problem(name, error.problems[0].message, hint=hint)
        return None
    return MachineFigures(int(gpus), gpu, memory, network, None if usd is None else float(usd))


@once
def load_instances(path: Path | str) -> Profile:
    """Read the instances of a cloud. Raises InputError with every problem of the file."""
    return profile.read_named(Path(path), "instances", _machine)


def instance_names(dirs: Sequence[Path] = ()) -> tuple[str, ...]:
    """The names of all instances of all clouds."""
    clouds = locate.load_all("instances", dirs, load_instances, [])
    return tuple(field for cloud in clouds for field in cloud.fields)


def instance_named(name: str, dirs: Sequence[Path] = ()) -> Instance | None:
    """The instance of that name; None where no profile has it. Case, gaps and Azure's `Standard_` do not matter.

    What SageMaker calls `ml.` is the same machine, whose rent there no profile has.
    """
    asked = locate.slug(name)
    wanted = asked.removeprefix(_PREFIX).removeprefix(_SAGEMAKER).removeprefix(_MAKER)
    for cloud in locate.load_all("instances", dirs, load_instances, []):
        for field, sourced in cloud.fields.items():
            if locate.slug(field).removeprefix(_PREFIX) == wanted and sourced.value is not None:
                found = Instance(field, cloud.name, *sourced.value)
                return found._replace(usd_per_hour=None) if asked.startswith(_SAGEMAKER) else found
    return None
