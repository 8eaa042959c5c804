"""Megatron-core's stages whose sequences devices share: attention by Transformer Engine's own autograd functions.

The core of attention is `attn_forward_func_with_cp`, as Transformer Engine calls it for its fused kernel. The kernel is
in a library for CUDA: what it gives is in its place, and in backward what PyTorch's flash kernel needs beside that.
What is traced is the last device of a sequence, which sees most of it. Nobody brings a mask, as the kernel knows it.

Source: transformer-engine 2.10.0, pytorch/attention/dot_product_attention, context_parallel.py and backends.py
(FusedAttention.forward), of which the files run and not the packages, which would load libraries for CUDA.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

from tests.traces import mcore
from vramplan.replay.operators.attention import FLASH_ROWS, FLASH_WIDTH
from vramplan.replay.tensors import round_up
from vramplan.values.parallel import RING

WAYS = {RING: "p2p", "all-gather": "all_gather"}
NAME = "transformer_engine"
PARENTS = ("", ".pytorch", ".pytorch.attention", ".pytorch.attention.dot_product_attention")
"""Packages of Transformer Engine whose own code is not run, below its name."""

AMPERE = SimpleNamespace(major=8, minor=0)


class Shared(mcore.Stage):
    """A stage whose devices have parts of sequences."""

    @property
    def context(self) -> int:
        """Devices that share a sequence."""
        return int(self.row["context"])

    @property
    def spread(self) -> int:
        """Devices of a stage: of tensors, times of sequences."""
        return int(self.row["tp"]) * self.context

    @property
    def rank(self) -> int:
        """Of the last device of a sequence."""
        return super().rank + (self.context - 1) * int(self.row["tp"])

    @property
    def length(self) -> int:
        """Of a sequence, on a device."""
        return int(self.row["seq"]) // self.context

    def groups(self) -> dict[str, Any]:
        """Of devices that share a sequence too."""
        return {"context_parallel_size": self.context}

    def more(self) -> dict[str, Any]:
        """How they do it."""
        return {"context_parallel_size": self.context, "cp_comm_type": WAYS[self.row["communication"]]}

    def spec(self) -> Any:
        """The modules of a block, with Transformer Engine's core of attention."""
        found = super().spec()
        found.submodules.self_attention.submodules.core_attention = core_of(self)
        return found

    def mask(self) -> None:
        """The kernel knows it."""

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Attention without its kernel, and nothing that is sent; memory of the host is not pinned."""
        import torch

        made = torch.tensor

        def tensor(given: Any, pin_memory: bool = False, **how: Any) -> Any:
            return made(given, **how)

        self.attention = attention()
        instead = {
            "fused_attn_fwd": forward,
            "fused_attn_bwd": backward,
            "flash_attn_p2p_communicate": lambda *_: [],
        }
        with contextlib.ExitStack() as stack:
            stack.enter_context(patch.multiple(self.attention, **instead))
            stack.enter_context(patch.object(torch, "tensor", tensor))
            stack.enter_context(patch.object(torch.cuda, "get_device_properties", lambda *_: AMPERE))
            yield


def attention() -> Any:
    """The file context_parallel.py; for Megatron-core Transformer Engine is not there, as before."""
    spec = PathFinder.find_spec(NAME)
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    for absent in ("transformer_engine_torch", f"{NAME}.pytorch.onnx_extensions"):
        sys.modules[absent] = MagicMock()
    for parent in PARENTS:
        module = ModuleType(NAME + parent)
        module.__path__ = [str(folder.joinpath(*parent.split(".")))]
        sys.modules[NAME + parent] = module
    with patch.dict(os.environ, {"NVTE_PROJECT_BUILDING": "1"}):  # else it looks for its libraries
        import_module(f"{NAME}.pytorch.module")  # first, as there is a circle
        found = import_module(f"{NAME}{PARENTS[-1]}.context_parallel")
    sys.modules[NAME] = None  # type: ignore[assignment]
    return found


def forward(_: bool, __: int, ___: int, ____: Any, _____: Any, q: Any, *given: Any, **named: Any) -> Any:
    """`fused_attn_fwd`: the result, the logarithms of sums, and the state of a generator."""
    import torch

    length, batch, heads, _width = q.shape
    sums = q.new_empty((batch, heads, length, 1), dtype=torch.float32)
    return torch.empty_like(q), [sums, q.new_empty((2,), dtype=torch.int64)]


def backward(_: int, __: int, ___: Any, ____: Any, q: Any, k: Any, v: Any, *given: Any, **named: Any) -> Any:
    """`fused_attn_bwd`: three gradients, beside scratch space of which the flash kernel's is taken."""
    import torch

    length, batch, heads, width = q.shape
    rows = round_up(length, FLASH_ROWS)
    found = tuple(torch.empty_like(one) for one in (q, k, v))
    shapes = [(batch, rows, heads, round_up(width, FLASH_WIDTH)), (batch, heads, rows)]
    _scratch = [q.new_empty(shape, dtype=torch.float32) for shape in shapes]
    if k.shape[2] != heads:
        _scratch += [q.new_empty((batch, k.shape[0], heads, width)) for _ in "kv"]
    return (*found, None)


def core_of(stage: Shared) -> Any:
    """`TEDotProductAttention`, as far as its fused attention goes."""
    import torch

    class Core(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, config: Any, cp_comm_type: str, **_: Any) -> None:
            super().__init__()
            self.config, self.way = config, cp_comm_type

        def forward(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
            from megatron.core import parallel_state

            group = parallel_state.get_context_parallel_group()
            whole = query.shape[0] * stage.context
            starts = stage.attention.dpa_utils.get_full_cu_seqlens(query.shape[1], whole, query.device)
            context = stage.attention.attn_forward_func_with_cp(
                True,
                query.contiguous(),
                key.contiguous(),
                value.contiguous(),
                starts,
                starts,
                whole,
                whole,
                None,
                None,
                self.config.attention_dropout,
                group,
                torch.distributed.get_process_group_ranks(group),
                torch.cuda.Stream(),
                self.way,
                qkv_format="sbhd",
                use_fused_attention=True,
            )
            return context.view(*context.shape[:2], -1)

    return Core


def traced(row: dict[str, Any]) -> dict[str, int]:
    """What the last device of a sequence allocates."""
    return mcore.traced(row, Shared)
