"""PyTorch's FSDP1 on tensors without data: `FullyShardedDataParallel`, over a process group that sends nothing.

Streams and events are stand-ins, so that all work is done at once. A storage that FSDP makes smaller and larger again
is told to the counter.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import Any
from unittest.mock import patch

from tests.traces.fsdp2 import CUDA, DTYPES, blocks, check_loss, local, told, widen
from vramplan.errors import UsageError
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import FSDP, FSDP_GRAD_OP

OWN_KEYS = ("parallel", "precision", "offload")
"""What the loop on one device refuses and this rig has."""


def check(job: ResolvedJob) -> None:
    """Raise UsageError for what this rig has no loop for."""
    assert job.sharding is not None
    if job.sharding.version != 1 or job.sharding.kind not in (FSDP, FSDP_GRAD_OP):
        raise UsageError("the rig is of FSDP1", key="sharding")
    if job.ema:
        raise UsageError("a module of FSDP1 cannot be copied, as its process group cannot", key="ema")
    if job.optimizer_in_backward:
        raise UsageError("FSDP1 wants its gradients back after backward", key="optimizer_in_backward")
    check_loss(job)


def joined(job: ResolvedJob, stack: contextlib.ExitStack) -> Any:
    """A process group that sends nothing; what counts storages beside what FSDP1 frees and makes again."""
    import torch
    from torch import distributed
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.distributed.fsdp import _runtime_utils
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from vramplan.measure.storages import Storages

    assert job.sharding is not None
    counters: list[Any] = []

    class Local(local(Storages)):  # type: ignore[misc]
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            counters.append(self)

    def resize(storage: Any, size: int) -> None:
        """FSDP frees and makes storages so, of the whole flat parameter too, of which a module may have a view."""
        counters[-1].resized(storage._untyped_storage, size * storage._element_size())

    def reshard(state: Any) -> None:
        """FSDP's own asks for addresses, and tensors without data have none."""
        handle = state._handle
        if handle is None:
            return
        parts = [one.untyped_storage()._cdata for one in (handle.flat_param, handle.flat_param._local_shard)]
        if parts[0] != parts[1] or handle._skipped_use_sharded_views:
            frees = _runtime_utils._should_free_in_backward(state, handle)
            _runtime_utils._reshard(state, handle, frees)

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=job.data_parallel_size)
    stack.callback(distributed.destroy_process_group)
    for module, name, own in (
        (torch.Tensor, "record_stream", lambda *_: None),
        (torch.Tensor, "pin_memory", lambda one, *_: one),  # of the host
        (torch.Tensor, "is_pinned", lambda *_: True),
        (FakeTensorMode, "avoid_device_init", True),  # else a number would go to the device with its data
        (torch.storage.TypedStorage, "_resize_", resize),
        (_runtime_utils, "_catch_all_reshard", reshard),
    ):
        stack.enter_context(patch.object(module, name, own))
    if job.offload:
        stack.enter_context(patch.object(FakeTensor, "data", property(_data, _put), create=True))
    return Local


def _data(one: Any) -> Any:
    import torch

    return torch._C.TensorBase.data.__get__(one)


def _put(one: Any, other: Any) -> None:
    """A weight has other data, perhaps on another device: without data it does not know where those are."""
    import torch

    torch._C.TensorBase.data.__set__(one, other)
    one.fake_device = other.fake_device


def _groups(shards: int, replicas: int) -> tuple[Any, Any]:
    """The devices that share the states of the first one, and those that have the same part as it."""
    from torch import distributed

    return (
        distributed.new_group(list(range(shards)), backend="fake"),
        distributed.new_group(list(range(0, shards * replicas, shards)), backend="fake"),
    )


def traced(job: ResolvedJob) -> dict[str, int]:
    """Peaks of the phases of one step of the first device, in bytes."""
    import torch
    from torch.utils import checkpoint

    from vramplan.measure import steps

    whole, freeze = steps._on_device, steps.freeze
    stack, inside = contextlib.ExitStack(), list[Any]()

    def turn(one: ResolvedJob, _: Any) -> None:
        """LISA's callback goes through the parameters of blocks, which are flat ones now."""
        if one.trained_blocks.startswith("lisa:"):
            for block in inside[: len(inside) - int(one.trained_blocks.partition(":")[2])]:
                for weight in block.parameters():
                    weight.requires_grad_(False)

    def shared(one: ResolvedJob, skeleton: Any) -> Any:
        if one.teacher is not job.teacher:
            return whole(one, skeleton)  # GKDTrainer leaves a teacher as it is
        freeze(one, skeleton)  # by names that the whole model has
        model = whole(one, skeleton)
        inside.extend(blocks(model))
        stack.enter_context(patch.multiple(torch.cuda, **CUDA))
        return _sharded(one, model, stack)

    with stack:
        for module, name, own in (
            (steps, "Storages", joined(job, stack)),
            (steps, "_on_device", shared),
            (steps, "freeze", lambda *_: None),
            (steps, "turn", turn),
        ):
            stack.enter_context(patch.object(module, name, own))
        if job.quantization is not None:
            stack.enter_context(patch("bitsandbytes.nn.modules.fix_4bit_weight_quant_state_from_module", told))
        if job.adapter is not None:
            # PEFT asks a weight for its type before it is gathered, and before the first gathering that is another
            # than ever after: the first recomputation differs from its forward pass
            defaults = checkpoint.checkpoint.__wrapped__.__kwdefaults__
            stack.enter_context(patch.dict(defaults, determinism_check="none"))
        phases = steps.without_data(job)["phases"]
    return {name.removesuffix("_bytes"): level for name, level in phases.items()}


def _sharded(job: ResolvedJob, model: Any, stack: contextlib.ExitStack) -> Any:
    """The model with a unit for each block and for the whole; with `no_sync` the last micro-step reduces."""
    import torch
    from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy

    from vramplan.measure.around import dtype_of
    from vramplan.measure.runnable import TRACED_MICRO_STEPS

    sharding = job.sharding
    assert sharding is not None
    strategy = ShardingStrategy.FULL_SHARD if sharding.kind == FSDP else ShardingStrategy.SHARD_GRAD_OP
    if sharding.replicas > 1:
        hybrid = ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2
        strategy = hybrid[sharding.kind != FSDP]
    how: dict[str, Any] = {"sharding_strategy": strategy, "use_orig_params": False}
    if sharding.replicas > 1:
        how["process_group"] = _groups(sharding.shards, sharding.replicas)
    if job.offload:
        how["cpu_offload"] = CPUOffload(offload_params=True)
    reduced = None if sharding.reduce_dtype is None else getattr(torch, DTYPES[sharding.reduce_dtype])
    if job.precision.startswith("fsdp-"):
        how["mixed_precision"] = MixedPrecision(param_dtype=dtype_of(job), reduce_dtype=reduced or torch.float32)
    elif reduced is not None:
        how["mixed_precision"] = MixedPrecision(reduce_dtype=reduced)
    if job.precision.startswith("fsdp-") and job.quantization is None:
        widen(model)  # accelerate 1.15, accelerator.py, prepare_model: what is trained in fp32
    if job.adapter is not None:
        from peft.utils.other import fsdp_auto_wrap_policy

        # else the policy takes BERT's embeddings for a block too, and the tied head then has a table of its own
        classes = ",".join(sorted({type(one).__name__ for one in blocks(model)}))
        with patch.dict(os.environ, {"FSDP_TRANSFORMER_CLS_TO_WRAP": classes}):
            how["auto_wrap_policy"] = fsdp_auto_wrap_policy(model)
    else:
        units = {id(one) for one in blocks(model)}
        how["auto_wrap_policy"] = partial(lambda_auto_wrap_policy, lambda_fn=lambda one: id(one) in units)
    whole = FullyShardedDataParallel(model, **how)
    stack.enter_context(
        patch.object(torch.nn.utils, "clip_grad_norm_", lambda _, most: whole.clip_grad_norm_(most)),
    )
    if sharding.no_sync:
        last_syncs(whole, min(job.gradient_accumulation_steps or 1, TRACED_MICRO_STEPS))
    return whole


def last_syncs(whole: Any, micro_steps: int) -> None:
    """Let the last micro-step alone reduce gradients, as `no_sync` does."""
    seen = [0]

    def count(module: Any, _: Any) -> None:
        seen[0] += 1
        for one in type(whole).fsdp_modules(module):
            one._sync_gradients = seen[0] % micro_steps == 0

    whole.register_forward_pre_hook(count)
