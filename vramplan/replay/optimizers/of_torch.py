"""The steps of Adagrad, NAdam, RAdam, Adamax, Adadelta and ASGD, as torch.optim 2.13 has them.

Each has its default arguments: without `capturable`, and without a weight decay that is added to the gradient.
Foreach goes through the weights of one dtype after those of another, and keeps the lists of one group until those of
the next are there; a loop keeps the tensors of one weight until those of the next are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vramplan.replay.optimizers import copies_of, in_groups, new_of_each, one_by_one
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Parameter, Tensor

Step = Callable[[Tape, Sequence[Parameter]], None]


def step(tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
    """Replay the step of an optimizer: foreach, or one weight after the other."""
    (FOREACH if implementation == "foreach" else LOOPS)[optimizer](tape, parameters)


def _adagrad_foreach(tape: Tape, parameters: Sequence[Parameter]) -> None:
    """The square roots of the sums, and the gradients times the rate.

    Source: torch/optim/adagrad.py, _multi_tensor_adagrad.
    """
    std: list[Tensor] = []
    numerator: list[Tensor] = []
    for group in in_groups(parameters):
        std = new_of_each(tape, "_foreach_sqrt", group)
        numerator = new_of_each(tape, "_foreach_mul", group)
    del std, numerator


def _roots_foreach(tape: Tape, parameters: Sequence[Parameter]) -> None:
    """The square roots of the second moments.

    Source: torch/optim/nadam.py, _multi_tensor_nadam; radam.py, _multi_tensor_radam.
    """
    roots: list[Tensor] = []
    for group in in_groups(parameters):
        roots = new_of_each(tape, "_foreach_sqrt", group)
    del roots


def _adamax_foreach(tape: Tape, parameters: Sequence[Parameter]) -> None:
    """The sizes of the gradients, which go before the next group.

    Source: torch/optim/adamax.py, _multi_tensor_adamax.
    """
    for group in in_groups(parameters):
        sizes = new_of_each(tape, "_foreach_abs", group)
        del sizes


def _adadelta_foreach(tape: Tape, parameters: Sequence[Parameter]) -> None:
    """Square roots of both averages.

    Source: torch/optim/adadelta.py, _multi_tensor_adadelta.
    """
    std: list[Tensor] = []
    deltas: list[Tensor] = []
    for group in in_groups(parameters):
        std = new_of_each(tape, "_foreach_add", group)
        deltas = new_of_each(tape, "_foreach_add", group)
    del std, deltas


def _asgd_foreach(tape: Tape, parameters: Sequence[Parameter]) -> None:
    """The decayed gradients, what separates weights from their averages, and a new rate and share of each weight.

    A rate is computed on the device, of the count that is there, and a share on the host.
    Source: torch/optim/asgd.py, _multi_tensor_asgd.
    """
    rates: list[Tensor] = []
    shares: list[Tensor] = []
    for group in in_groups(parameters):
        for operator in ("_foreach_add", "_foreach_sub"):
            between = new_of_each(tape, operator, group)
            del between
        rates = [_rate(tape, parameter) for parameter in group]
        shares = [tape.several("_to_copy", (), FP32, copies_of(tape, parameter)) for parameter in group]
    del rates, shares


def _rate(tape: Tape, parameter: Parameter) -> Tensor:
    """lr / (1 + lambd * lr * step) ** alpha of each copy: a number divided by a tensor is its reciprocal, times it."""
    product = tape.new("mul", (), FP32, False)
    increased = tape.new("add", (), FP32, False)
    del product
    power = tape.new("pow", (), FP32, False)
    del increased
    reciprocal = tape.new("reciprocal", (), FP32, False)
    rate = tape.several("mul", (), FP32, copies_of(tape, parameter))
    del power, reciprocal
    return rate


def _adagrad_loop(tape: Tape, parameters: Sequence[Parameter]) -> None:
    """A square root.

    Source: torch/optim/adagrad.py, _single_tensor_adagrad.
    """
    std: Tensor | None = None
    for parameter in one_by_one(tape, parameters):
        std = tape.new("sqrt", parameter.shape, parameter.dtype, False)
    del std


def _nadam_loop(tape: Tape, parameters: Sequence[Parameter]) -> None:
    """The second moment without its bias, and the square root of that.

    Source: torch/optim/nadam.py, _single_tensor_nadam.
    """
    denominator: Tensor | None = None
    for parameter in one_by_one(tape, parameters):
        quotient = tape.new("div", parameter.shape, parameter.dtype, False)
        root = tape.new("sqrt", parameter.shape, parameter.dtype, False)
        del quotient
        denominator = root
        del root
    del denominator


def _radam_loop(tape: Tape, parameters: Sequence[Parameter]) -> None:
    """The first moment without its bias, that times the rate, and what the second one makes of it from the 6th step on.

    Source: torch/optim/radam.py, _single_tensor_radam.
    """
    corrected: Tensor | None = None
    for parameter in one_by_one(tape, parameters):
        shape, dtype = parameter.shape, parameter.dtype
        corrected = tape.new("div", shape, dtype, False)
        scaled = tape.new("mul", shape, dtype, False)
        root = tape.new("sqrt", shape, dtype, False)
        reciprocal = tape.new("reciprocal", shape, dtype, False)
        adaptive = tape.new("mul", shape, dtype, False)
        del root, reciprocal
        update = tape.new("mul", shape, dtype, False)
        del scaled, adaptive
        rectified = tape.new("mul", shape, dtype, False)
        del update, rectified
    del corrected


def _adamax_loop(tape: Tape, parameters: Sequence[Parameter]) -> None:
    """The size of the gradient, which is gone when the maximum is there.

    Source: torch/optim/adamax.py, _single_tensor_adamax.
    """
    for parameter in one_by_one(tape, parameters):
        size = tape.new("abs", parameter.shape, parameter.dtype, False)
        del size


def _adadelta_loop(tape: Tape, parameters: Sequence[Parameter]) -> None:
    """Square roots of both averages.

    Source: torch/optim/adadelta.py, _single_tensor_adadelta.
    """
    std: Tensor | None = None
    delta: Tensor | None = None
    for parameter in one_by_one(tape, parameters):
        std = tape.new("add", parameter.shape, parameter.dtype, False)
        delta = tape.new("add", parameter.shape, parameter.dtype, False)
    del std, delta


def _asgd_loop(tape: Tape, parameters: Sequence[Parameter]) -> None:
    """Nothing: the average is a copy of the weight, in place, before the step of 10^6 from which it is one (t0).

    Source: torch/optim/asgd.py, _single_tensor_asgd.
    """


FOREACH: dict[str, Step] = {
    "adagrad": _adagrad_foreach,
    "nadam": _roots_foreach,
    "radam": _roots_foreach,
    "adamax": _adamax_foreach,
    "adadelta": _adadelta_foreach,
    "asgd": _asgd_foreach,
}
LOOPS: dict[str, Step] = {
    "adagrad": _adagrad_loop,
    "nadam": _nadam_loop,
    "radam": _radam_loop,
    "adamax": _adamax_loop,
    "adadelta": _adadelta_loop,
    "asgd": _asgd_loop,
}
