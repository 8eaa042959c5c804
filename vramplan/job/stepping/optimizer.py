"""How a job steps its weights: the optimizer, its implementation, and whether it steps in backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.engines import engine_of
from vramplan.job import on_demand
from vramplan.job.behaviour import LEAVE, under
from vramplan.options import words
from vramplan.values.parallel import DDP, ZERO_STAGES

if TYPE_CHECKING:
    from vramplan.job.evidence.cells import Cells
    from vramplan.job.resolver import Resolver
    from vramplan.values.machine import Runtime
    from vramplan.values.model import ModelShape

FP32_LOSSES = ("standard", "fp32-logits", "chunked:N", "fused", words.TILED)
"""Losses of causal language models that are computed in fp32 where the logits are in 16 bits."""


def optimizer_of(
    resolver: Resolver, runtime: Runtime | None, model: ModelShape | None, cells: Cells
) -> tuple[str, str]:
    """The optimizer and its implementation; what contradicts the precision is refused."""
    optimizer, precision = resolver.raw.optimizer, cells.precision
    if optimizer is None:
        optimizer = "adamw"
        resolver.assume("optimizer", optimizer, "the default")
    elif words.pattern_word(optimizer) not in words.OPTIMIZERS:
        resolver.fields.refuse("optimizer", f"{optimizer} is not modelled (modelled: {', '.join(words.OPTIMIZERS)})")
    mixed = words.over_master_copy(precision)
    if mixed and words.pattern_word(optimizer) in words.OPTIMIZERS and not _steps_master(resolver, optimizer):
        message, hint = on_demand.no_master_copy(optimizer, precision)
        resolver.fields.refuse("optimizer", message, hint=hint)
    elif resolver.raw.sharding in ZERO_STAGES and optimizer in words.OTHER_OPTIMIZERS:
        mixed = False  # its library steps the flat part in fp32, and has no kernel for that alone
    implementation, own = resolver.raw.optimizer_implementation, under(runtime).implementations
    if optimizer == words.LOMO and precision == "pure-fp16" and not _has_fp32_loss(resolver, runtime, model):
        message = "lomo runs backward twice to scale an fp16 loss, which is not modelled"
        resolver.fields.refuse("optimizer", message, hint="use pure-bf16")
    if optimizer in words.BITSANDBYTES_OPTIMIZERS and not mixed:
        return optimizer, _only(resolver, "fused", optimizer, "bitsandbytes has one kernel for each parameter")
    if optimizer in words.TORCHAO_OPTIMIZERS and not mixed:
        return optimizer, _only(resolver, "fused", optimizer, "torchao compiles the step of each parameter")
    if cells.fp32_states:
        whose = under(runtime).fp32_states_of
        return optimizer, _only(resolver, "fused", optimizer, f"{whose} has one kernel for each parameter")
    if words.pattern_word(optimizer) in (*words.LOW_RANK_OPTIMIZERS, words.ADAM_MINI) and not mixed:
        library = {"galore": "galore-torch", "apollo": "apollo-torch"}.get(optimizer.partition("-")[0], "adam-mini")
        return optimizer, _only(resolver, "for-loop", optimizer, f"{library} steps one parameter after the other")
    if optimizer in words.LOOPS_ALONE and not mixed:
        why = f"{words.MAKERS[optimizer]} steps one parameter after the other"
        return optimizer, _only(resolver, "for-loop", optimizer, why)
    if optimizer in words.STEPPED_IN_BACKWARD and not mixed:
        return optimizer, _only(resolver, "for-loop", optimizer, "weights are stepped as their gradients come")
    if implementation is None:
        if mixed:
            implementation, why = "fused", f"{precision} is one fused step over the master copy"
        elif optimizer in own and _shared(resolver) is None:
            implementation, why = (
                own[optimizer],
                f"the {optimizer} of {_named(runtime)} is its own class, not PyTorch's",
            )
        elif optimizer in words.FUSED_BY_ITSELF:
            implementation, why = "fused", f"{words.MAKERS[optimizer]} has kernels of Triton for {optimizer}"
        elif optimizer not in words.FUSED_BY_RUNTIME:
            maker = words.MAKERS.get(optimizer, "PyTorch")
            implementation, why = "foreach", f"{maker}'s default for {optimizer}"
        else:
            implementation = "fused" if runtime is None else runtime.optimizer_implementation
            why = "" if runtime is None else f"the default of the {runtime.name} runtime"
        resolver.assume("optimizer_implementation", implementation, why)
    elif mixed and implementation != "fused" and not _is_own_over_flat(resolver, optimizer, implementation):
        message = f"{implementation} contradicts {precision}, which is one fused step over the master copy"
        resolver.fields.refuse("optimizer_implementation", message, hint="use fused, or leave it out")
    elif implementation == words.OF_TRANSFORMERS:
        _check_own_class(resolver, optimizer)
    elif implementation == "fused" and not mixed and optimizer in words.NEVER_FUSED:
        maker = words.MAKERS.get(optimizer, "PyTorch")
        resolver.fields.refuse("optimizer_implementation", f"{maker} has no fused {optimizer}", hint="use foreach")
    return optimizer, implementation


def _named(runtime: Runtime | None) -> str:
    return "the program" if runtime is None else runtime.name


def _shared(resolver: Resolver) -> str | None:
    """How devices share the states or the model; None where each has all of it."""
    raw = resolver.raw
    shared = raw.sharding if raw.sharding not in (None, DDP, "none") else None
    return shared or (None if raw.split is None else "a split model")


def _check_own_class(resolver: Resolver, optimizer: str) -> None:
    """Refuse the class of Transformers where there is none, or where it would see parts of weights."""
    key, word = "optimizer_implementation", words.OF_TRANSFORMERS
    shared = _shared(resolver)
    if optimizer != "adafactor":
        resolver.fields.refuse(key, f"{word} has no {optimizer} of its own (it has adafactor)", hint=LEAVE)
    elif shared is not None:
        resolver.fields.refuse(key, f"{word} is not modelled with {shared}", hint="foreach, PyTorch's own Adafactor")


def _has_fp32_loss(resolver: Resolver, runtime: Runtime | None, model: ModelShape | None) -> bool:
    """Whether a model in fp16 has its loss in fp32: LOMO scales a loss by its element type, whatever the weights are.

    That of a causal language model casts logits, as losses over its head do. The Trainer smooths labels in fp32.
    Source: lomo_optim/lomo.py, Lomo.fused_backward; transformers 5.23, loss/loss_utils.py and trainer_pt_utils.py.
    """
    raw = resolver.raw
    if runtime is None or model is None:
        return True  # which is a problem of its own
    if raw.label_smoothing and engine_of(runtime.engine).smooths_outside:
        return True
    is_cast = words.pattern_word(raw.loss or "standard") in FP32_LOSSES
    return model.task == "lm" and runtime.loss == "causal-lm-fp32" and is_cast


def _steps_master(resolver: Resolver, optimizer: str) -> bool:
    """Whether an optimizer can step an fp32 master copy: DeepSpeed gives its flat part to any that takes a vector.

    Source: deepspeed/runtime/engine.py, _configure_basic_optimizer and zero_allow_untested_optimizer;
    runtime/zero/stage_1_and_2.py, DeepSpeedZeroOptimizer.__init__, where a group has its partition alone.
    """
    by_part = resolver.raw.sharding in ZERO_STAGES and optimizer in words.BY_PART_OPTIMIZERS
    return by_part or optimizer in words.OVER_A_MASTER_COPY


def _is_own_over_flat(resolver: Resolver, optimizer: str, implementation: str) -> bool:
    """Whether PyTorch's own Adam steps the flat fp32 part that ZeRO has of a master copy.

    A DeepSpeed configuration without an optimizer leaves it to the program: that of the Trainer is foreach before
    PyTorch 2.8.
    Source: transformers 5.23.0, training_args.py, optim; integrations/deepspeed.py, deepspeed_optim_sched.
    """
    is_pytorchs = optimizer in ("adamw", "adam") and implementation in ("foreach", "for-loop")
    return is_pytorchs and resolver.raw.sharding in ZERO_STAGES


def _only(resolver: Resolver, implementation: str, optimizer: str, why: str) -> str:
    """The implementation of an optimizer that has one, whatever the runtime does for those of torch.optim."""
    key, given = "optimizer_implementation", resolver.raw.optimizer_implementation
    if given is None:
        resolver.assume(key, implementation, f"the only one of {optimizer}: {why}")
    elif given != implementation:
        resolver.fields.refuse(key, f"there is no {given} {optimizer}: {why}", hint=f"use {implementation}")
    return implementation


def check_clipping(resolver: Resolver, in_backward: bool) -> None:
    """Refuse a norm of all gradients where they are never there together."""
    key = "max_gradient_norm"
    if in_backward:
        message = "optimizer_in_backward drops each gradient before the norm of all is known"
        resolver.fields.refuse(key, message, hint="leave one of the two out")


def steps_in_backward(resolver: Resolver, runtime: Runtime | None, optimizer: str, precision: str) -> bool:
    """Whether each parameter is stepped in backward. Then there is nothing to accumulate gradients in."""
    raw, key, steps = resolver.raw, "optimizer_in_backward", "gradient_accumulation_steps"
    if optimizer in words.STEPPED_IN_BACKWARD:
        if raw.optimizer_in_backward is False:
            resolver.fields.refuse(
                key, f"false contradicts {optimizer}, which has no other step", hint="true, or adamw"
            )
        elif raw.optimizer_in_backward is None:
            resolver.assume(key, True, f"{optimizer} has no other step")
    elif not raw.optimizer_in_backward:
        return False
    if raw.gradient_accumulation_steps is None:
        raw.gradient_accumulation_steps = 1
        resolver.assume(steps, 1, f"{key} leaves no gradients to accumulate")
    elif raw.gradient_accumulation_steps > 1:
        message = f"true leaves no gradients to accumulate over {raw.gradient_accumulation_steps} steps"
        resolver.fields.refuse(key, message, hint=f"{steps}: 1")
    if words.over_master_copy(precision):
        resolver.fields.refuse(key, f"true contradicts {precision}, which is one fused step over the master copy")
    if runtime is not None and runtime.gradients == "persistent":
        resolver.fields.refuse(key, f"true contradicts the gradient buffers that the {runtime.name} runtime keeps")
    return True
