"""Real steps of a job: the loop of a plain Transformers training, with counters round it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from vramplan.measure.adapters import adapted
from vramplan.measure.checkpoints import checkpoint
from vramplan.measure.network import build, configuration
from vramplan.values.job import NEXT_FORWARD, Job

MICRO_STEPS, TRACED_MICRO_STEPS = 8, 3  # of an accumulation that are run: from the second on they are alike


class Loop(NamedTuple):
    """A model, its optimizer and a micro-batch, ready to be stepped."""

    job: Job
    model: Any
    optimizer: Any
    batch: dict[str, Any]
    device: str
    micro_steps: int  # of an iteration
    outputs: list[Any]  # those that the loop holds until the next forward pass has made new ones


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
        model = adapted(job, _cast(job, build(job, config)))
    return _loop(job, model, device, MICRO_STEPS)


def skeleton(job: Job) -> Any:
    """The model without storages; to be made before tensors have no data, which a cast could not put in its place."""
    import torch

    config = configuration(job)
    with torch.device("meta"):
        return adapted(job, _cast(job, build(job, config)))


def prepare_without_data(job: Job, model: Any) -> Loop:
    """The same for a skeleton, where tensors have no data: weights that nobody initializes, tokens that are nothing."""
    model = model.to_empty(device="cuda")
    model.tie_weights()
    return _loop(job, model, "cuda", TRACED_MICRO_STEPS)


def _cast(job: Job, model: Any) -> Any:
    return model.to(dtype_of(job)) if job.half_weights or job.precision.startswith("pure-") else model


def _loop(job: Job, model: Any, device: str, most: int) -> Loop:
    model.train()
    checkpoint(job, model)
    micro_steps = min(job.gradient_accumulation_steps or 1, most)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    return Loop(job, model, optimizer_of(job, trained), _batch(job, model, device), device, micro_steps, [])


def _batch(job: Job, model: Any, device: str) -> dict[str, Any]:
    """Random images in the dtype of the weights and their classes, or random tokens."""
    import torch

    size, shape = job.micro_batch_size, job.model
    assert size is not None
    if shape.task == "image":
        assert shape.channels is not None
        assert job.image_size is not None
        images = torch.randn(size, shape.channels, job.image_size, job.image_size, device=device, dtype=dtype_in(model))
        return {"pixel_values": images, "labels": torch.randint(0, shape.classes, (size,), device=device)}
    tokens = torch.randint(1, shape.vocabulary_size, (size, job.sequence_length), device=device)
    if shape.task == "cls":
        return {"input_ids": tokens, "labels": torch.randint(0, shape.classes, (size,), device=device)}
    return {"input_ids": tokens, "labels": tokens.clone()}


def dtype_in(model: Any) -> Any:
    """The dtype of the first weight, which is one of the model's own."""
    return next(model.parameters()).dtype


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
        loop.outputs.clear()
        if not job.hold_outputs:
            del out
        elif job.hold_outputs_until == NEXT_FORWARD:
            loop.outputs.append(out)
        enter("backward")
        loss.backward()
        loss = out = None
    enter("step")
    _norm = None  # which the Trainer keeps until the step is over, to log it
    if job.max_gradient_norm is not None:
        _norm = torch.nn.utils.clip_grad_norm_(loop.model.parameters(), job.max_gradient_norm)
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
