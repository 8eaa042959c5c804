"""The runtime as a policy: what a training framework does where the model and the job leave it open."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Runtime(NamedTuple):
    """One training framework. Its figures are read from `profiles/runtimes/`, each with a source."""

    name: str
    title: str
    optimizer_implementation: str  # of Adam and AdamW, where the job leaves it open
    loss: str  # which loss the library computes: "causal-lm-fp32" upcasts the logits
    gradients: str  # "set-to-none": they appear in backward and go after the step | "persistent" buffers
    context_bytes: int  # CUDA context and modules, outside the allocator
    context_by_architecture: Mapping[str, int] = MappingProxyType({})
    context_basis: str = ""

    def context_on(self, architecture: str | None) -> int:
        """Bytes of the CUDA context on a GPU of this architecture."""
        return self.context_by_architecture.get(architecture or "", self.context_bytes)
