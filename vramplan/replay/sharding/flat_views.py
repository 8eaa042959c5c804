"""FSDP1 with `use_orig_params=True`: the optimizer steps each weight of a flat parameter, as far as a device has it.

The weights of a unit lie in one tensor all the same, each at an address that is a multiple of 16 bytes, and all of it
is padded to a multiple of the devices. Source: torch 2.13, torch/distributed/fsdp/_flat_param.py (FlatParamHandle,
_init_flat_param_and_metadata, _get_unflat_views_aligned and _use_sharded_views).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from vramplan.replay.recorder import rounded
from vramplan.replay.sharding.flat_parameter import FlatParameters
from vramplan.replay.sharding.units import GatheredUnit, ShardedWeight
from vramplan.replay.tensors import Parameter, Tensor

ALIGNMENT_BYTES = 16


class FlatViews(FlatParameters):
    """The same walk over units; what is stepped are views of the shard of each."""

    def _pieces(self, weights: Sequence[ShardedWeight]) -> Iterator[tuple[int, bool]]:
        """Elements of all that lies in a flat parameter, in order, and whether they are a weight."""
        aligned = ALIGNMENT_BYTES // self._dtype_of(weights).itemsize
        total = 0
        for one in weights:
            padding = -total % aligned
            if padding:
                yield padding, False
            yield prod(one.shape), True
            total += padding + prod(one.shape)
        padding = -total % self.policy.shards
        if padding:
            yield padding, False

    def _elements_of(self, weights: Sequence[ShardedWeight]) -> tuple[int, int]:
        """Of a flat parameter: all, and those of one device."""
        total = sum(size for size, _ in self._pieces(weights))
        return total, total // self.policy.shards

    def _padding(self, unit: GatheredUnit) -> list[Tensor]:
        """Padding has no gradients: zeros stand in its place.

        Source: torch/csrc/autograd/FunctionsManual.cpp, split_with_sizes_backward.
        """
        weights = self._weights(unit)
        dtype = self._dtype_of(weights)
        return [self.tape.new("zeros", (size,), dtype, False) for size, real in self._pieces(weights) if not real]

    def _flat_shards(self, unit: GatheredUnit) -> list[Parameter]:
        """What the first device has of each weight. All are views of one tensor, which the first stands for."""
        flat = super()._flat_shards(unit)[0]
        own, dtype = flat.elements, flat.dtype
        begin = 0
        found: list[Parameter] = []
        for size, real in self._pieces(self._weights(unit)):
            here = min(size, own - begin)
            begin += size
            if here <= 0 or not real:
                continue
            view = Parameter(self.tape, flat.name, (here,), dtype, flat.copies, trainable=flat.node is not None)
            view.path, view.part = flat.path, flat.part
            view.quantized = (0,) if found else flat.quantized or (rounded(own * dtype.itemsize),)
            found.append(view)
        return found
