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

from vramplan.engines import is_cast_beside_policy, is_in_autocast
from vramplan.measure import fake_quantized, liger, lora_kernels
from vramplan.measure.adapters import adapted
from vramplan.measure.around import as_it_was, dtype_of, saved_on_host, widened
from vramplan.measure.batches import batch_of
from vramplan.measure.between import evaluate, generate
from vramplan.measure.checkpoints import checkpoint, cores
from vramplan.measure.kernels import attention_by, fused_on_cuda, scratch_rules
from vramplan.measure.known import WHILE_STEPPING
from vramplan.measure.loop import Loop
from vramplan.measure.network import build, configuration, tie
from vramplan.measure.objectives import inside, smooths_outside, trainer_smoothing, with_loss
from vramplan.measure.optimizers import RATE, optimizer_of
from vramplan.measure.parts import freeze, turn
from vramplan.measure.preferences import (
    POLICY,
    has_reference,
    is_preference,
    preference_loss,
    score_completions,
    with_scores,
)
from vramplan.measure.quantized import by_value, copied, operators, quantize, quantize_on_gpu, replaced
from vramplan.measure.runnable import LOMO, QUANTIZED, TRACED_MICRO_STEPS
from vramplan.measure.separate_experts import one_by_one
from vramplan.measure.stand_ins import Count, Truth, stand_ins, without_kernels
from vramplan.measure.storages import Storages
from vramplan.measure.taught import alone, taught, taught_in_tiles, teaching
from vramplan.measure.taught_from_file import from_file, taught_from_file
from vramplan.measure.tiled_mlp import in_tiles
from vramplan.values.job import BEFORE_BACKWARD, NEXT_FORWARD, ResolvedJob

MICRO_STEPS = 8  # of an accumulation that are run on a GPU
DECAY = 0.999  # of an average of the weights


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


def forward(loop: Loop) -> Any:
    """What the model returns, with its loss: under autocast and with what is saved on the host, as the job has it."""
    job = loop.job
    casts = is_in_autocast(job)
    around = torch.autocast(loop.device, dtype=dtype_of(job)) if casts else contextlib.nullcontext()
    if is_preference(job):
        with saved_on_host(job):
            loss = _preferences(loop)
            return None, loss if job.loss == POLICY else _divided(job, loss)
    if job.teacher_logprobs is not None:
        return taught_from_file(loop, casts=casts)
    if loop.teacher is not None and job.loss == "tiled":
        return taught_in_tiles(loop)
    if loop.teacher is not None:
        return taught(loop, casts=casts)
    if not smooths_outside(job):
        with around, saved_on_host(job), inside(job):
            out = loop.model(**loop.batch)
            return out, _divided(job, out.loss)
    given = {key: value for key, value in loop.batch.items() if key != "labels"}
    with saved_on_host(job):
        if casts:
            whole = as_it_was(loop.model)
            with patch.object(whole, "forward", widened(whole.forward, around)):
                out = loop.model(**given)
        else:
            out = loop.model(**given)
    loss = trainer_smoothing(job, out, loop.batch["labels"])
    return out, _divided(job, loss)


def _preferences(loop: Loop) -> Any:
    """A loss that TRL makes of several sequences; each forward pass is in an autocast of its own."""
    job, model = loop.job, loop.model
    casts, around = is_in_autocast(job), _around(loop)
    if job.loss in ("dpo", POLICY) or not casts:
        if loop.reference is None or not is_cast_beside_policy(job):
            return preference_loss(job, model, loop.reference, loop.batch, around)
        # trl 1.16.0, models/utils.py, prepare_fsdp: a reference has the policy alone
        with patch.object(loop.reference, "forward", _outside_of_autocast(loop.reference.forward, loop.device)):
            return preference_loss(job, model, loop.reference, loop.batch, around)
    with contextlib.ExitStack() as stack:
        for one in (model, loop.reference):
            if one is not None and not (one is loop.reference and is_cast_beside_policy(job)):
                whole = as_it_was(one)
                stack.enter_context(patch.object(whole, "forward", widened(whole.forward, around())))
        return preference_loss(job, model, loop.reference, loop.batch, around)


def _around(loop: Loop) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """What each forward pass runs in."""
    casts, dtype = is_in_autocast(loop.job), dtype_of(loop.job)
    return lambda: torch.autocast(loop.device, dtype=dtype) if casts else contextlib.nullcontext()


def _outside_of_autocast(forward: Callable[..., Any], device: str) -> Callable[..., Any]:
    def run(*given: Any, **named: Any) -> Any:
        with torch.autocast(device, enabled=False):
            return forward(*given, **named)

    return run


def _divided(job: ResolvedJob, loss: Any) -> Any:
    """Over the micro-steps of an accumulation."""
    return loss if (job.gradient_accumulation_steps or 1) == 1 else loss / job.gradient_accumulation_steps


def one_step(loop: Loop, enter: Callable[[str], None] = _no_phase) -> None:
    """One iteration: the micro-steps of an accumulation, then the optimizer. `enter` is told each phase."""
    job = loop.job
    zeroes_late = job.zero_grad == BEFORE_BACKWARD
    for number in range(loop.micro_steps):
        enter("forward")
        out, loss = forward(loop)
        loop.outputs.clear()
        if loop.scaler is not None:
            loss = loop.scaler.scale(loss)
        if not job.hold_outputs:
            del out
        elif job.hold_outputs_until == NEXT_FORWARD:
            loop.outputs.append(out)
        if zeroes_late and number == 0:
            _let_gradients_go(loop)
        enter("backward")
        if job.optimizer in LOMO:
            loop.optimizer.fused_backward(loss, RATE)
        else:
            loss.backward()
        loss = out = None
    enter("step")
    _norm = None  # which the Trainer keeps until the step is over, to log it
    if job.max_gradient_norm is not None:
        if loop.scaler is not None:
            loop.scaler.unscale_(loop.optimizer)
        if job.fp32_gradients:
            loop.optimizer.clip()
        else:
            _norm = torch.nn.utils.clip_grad_norm_(loop.model.parameters(), job.max_gradient_norm)
    if loop.optimizer is not None and job.optimizer not in LOMO:
        _stepped(loop)
    if loop.average is not None:
        loop.average.update_parameters(loop.model)
    if not zeroes_late:
        loop.model.zero_grad(set_to_none=True)


def _first_step(loop: Loop, enter: Callable[[str], None]) -> None:
    """What makes the states: one step, after which a reference of GRPO scores completions, as it does before a step.

    Where gradients outlive a step, another one zeroes those of blocks whose turn it is not.
    """
    one_step(loop, enter)
    if loop.job.loss == POLICY and loop.reference is not None:
        score_completions(loop.reference, loop.batch, _around(loop))
    turn(loop.job, loop.model)
    if loop.job.zero_grad == BEFORE_BACKWARD and loop.job.trained_blocks != "all":
        one_step(loop, enter)


def _let_gradients_go(loop: Loop) -> None:
    """Those of what the optimizer steps: under FSDP a model may have other parameters between its passes."""
    steps = loop.optimizer is not None and loop.job.optimizer not in LOMO
    (loop.optimizer if steps else loop.model).zero_grad(set_to_none=True)


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
        with attention_of(job), in_tiles(job), contextlib.ExitStack() as stack:
            loop = prepare(job, "cuda")
            cuda.empty_cache()  # what the random numbers of the weights took
            stack.enter_context(cores(job, loop.model))
            if job.compile:
                loop = loop._replace(model=torch.compile(loop.model))
            figures["micro_steps"] = loop.micro_steps
            _first_step(loop, enter)
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
        stack.enter_context(in_tiles(job))
        stack.enter_context(from_file(job))
        stack.enter_context(one_by_one(job))
        stack.enter_context(patch.dict(WHILE_STEPPING))  # a step that ends with an error leaves nothing to the next job
        model, copy = skeleton(job), skeleton(job) if job.ema else None
        reference = reference_skeleton(job)
        teacher = None if job.teacher is None else skeleton(alone(job, job.teacher))
        stack.enter_context(without_kernels(job, truth))
        stack.enter_context(by_value(job))
        if job.attention != "eager":
            kernel = attention_by(job.attention)
            stack.enter_context(patch.object(functional, "scaled_dot_product_attention", kernel))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(counted)
        loop = prepare_without_data(job, model, copy, reference)
        if teacher is not None and job.teacher is not None:
            loop = loop._replace(teacher=teaching(_on_device(alone(job, job.teacher), teacher)))
            del teacher
        stack.enter_context(cores(job, model))
        del model, reference
        _first_step(loop, counted.enter)
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
    if job.trained_blocks == "badam" and (job.eval_batch_size or job.generation_batch_size):
        one_step(loop, counted.enter)  # the one before was the last of its block, and left no moments
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
