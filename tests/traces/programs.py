"""Training programs on tensors without data: the loop that they share, and which module runs each.

A program has its own model code; how it is built, put on a device, sharded and stepped is in its module. One iteration
after the first is counted, as in `vramplan.measure.steps.without_data`.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from importlib import import_module
from typing import Any, ClassVar, NamedTuple
from unittest.mock import patch

from tests.traces.compiled import available, compiling, counting
from tests.traces.fsdp2 import CUDA
from tests.traces.fsdp2 import group as fsdp2_group
from vramplan.errors import UsageError
from vramplan.values.job import NEXT_FORWARD, ResolvedJob

MODULES = {
    "torchtune": "tune",
    "litgpt": "lit",
    "torchtitan": "titan",
    "nanogpt": "nano",
    "modded-nanogpt": "modded",
    "llm-foundry": "foundry",
}
"""Which module of this folder runs each engine."""

OF_LIBRARIES = {"torchvision_vit": "vision"}
"""Which runs models of a library, whose training loop is a plain one."""


class Program:
    """A program's model, optimizer and loop, of one job."""

    PACKAGE: ClassVar[str] = ""  # imported before anybody believes in CUDA, whose kernels it would look for
    KINDS: ClassVar[tuple[str, ...]] = ()  # of sharding that it runs
    PRECISIONS: ClassVar[tuple[str, ...]] = ()
    TYPES: ClassVar[tuple[str, ...]] = ()  # of models, as Transformers calls them
    COMPILES: ClassVar[bool] = False

    def __init__(self, job: ResolvedJob) -> None:
        self.job = job
        self.mesh: Any = None  # of devices; None: one
        self.truth: Any = None  # what a number is taken for that is asked for on the host
        self.outputs: Any = None  # that the loop keeps into its next forward pass

    def check(self) -> None:
        """Raise UsageError for what this program has no loop for here."""
        job = self.job
        kind = None if job.sharding is None else job.sharding.kind
        if kind is not None and kind not in self.KINDS:
            raise UsageError(f"the rig does not run {kind}", key="parallel")
        if job.precision not in self.PRECISIONS:
            raise UsageError(f"the rig does not run {job.precision}", key="precision")
        if job.model.transformers_model_type not in self.TYPES:
            raise UsageError(f"the rig has no {job.model.name}", key="model")
        unknown = {
            "compile": job.compile and not self.COMPILES,
            "packing": job.packing,
            "padding": job.padding != "none",
            "offload": bool(job.offload) or job.offload_activations,
            "frozen": bool(job.frozen),
            "ema": job.ema,
            "optimizer_in_backward": job.optimizer_in_backward,
            "tiled_mlp": job.tiled_mlp is not None,
        }
        for key, given in unknown.items():
            if given:
                raise UsageError(f"the rig has no job with {key}", key=key)

    def ready(self) -> None:
        """Import the program."""
        import_module(self.PACKAGE)

    def group(self, stack: contextlib.ExitStack) -> tuple[Any, Any]:
        """The mesh of the job's devices, and what counts the storages of the first."""
        return fsdp2_group(self.job, stack)

    def skeleton(self) -> Any:
        """The model without storages."""
        raise NotImplementedError

    def shard(self, skeleton: Any) -> Any:
        """The same, shared among the devices of the mesh."""
        raise NotImplementedError

    def place(self, skeleton: Any) -> Any:
        """The model on the device."""
        return skeleton.to_empty(device="cuda")

    def prepare(self, model: Any) -> None:
        """What the program makes after the model: the optimizer, a micro-batch and whatever its loop keeps."""
        import torch

        from vramplan.measure.optimizers import optimizer_of

        job = self.job
        self.model = model
        self.optimizer = optimizer_of(job, model)
        shape = (job.micro_batch_size or 1, job.sequence_length)
        self.tokens = torch.randint(0, job.model.vocabulary_size, shape, device="cuda")
        self.labels = torch.randint(0, job.model.vocabulary_size, shape, device="cuda")

    def operators(self, truth: Any) -> dict[Any, Any]:
        """Operators of the program's libraries as their own code has them, by the truth that they read off a device."""
        return {}

    def believing(self) -> contextlib.AbstractContextManager[Any]:
        """What its libraries must not ask of a device that is not there."""
        return contextlib.nullcontext()

    def forward(self) -> tuple[Any, Any]:
        """What the model returns, and the loss."""
        raise NotImplementedError

    def divided(self, loss: Any) -> Any:
        """That of one of several micro-steps."""
        return loss / self.micro_steps

    def backward(self, loss: Any) -> None:
        """Of a micro-step."""
        loss.backward()

    def step(self) -> None:
        """The optimizer's."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def iterate(self, enter: Callable[[str], None]) -> None:
        """One iteration; `enter` is told each phase."""
        for _ in range(self.micro_steps):
            enter("forward")
            held = self.forward()
            self.outputs = None  # those of the micro-step before, which the loop's variables had until now
            loss = held[1]
            if self.job.gradient_accumulation_steps != 1:
                loss = self.divided(loss)
            if self.job.hold_outputs_until == NEXT_FORWARD:
                self.outputs = held
            if not self.job.hold_outputs:
                held = None
            enter("backward")
            self.backward(loss)
            held = loss = None
        enter("step")
        self.step()

    @property
    def micro_steps(self) -> int:
        """Of an iteration, as many as are run."""
        from vramplan.measure.runnable import TRACED_MICRO_STEPS

        return min(self.job.gradient_accumulation_steps or 1, TRACED_MICRO_STEPS)


def program_of(job: ResolvedJob) -> Program | None:
    """The program of a job; None of jobs that are run by the models of Transformers."""
    name = MODULES.get(job.runtime.engine) or OF_LIBRARIES.get(job.model.transformers_model_type)
    if name is None:
        return None
    made: Program = import_module(f"tests.traces.{name}").PROGRAM(job)
    return made


class Traced(NamedTuple):
    """Of one iteration of the first device, in bytes."""

    phases: dict[str, int]  # the peak of each
    saved: int  # at the end of the first forward pass, beside what was there before it
    static: int  # what was there before it


def traced(program: Program) -> Traced:
    """Trace an iteration."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn import functional

    from vramplan.measure.kernels import attention_by, fused_on_cuda, scratch_rules
    from vramplan.measure.stand_ins import Truth, stand_ins, without_device
    from vramplan.measure.storages import Storages

    job, counter, kept = program.job, Storages, fused_on_cuda()
    program.ready()
    with contextlib.ExitStack() as stack:
        if job.sharding is not None:
            program.mesh, counter = program.group(stack)
        model = program.skeleton()
        without_device(job, stack)
        stack.enter_context(patch.object(functional, "scaled_dot_product_attention", attention_by(job.attention)))
        program.truth = Truth()
        if job.compile:
            compiling(stack)
            counter = counting(counter)
        counted = counter("cuda", scratch_rules(), stand_ins(program.truth), program.operators(program.truth))
        stack.enter_context(program.believing())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(counted)
        if program.mesh is not None:
            stack.enter_context(patch.multiple(torch.cuda, **CUDA))
            model = program.shard(model)
        program.prepare(program.place(model))
        del model
        if job.compile:
            available(stack)
        program.iterate(counted.enter)
        gc.collect()
        gc.disable()  # tensors die when their last reference goes, here as in the replay
        stack.callback(gc.enable)
        counted.restart()
        levels: list[int] = []

        def enter(phase: str) -> None:
            levels.append(counted.now_bytes)
            counted.enter(phase)

        program.iterate(enter)
        counted.settle()
    del kept
    return Traced(dict(counted.phases), levels[1] - levels[0], levels[0])
