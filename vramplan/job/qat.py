"""What a job means by quantization-aware training, and what it does not go with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.values.job import Adapter, FakeQuantization
from vramplan.values.machine import Gpu
from vramplan.values.model import ModelShape

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver

GROUP = 32


def qat_of(
    resolver: Resolver, model: ModelShape | None, gpu: Gpu | None, precision: str, adapter: Adapter | None
) -> FakeQuantization | None:
    """The settings with their defaults; None where something is refused."""
    raw = resolver.raw
    if raw.qat_weights is None:
        return None
    if raw.qat_weights in ("fp8",):
        return FakeQuantization(raw.qat_weights, raw.qat_activations, None, bool(raw.qat_embedding))
    return FakeQuantization(raw.qat_weights, raw.qat_activations, raw.qat_group_size or GROUP, bool(raw.qat_embedding))
