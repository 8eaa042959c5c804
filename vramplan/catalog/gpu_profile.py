"""GPU profiles: `profiles/gpus/NAME.yaml` -> `values.machine.Gpu`."""

from __future__ import annotations

import itertools
from pathlib import Path

from vramplan import units
from vramplan.catalog import profile
from vramplan.catalog.fields import Fields
from vramplan.catalog.profile import Profile, Read
from vramplan.catalog.reading import once
from vramplan.values.job import Assumption
from vramplan.values.machine import Gpu

PER_DIRECTION = "per_direction"
LOCAL = "local"  # as in `--gpu local` and `--gpu local:1`


def _text(fields: Fields, name: str) -> str | None:
    return fields.text(name)


def _flag(fields: Fields, name: str) -> bool | None:
    return fields.boolean(name)


def _count(fields: Fields, name: str) -> int | None:
    return fields.integer(name)


def _capacity(fields: Fields, name: str) -> int | None:
    return fields.size_bytes(name, rounding="down")


def _bandwidth(fields: Fields, name: str) -> float | None:
    return fields.parsed(name, units.parse_bandwidth_bytes_per_s)


def _throughput(fields: Fields, name: str) -> float | None:
    return fields.parsed(name, units.parse_throughput_flop_per_s)


def _power(fields: Fields, name: str) -> float | None:
    return fields.parsed(name, units.parse_power_watts)


ATTENTION_FIELDS = {
    kernel: tuple(f"{word}_{direction}_{head}" for head in (64, 128) for direction in ("forward", "backward"))
    for kernel, word in (("flash-attention-2", "flash2"), ("cudnn", "cudnn"))
}
"""Published rates of fused attention without a mask, by kernel, direction and head size."""

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
    "multiprocessors": _count,
    "link_peers": _count,
    "link_domain": _count,
    "product_rate": _throughput,
    **dict.fromkeys(itertools.chain(*ATTENTION_FIELDS.values()), _throughput),
}

_LINKED = ("link_peers", "link_domain")
MEASURED = ("multiprocessors", *_LINKED, "product_rate", *itertools.chain(*ATTENTION_FIELDS.values()))
"""Fields that a profile may leave out: what divides products and links, and rates of kernels that somebody measured."""

FIELDS = tuple(key for key in _READERS if key not in MEASURED)
"""The other fields of a GPU profile: sizes in bytes, rates per second, power in watts, the rest text and flags."""


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
            fp32_flop_per_s=self.value("fp32"),
            fp16_flop_per_s=self.value("fp16"),
            bf16_flop_per_s=self.value("bf16_rate"),
            fp8_flop_per_s=self.value("fp8_rate"),
            link_bytes_per_s=self._link_bytes_per_s(),
            tdp_watts=self.value("tdp"),
            multiprocessors=self.value("multiprocessors"),
            link_peers=self.value("link_peers"),
            link_domain=self.value("link_domain"),
            product_flop_per_s=self.value("product_rate"),
            attention_flop_per_s=self._attention(),
        )

    def _link_bytes_per_s(self) -> float | None:
        """Both directions of the link, which most data sheets add."""
        found: float | None = self.value("link_bandwidth")
        if found is None or self.fields["link_bandwidth"].direction != PER_DIRECTION:
            return found
        return 2 * found

    def _attention(self) -> tuple[tuple[str, tuple[float, ...]], ...]:
        """The kernels of which all four rates are known."""
        found = [(kernel, tuple(self.value(key) for key in keys)) for kernel, keys in ATTENTION_FIELDS.items()]
        return tuple((kernel, rates) for kernel, rates in found if None not in rates)

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


def asks_for_local(name: str) -> bool:
    """Whether `name` is `local` or `local:N`: a card of this machine, which has no file."""
    word = name.strip().lower()
    return word == LOCAL or word.startswith(LOCAL + ":")
