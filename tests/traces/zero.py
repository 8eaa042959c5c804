"""DeepSpeed's ZeRO on tensors without data: its own engine and optimizers, over a process group that sends nothing.

One process plays one device of a group. Streams and events are stand-ins, so that all work is done at once. A kernel
that steps weights writes into what is there, so that nothing is in its place. Memory that is pinned is the host's.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.traces.fsdp2 import CUDA, check_loss
from tests.traces.told import telling
from vramplan.engines.deepspeed.layout import Layout
from vramplan.errors import UsageError
from vramplan.options.words import LATER_TORCH_OPTIMIZERS
from vramplan.values.job import NEXT_FORWARD, ResolvedJob
from vramplan.values.parallel import ZERO1, ZERO3, ZERO_STAGES

ENVIRONMENT = {"LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "CUDA_HOME": "/"}

FUSED = {"adamw": "AdamW", "adam": "Adam"}
"""What DeepSpeed makes of a name in its configuration: its own FusedAdam, or DeepSpeedCPUAdam on the host."""


DRIVE = {"device": "nvme", "nvme_path": tempfile.gettempdir()}
OWN_KEYS = ("parallel", "runtime", "offload")
"""What the loop on one device refuses and this rig has."""


def check(job: ResolvedJob) -> None:
    """Raise UsageError for what this rig has no loop for."""
    assert job.sharding is not None
    if job.sharding.kind not in ZERO_STAGES:
        raise UsageError("the rig is of ZeRO", key="sharding")
    check_loss(job)
    if job.trained_blocks != "all":
        raise UsageError("DeepSpeed steps flat parts of what is trained when it begins", key="trained_blocks")
    zero = job.sharding.zero
    if zero is None:
        raise UsageError("the rig is of ZeRO", key="sharding")
    if job.teacher is not None and job.sharding.kind == ZERO3:
        raise UsageError("the rig does not share a teacher among devices", key="teacher")
    if job.ema or job.grad_scaler:
        raise UsageError("DeepSpeed scales by itself, and averages no weights", key="ema" if job.ema else "grad_scaler")


def traced(job: ResolvedJob) -> dict[str, int]:
    """Peaks of the phases of one step, in bytes: of each phase the highest of all devices.

    Under stage 3 all devices are alike.
    """
    assert job.sharding is not None
    ranks = range(1 if job.sharding.kind == ZERO3 else job.sharding.shards)
    each = [traced_on(job, rank) for rank in ranks]
    return {phase: max(one[phase] for one in each) for phase in each[0]}


def traced_row(job: ResolvedJob) -> dict[str, int]:
    """The same of the device that rows are of: the one whose part has something of most parameters."""
    return traced_on(job, None)


def traced_on(job: ResolvedJob, rank: int | None) -> dict[str, int]:
    """Peaks of the phases of one step on a device, in bytes."""
    import torch
    from torch import distributed
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn import functional
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from vramplan.measure import steps
    from vramplan.measure.stand_ins import Truth

    assert job.sharding is not None
    sharding, plain_loop, truth = job.sharding, steps.prepare_without_data, Truth()
    with contextlib.ExitStack() as stack:

        def wrapped(*given: Any) -> Any:
            loop = plain_loop(*given)
            sizes = [one.numel() for one in loop.model.parameters() if one.requires_grad]
            most = Layout(sizes, sharding.shards).most_loaded(last=sharding.kind != ZERO1)
            own = most if rank is None and sharding.kind != ZERO3 else rank or 0
            group = {"rank": own, "world_size": sharding.shards}
            distributed.init_process_group("fake", store=FakeStore(), **group)
            stack.callback(distributed.destroy_process_group)
            stack.enter_context(patch.dict(os.environ, {key.upper(): str(one) for key, one in group.items()}))
            stack.enter_context(patch.multiple(torch.cuda, **CUDA))
            own_engine = _engine(job, loop, stack)
            beside = loop.reference and _reference_engine(job, loop.reference, stack)
            return loop._replace(model=own_engine, optimizer=None, reference=beside)

        for owner, name, own in (
            (torch.Tensor, "record_stream", lambda *_: None),
            (FakeTensorMode, "avoid_device_init", True),  # else a number would go to the device with its data
            (functional, "linear", functional.linear),  # stage 3 replaces it for good
            (steps, "Truth", lambda: truth),
            (steps, "prepare_without_data", wrapped),
            (steps, "one_step", partial(_one_step, truth)),
            (steps, "_first_step", _first_steps(steps._first_step)),
            (steps, "optimizer_of", _optimizer_of(steps.optimizer_of)),
        ):
            stack.enter_context(patch.object(owner, name, own))
        stack.enter_context(patch.dict(os.environ, ENVIRONMENT))
        phases = steps.without_data(job)["phases"]
    return {name.removesuffix("_bytes"): level for name, level in phases.items()}


def _first_steps(plain: Callable[..., None]) -> Callable[..., None]:
    """A reference of stage 3 keeps its small parameters from the second pass on, so that the third is as all others.

    Source: deepspeed/runtime/zero/partitioned_param_coordinator.py, release_sub_module.
    """

    def made(loop: Any, enter: Callable[[str], None]) -> None:
        plain(loop, enter)
        if loop.reference is not None and loop.job.sharding.kind == ZERO3:
            plain(loop, enter)

    return made


def _optimizer_of(plain: Callable[[ResolvedJob, Any], Any]) -> Callable[[ResolvedJob, Any], Any]:
    """DeepSpeed makes its own Adam; another optimizer is the program's, over the weights that DeepSpeed cuts."""

    def made(job: ResolvedJob, model: Any) -> Any:
        half = job.precision.rpartition("-")[2]
        precision = half if half == "fp32" else f"pure-{half}"
        is_mixed = job.precision.startswith("mixed-")  # whose jobs say fused, which is DeepSpeed's own
        if is_mixed and job.optimizer in ("rmsprop", *LATER_TORCH_OPTIMIZERS):
            job = job._replace(optimizer_implementation="foreach")
        return None if _is_own(job) else plain(job._replace(precision=precision), model)

    return made


def _is_own(job: ResolvedJob) -> bool:
    return job.optimizer in FUSED and job.optimizer_implementation in (None, "fused")


def _one_step(truth: Any, loop: Any, enter: Callable[[str], None] = lambda _: None) -> None:
    """One iteration: the engine divides the loss, reduces and steps."""
    from vramplan.measure.steps import forward

    plain = loop._replace(job=loop.job._replace(gradient_accumulation_steps=1))  # the engine divides the loss
    for _ in range(loop.micro_steps):
        enter("forward")
        out, loss = forward(plain)
        loop.outputs.clear()
        if not loop.job.hold_outputs:
            del out
        elif loop.job.hold_outputs_until == NEXT_FORWARD:
            loop.outputs.append(out)
        enter("backward")
        loop.model.backward(loss)
        loss = out = None
        loop.model.optimizer.local_overflow = False  # what it found in gradients on their way to the host
        if loop.model.is_gradient_accumulation_boundary():
            enter("step")
        truth.value = False  # no gradient overflows
        loop.model.step()
        truth.value = True


def _engine(job: ResolvedJob, loop: Any, stack: contextlib.ExitStack) -> Any:
    """The engine around the model, and what it asks of CUDA."""
    import deepspeed
    from deepspeed import accelerator
    from deepspeed.comm import comm
    from deepspeed.ops.adam import cpu_adam, fused_adam
    from deepspeed.runtime.swap_tensor import (
        partitioned_optimizer_swapper,
        partitioned_param_swapper,
        pipelined_optimizer_swapper,
    )
    from deepspeed.runtime.zero import utils
    from deepspeed.utils import groups, logger

    logger.setLevel(logging.ERROR)
    for module in (comm, groups):  # what they know of the group
        stack.enter_context(patch.dict(module.__dict__))
    accelerator.set_accelerator(_device())
    for name, own in (("assert_lst_len_same_as_other_ranks", lambda _: None), ("get_lst_from_rank0", lambda one: one)):
        stack.enter_context(patch.object(utils, name, own))  # the others agree
    kernels = SimpleNamespace(load=_Kernels)
    for module, name in ((fused_adam, "FusedAdamBuilder"), (cpu_adam, "CPUAdamBuilder")):
        stack.enter_context(patch.object(module, name, lambda: kernels))
    drive = SimpleNamespace(load=lambda **_: SimpleNamespace(aio_handle=_Drive))
    for module in (partitioned_optimizer_swapper, partitioned_param_swapper, pipelined_optimizer_swapper):
        stack.enter_context(patch.object(module, "AsyncIOBuilder", lambda: drive))
    deepspeed.init_distributed(dist_backend="fake", dist_init_required=False)
    model, optimizer = loop.model, loop.optimizer
    stack.enter_context(patch.object(type(model), "to", lambda self, *_, **__: self))  # it is there
    trained = [one for one in model.parameters() if one.requires_grad]
    given = {"model_parameters": trained} if optimizer is None else {"optimizer": optimizer}
    return deepspeed.initialize(model=model, config=_configuration(job, loop.micro_steps), **given)[0]


def _reference_engine(job: ResolvedJob, reference: Any, stack: contextlib.ExitStack) -> Any:
    """The engine around a reference of preference training, which has no optimizer; without stage 3 it is the model.

    Source: trl 1.16.0, models/utils.py, prepare_deepspeed.
    """
    import deepspeed

    assert job.sharding is not None
    if job.sharding.kind != ZERO3:
        return reference
    configuration = _configuration(job, 1)
    configuration.pop("optimizer", None)
    stage = configuration["zero_optimization"]
    stage.pop("offload_optimizer", None)
    zero = job.sharding.zero
    if zero is not None and zero.beside is not None:
        stage["stage3_prefetch_bucket_size"], stage["stage3_param_persistence_threshold"] = zero.beside
    stack.enter_context(patch.object(type(reference), "to", lambda self, *_, **__: self))
    engine = deepspeed.initialize(model=reference, config=configuration)[0]
    engine.eval()
    return engine


class _Drive:
    """A handle of DeepSpeed's operations on a drive: nothing is read, and nothing is written."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._under_way = 0

    def _begins(self, *_: Any, **__: Any) -> int:
        self._under_way += 1
        return 0

    async_pread = async_pwrite = pread = pwrite = sync_pread = sync_pwrite = _begins

    def wait(self) -> int:
        """How many are over: those that were begun."""
        over, self._under_way = self._under_way, 0
        return over

    def is_pinned(self, _: Any) -> bool:
        """All of the host's memory is."""
        return True

    def get_alignment(self) -> int:
        """In bytes."""
        return 512

    def new_cpu_locked_tensor(self, count: int, like: Any) -> Any:
        """Memory of the host."""
        return like.new_empty(count, device="cpu")

    def free_cpu_locked_tensor(self, _: Any) -> bool:
        """It goes with its last reference."""
        return True


class _Kernels:
    """Kernels of DeepSpeed's optimizers, which write into what is there."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _device() -> Any:
    """The accelerator CUDA of DeepSpeed, where PyTorch has none."""
    import torch
    from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

    class Device(CUDA_Accelerator):  # type: ignore[misc]
        def IntTensor(self, numbers: list[int]) -> Any:
            return torch.zeros(len(numbers), dtype=torch.int32, device="cuda")

        def ByteTensor(self, numbers: list[int]) -> Any:
            return torch.zeros(len(numbers), dtype=torch.uint8, device="cuda")

        def default_stream(self, _: Any = None) -> Any:
            return torch.cuda.current_stream()

        def memory_allocated(self, _: Any = None) -> int:
            return 0

        def total_memory(self, _: Any = None) -> int:
            return 2**43

        def pin_memory(self, tensor: Any, **_: Any) -> Any:
            return tensor

        def is_pinned(self, _: Any) -> bool:
            return True

        def _nothing(self, *_: Any, **__: Any) -> None:
            """Of no consequence for what is allocated."""

        range_push = range_pop = empty_cache = reset_peak_memory_stats = _nothing

    return Device()


def _configuration(job: ResolvedJob, micro_steps: int) -> dict[str, Any]:
    """DeepSpeed's configuration of the job."""
    assert job.sharding is not None
    zero = job.sharding.zero
    assert zero is not None
    stage: dict[str, Any] = {
        "stage": ZERO_STAGES.index(job.sharding.kind) + 1,
        "reduce_bucket_size": zero.reduce_bucket_size,
        "overlap_comm": zero.overlap_comm,
        "contiguous_gradients": zero.contiguous_gradients,
    }
    if job.sharding.kind == ZERO3:
        stage |= {
            "stage3_prefetch_bucket_size": zero.prefetch_bucket_size,
            "stage3_param_persistence_threshold": zero.param_persistence_threshold,
            "stage3_max_live_parameters": zero.max_live_parameters,
            "sub_group_size": zero.sub_group_size,
            "memory_efficient_linear": zero.memory_efficient_linear,
        }
    for word, key in (("optimizer", "offload_optimizer"), ("parameters", "offload_param")):
        if word in job.offload:
            stage[key] = {"device": "cpu", "pin_memory": True}
    if zero.drive_buffers is not None:
        stage["offload_optimizer"] |= DRIVE | {"buffer_count": zero.drive_buffers}
    if zero.parameter_drive is not None:
        sizes = dict(zip(("buffer_count", "buffer_size", "max_in_cpu"), zero.parameter_drive, strict=True))
        stage["offload_param"] |= DRIVE | sizes
    found = {
        "train_micro_batch_size_per_gpu": job.micro_batch_size,
        "gradient_accumulation_steps": micro_steps,
        "gradient_clipping": job.max_gradient_norm or 0.0,
        "zero_optimization": stage,
        "zero_allow_untested_optimizer": True,
    }
    if job.precision != "fp32":
        found[job.precision.rpartition("-")[2]] = {"enabled": True}
    return found | ({"optimizer": {"type": FUSED[job.optimizer], "params": {"lr": 1e-4}}} if _is_own(job) else {})


STARTED = Path(__file__).parents[1] / "engines" / "deepspeed" / "started.json"


def started(job: ResolvedJob) -> list[int]:
    """Bytes that `deepspeed.initialize` asks for, and frees as negative ones, in their order; without the smallest.

    The whole model is there before, as it is where no zero.Init has cut it.
    """
    from vramplan.measure import steps

    made: list[int] = []
    plain = _engine
    inside: list[bool] = []

    def engine(*given: Any) -> Any:
        inside.append(True)
        found = plain(*given)
        inside.clear()
        return found

    with (
        patch.object(steps, "Storages", telling(made, listens=lambda: bool(inside))),
        patch.dict(globals(), {"_engine": engine}),
    ):
        traced_row(job)
    return made


def main() -> None:
    """Write the starts of the jobs of tests/engines/deepspeed/started.json again."""
    from tests.traces.composed import begin
    from vramplan.job import build_job

    kept = begin()
    said = json.loads(STARTED.read_text())
    for row in said["rows"]:
        row["events"] = started(build_job(said["job"] | row["job"]))
    del kept
    STARTED.write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
