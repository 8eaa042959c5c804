"""Checkpoints of a real model: those of Transformers, and the ones that it does not have."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.checkpoint import checkpoint as recomputed
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vramplan.answers.placement import placement_code
from vramplan.errors import UsageError
from vramplan.measure.runnable import CORE, PRODUCTS, SELECTIVE, SOME_LAYERS
from vramplan.planner.setups import setup_of
from vramplan.report.placement_code import python
from vramplan.values.job import ResolvedJob


def checkpoint(job: ResolvedJob, model: Any) -> None:
    """Run the blocks of each checkpoint inside one torch.utils.checkpoint.

    `full` is what activation_checkpointing_enable() of Transformers does, and `selective-op` the same with a list of
    products to keep. Segments of several blocks, which it does not have, are made by the code that people are given for
    them. Of `selective` the checkpoints are around attention: see `cores`.
    """
    strategy = job.activation_checkpointing or "none"
    keep = job_has_data(model)
    word = strategy.partition(":")[0]
    if strategy in ("none", CORE):
        return
    if word not in SELECTIVE and _is_of_every_block(job, strategy):
        strategy = "full"
    if strategy in ("full", PRODUCTS):
        how: dict[str, Any] = {"use_reentrant": job.checkpoint_reentrant, "preserve_rng_state": keep}
        if strategy == PRODUCTS:
            how["context_fn"] = partial(_keep_products, job.every_second_matmul)
        switch = getattr(model, "activation_checkpointing_enable", None)  # its name since Transformers 5.23
        (switch or model.gradient_checkpointing_enable)(how)
        # which asks nothing of a model of sounds; PEFT's example of Whisper does, and prepare_model_for_kbit_training
        if job.checkpoint_reentrant and job.adapter is not None and model.main_input_name != "input_ids":
            model.enable_input_require_grads()
        return
    if word == SOME_LAYERS:
        strategy = _each(job, int(strategy.partition(":")[2]))
        if strategy == "none":
            return
        job = job._replace(activation_checkpointing=strategy)
    namespace: dict[str, Any] = {}
    exec(python(placement_code(job)), namespace)
    namespace["place_checkpoints"](model, preserve_rng_state=keep)
    # one whose input needs no gradient trains nothing; the switch of Transformers asks tokens alone, or for an adapter
    if job.checkpoint_reentrant and (job.adapter is not None or model.main_input_name == "input_ids"):
        model.enable_input_require_grads()


def _is_of_every_block(job: ResolvedJob, strategy: str) -> bool:
    """Whether these are the checkpoints of the switch, by whatever name: those that `full` has."""
    return setup_of(job, strategy, False).segments == setup_of(job, "full", False).segments


def _each(job: ResolvedJob, every: int) -> str:
    """Every so many blocks of each stack, as segments of one block."""
    found, start = [], 0
    for layers in job.model.stacks:
        found += [start + block for block in range(every - 1, layers, every)]
        start += layers
    return "layers:[" + ",".join(f"[{block},{block}]" for block in found) + "]" if found else "none"


def _keep_products(every_second: bool) -> Any:
    """Contexts of a checkpoint that keeps what PyTorch lists as compute-intensive.

    Of the products of linear layers every second one alone, as torchtitan 0.2 has it, in forward and again in the
    recomputation. Source: torch/utils/checkpoint.py, create_selective_checkpoint_contexts.
    """
    from torch._functorch.partitioners import get_default_op_list  # with a compiler behind it

    aten = torch.ops.aten
    listed = {overload for op in get_default_op_list().compute_intensive_ops for overload in _overloads(op)}
    linear = {aten.mm.default, aten.addmm.default}
    seen = {True: 0, False: 0}

    def policy(context: Any, op: Any, *_: Any, **__: Any) -> Any:
        if op in linear:
            seen[context.is_recompute] += 1
        keeps = op in listed and not (every_second and op in linear and seen[context.is_recompute] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def _overloads(op: Any) -> list[Any]:
    return [getattr(op, name) for name in op.overloads()] if hasattr(op, "overloads") else [op]


@contextlib.contextmanager
def cores(job: ResolvedJob, model: Any) -> Iterator[None]:
    """With `selective`, the attention function of Transformers in a checkpoint of its own, which returns no weights."""
    if job.activation_checkpointing != CORE:
        yield
        return

    keep = job_has_data(model)
    modules = {sys.modules[type(part).__module__] for part in model.modules()}
    if not any(hasattr(one, "eager_attention_forward") for one in modules):
        said = f"{CORE} has nothing to be around: attention of {job.model.name} is no function of its own"
        raise UsageError(said, key="activation_checkpointing", hint="use selective-op or full")
    with contextlib.ExitStack() as stack:
        if job.attention != "eager":
            plain = ALL_ATTENTION_FUNCTIONS["sdpa"]
            ALL_ATTENTION_FUNCTIONS["sdpa"] = _recomputed(plain, keep)
            stack.callback(ALL_ATTENTION_FUNCTIONS.__setitem__, "sdpa", plain)
        else:
            for module in modules:
                plain = getattr(module, "eager_attention_forward", None)
                if plain is not None:
                    stack.enter_context(patch.object(module, "eager_attention_forward", _recomputed(plain, keep)))
        yield


def _recomputed(attend: Callable[..., Any], keep: bool) -> Callable[..., Any]:
    def core(module: Any, query: Any, key: Any, value: Any, mask: Any = None, *more: Any, **named: Any) -> Any:
        def context(query: Any, key: Any, value: Any, mask: Any) -> Any:
            return attend(module, query, key, value, mask, *more, **named)[0]

        how = {"use_reentrant": False, "preserve_rng_state": keep}
        return recomputed(context, query, key, value, mask, **how), None

    return core


def job_has_data(model: Any) -> bool:
    """Whether there is a state of a random generator to keep; there is none without data."""
    return not isinstance(next(model.parameters()).data, FakeTensor)
