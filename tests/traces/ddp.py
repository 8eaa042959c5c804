"""PyTorch's DistributedDataParallel on tensors without data: the real module and its reducer, over a process group that
sends nothing.

After its first iteration the reducer makes its buckets anew, in the order in which gradients came. That order is told
to it at once, from a step without it: what it sends to agree on the order with the others are numbers that nobody has.
"""

from __future__ import annotations

import contextlib
from typing import Any
from unittest.mock import MagicMock, patch

from tests.traces import compiled
from tests.traces.fsdp2 import CUDA, check_loss
from vramplan.errors import UsageError
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import DDP

BUCKET_BYTES = 25 * 2**20  # bucket_cap_mb of DistributedDataParallel


OWN_KEYS = ("parallel", "compile")
"""What the loop on one device refuses and this rig has."""


def check(job: ResolvedJob) -> None:
    """Raise UsageError for what this rig has no loop for."""
    assert job.sharding is not None
    if job.sharding.kind != DDP:
        raise UsageError("the rig is of DDP", key="sharding")
    check_loss(job)


def traced(job: ResolvedJob) -> dict[str, int]:
    """Peaks of the phases of one step of the first device, in bytes."""
    import torch
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from vramplan.measure import steps

    plain_loop = steps.prepare_without_data
    stack = contextlib.ExitStack()

    def wrapped(*given: Any) -> Any:
        loop = plain_loop(*given)
        order = _order(loop)
        stack.enter_context(patch.multiple(torch.cuda, **CUDA))
        whole = replicated(job, loop.model, order)
        if job.compile:  # as accelerate has it: around DDP, so that Dynamo cuts the graph where a bucket is full
            compiled.compiling(stack)
            compiled.available(stack)
            whole = torch.compile(whole)
        return loop._replace(model=whole)

    with stack:
        if job.compile:
            stack.enter_context(patch.object(steps, "Storages", compiled.counting(steps.Storages)))
        distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=job.data_parallel_size)
        stack.callback(distributed.destroy_process_group)
        stack.enter_context(patch.object(steps, "prepare_without_data", wrapped))
        phases = steps.without_data(job._replace(compile=False))["phases"]
    return {name.removesuffix("_bytes"): level for name, level in phases.items()}


def _order(loop: Any) -> list[Any]:
    """The trained weights in the order in which their gradients come."""
    from vramplan.measure.steps import one_step

    found: list[Any] = []
    trained = [one for one in loop.model.parameters() if one.requires_grad]
    hooks = [one.register_post_accumulate_grad_hook(found.append) for one in trained]
    one_step(loop._replace(micro_steps=1))
    for hook in hooks:
        hook.remove()
    return found + [one for one in trained if all(one is not other for other in found)]


def replicated(job: ResolvedJob, model: Any, order: list[Any]) -> Any:
    """The model in DDP, where the last micro-step alone reduces, as accelerate has it."""
    from torch import distributed as c10d
    from torch.nn.parallel import DistributedDataParallel, distributed

    from vramplan.measure.runnable import TRACED_MICRO_STEPS

    assert job.sharding is not None
    plain = c10d._compute_bucket_assignment_by_size

    def assigned(weights: Any, _limits: Any, sparse: Any) -> Any:
        """By the order of the gradients, and in the sizes of the second time; DDP turns round what it gets."""
        at = {id(one): index for index, one in enumerate(weights)}
        places = [at[id(one)] for one in order]
        limits = [c10d._DEFAULT_FIRST_BUCKET_BYTES, BUCKET_BYTES]
        buckets, limit = plain([weights[place] for place in places], limits, sparse)
        return [[places[one] for one in bucket] for bucket in reversed(buckets)], limit

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(distributed, "_verify_param_shape_across_processes", lambda *_: None))
        stack.enter_context(patch.object(c10d, "_compute_bucket_assignment_by_size", assigned))
        whole = DistributedDataParallel(
            model,
            broadcast_buffers=False,
            init_sync=False,
            gradient_as_bucket_view=bool(job.sharding.bucket_views),
        )
    whole.register_comm_hook(None, _summed)
    whole.logger = MagicMock()  # it reads timers of CUDA
    whole.reducer = _Reducer(whole.reducer)
    steps, seen = min(job.gradient_accumulation_steps or 1, TRACED_MICRO_STEPS), [0]

    def last_syncs(module: Any, _: Any) -> None:
        seen[0] += 1
        module.require_backward_grad_sync = seen[0] % steps == 0

    whole.register_forward_pre_hook(last_syncs)
    return whole


class _Reducer:
    """A reducer that keeps its first buckets, which are in the order that it would find."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


def _summed(_, bucket):  # type: ignore[no-untyped-def]  # DDP looks at annotations
    """What the collective gives: the bucket, in which it sums in place. One that sends nothing gives nothing."""
    import torch

    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done
