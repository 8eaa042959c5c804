"""Optimizer states and the scratch of a step: those of torch.optim 2.13; other libraries have files of their own.

Sources: torch/optim/{adamw,adam,sgd,rmsprop,_adafactor}.py, functions `_multi_tensor_*` (foreach), `_fused_*` and
`_single_tensor_*` (for-loop), each with its default arguments. With fp32 master weights ("mixed") one fused kernel
steps the master copy: fp32 states, no scratch (ZeRO, arXiv:1910.02054 section 3.1; apex/DeepSpeed FusedAdam).

A file of another library has `states`, `shared_bytes`, `managed_bytes`, `step` and `describe`, as `Library` says; it is
imported when a job asks for one of its optimizers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from math import prod
from typing import Any, Protocol, cast

from vramplan.engines import brought_for
from vramplan.options.words import BITSANDBYTES_OPTIMIZERS
from vramplan.replay.autograd import backward
from vramplan.replay.observers import Observer, Release, Sharding
from vramplan.replay.precision import Precision
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.setup import Setup
from vramplan.replay.standing import StandingState
from vramplan.replay.tensors import FP32, DType, Parameter, Shape, Tensor

# states of a parameter's own shape, by optimizer
MOMENTS = {
    **dict.fromkeys(("adamw", "adam", "nadam", "radam", "adamax", "adadelta"), 2),
    **dict.fromkeys(("sgd-momentum", "rmsprop", "adagrad", "asgd"), 1),
    "sgd": 0,
}
COUNTS_WHERE_FUSED = ("adamw", "adam", "adagrad")  # whose fused step has its count on the device
NUMBERS = {"asgd": 3}  # on the device of each parameter, however it is stepped: a count, a rate, and a share
STEP_COUNTER_BYTES = rounded(4)  # of a count on the device, one tensor a parameter


LIBRARIES = {
    "muon": "muon",
    **dict.fromkeys((*BITSANDBYTES_OPTIMIZERS, "adam-32bit"), "bitsandbytes"),
    "lomo": "lomo",
    "adalomo": "adalomo",
    **dict.fromkeys(("galore-adamw", "galore-adamw-between"), "galore"),
    "galore-adamw-8bit": "galore_8bit",
    "galore-adafactor": "galore_adafactor",
    "apollo-adamw": "apollo",
    "adam-mini": "adam_mini",
    **dict.fromkeys(("adamw-8bit-torchao", "adamw-4bit-torchao", "adamw-fp8-torchao"), "torchao"),
    **dict.fromkeys(("schedule-free-adamw", "schedule-free-sgd", "schedule-free-radam"), "schedule_free"),
    **dict.fromkeys(("stable-adamw", "adamw-optimi"), "optimi"),
    "grokadamw": "grokadamw",
    "came": "came",
    "prodigy": "prodigy",
    **dict.fromkeys(("adopt", "adamc"), "of_axolotl"),
}
"""Optimizers of other files of this folder, and the file."""

LATER = ("adagrad", "nadam", "radam", "adamax", "adadelta", "asgd")  # whose steps are in of_torch.py
OF_TORCH = (*MOMENTS, "adafactor")  # the optimizers of this file
OF_TRANSFORMERS = "transformers"  # the implementation of an optimizer of that name which is a class of Transformers


class Library(Protocol):
    """What the file of a library has; sizes are of one copy of a parameter, in allocator blocks."""

    def states(self, parameter: Parameter, optimizer: str, implementation: str, wide_embeddings: bool) -> int:
        """Bytes of the states of a parameter on the device, inside the allocator."""

    def shared_bytes(self, parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool) -> int:
        """Bytes of what all parameters share."""

    def managed_bytes(self, parameter: Parameter, optimizer: str, wide_embeddings: bool) -> int:
        """Bytes of the states of a parameter that lie in managed memory, outside the allocator."""

    def step(self, tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
        """Replay the step: births and deaths of its scratch."""

    def describe(self, optimizer: str, itemsize: int) -> str:
        """What the states are, for a reader."""


def library_of(optimizer: str) -> Library | None:
    """The module of an optimizer that is not one of torch.optim's own of this file; None for those.

    It is a file of this folder, or what an engine brings for an optimizer of its own.
    """
    word = optimizer.partition(":")[0]
    if word in OF_TORCH:
        return None
    if word not in LIBRARIES:
        return cast("Library | None", brought_for(word))
    return cast(Library, import_module(f"{__name__}.{LIBRARIES[word]}"))


def optimizer_states(
    parameters: Sequence[Parameter],
    optimizer: str,
    implementation: str,
    precision: Precision,
    wide_embeddings: bool = False,
) -> list[StandingState]:
    """What the optimizer holds during the whole iteration, each tensor in allocator blocks, summed by component.

    Adam, AdamW, NAdam and RAdam hold two moments of each parameter's own shape, Adamax and Adadelta two averages,
    RMSprop, Adagrad, ASGD and SGD with momentum one, Adafactor the factors of one; fused Adam and Adagrad also a step
    count on the device, and ASGD three numbers. With fp32 master weights the states are fp32, beside the
    master copy. `wide_embeddings`: the runtime asks for 32-bit states of embeddings where the others have 8 bits.
    Source: torch/optim/adamw.py, adam.py, sgd.py, rmsprop.py, adagrad.py, nadam.py, radam.py, adamax.py, adadelta.py,
    asgd.py, _adafactor.py, `_init_group`; arXiv:1910.02054, section 3.1.
    """
    master = moments = 0
    library = library_of(optimizer)
    for parameter in parameters:
        if parameter.node is None:
            continue
        if precision.master:
            master += rounded(parameter.elements * FP32.itemsize) * parameter.copies
        if library is not None:
            size = library.states(as_stepped(parameter, precision), optimizer, implementation, wide_embeddings)
        else:
            size = own_states(parameter, optimizer, implementation, precision)
        moments += size * parameter.copies
    return [StandingState("master", master, 0), StandingState("optimizer", moments, 0)]


def as_stepped(parameter: Parameter, precision: Precision) -> Parameter:
    """What the optimizer is given in the place of a parameter: its fp32 copy, where there is one."""
    if not precision.master or parameter.dtype is FP32:
        return parameter
    copy = Parameter(parameter.tape, parameter.name, parameter.shape, FP32, parameter.copies, True)
    copy.is_table, copy.in_linear = parameter.is_table, parameter.in_linear
    return copy


def shared_states(
    parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool = False, in_backward: bool = False
) -> list[StandingState]:
    """What the optimizer holds once, for all parameters together; in backward each parameter has its own optimizer."""
    library = library_of(optimizer)
    if library is None:
        return []
    trained = [parameter for parameter in parameters if parameter.node is not None]
    if in_backward:
        size = sum(library.shared_bytes([one], optimizer, wide_embeddings) * one.copies for one in trained)
    else:
        size = library.shared_bytes(trained, optimizer, wide_embeddings)
    return [StandingState("optimizer", size, 0)]


def managed_bytes(parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool = False) -> int:
    """Bytes of optimizer states in managed memory, which no figure of the allocator counts."""
    library = library_of(optimizer)
    if library is None:
        return 0
    trained = [parameter for parameter in parameters if parameter.node is not None]
    return sum(library.managed_bytes(one, optimizer, wide_embeddings) * one.copies for one in trained)


def own_states(parameter: Parameter, optimizer: str, implementation: str, precision: Precision | None = None) -> int:
    """Bytes of the states that an optimizer of torch.optim has for one copy of a parameter."""
    master = precision is not None and precision.master
    itemsize = FP32.itemsize if master else parameter.dtype.itemsize
    if implementation == OF_TRANSFORMERS:
        own: tuple[int, ...] = _adafactor_of_transformers().state_bytes(parameter.shape)
        return sum(own)
    if optimizer == "adafactor":
        return sum(rounded(prod(shape) * itemsize) for shape in adafactor_shapes(parameter.shape))
    size = rounded(parameter.elements * itemsize) * MOMENTS[optimizer]
    return size + numbers_on_device(optimizer, implementation, master=master) * STEP_COUNTER_BYTES


def numbers_on_device(optimizer: str, implementation: str, *, master: bool) -> int:
    """How many numbers beside its moments an optimizer of torch.optim keeps on the device, for each parameter.

    Source: torch/optim/adam.py, adagrad.py and asgd.py, `_init_group`.
    """
    counts = implementation == "fused" and optimizer in COUNTS_WHERE_FUSED and not master
    return NUMBERS.get(optimizer, int(counts))


def _adafactor_of_transformers() -> Any:
    return import_module(f"{__name__}.adafactor_transformers")


def adafactor_shapes(shape: Shape) -> list[Shape]:
    """A row and a column factor of a matrix; the whole variance of a vector.

    Source: arXiv:1804.04235, section 3; torch/optim/_adafactor.py, `_init_group`.
    """
    if len(shape) > 1:
        return [(*shape[:-1], 1), (*shape[:-2], 1, shape[-1])]
    return [shape]


def step(tape: Tape, optimizer: str, implementation: str, precision: Precision) -> None:
    """Replay one optimizer step of all parameters: births and deaths of its scratch.

    One fused step over a master copy, fused kernels and SGD need none. Foreach kernels make one square root for every
    parameter, all alive at once; the for-loop makes them one parameter at a time.
    Source: torch/optim/adamw.py, adam.py, sgd.py and rmsprop.py, `_fused_*`, `_multi_tensor_*` and `_single_tensor_*`.
    """
    tape.category = "temporaries"
    if precision.master:
        return
    step_group(tape, [one for one in tape.parameters if one.node is not None], optimizer, implementation)


def step_group(tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
    """The step of these parameters alone: fused and SGD nothing, foreach all square roots at once, else one by one.

    Before PyTorch 2.1 foreach Adam adds epsilon in tensors of their own, beside the square roots (pull request 104898).
    Source: torch/optim/adamw.py, adam.py, sgd.py and rmsprop.py, `_fused_*`, `_multi_tensor_*` and `_single_tensor_*`.
    """
    library = library_of(optimizer)
    if library is not None:
        library.step(tape, parameters, optimizer, implementation)
    elif implementation == "fused" or optimizer in ("sgd", "sgd-momentum"):
        return
    elif implementation == OF_TRANSFORMERS:
        _adafactor_of_transformers().step(tape, parameters)
    elif optimizer == "adafactor":
        import_module(f"{__name__}.adafactor").step(tape, parameters, implementation)
    elif optimizer in LATER:
        import_module(f"{__name__}.of_torch").step(tape, parameters, optimizer, implementation)
    elif implementation == "foreach":
        _roots = new_of_each(tape, "_foreach_sqrt", parameters)  # the square roots of the second moments, all at once
        if optimizer != "rmsprop" and tape.role(Release).adam_denominators:
            _denominators = new_of_each(tape, "_foreach_add", parameters)
            del _denominators
        del _roots
    elif optimizer == "rmsprop":
        root: Tensor | None = None
        for parameter in one_by_one(tape, parameters):
            root = tape.new("sqrt", parameter.shape, parameter.dtype, False)  # the previous one dies here
        del root
    else:
        denominator: Tensor | None = None
        for parameter in one_by_one(tape, parameters):
            square = tape.new("sqrt", parameter.shape, parameter.dtype, False)
            quotient = tape.new("div", parameter.shape, parameter.dtype, False)
            del square
            denominator = quotient
            del quotient
        del denominator


def step_in_backward(optimizer: str, implementation: str, parameter: Parameter) -> None:
    """Step one parameter as soon as its gradient is complete, and drop the gradient.

    Each parameter has an optimizer of its own, stepped by a hook of its gradient accumulator: the scratch is that of
    one parameter at a time, and the gradient goes before the next node of backward runs.
    Source: PyTorch tutorials, intermediate_source/optimizer_step_in_backward_tutorial.py (PyTorch 2.13:
    torch/_tensor.py, register_post_accumulate_grad_hook).
    """
    step_group(parameter.tape, [parameter], optimizer, implementation)
    parameter.grad = None


class Optimizer:
    """The optimizer of an iteration: what it holds, and when it steps."""

    gradients_wait = False  # whether one is there until the backward of the block before it has made another

    def __init__(self, setup: Setup, tape: Tape, precision: Precision) -> None:
        self.setup, self.tape, self.precision = setup, tape, precision
        self.name, self.implementation = setup.optimizer, setup.optimizer_implementation

    def backward(self, loss: Tensor, *, received: bool) -> list[Any]:
        """Walk the graph; what is there until the callbacks of backward are through."""
        return [loss, *backward(self.tape, loss, received=received)]

    def after_backward(self) -> None:
        """Backward is over, and its callbacks are through."""

    def step(self) -> None:
        """Step all parameters when backward is over."""
        step(self.tape, self.name, self.implementation, self.precision)

    def states(self) -> list[StandingState]:
        """What the optimizer holds during the whole iteration."""
        parameters, wide = self.tape.parameters, self.setup.wide_embeddings
        found = optimizer_states(parameters, self.name, self.implementation, self.precision, wide)
        return found + shared_states(parameters, self.name, wide, self.setup.optimizer_in_backward)

    def managed_bytes(self) -> int:
        """Bytes of its states in managed memory."""
        return managed_bytes(self.tape.parameters, self.name, self.setup.wide_embeddings)


class StepsInBackward(Optimizer, Observer):
    """One optimizer for each parameter, stepped by a hook of its gradient accumulator, or of its shard."""

    def backward(self, loss: Tensor, *, received: bool) -> list[Any]:
        """Walk the graph and step on the way; what shares the states may reduce gradients at the end."""
        self.tape.observe(self)
        return super().backward(loss, received=received)

    def after_accumulate(self, parameter: Parameter) -> None:
        """The gradient is complete; where it is shared, that of no parameter that is stepped."""
        if not self.tape.role(Sharding).reduces_in_backward:
            step_in_backward(self.name, self.implementation, parameter)

    def reduced(self, shard: Parameter) -> None:
        """The part of this device is complete.

        Source: torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_reduce (_post_accumulate_grad_hooks).
        """
        step_in_backward(self.name, self.implementation, shard)

    def step(self) -> None:
        """Nothing is left to do."""
        self.tape.ignore(self)


def optimizer_of(setup: Setup, tape: Tape, precision: Precision) -> Optimizer:
    """The optimizer of a job; a library's own where its module has another, `OPTIMIZER`."""
    if setup.trained_blocks == "badam":
        stepping: type[Optimizer] = import_module(f"{__name__}.badam").StepsABlock
        return stepping(setup, tape, precision)
    plain = StepsInBackward if setup.optimizer_in_backward else Optimizer
    kind: type[Optimizer] = getattr(library_of(setup.optimizer), "OPTIMIZER", plain)
    return kind(setup, tape, precision)


def gradients_wait(optimizer: str) -> bool:
    """Whether a block's last gradient is stepped in the backward of the block before it: `gradients_wait = True`."""
    return getattr(library_of(optimizer), "OPTIMIZER", Optimizer).gradients_wait is True


def one_by_one(tape: Tape, parameters: Sequence[Parameter]) -> Iterator[Parameter]:
    """Each parameter inside the repeated units that it was made in: one that stands for several is stepped as often.

    A step in backward stays in the unit whose backward made the gradient. Under a reentrant checkpoint that is the unit
    of the recomputation, not the one that the parameter was made in. What the loop keeps of a parameter until the next
    one comes is handed on from copy to copy.
    """
    outer = tape.path
    first = len(tape.fixed)
    for parameter in parameters:
        if not outer:
            tape.enter(parameter.path)
        first = len(tape.fixed)
        yield parameter
    if not outer:
        tape.unseen.handed_on.update(range(first, len(tape.fixed)))
    tape.enter(outer)


def new_of_each(tape: Tape, operator: str, parameters: Sequence[Parameter]) -> list[Tensor]:
    """One tensor for every parameter, each copy counted.

    Source: aten/src/ATen/native/cuda/ForeachUnaryOp.cu and ForeachBinaryOpScalar.cu, which give a list of new tensors.
    """
    return [
        tape.several(operator, parameter.shape, parameter.dtype, copies_of(tape, parameter)) for parameter in parameters
    ]


def in_groups(parameters: Sequence[Parameter]) -> list[list[Parameter]]:
    """The weights of each dtype, in the order in which foreach steps go through them.

    Where weights have two dtypes, as a 16-bit module beside an adapter in fp32, the dtype that came last goes first:
    the groups are entries of a `std::unordered_map`, and libstdc++ puts a new one before the others.
    Source: torch/optim/optimizer.py, Optimizer._group_tensors_by_device_and_dtype;
    aten/src/ATen/native/ForeachUtils.h, _group_tensors_by_first_tensors_device_and_dtype.
    """
    groups: dict[DType, list[Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.dtype, []).append(parameter)
    return list(reversed(groups.values()))


def copies_of(tape: Tape, parameter: Parameter) -> int:
    """The copies that one event stands for: in backward those of the unit around it are counted by the tape."""
    return max(1, parameter.copies // tape.copies)
