"""Counts the bytes of storages while they live: what `torch.cuda.max_memory_allocated()` would say of tensors alone."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vramplan.measure import element_types, known
from vramplan.replay.recorder import rounded

APART = "torchao."  # the library whose tensors are no storages, but made of some
ACCUMULATE = 3  # the argument of index_put that says that values are added


def _safe_softmax(scores: Any, dim: int, dtype: Any = None) -> Any:
    """What PyTorch composes of a softmax: it makes the result of rows of minus infinity 0.

    Source: aten/src/ATen/native/transformers/attention.cpp, _safe_softmax.
    """
    out = torch.softmax(scores, dim, dtype=dtype)
    infinity = torch.scalar_tensor(float("-inf"), dtype=out.dtype, device=out.device)
    masked = scores.eq(infinity)
    rows = torch.all(masked, dim, keepdim=True)
    zero = torch.scalar_tensor(0.0, dtype=out.dtype, device=out.device)
    return torch.where(rows, zero, out)


COMPOSED: Mapping[Any, Callable[..., Any]] = {torch.ops.aten._safe_softmax.default: _safe_softmax}
"""Operators of PyTorch that are others, run one by one, below which no mode looks."""


class Storages(TorchDispatchMode):  # type: ignore[misc]
    """Follows every storage that an operator makes on a device, in blocks of 512 bytes as the caching allocator does.

    The autograd engine adds a second gradient into the first one's buffer if that is dense and nobody else has it, but
    never under a dispatch mode (torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace and accumulate). So the
    level after such an addition waits for what follows: if its left operand is gone by then, a run without this mode
    would have had one buffer less.
    """

    def __init__(
        self,
        device: str,
        scratch: Mapping[Any, Callable[..., int]],
        stand_ins: Mapping[Any, Callable[..., Any]] = MappingProxyType({}),
        composed: Mapping[Any, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        super().__init__()

        self._torch = torch
        self._device = device
        self._scratch = scratch
        self._stand_ins = stand_ins
        self._inside = 0  # of a library's operator, below the level that takes operators apart
        self._implicit = torch._C.DispatchKey.CompositeImplicitAutograd
        self._composed = {**COMPOSED, **composed}  # the others are of a library; each operator of both is counted
        aten = torch.ops.aten
        # what the engine does in place, but not where any tensor is without data: FunctionsManual.cpp, index_backward,
        # gather_backward and clamp_backward
        self._in_place = {
            aten.index_put.default: aten.index_put_.default,
            aten.scatter_add.default: aten.scatter_add_.default,
            aten.logical_and.default: aten.logical_and_.default,
        }
        self._living: dict[int, tuple[int, Any]] = {}
        self._waiting: tuple[int, Any, int] | None = None
        self.now_bytes = 0
        self.phase = "forward"
        self.phases: dict[str, int] = {}

    @property
    def peak_bytes(self) -> int:
        """The highest level since `restart`."""
        return max(self.phases.values(), default=self.now_bytes)

    def restart(self) -> None:
        """Forget the levels, not the storages."""
        self.settle()
        self.phases = {}

    def enter(self, phase: str) -> None:
        """Levels from here on belong to this phase."""
        self.settle()
        self.phase = phase
        self._level(self.now_bytes)

    def hold(self, tensor: Any) -> None:
        """Count a tensor that is there already."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._living or tensor.device.type != self._device:
            return
        size = rounded(storage.nbytes())
        self._living[key] = (size, weakref.ref(storage, lambda _: self._gone(key)))
        self.now_bytes += size

    def settle(self) -> None:
        """Decide what an addition of gradients was."""
        if self._waiting is None:
            return
        key, operand, level = self._waiting
        self._waiting = None
        if key in self._living and self._living[key][1] is operand:
            self._level(level)

    def _gone(self, key: int) -> None:
        size, _ = self._living.pop(key)
        self.now_bytes -= size

    def _level(self, level: int) -> None:
        self.phases[self.phase] = max(self.phases.get(self.phase, 0), level)

    def _operator_by_operator(self, composed: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._inside += 1
        try:
            with self:
                return composed(*args, **(kwargs or {}))
        finally:
            self._inside -= 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and count what it leaves."""
        if any(one.__module__.startswith(APART) for one in types):
            return NotImplemented  # a tensor of torchao is taken apart, and its parts come here
        aten = self._torch.ops.aten
        self.settle()
        if self.phase == "backward" and not self._torch.is_grad_enabled() and not _replaces(func, args):
            func = self._in_place.get(func, func)
        composed = self._composed.get(func)
        if composed is not None:
            return self._operator_by_operator(composed, args, kwargs)
        if self._inside and func.namespace == "aten" and func.has_kernel_for_dispatch_key(self._implicit):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        element_types.check(func, args)
        stand_in = self._stand_ins.get(func)
        out = known.run(func, args, kwargs or {}, stand_in or func)
        if func.namespace != "aten":
            return out
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, self._torch.Tensor)]
        for leaf in made:
            self.hold(leaf)
        if func is aten.add.Tensor and not self._torch.is_grad_enabled() and self.phase == "backward":
            left, right = args[0], args[1]
            key = left.untyped_storage()._cdata if isinstance(right, self._torch.Tensor) else None
            whole = left.numel() * left.element_size()  # of an expanded gradient more than there is
            if key in self._living and left.untyped_storage().nbytes() >= whole:
                self._waiting = (key, self._living[key][1], self.now_bytes)
                return out
        is_here = any(leaf.device.type == self._device for leaf in made)  # what runs on the host has its scratch there
        scratch = self._scratch.get(func) if is_here else None
        self._level(self.now_bytes + (rounded(scratch(*args)) if scratch is not None else 0))
        return out


def _replaces(func: Any, args: Any) -> bool:
    """Whether what is there goes: the gradient of what was written into, a copy in which zeros are put.

    Source: tools/autograd/derivatives.yaml, index_put_.
    """
    return func is torch.ops.aten.index_put.default and not (len(args) > ACCUMULATE and args[ACCUMULATE])
