"""One steady-state training iteration: forward, loss, backward, optimizer step.

Steady state: optimizer states exist, gradients start as None unless earlier micro-steps of an accumulation left them,
the caller drops the model's output before backward unless it is told to hold it.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial

from vramplan.engines import imported
from vramplan.replay.autograd import backward
from vramplan.replay.gradients import gradient_states
from vramplan.replay.inputs import inputs_of, make_inputs
from vramplan.replay.models import family, iteration_of
from vramplan.replay.models.modules import DPO_PRECOMPUTED, OUTSIDE_LOSSES, PREFERENCES, Segment
from vramplan.replay.operators.basic import mul_scalar
from vramplan.replay.optimizers import managed_bytes, optimizer_states, shared_states, step, step_in_backward
from vramplan.replay.precision import precision_of
from vramplan.replay.recipe import recipe_of
from vramplan.replay.record import Record, State
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.setup import Setup
from vramplan.replay.tensors import Parameter, Tensor
from vramplan.values.parallel import DDP

SOFTMAX_WITHOUT_INPUT = (1, 11)  # of PyTorch: from then on backward needs no input of a softmax


def replay(setup: Setup, *, batch: int = 2, direct: bool = False, tape: Tape | None = None) -> Record:
    """Replay one iteration, on a fresh tape of the caller's if one is given.

    `batch=2` gives a record that is valid for every micro-batch above 1, `batch=1` one for 1 alone. `direct=True`
    replays every block at exactly that micro-batch, sizes rounded one by one: the reference that tests compare with.
    """
    enabled = gc.isenabled()
    gc.disable()  # a collection in the middle would cost time; lifetimes do not depend on it
    try:
        address = iteration_of(setup.model.family, in_pipeline=setup.stage is not None)
        own = replay_one if address is None else imported(address)
        record: Record = own(setup, tape or tape_for(setup, batch, direct=direct))
        return record
    finally:
        if enabled:
            gc.enable()


def tape_for(setup: Setup, batch: int, *, direct: bool = False) -> Tape:
    """A fresh tape that plays a step as the setup runs it: operator by operator, or compiled."""
    if not setup.compile:
        return Tape(batch, direct=direct)
    from vramplan.replay.compiled import CompiledTape  # only compiled jobs pay for it
    from vramplan.replay.models import compiled_graphs, compiles_blocks, has_equal_blocks, returns_logits

    name = setup.model.family
    if compiles_blocks(name):
        return Tape(batch, direct=direct)
    every_block = not has_equal_blocks(name)
    one_graph, logits = compiled_graphs(name) == 1, returns_logits(name)
    return CompiledTape(batch, direct=direct, one_graph=one_graph, every_block=every_block, returns_logits=logits)


def replay_one(setup: Setup, tape: Tape) -> Record:
    """Replay one iteration, or one micro-batch of a stage of a pipeline."""
    precision = precision_of(setup.precision, half_weights=setup.half_weights)
    tape.float8 = precision.float8
    tape.softmax_keeps_input = setup.pytorch is not None and setup.pytorch < SOFTMAX_WITHOUT_INPUT
    recipe = recipe_of(setup, precision)
    if setup.frozen or setup.adapter is not None:
        from vramplan.replay.techniques.trained import (
            trained_of,  # only jobs that train less than every weight pay for it
        )

        tape.trained = trained_of(setup, precision)
        tape.asks_inputs = asks_inputs(setup)
    model = family(setup.model.family)(tape, recipe)
    tape.gradients_resident = setup.accumulating or setup.persistent_gradients or setup.fp32_gradients
    shards = None
    if setup.sharding is not None:
        from vramplan.replay.sharding import sharding_of  # only jobs with several devices pay for it

        tape.buffer_dtype = precision.frozen or precision.stored
        tape.sharding = shards = sharding_of(setup, tape, recipe, precision)
    if setup.loss in PREFERENCES:
        from vramplan.replay.techniques.preference_pairs import make_pairs  # only preference training pays for it

        arguments, inputs = make_pairs(tape, recipe, scored=setup.loss == DPO_PRECOMPUTED)
    else:
        arguments, inputs = make_inputs(tape, inputs_of(model, recipe))

    tape.reentrant = setup.checkpoint_reentrant and any(segment.checkpointed for segment in recipe.segments)
    tape.offloading = setup.offload_activations

    tape.phase("forward")
    if shards is not None:
        shards.before_model()
    tape.autocast = tape.compute_dtype = precision.autocast
    if setup.loss in OUTSIDE_LOSSES:
        from vramplan.replay.techniques.objectives import forward_and_loss  # only jobs with such a loss pay for it

        output = forward_and_loss(setup, tape, model, recipe, arguments, inputs)
    else:
        output = model(*arguments)
    assert output.loss is not None
    loss = output.loss if shards is None else shards.after_model(output.loss)
    if setup.accumulating and (shards is None or not shards.clips) and setup.stage is None:
        loss = mul_scalar(loss)  # a pipeline divides the gradients, in place
    if setup.grad_scaler:
        from vramplan.replay.techniques.scaling import scale_loss  # only jobs that scale their loss pay for it

        tape.autocast = None
        loss = scale_loss(loss)
    if setup.loss in OUTSIDE_LOSSES:
        output = output._replace(loss=None)  # it is no part of what the model gave
    tape.autocast = None
    tape.offloading = False
    tape.casts.clear()
    held = [output] if setup.hold_outputs else []
    del output
    # reentrant checkpoints record their weights in backward
    idle = [one for one in tape.parameters if one.node is not None and not one.pending and not tape.reentrant]
    for one in idle:  # their gradients stay None, and optimizers pass them over
        one.idle, one.node = True, None
    saved_at = len(tape.events)

    tape.phase("backward")
    hands_on = setup.stage is not None and not setup.stage.last  # to a stage that has the loss
    if shards is not None:
        loss = shards.before_backward(loss)
    began: list[Tensor] = []  # what backward began with
    if setup.optimizer == "lomo":
        _with_lomo(tape, loss)
    else:
        if setup.optimizer_in_backward:
            tape.after_accumulation = partial(step_in_backward, setup.optimizer, setup.optimizer_implementation)
        began = [loss, backward(tape, loss, received=hands_on)]
    del loss
    if shards is None or not shards.ends_in_backward:
        began.clear()
    if hands_on or setup.stage is None:  # the last stage keeps its outputs until the next step
        held.clear()
    tape.drop_leaves()
    whole, buffers = tape.parameters, model.buffers()
    if shards is not None:
        tape.parameters = shards.after_backward()
    began.clear()

    tape.phase("step")
    scaled: list[Tensor] = []
    if setup.grad_scaler:
        from vramplan.replay.techniques.scaling import unscale_before_clipping

        unscale_before_clipping(tape, scaled, setup.optimizer, setup.optimizer_implementation, setup.max_gradient_norm)
    if shards is not None:
        shards.before_step()
    norm: Tensor | None = None  # training loops keep it until the step is over, to log it
    if setup.max_gradient_norm is not None and setup.fp32_gradients:
        from vramplan.replay.techniques.clipping import clip_fp32_gradients  # only jobs that clip pay for it

        clip_fp32_gradients(tape)
    elif setup.offload:
        pass  # the host clips and steps
    elif setup.max_gradient_norm is not None and setup.sharding is not None and setup.sharding.version == 1:
        from vramplan.replay.sharding.flat_parameter import clip_flat_parameters

        norm = clip_flat_parameters(tape)
    elif setup.max_gradient_norm is not None and not (shards is not None and shards.clips):
        from vramplan.replay.techniques.clipping import clip_gradients  # only jobs that clip pay for it

        sharded = setup.sharding is not None and setup.sharding.kind != DDP
        norm = clip_gradients(tape, sharded=sharded, parted=setup.split is not None and setup.split.tensor > 1)
    if setup.grad_scaler:
        from vramplan.replay.techniques.scaling import unscale_in_step

        unscale_in_step(tape, scaled, setup.optimizer, setup.optimizer_implementation)
    if not setup.optimizer_in_backward:
        step(tape, setup.optimizer, setup.optimizer_implementation, precision)
    scaled.clear()
    if setup.ema:
        from vramplan.replay.techniques.averaging import (  # only jobs that average pay for it
            average_states,
            update_average,
        )

        update_average(tape)
    del norm
    for parameter in tape.parameters:
        parameter.grad = None  # zero_grad(set_to_none=True)
    if shards is not None:
        shards.after_step()
    held.clear()

    arguments.clear()
    if len(tape.events) != 2 * len(tape.fixed):
        raise RuntimeError("a tensor outlived its iteration: lifetimes cannot be trusted on this interpreter")

    states = [State("weights", sum(p.stored_bytes * p.copies for p in tape.parameters), 0)]
    if tape.trained is not None:
        states.append(State("weights", tape.trained.shared_bytes(), 0))
    optimizer, wide = setup.optimizer, setup.wide_embeddings
    reached = [one for one in tape.parameters if one.node is not None]
    if precision.master:
        _wake(idle)  # a master copy is of every trainable weight
    states += optimizer_states(tape.parameters, optimizer, setup.optimizer_implementation, precision, wide)
    if setup.ema:
        states += average_states(tape.parameters, buffers)
    states += shared_states(tape.parameters, optimizer, wide, setup.optimizer_in_backward)
    if setup.grad_scaler:
        from vramplan.replay.techniques.scaling import scaler_states

        states += scaler_states()
    if shards is not None:
        states += shards.states()
    elif tape.gradients_resident:
        states += gradient_states(reached, setup.fp32_gradients)
    states += inputs
    states += [State("buffers", rounded(size), 0) for size in buffers]
    if setup.model.rope_scaling is not None:
        states += [State("buffers", rounded(size), 0) for size in model.kept()]
    _wake(idle)
    managed = managed_bytes(tape.parameters, optimizer, wide)
    pieces: tuple[tuple[int, ...], ...] = ()
    if tape.direct:
        from vramplan.replay.optimizers.pieces import state_pieces  # only the simulated allocator asks

        pieces = state_pieces(tape.parameters, optimizer, setup.optimizer_implementation, precision, wide)
    if shards is not None:
        shards.drop()
    tape.parameters, owned = whole, tape.parameters
    record = Record(tape, states, saved_at, managed)
    if tape.direct:
        record.weight_bytes = tuple(one.stored_bytes for one in owned for _ in range(one.copies))
        record.state_bytes = pieces
    for parameter in (*whole, *owned):
        parameter.node = None  # it was its own accumulator: the only cycle, and no storage hung on it
    tape.parameters.clear()
    return record


def _wake(idle: Sequence[Parameter]) -> None:
    for one in idle:
        one.node = one


def _with_lomo(tape: Tape, loss: Tensor) -> None:
    from vramplan.replay.optimizers.lomo import step_waiting  # only its jobs pay for it

    waiting: list[Parameter] = []
    tape.before_accumulation, tape.after_accumulation = partial(step_waiting, waiting), waiting.append
    backward(tape, loss)
    step_waiting(waiting)


def asks_inputs(setup: Setup) -> bool:
    """Whether the token embeddings are asked for a gradient, trained or not.

    Transformers' own switch for checkpointing asks for it, and whoever uses reentrant checkpoints in another way has to
    do the same (`enable_input_require_grads`): one whose input needs no gradient trains nothing.
    """
    reentrant = setup.checkpoint_reentrant and any(segment.checkpointed for segment in setup.segments)
    if setup.model.published_family is not None:  # code of another engine, which asks for nothing
        return reentrant
    return reentrant or every_block_is_checkpointed(setup.segments)


def every_block_is_checkpointed(segments: Sequence[Segment]) -> bool:
    """Whether these are the checkpoints that Transformers' own switch makes: of each block, keeping nothing."""
    return all(checkpointed and blocks == 1 and selects is None for _, blocks, checkpointed, selects in segments)
