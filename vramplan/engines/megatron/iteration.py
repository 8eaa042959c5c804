"""One micro-batch of a stage as megatron-core runs it, beside those in flight, and the step of its optimizer.

Gradients are added to buffers that stay (`main_grad`) and go. What a schedule keeps of the micro-batches in flight is
what their forward passes have saved; their outputs are sent and freed (`deallocate_pipeline_outputs`).
Source: megatron-core 0.16, core/pipeline_parallel/schedules.py; core/distributed/param_and_grad_buffer.py;
core/optimizer/optimizer.py and distrib_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from vramplan.engines.megatron import adapters, deepspeed, fp8, sharded
from vramplan.replay.autograd import backward, walk
from vramplan.replay.kernels import Launches
from vramplan.replay.models import family
from vramplan.replay.models.modules import Recipe
from vramplan.replay.observers import Accumulation, Resident, train
from vramplan.replay.operators.elementwise import mul_scalar
from vramplan.replay.optimizers import MOMENTS
from vramplan.replay.pipeline.parts import part_of
from vramplan.replay.pipeline.stages import Stage, StagePass, group_of
from vramplan.replay.precision import Precision, precision_of
from vramplan.replay.recipe import recipe_of, slice_of
from vramplan.replay.record import Record
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.reentrant import RunsReentrantly
from vramplan.replay.setup import Setup
from vramplan.replay.sharding.replicated import last_first
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques.clipping import clip_fp32_gradients
from vramplan.replay.tensors import FP16, FP32, DType, Parameter, Storage, Tensor, round_up
from vramplan.tuples import NamedTuple
from vramplan.values.parallel import DISTRIBUTED_OPTIMIZER, Sharded, Split

IN_FLIGHT = "in_flight"  # component of the answer


class WaitingTensors(NamedTuple):
    """Tensors that other micro-batches hold: bytes that are fixed, bytes per sample, how many of them."""

    fixed_bytes: int
    per_sample_bytes: int
    copies: int


START_MULTIPLE = 64  # elements at which each parameter of a buffer begins (param_and_grad_buffer.py)
BUFFER_MULTIPLE = 128  # elements of a buffer that is shared
EXPERTS = "experts"  # the part that expert parallelism divides (vramplan/engines/megatron/moe.py)
SCALARS = {FP16: 3}  # the scale, whether one was infinite, a flag of the kernels; else the scale alone


def replay_megatron(setup: Setup, tape: Tape) -> Record:
    """One iteration of the stage that `setup` is about: the record of its newest micro-batch and all that stays."""
    stage = setup.stage
    if stage is None or len(stage.parts) == 1:
        record = replay_part(setup, tape)
        others = waiting_beside(setup, [record], (0 if stage is None else stage.in_flight - 1,))
        return replay_part(setup, _fresh(tape), others) if others else record
    found, parts = [], []
    for i in range(len(stage.parts)):
        part = part_of(setup, i)
        assert part.stage is not None
        parts.append(part._replace(stage=part.stage._replace(in_flight=1)))
        found.append(replay_part(parts[-1], _fresh(tape)))
    shared = max((record.states[-1] for record in found), key=lambda state: state.per_sample_bytes)
    common = [state for record in found for state in record.states[:-1]] + [shared]
    saved = [record.saved_bytes(tape.batch) for record in found]

    def level(moment: StagePass) -> int:
        """At the representative micro-batch; all parts have the same states beside them."""
        own = found[moment.part]
        waiting = sum(count * size for count, size in zip(moment.waiting, saved, strict=True))
        return waiting + own.peak_bytes(tape.batch) - own.static_bytes(tape.batch)

    worst = max(stage.moments, key=level)
    others = waiting_beside(setup, found, worst.waiting)
    record = replay_part(parts[worst.part], _fresh(tape), others).with_states(common)
    record.beside = tuple(one for part, one in enumerate(found) if part != worst.part)
    record.parameters = record.trainable_parameters = record.reached_parameters = sum(one.parameters for one in found)
    return record


def _fresh(tape: Tape) -> Tape:
    return Tape(tape.batch, direct=tape.direct)


def waiting_beside(setup: Setup, records: Sequence[Record], counts: Sequence[int]) -> list[WaitingTensors]:
    """What the other micro-batches in flight hold: what forward has saved of each part, and what the engine keeps."""
    found = [
        WaitingTensors(record.fixed[storage], record.per_sample[storage], copies * count)
        for record, count in zip(records, counts, strict=True)
        for storage, copies in record.kept().items()
        if count and record.categories[storage] != IN_FLIGHT
    ]
    if slice_of(setup).deepspeed:
        size = deepspeed.hidden_bytes(recipe_of(setup, precision_of(setup.precision)))
        found += [WaitingTensors(0, size, count) for count in deepspeed.copies_in_flight(setup.stage)]
    return [one for one in found if one.copies]


def exchanged_before(setup: Setup, recipe: Recipe) -> list[WaitingTensors]:
    """What variables of a schedule still hold of the micro-batch before while the next one runs forward.

    The input of the stage and its gradient, and the gradient of its output. An interleaved device has both ends; where
    groups have more micro-batches than there are stages, what the last stage has sent to the first one waits for its
    turn there, as the gradients do that go the other way.
    Source: core/pipeline_parallel/schedules.py, forward_backward_pipelining_without_interleaving and with_interleaving.
    """
    stage, part = setup.stage, recipe.slice
    if stage is None or not stage.steady or part.deepspeed:
        return []
    count = 2 if stage.parts != stage.device_parts else 2 * (not stage.first) + (not stage.last)
    split = setup.split
    if split is not None and split.virtual > 1 and stage.number in (0, split.pipeline - 1):
        count += group_of(split) - split.pipeline
    length = recipe.sequence_length // (part.tensor if part.sequence_parallel else 1)
    size = length * recipe.shape.hidden_size * recipe.weight_dtype.itemsize
    tokens = [] if part.last else [WaitingTensors(rounded(FP32.itemsize), 0, 1)]  # of the micro-batch, which are none
    return [WaitingTensors(0, size, 1)] * count + tokens


def _exchanged_in_backward(stage: Stage | None) -> int:
    """How many of them are there until backward is over: the gradient of the input, of both ends on such a device."""
    if stage is None:
        return 0
    return 2 if stage.parts != stage.device_parts else int(not stage.first)


def _hold(tape: Tape, one: WaitingTensors) -> Storage:
    """Memory of other micro-batches, while forward and backward run."""
    fixed, each, copies = one
    if tape.direct and each:
        fixed, each = fixed + rounded(each * tape.batch), 0
    storage = tape.allocate(IN_FLIGHT, 0, False, IN_FLIGHT)
    size = (lambda batch: copies * (fixed + rounded(each * batch))) if each else None
    tape.resize(storage.index, fixed * copies, each * copies, size)
    return storage


def replay_part(setup: Setup, tape: Tape, others: Sequence[WaitingTensors] = ()) -> Record:
    """One micro-batch of one part of a model, the step of its optimizer, and its states; the shared buffer is last.

    `others` wait beside it until the step.
    """
    precision = precision_of(setup.precision)
    recipe = recipe_of(setup, precision)._replace(float8=precision.float8)
    ran = Launches(tape)
    train(tape, adapters.trained_of(setup, precision))
    model = family(setup.model.family)(tape, recipe)
    tape.enlist(Accumulation, Resident())
    tape.observe(RunsReentrantly(tape))

    tape.phase("forward")
    waiting = [_hold(tape, one) for one in others]
    before = [_hold(tape, one) for one in exchanged_before(setup, recipe)]
    tape.autocast = precision.autocast  # of NeMo without megatron_amp_O2: over weights in fp32
    out: Tensor = model().loss
    tape.autocast = None
    if recipe.slice.last and FP16 in (precision.weights, precision.autocast):
        out = mul_scalar(out)  # the scale of the loss
    gradient = None
    if not recipe.slice.last:
        out, gradient = sent(tape, out)
    saved_at = len(tape.events)

    tape.phase("backward")
    del before[_exchanged_in_backward(setup.stage) :]
    if gradient is None:
        backward(tape, out)
    else:
        later_stages(tape, out, gradient)
    del out, gradient
    if recipe.slice.deepspeed and setup.fp32_gradients:
        deepspeed.add_to_fp32(tape)

    waiting.clear()
    before.clear()

    tape.phase("step")
    tape.category = "temporaries"
    gradient_dtype = FP32 if setup.fp32_gradients else precision.weights
    if setup.max_gradient_norm is not None:
        clip_fp32_gradients(tape)
    if recipe.slice.deepspeed:
        assert setup.sharding is not None
        shards = setup.sharding.shards
        if not setup.fp32_gradients:
            deepspeed.reduce_and_step(tape, precision, shards)
        optimizer, wide = setup.optimizer, setup.fp32_gradients
        states = deepspeed.states_of(tape.parameters, optimizer, precision, shards, fp32_gradients=wide)
        states += deepspeed.pipeline_states(recipe, setup.stage)
    else:
        _fp32_gradients(tape, precision, gradient_dtype, setup)
        states = states_of(tape.parameters, setup, precision, gradient_dtype)
    states += [StandingState("buffers", rounded(size), 0) for size in model.buffers()]
    states.append(StandingState("buffers", scalars_of_schedule(setup.stage), 0))
    if recipe.float8:
        copies = fp8.kept_by(tape.parameters, sharded.of_weights(setup.sharding))
        states += [StandingState("buffers", size, 0) for size in copies]
    blocks = model.with_experts(sum(one.times * one.blocks for one in recipe.segments))
    states += [StandingState("buffers", 0, size, blocks) for size in model.kept_by_samples()]
    states += _kept_by_checkpoints(recipe)
    states.append(StandingState("buffers", 0, model.buffer_bytes()))
    record = Record(tape, states, saved_at, ran=ran)
    tape.tell(())  # which know the tape
    for parameter in tape.parameters:
        parameter.node = None
    tape.parameters.clear()
    return record


def _kept_by_checkpoints(recipe: Recipe) -> list[StandingState]:
    """What the graphs of routers hold of checkpoints: their inputs, and the gradients of these.

    A dispatcher keeps its routing weights, and with them the graph of the last recomputation, until the next
    micro-batch: in the first block's backward pass all the gradients are there beside all the inputs. That worst moment
    counts for the whole iteration.
    """
    part, count = recipe.slice, sum(one.times for one in recipe.segments if one.checkpointed)
    if recipe.shape.experts is None or not count:
        return []
    length = recipe.sequence_length // (part.tensor if part.sequence_parallel else 1)
    return [StandingState("buffers", 0, length * recipe.shape.hidden_size * recipe.weight_dtype.itemsize, count)]


def sent(tape: Tape, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """The output of a stage when it is sent: its gradient comes, then its memory goes (deallocate_output_tensor).

    Source: core/pipeline_parallel/schedules.py, send_forward_recv_backward and deallocate_output_tensor.
    """
    empty = hidden.alias(hidden.shape, hidden.strides, hidden.node, hidden.output_index)
    empty.storage = tape.new("empty", (1,), hidden.dtype, False).storage
    return empty, tape.constant(hidden.shape, hidden.dtype, True)


def later_stages(tape: Tape, out: Tensor, gradient: Tensor) -> None:
    """Backward from the gradient that the next stage has sent."""
    tape.category, tape.direction = "temporaries", "backward"
    received = tape.new("recv", gradient.shape, gradient.dtype, True)
    walk(tape, out, received, since=0)
    del received
    tape.enter(())
    for kept in tape.held:
        if type(kept) is Parameter:
            kept.node = kept.grad = kept.storage = None
    tape.held.clear()


def _fp32_gradients(tape: Tape, precision: Precision, gradient_dtype: DType, setup: Setup) -> None:
    """Before the step 16-bit gradients become fp32, all at once (_copy_model_grads_to_main_grads)."""
    if not precision.master or gradient_dtype is FP32:
        return
    _all = []
    for members, sharding in groups_of(tape.parameters, setup):
        shared = sharding is not None and sharding.kind in (DISTRIBUTED_OPTIMIZER, *sharded.KINDS)
        shares = sharding.shards if shared and sharding is not None else 1
        _all += [
            tape.several("to", (-(-one.elements // shares),), FP32, one.copies)
            for one in members
            if one.node is not None
        ]


def scalars_of_schedule(stage: Stage | None) -> int:
    """The number of tokens, and on the last stage that of one micro-batch; what each has for the log is left out.

    Source: core/pipeline_parallel/schedules.py, total_num_tokens and forward_step_calc_loss.
    """
    if stage is None or not stage.steady:
        return 0
    return (1 + stage.last) * rounded(FP32.itemsize)


def states_of(
    parameters: Sequence[Parameter], setup: Setup, precision: Precision, gradient_dtype: DType
) -> list[StandingState]:
    """Weights, gradients, fp32 copies and moments of a device; experts that are spread have buffers of their own.

    Source: core/distributed/distributed_data_parallel.py, expert_parallel_params.
    """
    found: list[StandingState] = []
    for members, sharding in groups_of(parameters, setup):
        found += _states_of_group(members, sharding, MOMENTS[setup.optimizer], precision, gradient_dtype)
    scalars = StandingState("optimizer", SCALARS.get(precision.weights, 1) * rounded(FP32.itemsize), 0)
    return [*found, scalars]


def groups_of(parameters: Sequence[Parameter], setup: Setup) -> list[tuple[list[Parameter], Sharded | None]]:
    """Parameters with the devices that have the same: the experts of a device are those of fewer others."""
    devices, sharding = (setup.split or Split()).expert, setup.sharding
    if devices == 1:
        return [(list(parameters), sharding)]
    apart = [one for one in parameters if EXPERTS in one.part]
    rest = [one for one in parameters if EXPERTS not in one.part]
    fewer = None if sharding is None else sharding._replace(shards=sharding.shards // devices)
    return [(rest, sharding), (apart, fewer)]


def _states_of_group(
    parameters: list[Parameter], sharding: Sharded | None, moments: int, precision: Precision, gradient_dtype: DType
) -> list[StandingState]:
    if sharding is None or sharding.kind not in sharded.KINDS:  # frozen weights are in no buffer
        frozen = sum(one.stored_bytes * one.copies for one in parameters if one.node is None)
        parameters = [one for one in parameters if one.node is not None]
        if frozen:
            trained = _states_of_group(parameters, sharding, moments, precision, gradient_dtype) if parameters else []
            return [StandingState("weights", frozen, 0), *trained]
    elements = sum(one.elements * one.copies for one in parameters)
    wide = (1 if precision.master else 0, moments)
    if sharding is not None and sharding.kind in sharded.KINDS:
        return sharded.states_of_shards(parameters, sharding, moments, precision, gradient_dtype)
    if sharding is not None and sharding.kind == DISTRIBUTED_OPTIMIZER:
        whole, shards = distributed(parameters, sharding)
        master, moved = (count * sum(rounded(size * FP32.itemsize) for size in shards) for count in wide)
        weights, gradients = rounded(whole * precision.weights.itemsize), rounded(whole * gradient_dtype.itemsize)
    else:
        weights = sum(one.stored_bytes * one.copies for one in parameters)
        gradients = rounded(elements * gradient_dtype.itemsize)
        each = FP32.itemsize if precision.master else precision.weights.itemsize
        master, moved = (count * sum(rounded(one.elements * each) * one.copies for one in parameters) for count in wide)
    found = [
        StandingState("weights", weights, 0),
        StandingState("master", master, 0),
        StandingState("optimizer", moved, 0),
    ]
    return [*found, StandingState("gradients", gradients, 0)]


def distributed(parameters: Sequence[Parameter], sharding: Sharded) -> tuple[int, list[int]]:
    """Elements of the buffer of all parameters, and those of each parameter in the first device's part of it.

    Parameters are laid out in reverse, each at a multiple of 64 elements; the buffer has a common multiple of 128 and
    of the devices. Source: core/distributed/param_and_grad_buffer.py, _ParamAndGradBuffer.__init__.
    """
    at, places = 0, []
    for one in last_first(list(parameters)):
        at = round_up(at, START_MULTIPLE)
        places.append((at, at + one.elements))
        at += one.elements
    whole = round_up(at, lcm(BUFFER_MULTIPLE, sharding.shards))
    end = whole // sharding.shards
    return whole, [min(last, end) - first for first, last in places if first < end]
