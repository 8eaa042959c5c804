"""GPU profiles: `profiles/gpus/NAME.yaml` -> `spec.Gpu`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from vramplan import units
from vramplan.catalog import local, locate, profile, text
from vramplan.catalog.fields import Fields
from vramplan.catalog.profile import Profile, Read
from vramplan.catalog.reading import once
from vramplan.errors import InputError
from vramplan.values.job import Assumption
from vramplan.values.machine import Gpu


def _text(fields: Fields, name: str) -> str | None:
    return fields.text(name)


def _flag(fields: Fields, name: str) -> bool | None:
    return fields.boolean(name)


def _capacity(fields: Fields, name: str) -> int | None:
    return fields.size_bytes(name, rounding="down")


def _bandwidth(fields: Fields, name: str) -> float | None:
    return fields.parsed(name, units.parse_bandwidth_bytes_per_s)


def _throughput(fields: Fields, name: str) -> float | None:
    return fields.parsed(name, units.parse_throughput_flop_per_s)


def _power(fields: Fields, name: str) -> float | None:
    return fields.parsed(name, units.parse_power_watts)


_READERS: dict[str, Read] = {
    "vendor": _text,
    "architecture": _text,
    "memory": _capacity,
    "visible_memory": _capacity,
    "compute_capability": _text,
    "bf16": _flag,
    "flash_attention": _flag,
    "fp8": _flag,
    "memory_bandwidth": _bandwidth,
    "fp32": _throughput,
    "fp16": _throughput,
    "bf16_rate": _throughput,
    "fp8_rate": _throughput,
    "link_bandwidth": _bandwidth,
    "tdp": _power,
}

FIELDS = tuple(_READERS)
"""The fields of a GPU profile: sizes in bytes, rates per second, power in watts, the rest text and flags."""


class GpuProfile(Profile):
    """One GPU with the source of every value."""

    __slots__ = ()

    def gpu(self) -> Gpu:
        """What the planner knows of it. Capacity is what the framework sees where a source says so, else nominal."""
        visible = self.value("visible_memory")
        return Gpu(
            name=self.name,
            capacity_bytes=visible if visible is not None else self.value("memory"),
            capacity_basis="nominal" if visible is None else "visible",
            title=self.title,
            architecture=self.value("architecture"),
            compute_capability=self.value("compute_capability"),
            bf16=self.value("bf16"),
            flash_attention=self.value("flash_attention"),
            memory_bandwidth_bytes_per_s=self.value("memory_bandwidth"),
            note=self.note,
        )

    def assumptions(self) -> tuple[Assumption, ...]:
        """What was found out and not read from the file; nothing, but for a GPU of this machine."""
        return ()


@once
def load_gpu_profile(path: Path | str) -> GpuProfile:
    """Read one GPU profile. Raises InputError with every problem of the file."""
    fields = profile.open_profile(Path(path))
    common = profile.read(fields, "gpu", _READERS)
    if common.value("memory") is None and common.value("visible_memory") is None and not fields.sink.problems:
        fields.problem("fields", "memory is missing: without it there is no capacity", hint="memory or visible_memory")
    fields.sink.raise_all()
    return GpuProfile(*common)


def find_gpu(name: str, dirs: Sequence[Path] = (), *, base_dir: Path | None = None) -> GpuProfile:
    """The GPU profile with that name or alias, or at that path; `local` is the card of this machine.

    Raises InputError, with near matches.
    """
    if local.asked_for(name):
        return _local(name, dirs)
    if locate.is_path(name):
        return load_gpu_profile(locate.resolve_path(name, base_dir))
    found = _find(name, dirs)
    if found is None:
        raise InputError([locate.unknown("gpus", name, dirs)._replace(key="gpu")])
    return found


def match_gpu(name: str, dirs: Sequence[Path] = ()) -> GpuProfile | None:
    """The GPU profile with that name or alias, or the local card; None if `name` is only a label.

    Raises InputError if the profile is broken.
    """
    if local.asked_for(name):
        return _local(name, dirs)
    return _find(name, dirs)


def list_gpus(dirs: Sequence[Path] = ()) -> list[GpuProfile]:
    """Every GPU profile by name. Raises InputError with the problems of all broken files."""
    return locate.load_all("gpus", dirs, load_gpu_profile)


def list_measured(dirs: Sequence[Path] = ()) -> list[GpuProfile]:
    """The profiles whose visible memory is known, by name, without broken files: what a remedy may propose.

    The others are told by their text, which is several times cheaper than to parse them.
    """

    def load(path: Path) -> GpuProfile:
        if _NOT_MEASURED.search(_text_of(path)):
            raise InputError(())
        return load_gpu_profile(path)

    known = locate.load_all("gpus", dirs, load, skip_broken=True)
    return [profile for profile in known if profile.value("visible_memory") is not None]


@once
def _text_of(path: Path | str) -> str:
    return text.read_text(str(path))


_NOT_MEASURED = re.compile(r"^  visible_memory: *\{ *value: *(?:null|~)? *[,}]", re.MULTILINE)
# what drivers and shops put before the name of a card
_MAKERS = re.compile(r"(?:nvidia|amd|geforce|tesla|instinct)[\s_-]+", re.IGNORECASE)


def _find(name: str, dirs: Sequence[Path]) -> GpuProfile | None:
    """The profile of a name or an alias, also without the maker's words in front: `NVIDIA GeForce RTX 4090`."""
    found = locate.find("gpus", name, dirs, load_gpu_profile)
    rest = name.strip()
    while found is None and (maker := _MAKERS.match(rest)):
        rest = rest[maker.end() :]
        found = locate.find("gpus", rest, dirs, load_gpu_profile)
    return found


def _local(name: str, dirs: Sequence[Path]) -> GpuProfile:
    from vramplan.catalog import local_profile  # it needs this module

    return local_profile.load(name, dirs)
