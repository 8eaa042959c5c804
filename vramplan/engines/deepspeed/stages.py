"""Which walk a stage of ZeRO is, and what it is told of the model."""

from __future__ import annotations

from functools import partial

from vramplan.engines.deepspeed import zero3, zero3_policy
from vramplan.engines.deepspeed.in_place import InPlace
from vramplan.engines.deepspeed.offload import Offloaded
from vramplan.engines.deepspeed.replicas import Replicas
from vramplan.engines.deepspeed.traced import ADAM, STEPPED, composed_with_zero, refused_with_zero
from vramplan.engines.deepspeed.walk import TokensAhead, order_of
from vramplan.engines.deepspeed.worst_device import WorstDevicePolicy
from vramplan.engines.deepspeed.zero import ZeroIteration
from vramplan.engines.deepspeed.zero3_drive import Swapped3
from vramplan.engines.deepspeed.zero3_offload import Offloaded3
from vramplan.engines.deepspeed.zero3_parameters import HostedParameters3
from vramplan.engines.deepspeed.zero3_plan import plan_of
from vramplan.options.words import EMBEDDED_PROMPTS, OTHER_OPTIMIZERS, VECTOR_OPTIMIZERS
from vramplan.replay.models.modules import DPO_ADAPTER_OFF, DPO_LOGITS_ADAPTER_OFF, KTO_ADAPTER_OFF, Recipe, Segment
from vramplan.replay.models.stacks import split_at
from vramplan.replay.observers import Accumulation, Trained
from vramplan.replay.optimizers import MOMENTS
from vramplan.replay.precision import Precision
from vramplan.replay.recorder import Tape
from vramplan.replay.setup import Setup
from vramplan.replay.sharding import Way
from vramplan.replay.techniques import Shards, objective_of

SWITCHED_OFF = (DPO_ADAPTER_OFF, DPO_LOGITS_ADAPTER_OFF, KTO_ADAPTER_OFF)
"""Losses for which the model runs again without its adapter."""


def stacks_of(recipe: Recipe) -> tuple[tuple[Segment, ...], ...]:
    """The segments of each stack, in the order in which forward comes to them."""
    found, rest = [], recipe.segments
    for layers in recipe.shape.stacks:
        one, rest = split_at(rest, layers)
        found.append(one)
    return tuple(found)


def stage_of(setup: Setup, tape: Tape, recipe: Recipe, precision: Precision) -> Shards:
    """The walk of a job's stage."""
    assert setup.sharding is not None
    assert setup.sharding.zero is not None
    key = (setup.frozen, setup.adapter, setup.quantization, setup.precision)
    tape.dismiss(Accumulation)
    if setup.sharding.kind == "zero3":
        order = order_of(
            *(recipe, tape.role(Trained), key),
            with_uses=True,
            linear_is_function=setup.sharding.zero.memory_efficient_linear,
            asks_inputs=bool(tape.told.looked_up),
            reentrant=bool(tape.told.checkpointed),
            virtual_tokens=_virtual_tokens(setup),
        )
        of_stage_3 = zero3_policy.Zero3Policy(
            setup.sharding.shards,
            precision.weights,
            setup.sharding.zero,
            setup.model.blocks,
            bias_first=setup.model.family == "gpt2",  # its layers are Conv1D
            outer_modules=zero3_policy.outer_modules(setup.adapter),
            # DeepSpeed gathers ahead at modules without parameters too, such as the dropouts of LoRA, so that it looks
            # further than this walk: with one function for several layers few modules are left that have some
            keeps_frozen=setup.adapter is not None and bool(setup.adapter.kernels),
            learns=setup.loss not in SWITCHED_OFF,
            own_adam=_is_fused_adam(setup),
            bounds_norm=setup.max_gradient_norm is not None,
            steps=_steps_of(setup),
        )
        # gradients that stay where they are are those of each block
        every = tape.unrolled or tape.is_certain or not setup.sharding.zero.contiguous_gradients
        every = every or not (of_stage_3.learns and setup.sharding.zero.memory_efficient_linear)
        plan = None
        if not every:
            plan = plan_of(
                order, of_stage_3.of_walk(order.sizes), stacks_of(recipe), recipe.loss, compiled=setup.compile
            )
        if setup.offload:
            drive = setup.sharding.zero.parameter_drive
            if drive is not None:
                accumulating = setup.accumulating
                return Swapped3(tape, of_stage_3, order, setup.offload, drive, accumulating=accumulating)
            if "optimizer" not in setup.offload:
                return HostedParameters3(tape, of_stage_3, order, setup.offload, plan, accumulating=setup.accumulating)
            return Offloaded3(tape, of_stage_3, order, setup.offload, plan, accumulating=setup.accumulating)
        return zero3.Zero3(tape, of_stage_3, order, plan)
    asks_inputs, reentrant = bool(tape.told.looked_up), bool(tape.told.checkpointed)
    order = order_of(
        *(recipe, tape.role(Trained), key),
        asks_inputs=asks_inputs and reentrant,
        reentrant=reentrant,
        virtual_tokens=_virtual_tokens(setup),
    )
    policy = WorstDevicePolicy(
        partitions_gradients=setup.sharding.kind == "zero2",
        shards=setup.sharding.shards,
        dtype=precision.weights,
        reduce_bucket_size=setup.sharding.zero.reduce_bucket_size,
        overlap_comm=setup.sharding.zero.overlap_comm,
        accumulating=setup.accumulating,
        rank=setup.rank,
        own_adam=_is_fused_adam(setup),
        bounds_norm=setup.max_gradient_norm is not None,
        steps=_steps_of(setup),
        flat_on_device=setup.sharding.zero.flat_on_device,
    )
    if setup.offload:
        return Offloaded(tape, policy, order)
    if not setup.sharding.zero.contiguous_gradients:
        return InPlace(tape, policy, order)
    return ZeroIteration(tape, policy, order)


def _virtual_tokens(setup: Setup) -> TokensAhead | None:
    """What comes before a text: a prefix is in the cache, and no part of the sequence."""
    if setup.adapter is None or not setup.adapter.virtual_tokens:
        return None
    number = setup.adapter.virtual_tokens if setup.adapter.kind in EMBEDDED_PROMPTS else 0
    return TokensAhead(number, partial(objective_of, setup))


def _is_fused_adam(setup: Setup) -> bool:
    """Whether the optimizer is DeepSpeed's own Adam, and not PyTorch's over the same flat parts."""
    return setup.optimizer in ADAM and setup.optimizer_implementation == "fused"


def _steps_of(setup: Setup) -> tuple[str, str] | None:
    """The program's own optimizer that steps flat parts, unless its kernels need nothing; of Adam alone a fused one."""
    name, implementation = setup.optimizer, setup.optimizer_implementation
    if name not in (*MOMENTS, *VECTOR_OPTIMIZERS, *OTHER_OPTIMIZERS):
        return None
    over_master = setup.precision.startswith("mixed-") and name in MOMENTS and name not in ADAM
    return name, "foreach" if over_master and implementation == "fused" else implementation


ZERO = Way(walk=stage_of, refused=refused_with_zero, composed=composed_with_zero, steps=STEPPED)


def replicas_of(setup: Setup, tape: Tape, recipe: Recipe, precision: Precision) -> Shards:
    """The walk of a job without ZeRO."""
    assert setup.sharding is not None
    return Replicas(
        tape,
        devices=setup.sharding.shards,
        flat=setup.optimizer in ADAM,
        master=precision.master,
        resident=setup.accumulating,
    )


REPLICAS = Way(walk=replicas_of, refused=lambda job: {}, composed=lambda job: {}, steps=STEPPED)
