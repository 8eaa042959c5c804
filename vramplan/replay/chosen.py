"""Which kernels run where a model leaves the choice: to a release of PyTorch, or to a library that replaces them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramplan.tuples import NamedTuple

Kernel = Callable[..., Any]


class Kernels(NamedTuple):
    """What a library runs in place of a model's own modules, by the module; None: the model's own."""

    composed_norms: bool = False  # whether `nn.RMSNorm` is composed of its parts, as before PyTorch had a kernel
    norms: Callable[[str], Kernel | None] | None = None  # by the name of an RMSNorm: of its input and its weight
    gated: Kernel | None = None  # the gated activation of a feed-forward layer, of gate and up projection
    rotary: Kernel | None = None  # rotary positions, of queries, keys, cosines and sines

    def norm(self, name: str) -> Kernel | None:
        """What runs in place of a norm."""
        return None if self.norms is None else self.norms(name)


COMPOSED_NORMS = Kernels(composed_norms=True)
