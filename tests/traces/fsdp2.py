"""PyTorch's FSDP2 on tensors without data: the real `fully_shard`, over a process group that sends nothing.

Each block of the model is wrapped, then the whole. Three things are not as on a GPU. Streams and events are stand-ins,
so what a stream would delay is done at once; what FSDP2 keeps alive for its streams it keeps by references, which are
counted. A storage that FSDP2 makes smaller and larger again (`untyped_storage().resize_`) is told to the counter. A
DTensor is no storage; its part is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from importlib import import_module
from math import prod
from typing import Any
from unittest.mock import patch

from vramplan.errors import UsageError
from vramplan.measure.runnable import PREFERENCES
from vramplan.options.words import BITSANDBYTES_OPTIMIZERS
from vramplan.replay.recorder import rounded
from vramplan.replay.sharding.traced import BY_MATRIX
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import FSDP, FSDP_GRAD_OP

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class Stream:
    """A stream whose work is done at once."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        """Of any device and priority."""

    @property
    def device(self) -> Any:
        """The first one."""
        return import_module("torch").device("cuda", 0)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        """Nothing was pending."""

    def wait_stream(self, _: Any = None) -> None:
        """Nothing is pending."""

    wait_event = synchronize = wait_stream

    def is_capturing(self) -> bool:
        """No graph."""
        return False

    def record_event(self, _: Any = None) -> Event:
        """One that has happened."""
        return Event()


class Event:
    """One that has happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """With any flags."""

    def record(self, *_: Any) -> None:
        """At once."""

    wait = synchronize = record

    def query(self) -> bool:
        """It has."""
        return True


CURRENT = Stream()
CUDA = {
    "Stream": Stream,
    "Event": Event,
    "current_stream": lambda *_: CURRENT,
    "stream": lambda _: contextlib.nullcontext(),
    "synchronize": lambda *_: None,
    "current_device": lambda: 0,
    "set_device": lambda *_: None,
    "device_count": lambda: 1,
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "_lazy_init": lambda: None,
    "get_device_capability": lambda *_: (8, 0),
}
"""What FSDP2 and the mesh of devices ask of `torch.cuda`."""


ENDS = {"embedding": "get_input_embeddings", "head": "get_output_embeddings"}
"""What a model of Transformers has besides its blocks, by the words of `parallel.fsdp_units`."""


LOSSES = ("standard", "fp32-logits", "half-logits", "chunked", "fused", *PREFERENCES)
"""All but those of TRL are in the forward pass of the model, which hooks are around."""


OWN_KEYS = ("parallel", "precision", "offload")
"""What the loop on one device refuses and this rig has."""


def check(job: ResolvedJob) -> None:
    """Raise UsageError for what this rig has no loop for."""
    assert job.sharding is not None
    if job.sharding.version != 2 or job.sharding.kind not in (FSDP, FSDP_GRAD_OP):
        raise UsageError("the rig is of FSDP2", key="sharding")
    if job.precision.startswith("mixed-") or job.precision == "fp8":
        raise UsageError("FSDP2 keeps no master copy", key="precision")
    if job.optimizer in BITSANDBYTES_OPTIMIZERS:
        raise UsageError("the kernels of bitsandbytes take no DTensors", key="optimizer")
    if job.optimizer in BY_MATRIX:
        raise UsageError("it is one that gathers whole matrices; torch.optim's multiplies DTensors", key="optimizer")
    check_loss(job)


def check_loss(job: ResolvedJob) -> None:
    """Raise UsageError for a loss that no rig of several devices has."""
    if job.loss.partition(":")[0] not in LOSSES:
        raise UsageError("the rig has no loss with kernels of its own", key="loss")


def traced(job: ResolvedJob) -> dict[str, int]:
    """Peaks of the phases of one step of the first device, in bytes."""
    import torch

    from vramplan.measure import steps

    assert job.sharding is not None
    whole, freeze, beside = steps._on_device, steps.freeze, steps.reference_skeleton
    references: list[Any] = []
    with contextlib.ExitStack() as stack:
        mesh, counter = group(job, stack)

        def noted(one: ResolvedJob) -> Any:
            references.append(beside(one))
            return references[-1]

        def shared(one: ResolvedJob, skeleton: Any) -> Any:
            """On the device, with CUDA from here on: libraries imported with it would look for their kernels."""
            if one.teacher is not job.teacher:
                return whole(one, skeleton)  # GKDTrainer leaves a teacher as it is
            freeze(one, skeleton)  # by names that the whole model has; what is sharded keeps it
            if one.quantization is not None:  # before weights are in units, as they are loaded so
                skeleton = whole(one, skeleton)
                stack.enter_context(patch("bitsandbytes.nn.modules.fix_4bit_weight_quant_state_from_module", told))
            stack.enter_context(patch.multiple(torch.cuda, **CUDA))
            if any(skeleton is other for other in references):
                return whole(one, _sharded(one, skeleton, mesh, as_one=True))
            model = _sharded(one, skeleton, mesh)
            if one.quantization is not None:
                return model
            return on_host(model) if one.offload else whole(one, model)

        for module, name, own in (
            (steps, "Storages", counter),
            (steps, "_on_device", shared),
            (steps, "freeze", lambda *_: None),
            (steps, "reference_skeleton", noted),
        ):
            stack.enter_context(patch.object(module, name, own))
        phases = steps.without_data(job)["phases"]
    return {name.removesuffix("_bytes"): level for name, level in phases.items()}


def told(module: Any) -> None:
    """What is gathered is told how it is quantized, as the library does it to a parameter of its own class."""
    module.weight.quant_state = module.quant_state


def on_host(skeleton: Any) -> Any:
    """A model whose weights are on the host, and what is no weight on the device."""
    import torch

    model = skeleton.to_empty(device="cpu")
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = torch.empty_like(buffer, device="cuda")
    model.tie_weights()
    return model


def group(job: ResolvedJob, stack: contextlib.ExitStack) -> tuple[Any, Any]:
    """The mesh of a group that sends nothing, and what counts its storages."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    assert job.sharding is not None
    shape, names = (job.data_parallel_size,), ("shard",)
    if job.sharding.replicas > 1:
        shape, names = (job.sharding.replicas, job.sharding.shards), ("replicate", "shard")
    counter = joined(prod(shape), stack)
    with patch.multiple(torch.cuda, **CUDA):  # before tensors have no data, as it looks for its ranks
        return init_device_mesh("cuda", shape, mesh_dim_names=names), counter


def joined(devices: int, stack: contextlib.ExitStack, rank: int = 0) -> Any:
    """A process group that sends nothing; what counts storages beside what FSDP2 frees and makes again.

    `rank`: that of the device which is traced.
    """
    import torch
    from torch import distributed
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group
    from torch.distributed.tensor import _sharding_prop, debug
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import _disable_current_modes

    from vramplan.measure.storages import Storages

    counters: list[Any] = []
    debug._clear_sharding_prop_cache()  # it has meshes in it, whose groups another job of this process had

    class Local(local(Storages)):  # type: ignore[misc]
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            counters.append(self)

    def free(tensor: Any) -> None:
        counters[-1].resized(tensor.untyped_storage(), 0)

    def alloc(tensor: Any) -> None:
        counters[-1].resized(tensor.untyped_storage(), tensor.numel() * tensor.itemsize)

    plain = DeviceMesh.__init__

    def found_mesh(*given: Any, **named: Any) -> None:
        """With data, as a part of a mesh looks for its own number among those of the devices."""
        with _disable_current_modes():
            plain(*given, **named)

    find = _sharding_prop.ShardingPropagator._propagate_tensor_meta_non_cached

    def found(*given: Any) -> Any:
        """The shape of a result, which DTensor finds once by an operator without data."""
        if not counters:
            return find(*given)
        counters[-1].counts = False
        try:
            return find(*given)
        finally:
            counters[-1].counts = True

    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=devices)
    stack.callback(distributed.destroy_process_group)
    for module, name, own in (
        (torch.Tensor, "record_stream", lambda *_: None),
        (torch.Tensor, "pin_memory", lambda one, *_: one),  # of the host
        (torch.Tensor, "is_pinned", lambda one, *_: one.device.type == "cpu"),
        (torch.accelerator, "current_stream", lambda *_: CURRENT),  # where it was gathered for nothing
        (DeviceMesh, "__init__", found_mesh),
        (_fsdp_param, "free_storage", free),
        (_fsdp_param, "alloc_storage", alloc),
        (_fsdp_param_group, "alloc_storage", alloc),
        (_sharding_prop.ShardingPropagator, "_propagate_tensor_meta_non_cached", found),
    ):
        stack.enter_context(patch.object(module, name, own))
    return Local


def local(base: Any) -> Any:
    """A counter of the parts that this device has."""
    import torch
    from torch.distributed.tensor import DTensor
    from torch.utils._pytree import tree_leaves

    class Parts(base):  # type: ignore[misc]
        counts = True  # else nothing is on a device

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(issubclass(one, DTensor) for one in types):
                return NotImplemented  # it is taken apart, and its part comes here
            if func is torch.ops._c10d_functional.wait_tensor.default:
                return args[0]  # the same on a GPU; without data it would be another, which nobody counts
            if not self.counts:
                return func(*args, **(kwargs or {}))
            out = super().__torch_dispatch__(func, types, args, kwargs)
            if func.namespace == "_c10d_functional":
                self.hold(out)  # a collective that gives a new tensor
                self._level(self.now_bytes)
            return out

        def count(self, out: Any) -> None:
            """Count what something gives that was not followed inside."""
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor):
                    self.hold(leaf)
            self._level(self.now_bytes)

        def resized(self, storage: Any, size: int) -> None:
            """A storage has another size from now on, as FSDP2 frees and makes what it gathers."""
            if storage.size() == size:
                return
            storage.resize_(size)
            self.settle()
            if storage._cdata in self._living:
                before, alive = self._living[storage._cdata]
                self._living[storage._cdata] = (rounded(size), alive)
                self.now_bytes += rounded(size) - before
                self._level(self.now_bytes)

    return Parts


def _sharded(job: ResolvedJob, model: Any, mesh: Any, *, as_one: bool = False) -> Any:
    """The model with `fully_shard` on each block and on the whole; with `no_sync` the last micro-step reduces.

    `as_one`: on the whole alone, as TRL has a reference (trl 1.16.0, models/utils.py, prepare_fsdp).
    """
    import torch
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    from vramplan.measure.around import dtype_of
    from vramplan.measure.runnable import TRACED_MICRO_STEPS

    assert job.sharding is not None
    # accelerate names it, so the root is resharded as well (accelerate 1.15, utils/fsdp_utils.py, fsdp2_prepare_model)
    how: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": job.sharding.kind == FSDP}
    if job.precision.startswith("fsdp-"):
        reduced = getattr(torch, DTYPES[job.sharding.reduce_dtype or "fp32"])
        how["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype_of(job), reduce_dtype=reduced)
    elif job.sharding.reduce_dtype is not None:
        how["mp_policy"] = MixedPrecisionPolicy(reduce_dtype=getattr(torch, DTYPES[job.sharding.reduce_dtype]))
    if job.precision.startswith("fsdp-") and job.quantization is None:  # the same file, where there is mixed precision
        widen(model)
    if job.offload:
        how["offload_policy"] = CPUOffloadPolicy()
    if as_one:
        return fully_shard(model, **how)
    for block in blocks(model):
        fully_shard(block, **how)
    for name, end in ENDS.items():
        if name in job.sharding.units.split("-and-"):
            fully_shard(getattr(model, end)(), **how)
    fully_shard(model, **how)
    if job.sharding.no_sync:
        last_reduces(model, min(job.gradient_accumulation_steps or 1, TRACED_MICRO_STEPS))
    return model


def last_reduces(model: Any, micro_steps: int) -> None:
    """Let the last micro-step alone reduce gradients, as `no_sync` of the programs does."""
    seen = [0]

    def last_syncs(module: Any, _: Any) -> None:
        seen[0] += 1
        module.set_requires_gradient_sync(seen[0] % micro_steps == 0)

    model.register_forward_pre_hook(last_syncs)


def widen(model: Any) -> None:
    """What is trained in fp32: new parameters, as those without data cannot be given other data."""
    import torch

    made: dict[int, Any] = {}
    for module in model.modules():
        for name, one in module.named_parameters(recurse=False, remove_duplicate=False):
            if one.requires_grad and one.dtype is not torch.float32:
                if id(one) not in made:
                    made[id(one)] = torch.nn.Parameter(one.detach().to(torch.float32))
                module.register_parameter(name, made[id(one)])


def blocks(model: Any) -> Iterator[Any]:
    """The modules of lists that Transformers says are not to be split.

    Where it says nothing, as of DistilBERT, those that it checkpoints, which people name to Accelerate; and so where it
    says a part of one, as of Idefics3, several of them, as a stage of Swin, or no module of this model, as of HuBERT
    with its norms first. Of Wav2Vec2 they are not the convolutions over the samples, which have a class of their own
    each. ALBERT, whose one layer runs as every block, has none: Transformers names none, and so accelerate takes none.
    """
    import torch

    if getattr(model.config, "num_hidden_groups", None):
        return
    names = getattr(model, "_no_split_modules", None) or ()
    named = [one for several in _lists(model) for one in several if type(one).__name__ in names]
    if not named or any(_is_checkpointed(one) for several in named for one in several.modules() if one is not several):
        names = ()
    plain = not names and not any(_is_checkpointed(one) for one in model.modules())  # as MPNet, which says nothing
    for name, several in model.named_modules():
        if isinstance(several, torch.nn.ModuleList) and not name.endswith("feature_extractor.conv_layers"):
            yield from (one for one in several if plain or _is_block(one, names))


def _lists(model: Any) -> Iterator[Any]:
    """The lists of modules of a model."""
    import torch

    return (one for one in model.modules() if isinstance(one, torch.nn.ModuleList))


def _has_one(module: Any, names: Collection[str]) -> bool:
    """Whether a module inside of one is of these."""
    return any(type(one).__name__ in names for one in module.modules() if one is not module)


def _is_block(module: Any, names: Collection[str]) -> bool:
    if names and not _has_one(module, names):
        return type(module).__name__ in names
    return _is_checkpointed(module) and not any(_is_checkpointed(one) for one in module.modules() if one is not module)


def _is_checkpointed(module: Any) -> bool:
    """Whether Transformers' own switch makes a checkpoint of a module."""
    return any(base.__name__ == "GradientCheckpointingLayer" for base in type(module).__mro__)
