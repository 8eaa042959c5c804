"""Real steps of a job: the loop of a plain Transformers training, with counters round it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from vramplan.measure.network import build, configuration
from vramplan.planner.checkpoints import checkpoint_ranges
from vramplan.spec import Job

MICRO_STEPS, TRACED_MICRO_STEPS = 8, 3  # of an accumulation that are run: from the second on they are alike


class Loop(NamedTuple):
    """A model, its optimizer and a micro-batch, ready to be stepped."""

    job: Job
    model: Any
    optimizer: Any
    batch: dict[str, Any]
    device: str
    micro_steps: int  # of an iteration


def optimizer_of(job: Job, parameters: list[Any]) -> Any:
    """The optimizer of torch.optim that the job names, in its implementation."""
    import torch

    how: dict[str, bool] = {"foreach": job.optimizer_implementation == "foreach"}
    if job.optimizer_implementation == "fused":
        how = {"fused": True}
    made: dict[str, Callable[[], Any]] = {
        "adamw": lambda: torch.optim.AdamW(parameters, lr=1e-4, **how),
        "adam": lambda: torch.optim.Adam(parameters, lr=1e-4, **how),
        "sgd": lambda: torch.optim.SGD(parameters, lr=1e-4, **how),
        "sgd-momentum": lambda: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, **how),
        "rmsprop": lambda: torch.optim.RMSprop(parameters, lr=1e-4, **how),
    }
    return made[job.optimizer]()


def dtype_of(job: Job) -> Any:
    """The 16-bit element type of the precision; None of fp32."""
    import torch

    return {"fp16": torch.float16, "bf16": torch.bfloat16}.get(job.precision.rpartition("-")[2])


def prepare(job: Job, device: str) -> Loop:
    """Everything that lives longer than a step, made on the device: random weights, random tokens."""
    import torch

    config = configuration(job)
    with torch.device(device):
        model = build(job, config)
    return _loop(job, _cast(job, model), device, MICRO_STEPS)


def skeleton(job: Job) -> Any:
    """The model without storages; to be made before tensors have no data, which a cast could not put in its place."""
    import torch

    config = configuration(job)
    with torch.device("meta"):
        return _cast(job, build(job, config))


def prepare_without_data(job: Job, model: Any) -> Loop:
    """The same for a skeleton, where tensors have no data: weights that nobody initializes, tokens that are nothing."""
    model = model.to_empty(device="cuda")
    model.tie_weights()
    return _loop(job, model, "cuda", TRACED_MICRO_STEPS)


def _cast(job: Job, model: Any) -> Any:
    return model.to(dtype_of(job)) if job.precision.startswith("pure-") else model


def _loop(job: Job, model: Any, device: str, most: int) -> Loop:
    model.train()
    checkpoint(job, model)
    micro_steps = min(job.gradient_accumulation_steps or 1, most)
    return Loop(job, model, optimizer_of(job, list(model.parameters())), _batch(job, device), device, micro_steps)


def _batch(job: Job, device: str) -> dict[str, Any]:
    import torch

    size, shape = job.micro_batch_size, job.model
    assert size is not None
    tokens = torch.randint(1, shape.vocabulary_size, (size, job.sequence_length), device=device)
    if shape.task == "cls":
        return {"input_ids": tokens, "labels": torch.randint(0, shape.classes, (size,), device=device)}
    return {"input_ids": tokens, "labels": tokens.clone()}


def checkpoint(job: Job, model: Any) -> None:
    """Run the blocks of each checkpoint inside one torch.utils.checkpoint.

    `full` is what activation_checkpointing_enable() of Transformers does; of segments of several blocks, which it does
    not have, the first block runs all of them and the others pass on what they are given.
    """
    strategy = job.activation_checkpointing or "none"
    if strategy == "none":
        return
    keep = job_has_data(model)
    if strategy == "full":
        how = {"use_reentrant": False, "preserve_rng_state": keep}
        switch = getattr(model, "activation_checkpointing_enable", None)  # its name since Transformers 5.23
        (switch or model.gradient_checkpointing_enable)(how)
        return
    blocks = blocks_of(model, job.model.layers)
    for first, last in checkpoint_ranges(strategy, len(blocks)):
        _as_one(blocks[first : last + 1], keep)


def job_has_data(model: Any) -> bool:
    """Whether there is a state of a random generator to keep; there is none without data."""
    from torch._subclasses.fake_tensor import FakeTensor

    return not isinstance(next(model.parameters()).data, FakeTensor)


def blocks_of(model: Any, count: int) -> list[Any]:
    """The blocks: the first list of that many modules of one class."""
    from torch import nn

    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count and len({type(one) for one in module}) == 1:
            return list(module)
    raise AssertionError("a model has blocks")


def _as_one(blocks: list[Any], keep_random_state: bool) -> None:
    from torch.utils.checkpoint import checkpoint as checkpointed

    forwards = [block.forward for block in blocks]

    def segment(hidden: Any, *rest: Any, **named: Any) -> Any:
        def walk(hidden: Any) -> Any:
            out = hidden
            for forward in forwards:
                out = forward(out[0] if isinstance(out, tuple) else out, *rest, **named)
            return out

        return checkpointed(walk, hidden, use_reentrant=False, preserve_rng_state=keep_random_state)

    def hand_on(hidden: Any, *_: Any, **__: Any) -> Any:
        return (hidden,) if returns_tuple() else hidden

    returned: list[bool] = []

    def returns_tuple() -> bool:
        return bool(returned and returned[0])

    def first(hidden: Any, *rest: Any, **named: Any) -> Any:
        out = segment(hidden, *rest, **named)
        returned[:] = [isinstance(out, tuple)]
        return out

    blocks[0].forward = first
    for block in blocks[1:]:
        block.forward = hand_on


def _no_phase(_: str) -> None:
    """Nobody asks for phases."""


def one_step(loop: Loop, enter: Callable[[str], None] = _no_phase) -> None:
    """One iteration: the micro-steps of an accumulation, then the optimizer. `enter` is told each phase."""
    import torch

    job = loop.job
    steps = job.gradient_accumulation_steps or 1
    casts = job.precision.startswith("amp-")
    for _ in range(loop.micro_steps):
        enter("forward")
        around = torch.autocast(loop.device, dtype=dtype_of(job)) if casts else contextlib.nullcontext()
        with around:
            out = loop.model(**loop.batch)
            loss = out.loss if steps == 1 else out.loss / steps
        if not job.hold_outputs:
            del out
        enter("backward")
        loss.backward()
        loss = out = None
    enter("step")
    if job.max_gradient_norm is not None:
        torch.nn.utils.clip_grad_norm_(loop.model.parameters(), job.max_gradient_norm)
    loop.optimizer.step()
    loop.optimizer.zero_grad(set_to_none=True)


@contextlib.contextmanager
def attention_of(job: Job) -> Iterator[None]:
    """scaled_dot_product_attention by the job's kernel alone."""
    if job.attention == "eager":
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernels = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
    with sdpa_kernel([kernels[job.attention]]):
        yield


def on_gpu(job: Job, steps: int) -> dict[str, Any]:
    """Figures of real steps on the first GPU, the first step left out: it makes the states and warms up."""
    import torch

    cuda = torch.cuda
    phase = "model"
    figures: dict[str, Any] = {"outcome": "fits", "step_seconds": None}

    def enter(name: str) -> None:
        nonlocal phase
        phase = name

    try:
        with attention_of(job):
            loop = prepare(job, "cuda")
            figures["micro_steps"] = loop.micro_steps
            one_step(loop, enter)
            cuda.synchronize()
            cuda.reset_peak_memory_stats()
            seconds = []
            for _ in range(steps):
                begin = perf_counter()
                one_step(loop, enter)
                cuda.synchronize()
                seconds.append(perf_counter() - begin)
        figures["step_seconds"] = median(seconds)
    except cuda.OutOfMemoryError:
        figures["outcome"], figures["oom_phase"] = "oom", phase
    stats = cuda.memory_stats()
    free, total = cuda.mem_get_info()
    return figures | {
        "allocated_bytes": stats["allocated_bytes.all.peak"],
        "requested_bytes": stats.get("requested_bytes.all.peak"),
        "reserved_bytes": stats["reserved_bytes.all.peak"],
        "used_bytes": total - free,
        "total_bytes": total,
    }


def on_cpu(job: Job, steps: int) -> dict[str, Any]:
    """The same loop on the CPU, storages counted: it shows that the loop trains; the kernels are others."""
    from vramplan.measure.storages import Storages

    counted = Storages("cpu", {})
    with counted:
        loop = prepare(job, "cpu")
        one_step(loop)
        counted.restart()
        seconds = []
        for _ in range(steps):
            begin = perf_counter()
            one_step(loop, counted.enter)
            seconds.append(perf_counter() - begin)
    return _counted(counted, loop) | {"step_seconds": median(seconds)}


def without_data(job: Job) -> dict[str, Any]:
    """Figures of one step on tensors without data, as CUDA's code paths would make and free them."""
    import gc
    from unittest.mock import patch

    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn import functional
    from transformers import masking_utils

    from vramplan.measure.kernels import attention_by, fused_on_cuda, scratch_rules
    from vramplan.measure.storages import Storages

    kept = fused_on_cuda()
    counted = Storages("cuda", scratch_rules())
    model = skeleton(job)
    with contextlib.ExitStack() as stack:
        # it looks for packed sequences in the data
        stack.enter_context(patch.object(masking_utils, "find_packed_sequence_indices", lambda *_, **__: None))
        if job.attention != "eager":
            kernel = attention_by(job.attention)
            stack.enter_context(patch.object(functional, "scaled_dot_product_attention", kernel))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(counted)
        loop = prepare_without_data(job, model)
        del model
        one_step(loop, counted.enter)
        gc.collect()
        gc.disable()  # tensors die when their last reference goes, here as in the replay
        stack.callback(gc.enable)
        counted.restart()
        one_step(loop, counted.enter)
        counted.settle()
    del kept
    return _counted(counted, loop)


def _counted(counted: Any, loop: Loop) -> dict[str, Any]:
    return {
        "outcome": "fits",
        "micro_steps": loop.micro_steps,
        "allocated_bytes": counted.peak_bytes,
        "phases": {f"{phase}_bytes": level for phase, level in counted.phases.items()},
        "step_seconds": None,
    }
