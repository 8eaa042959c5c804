"""Real steps of a job: the loop of a plain Transformers training, with counters round it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import swa_utils

from vramplan.measure import fake_quantized, liger, lora_kernels
from vramplan.measure.adapters import adapted
from vramplan.measure.batches import batch_of
from vramplan.measure.between import evaluate, generate
from vramplan.measure.checkpoints import checkpoint, cores
from vramplan.measure.kernels import attention_by, fused_on_cuda, scratch_rules
from vramplan.measure.network import build, configuration, tie
from vramplan.measure.objectives import inside, smooths_outside, trainer_smoothing, with_loss
from vramplan.measure.optimizers import RATE, optimizer_of
from vramplan.measure.parts import freeze, turn
from vramplan.measure.preferences import has_reference, is_preference, preference_loss, with_scores
from vramplan.measure.quantized import by_value, copied, operators, quantize, quantize_on_gpu, replaced
from vramplan.measure.runnable import LOMO, QUANTIZED, TRACED_MICRO_STEPS
from vramplan.measure.stand_ins import Count, Truth, stand_ins, without_kernels
from vramplan.measure.storages import Storages
from vramplan.tuples import NamedTuple
from vramplan.values.job import NEXT_FORWARD, ResolvedJob

MICRO_STEPS = 8  # of an accumulation that are run on a GPU
DECAY = 0.999  # of an average of the weights


class Loop(NamedTuple):
    """A model, its optimizer and a micro-batch, ready to be stepped."""

    job: ResolvedJob
    model: Any
    optimizer: Any  # None: each weight is stepped in backward
    batch: dict[str, Any]
    device: str
    micro_steps: int  # of an iteration
    outputs: list[Any]  # those that the loop holds until the next forward pass has made new ones
    scaler: Any = None
    average: Any = None
    reference: Any = None  # a model beside the one that trains, which scores the same sequences


def dtype_of(job: ResolvedJob) -> Any:
    """The 16-bit element type of the precision; None of fp32."""
    return {"fp16": torch.float16, "bf16": torch.bfloat16}.get(job.precision.rpartition("-")[2])


def prepare(job: ResolvedJob, device: str) -> Loop:
    """Everything that lives longer than a step, made on the device: random weights, random tokens.

    Weights of 16 bits are made as such: a copy in fp32 that came first would leave its holes in the allocator.
    """
    config = configuration(job)
    with torch.device(device):
        model = fake_quantized.converted(job, liger.replaced(job, _cast(job, build(job, config, _weights_of(job)))))
        if job.quantization is not None:
            model = replaced(job, model, dtype_of(job))
            quantize_on_gpu(job, model, dtype_of(job))
        model = lora_kernels.fused(job, adapted(job, with_loss(job, model)))
    return _loop(job, model, device, MICRO_STEPS)


def skeleton(job: ResolvedJob) -> Any:
    """The model without storages; to be made before tensors have no data, which a cast could not put in its place."""
    config = configuration(job)
    with torch.device("meta"), by_value(job):
        whole = fake_quantized.converted(job, liger.replaced(job, _cast(job, build(job, config))))
        whole = replaced(job, whole, dtype_of(job))
        made = adapted(job, with_scores(job, with_loss(job, whole), trains=True))
        return lora_kernels.fused(job, made)


def reference_skeleton(job: ResolvedJob) -> Any:
    """The same of a model that is not trained, where the job has one beside the one that is."""
    if not has_reference(job):
        return None
    alone = job._replace(adapter=None)
    with torch.device("meta"), by_value(job):
        whole = replaced(alone, _cast(alone, build(alone, configuration(alone))), dtype_of(alone))
        return with_scores(alone, whole, trains=False).eval()


def prepare_without_data(job: ResolvedJob, model: Any, copy: Any = None, reference: Any = None) -> Loop:
    """The same for a skeleton, where tensors have no data: weights that nobody initializes, tokens that are nothing."""
    loop = _loop(job, _on_device(job, model), "cuda", TRACED_MICRO_STEPS, copy)
    if reference is None:
        return loop
    beside = _on_device(job._replace(adapter=None), reference)
    return loop._replace(reference=beside)


def _on_device(job: ResolvedJob, skeleton: Any) -> Any:
    model = skeleton.to_empty(device="cuda")
    quantize(job, model, dtype_of(job))
    tie(job, model)
    return model


def _weights_of(job: ResolvedJob) -> Any:
    """The element type in which the weights of the model are loaded; None of fp32."""
    return dtype_of(job) if job.half_weights or job.precision.startswith(("pure-", "mixed-")) else None


def _cast(job: ResolvedJob, model: Any) -> Any:
    dtype = _weights_of(job)
    return model if dtype is None else model.to(dtype)


def _loop(job: ResolvedJob, model: Any, device: str, most: int, copy: Any = None) -> Loop:
    """`copy`: without data, what stands in for a copy of the model, whose views would not be of what it has."""
    model.train()
    freeze(job, model)
    checkpoint(job, model)
    micro_steps = min(job.gradient_accumulation_steps or 1, most)
    scaler = average = None
    if job.grad_scaler:
        scaler = torch.amp.GradScaler(device)
    optimizer = optimizer_of(job, model)
    if job.ema:
        with contextlib.ExitStack() as stack:
            if copy is not None:
                stack.enter_context(patch.object(swa_utils, "deepcopy", lambda _: copied(job, _on_device(job, copy))))
            average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(DECAY))
        if copy is not None:
            del average.n_averaged
            average.n_averaged = Count()
    return Loop(job, model, optimizer, batch_of(job, model, device), device, micro_steps, [], scaler, average)


def _no_phase(_: str) -> None:
    """Nobody asks for phases."""


def _on_host(job: ResolvedJob) -> contextlib.AbstractContextManager[Any]:
    """What forward saves goes to pinned memory of the host, where the job says so."""
    host: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if job.offload_activations:
        host = torch.autograd.graph.save_on_cpu(pin_memory=True)
    return host


def forward(loop: Loop) -> Any:
    """What the model returns, with its loss: under autocast and with what is saved on the host, as the job has it."""
    job = loop.job
    casts = job.precision.startswith("amp-")
    around = torch.autocast(loop.device, dtype=dtype_of(job)) if casts else contextlib.nullcontext()
    if is_preference(job):
        with _on_host(job):
            return None, _divided(job, _preferences(loop))
    if not smooths_outside(job):
        with around, _on_host(job), inside(job):
            out = loop.model(**loop.batch)
            return out, _divided(job, out.loss)
    given = {key: value for key, value in loop.batch.items() if key != "labels"}
    with _on_host(job):
        if casts:
            with patch.object(loop.model, "forward", _widened(loop.model.forward, around)):
                out = loop.model(**given)
        else:
            out = loop.model(**given)
    loss = trainer_smoothing(job, out, loop.batch["labels"])
    return out, _divided(job, loss)


def _preferences(loop: Loop) -> Any:
    """A loss that TRL makes of several sequences; each forward pass is in an autocast of its own."""
    job, model = loop.job, loop.model
    casts = job.precision.startswith("amp-")

    def around() -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(loop.device, dtype=dtype_of(job)) if casts else contextlib.nullcontext()

    if job.loss == "dpo" or not casts:
        return preference_loss(job, model, loop.reference, loop.batch, around)
    with patch.object(model, "forward", _widened(model.forward, around())):
        return preference_loss(job, model, None, loop.batch, around)


def _divided(job: ResolvedJob, loss: Any) -> Any:
    """Over the micro-steps of an accumulation."""
    steps = job.gradient_accumulation_steps or 1
    return loss if steps == 1 else loss / steps


def _widened(inner: Callable[..., Any], around: contextlib.AbstractContextManager[Any]) -> Callable[..., Any]:
    """The forward pass as Accelerate puts it in the place of the model's own, within hooks such as those of FSDP.

    Source: accelerate 1.15, Accelerator.prepare_model and ConvertOutputsToFp32 (utils/operations.py).
    """

    def run(*given: Any, **named: Any) -> Any:
        with around:
            out = inner(*given, **named)
        return type(out)({key: _wide(value) for key, value in out.items()})

    return run


def _wide(value: Any) -> Any:
    return value.float() if hasattr(value, "float") else value


def one_step(loop: Loop, enter: Callable[[str], None] = _no_phase) -> None:
    """One iteration: the micro-steps of an accumulation, then the optimizer. `enter` is told each phase."""
    job = loop.job
    for _ in range(loop.micro_steps):
        enter("forward")
        out, loss = forward(loop)
        loop.outputs.clear()
        if loop.scaler is not None:
            loss = loop.scaler.scale(loss)
        if not job.hold_outputs:
            del out
        elif job.hold_outputs_until == NEXT_FORWARD:
            loop.outputs.append(out)
        enter("backward")
        if job.optimizer == LOMO:
            loop.optimizer.fused_backward(loss, RATE)
        else:
            loss.backward()
        loss = out = None
    enter("step")
    _norm = None  # which the Trainer keeps until the step is over, to log it
    if job.max_gradient_norm is not None:
        if loop.scaler is not None:
            loop.scaler.unscale_(loop.optimizer)
        _norm = torch.nn.utils.clip_grad_norm_(loop.model.parameters(), job.max_gradient_norm)
    if loop.optimizer is not None and job.optimizer != LOMO:
        _stepped(loop)
    if loop.average is not None:
        loop.average.update_parameters(loop.model)
    loop.model.zero_grad(set_to_none=True)


def _stepped(loop: Loop) -> None:
    if loop.scaler is None:
        loop.optimizer.step()
        return
    loop.scaler.step(loop.optimizer)
    loop.scaler.update()


@contextlib.contextmanager
def attention_of(job: ResolvedJob) -> Iterator[None]:
    """scaled_dot_product_attention by the job's kernel alone."""
    if job.attention in ("eager", "sdpa"):  # which PyTorch chooses call by call
        yield
        return

    kernels = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }
    with sdpa_kernel([kernels[job.attention]]):
        yield


def on_gpu(job: ResolvedJob, steps: int) -> dict[str, Any]:
    """Figures of real steps on the first GPU, the first step left out: it makes the states and warms up."""
    cuda = torch.cuda
    phase = "model"
    figures: dict[str, Any] = {"outcome": "fits", "step_seconds": None}

    def enter(name: str) -> None:
        nonlocal phase
        phase = name

    try:
        with attention_of(job), contextlib.ExitStack() as stack:
            loop = prepare(job, "cuda")
            cuda.empty_cache()  # what the random numbers of the weights took
            stack.enter_context(cores(job, loop.model))
            if job.compile:
                loop = loop._replace(model=torch.compile(loop.model))
            figures["micro_steps"] = loop.micro_steps
            one_step(loop, enter)
            turn(job, loop.model)
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


def without_data(job: ResolvedJob) -> dict[str, Any]:
    """Figures of one step on tensors without data, as CUDA's code paths would make and free them."""
    kept = fused_on_cuda()
    truth = Truth()
    library = operators(truth) if job.quantization in QUANTIZED else {}
    counted = Storages("cuda", scratch_rules(), stand_ins(truth), library)
    with contextlib.ExitStack() as stack:
        stack.enter_context(liger.for_one_job())
        stack.enter_context(lora_kernels.for_one_job())
        model, copy = skeleton(job), skeleton(job) if job.ema else None
        reference = reference_skeleton(job)
        stack.enter_context(without_kernels(job, truth))
        stack.enter_context(by_value(job))
        if job.attention != "eager":
            kernel = attention_by(job.attention)
            stack.enter_context(patch.object(functional, "scaled_dot_product_attention", kernel))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(counted)
        loop = prepare_without_data(job, model, copy, reference)
        stack.enter_context(cores(job, model))
        del model, reference
        one_step(loop, counted.enter)
        turn(job, loop.model)
        gc.collect()
        gc.disable()  # tensors die when their last reference goes, here as in the replay
        stack.callback(gc.enable)
        counted.restart()
        one_step(loop, counted.enter)
        counted.settle()
        figures = _counted(counted, loop)
        figures |= _between(counted, loop)
    del kept
    return figures


def _between(counted: Any, loop: Loop) -> dict[str, int]:
    """Peaks of what the job runs between its steps, with all that a step leaves."""
    job, found = loop.job, {}
    loop.batch.clear()

    def run(one: ResolvedJob, batch: dict[str, Any]) -> None:
        forward(loop._replace(job=one, batch=batch))

    if job.eval_batch_size is not None:
        counted.restart()
        counted.enter("evaluation")
        evaluate(job, loop.model, run)
        found["evaluation_bytes"] = counted.peak_bytes
    if job.generation_batch_size is not None:
        generate(job, loop.model, lambda: (counted.restart(), counted.enter("generation")))
        found["generation_bytes"] = counted.peak_bytes
    return found


def _counted(counted: Any, loop: Loop) -> dict[str, Any]:
    return {
        "outcome": "fits",
        "micro_steps": loop.micro_steps,
        "allocated_bytes": counted.peak_bytes,
        "phases": {f"{phase}_bytes": level for phase, level in counted.phases.items()},
        "step_seconds": None,
    }
