"""What is alive during the whole iteration, tensor by tensor; sums to the states of the record."""

from __future__ import annotations

from vramplan.answers.explanation.trace import Trace, full_name, group_name
from vramplan.replay.gradients import gradient_bytes
from vramplan.replay.models.rope import keeps
from vramplan.replay.observers import Accumulation
from vramplan.replay.optimizers import MOMENTS, library_of, numbers_on_device, optimizer_states, shared_states
from vramplan.replay.precision import precision_of
from vramplan.replay.recorder import rounded
from vramplan.replay.techniques.averaging import copied_bytes, is_fully_sharded
from vramplan.replay.techniques.quantized import shared_bytes
from vramplan.replay.techniques.scaling import scaler_states
from vramplan.replay.tensors import FP32, INT64, Parameter
from vramplan.results.explain import Shape, State, StateTensor

LISA = "lisa:"
SUFFIXES = {"weights": "", "master": ".master", "optimizer": ".optimizer", "ema": ".ema", "gradients": ".grad"}


def states(trace: Trace) -> tuple[State, ...]:
    """The components that are alive from the beginning to the end, each with its tensors."""
    found = [_of_weights(trace, component) for component in SUFFIXES]
    found += [_inputs(trace), _buffers(trace), _buckets(trace)]
    known: dict[str, int] = {}
    for state in trace.record.states:
        known[state.category] = known.get(state.category, 0) + state.at(trace.batch)
    if {state.component: state.bytes for state in found if state.bytes} != {k: v for k, v in known.items() if v}:
        raise RuntimeError("the states do not sum to those of the replay")
    return tuple(state for state in found if state.bytes)


def _of_weights(trace: Trace, component: str) -> State:
    setup = trace.setup
    rows: dict[tuple[str, Shape], StateTensor] = {}
    taken: set[str] = set()
    precision = precision_of(setup.precision, half_weights=setup.half_weights)
    rounding = 0
    elements: dict[int, int] = {}  # of each width in bytes
    resident = trace.tape.role(Accumulation).resident
    sharded = is_fully_sharded(setup)
    for weight in trace.weights:
        parameter = weight.parameter
        trainable, dtype = weight.trainable, parameter.dtype
        size = _stored(parameter, component, sharded=sharded)
        if component in ("master", "optimizer"):
            if not trainable or (parameter.idle and not precision.master):
                continue
            dtype = FP32 if precision.master else dtype
            made = optimizer_states(
                [_one(trace, parameter)],
                setup.optimizer,
                setup.optimizer_implementation,
                precision,
                setup.wide_embeddings,
            )
            size = sum(state.at(0) for state in made if state.category == component)
        elif (component == "ema" and not setup.ema) or (
            component == "gradients" and not (resident and trainable and not parameter.idle)
        ):
            continue
        elif component == "gradients":
            dtype = FP32 if setup.fp32_gradients else dtype
            size = gradient_bytes(parameter, setup.fp32_gradients)
        if not size:
            continue
        name = group_name(weight.blocks, weight.name) + SUFFIXES[component]
        key = (name, parameter.shape)
        copies, old = parameter.copies, rows.get(key)
        if old is not None:
            name, copies = old.name, copies + old.copies
        elif name in taken:  # of a block of another width: named for the first of them
            name = full_name(weight.blocks, weight.name) + SUFFIXES[component]
        taken.add(name)
        rows[key] = StateTensor(name, parameter.shape, dtype.name, copies, size, size * copies)
        elements[dtype.itemsize] = elements.get(dtype.itemsize, 0) + parameter.elements * parameter.copies
        rounding += size * parameter.copies
    for row in _not_of_a_weight(trace, component):
        rows[row.name, row.shape] = row
    total = sum(row.total_bytes for row in rows.values())
    return State(component, _formula(trace, component, elements, total, len(rows)), total, tuple(rows.values()))


def _not_of_a_weight(trace: Trace, component: str) -> list[StateTensor]:
    """What an optimizer holds for all parameters together; the buffers that a moving average copies."""
    setup = trace.setup
    if component == "weights":
        has_bits = any(weight.parameter.quantized for weight in trace.weights)
        size = shared_bytes(setup.quantization) if setup.quantization is not None and has_bits else 0
        return [StateTensor("quantization.code", (), FP32.name, 1, size, size)] if size else []
    if component == "optimizer":
        parameters = []
        for weight in trace.weights:
            if weight.trainable and not weight.parameter.idle:
                one = _one(trace, weight.parameter)
                one.copies = weight.parameter.copies
                parameters.append(one)
        shared = shared_states(parameters, setup.optimizer, setup.wide_embeddings, setup.optimizer_in_backward)
        size = sum(state.at(0) for state in shared)
        books = [StateTensor("code_books.optimizer", (), FP32.name, 1, size, size)] if size else []
        return [*books, *(_of_the_scaler() if setup.grad_scaler else ()), *_of_blocks_before(trace)]
    if component == "ema" and setup.ema:
        fixed = [state for state in trace.record.states if state.category == "buffers" and not state.per_sample_bytes]
        sizes = [state.at(trace.batch) for state in fixed]  # what a model keeps of its samples is no buffer
        if keeps(setup.model, setup.sequence_length):
            sizes.pop()  # the last is no buffer of the module, and so not copied
        return [StateTensor(f"buffer.{number}.ema", (), "", 1, size, size) for number, size in enumerate(sizes)]
    return []


def _of_blocks_before(trace: Trace) -> list[StateTensor]:
    """The optimizer's states of blocks that were trained before those that are now, which LISA keeps."""
    if not trace.setup.trained_blocks.startswith(LISA):
        return []
    setup = trace.setup
    precision = precision_of(setup.precision, half_weights=setup.half_weights)
    size = 0
    for weight in trace.weights:
        if not weight.trainable:
            one = _one(trace, weight.parameter)
            one.copies = weight.parameter.copies
            made = optimizer_states([one], setup.optimizer, setup.optimizer_implementation, precision)
            size += sum(state.at(0) for state in made if state.category == "optimizer")
    return [StateTensor("blocks_before.optimizer", (), FP32.name, 1, size, size)] if size else []


def _of_the_scaler() -> list[StateTensor]:

    size = sum(state.at(0) for state in scaler_states())
    return [StateTensor("loss_scale.optimizer", (), FP32.name, 2, size // 2, size)]


def _one(trace: Trace, parameter: Parameter) -> Parameter:
    """One copy of a parameter that stands for several, as it was while it was trained."""
    one = Parameter(trace.tape, parameter.name, parameter.shape, parameter.dtype, 1, True)
    one.path, one.is_table, one.in_linear = parameter.path, parameter.is_table, parameter.in_linear
    return one


def _formula(trace: Trace, component: str, elements: dict[int, int], total: int, rows: int) -> str:
    setup = trace.setup
    precision = precision_of(setup.precision, half_weights=setup.half_weights)
    width = FP32.itemsize if precision.master and component in ("master", "optimizer") else precision.weights.itemsize
    if component == "weights" and setup.quantization is not None:
        return f"{sum(elements.values()):,}, those of linear layers in {setup.quantization}"
    if component == "ema":
        if setup.quantization is not None:
            return f"a copy of the weights, those of linear layers in {setup.quantization}, and of the buffers"
        return f"a copy of the weights in their own dtype, {width} B each, and of the buffers"
    if component == "optimizer":
        library = library_of(setup.optimizer)
        if library is not None:
            return library.describe(setup.optimizer, width)
        if setup.optimizer not in MOMENTS:
            return f"{setup.optimizer}: a row and a column factor of each matrix, all of each vector, {width} B each"
        moments = MOMENTS[setup.optimizer]
        words = " + ".join(f"{moments} x {count:,} x {each} B" for each, count in elements.items())
    else:
        moments = 1
        words = " + ".join(f"{count:,} x {each} B" for each, count in elements.items())
    rest = total - moments * sum(each * count for each, count in elements.items())
    return words + (f" + {rest:,} B of rounding to 512 B" + _counters(trace, component) if rest else "")


def _stored(parameter: Parameter, component: str, *, sharded: bool) -> int:
    """Bytes of a weight, or of its copy, on the device."""
    if component == "weights":
        return parameter.stored_bytes
    if component == "ema":
        return sum(map(rounded, copied_bytes(parameter, sharded=sharded)))
    return _plain(parameter)


def _plain(parameter: Parameter) -> int:
    return rounded(parameter.elements * parameter.dtype.itemsize)


def _counters(trace: Trace, component: str) -> str:
    setup = trace.setup
    if component == "gradients":
        views = any(one.parameter.grad_bytes > _plain(one.parameter) for one in trace.weights)
        return " and what gradients that are views keep" if views and not setup.fp32_gradients else ""
    if component != "optimizer" or setup.optimizer not in MOMENTS:
        return ""
    master = precision_of(setup.precision).master
    numbers = numbers_on_device(setup.optimizer, setup.optimizer_implementation, master=master)
    return "" if not numbers else " and step counts" if numbers == 1 else f" and {numbers} numbers of each"


def _inputs(trace: Trace) -> State:
    rows = []
    sizes = [state.at(trace.batch) for state in trace.record.states if state.category == "inputs"]
    for (name, shape, dtype), size in zip(trace.tape.inputs, sizes, strict=False):
        rows.append(StateTensor(name, shape, dtype.name, 1, size, size))
    for size in sizes[len(rows) :]:  # whose mask is counted beside the replay
        shape = (trace.batch, trace.setup.sequence_length)
        rows.append(StateTensor("attention_mask", shape, INT64.name, 1, size, size))
    kinds = {(name, dtype.itemsize) for name, _, dtype in trace.tape.inputs}
    tokens = kinds == {("input_ids", 8), ("labels", 8)}
    basis = "token ids and labels, 8 B each" if tokens else "the micro-batch on the device"
    return State("inputs", basis, sum(sizes), tuple(rows))


def _buffers(trace: Trace) -> State:
    sizes = [state.at(trace.batch) for state in trace.record.states if state.category == "buffers"]
    rows = [StateTensor(f"buffer.{number}", (), "", 1, size, size) for number, size in enumerate(sizes)]
    return State("buffers", "of the model, in allocator blocks", sum(sizes), tuple(rows))


def _buckets(trace: Trace) -> State:
    """What DistributedDataParallel sums gradients in."""
    size = sum(state.at(trace.batch) for state in trace.record.states if state.category == "communication")
    rows = [StateTensor("gradient_buckets", (), "", 1, size, size)] if size else []
    return State("communication", "gradients once more, in buckets that are summed over the devices", size, tuple(rows))
