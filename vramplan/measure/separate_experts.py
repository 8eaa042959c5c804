"""Experts that run one after another, on tensors without data: how many tokens each gets.

So do those of Transformers 4, which are modules, and those of DBRX, which are parts of stacked weights. Which tokens an
expert gets is data: each gets the mean, of stacked ones that of each sequence, rounded up. What `torch.where` finds of
a mask are two views of one tensor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import cycle
from typing import Any
from unittest.mock import patch

import torch

from vramplan.replay.models.capable import loops_over_experts
from vramplan.values.job import ResolvedJob


@contextlib.contextmanager
def one_by_one(job: ResolvedJob) -> Iterator[None]:
    """The loop over experts runs through all of them, in a job whose experts run in one."""
    experts = job.model.experts
    if experts is None or not (experts.separate or loops_over_experts(job.model.family)):
        yield
        return
    turns = cycle(range(experts.routed))
    where, nonzero, item = torch.where, torch.Tensor.nonzero, torch.nn.ModuleList.__getitem__

    def places(*arguments: Any, **keys: Any) -> Any:
        if len(arguments) > 1:
            return where(*arguments, **keys)
        mask = arguments[0]
        rows = mask.numel() // experts.routed
        if not experts.separate:
            sequences = mask.numel() // (experts.active * job.sequence_length)
            rows = sequences * -(-job.sequence_length * experts.active // experts.routed)
        found = torch.empty((mask.dim(), rows), dtype=torch.int64, device=mask.device)
        return found.unbind(0)

    def all_of_them(self: Any) -> Any:
        if self.dtype is not torch.bool:
            return nonzero(self)
        return torch.empty((experts.routed, self.dim()), dtype=torch.int64, device=self.device)

    def of_a_turn(self: Any, index: Any) -> Any:
        return item(self, next(turns) if isinstance(index, torch.Tensor) else index)

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(torch, "where", places))
        stack.enter_context(patch.object(torch.Tensor, "nonzero", all_of_them))
        stack.enter_context(patch.object(torch.nn.ModuleList, "__getitem__", of_a_turn))
        yield
