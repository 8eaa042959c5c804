"""Lines of the lists of GPUs, models and runtimes, and a whole profile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One line of `vramplan gpus`. None is unknown."""

    name: str
    capacity_bytes: int
    capacity_basis: str  # visible | nominal
    title: str | None = None
    architecture: str | None = None
    compute_capability: str | None = None
    bf16: bool | None = None
    flash_attention: bool | None = None
    aliases: tuple[str, ...] = ()
    origin: str = "shipped"  # or the folder in which the profile lies


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One line of `vramplan models`."""

    name: str
    family: str
    parameters: int | None
    layers: int | None
    hidden_size: int | None
    attention_heads: int | None = None
    key_value_heads: int | None = None
    vocabulary_size: int | None = None
    max_positions: int | None = None
    title: str | None = None
    aliases: tuple[str, ...] = ()
    origin: str = "shipped"  # or the folder in which the profile lies


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeRow:
    """One line of `vramplan runtimes`: what each decides where a job says nothing."""

    name: str
    title: str | None
    version: str | None
    model_code: str  # whose forward pass is replayed
    precision: str
    optimizer: str
    optimizer_implementation: str
    loss: str
    sharding: str | None  # of several devices; None: it has one
    aliases: tuple[str, ...] = ()
    origin: str = "shipped"  # or the folder in which the profile lies


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """Where a value was published, and when it was read (ISO date)."""

    title: str | None
    url: str | None = None
    date: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRow:
    """One field of a profile as published. A value of None has a `reason`."""

    key: str
    value: Any
    unit: str | None = None
    source: SourceRow | None = None
    reason: str | None = None
    note: str | None = None
    fitted_from: tuple[str, ...] = ()  # published runs in sight of which the value was chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileView:
    """A whole profile for `show`."""

    kind: str  # gpu | model | runtime | stack
    name: str
    fields: tuple[FieldRow, ...]
    title: str | None = None
    aliases: tuple[str, ...] = ()
    file: str | None = None
    notes: tuple[str, ...] = field(default_factory=tuple)
