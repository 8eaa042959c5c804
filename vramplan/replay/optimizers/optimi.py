"""StableAdamW and AdamW of torch-optimi 0.3.3, with Kahan summation of weights in 16 bits.

What rounding leaves out of such a weight is kept in a tensor like it, unless `kahan_sum` is False. The kernels of
Triton are what the library takes where nobody says `foreach`; Axolotl's `optimi_adamw` says that it is False.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.optimizers import in_groups, new_of_each, one_by_one
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.tensors import FP32, Parameter

STABLE = "stable-adamw"
NUMBER = rounded(FP32.itemsize)  # a tensor of one element


def states(parameter: Parameter, optimizer: str, implementation: str, wide_embeddings: bool) -> int:
    """Two moments in the dtype of the weight, and the same again of what Kahan summation keeps of 16 bits.

    Triton's kernels want a tensor in the place of the last one, where there is none. StableAdamW has a number of each
    weight, and another one for Triton's kernels.
    Source: optimi/adam.py, Adam._init_state; optimi/stableadamw.py, StableAdamW._init_state.
    """
    whole = rounded(parameter.elements * parameter.dtype.itemsize)
    is_fused, is_half = implementation == "fused", parameter.dtype.itemsize == 2
    numbers = (1 + is_fused) * (optimizer == STABLE) + (is_fused and not is_half)
    return (2 + is_half) * whole + numbers * NUMBER


def shared_bytes(parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def managed_bytes(parameter: Parameter, optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def step(tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
    """Triton's kernels are in place, and AdamW's foreach step works in the gradients.

    In a loop there is a square root of each second moment. StableAdamW has the squared gradient before that, and the
    second moment that is bounded from below; its root mean square is there to the end of its weight. Foreach has the
    bounded ones all at once.
    Source: optimi/adam.py, _single_param_adam and _foreach_adam; optimi/stableadamw.py, _single_param_stableadamw,
    _foreach_stableadamw and _triton_stableadamw.
    """
    if implementation == "foreach" and optimizer == STABLE:
        _stable_foreach(tape, parameters)
    elif implementation == "for-loop" and optimizer == STABLE:
        _stable_loop(tape, parameters)
    elif implementation == "for-loop":
        for parameter in one_by_one(tape, parameters):
            root = tape.new("sqrt", parameter.shape, parameter.dtype, False)
            del root


def _stable_loop(tape: Tape, parameters: Sequence[Parameter]) -> None:
    for parameter in one_by_one(tape, parameters):
        shape, dtype = parameter.shape, parameter.dtype
        squared = tape.new("pow", shape, dtype, False)
        bounded = tape.new("maximum", shape, dtype, False)
        del bounded
        mean = tape.new("mean", (), dtype, False)
        del squared
        root_mean_square = tape.new("sqrt", (), dtype, False)
        del mean
        root = tape.new("sqrt", shape, dtype, False)
        del root, root_mean_square


def _stable_foreach(tape: Tape, parameters: Sequence[Parameter]) -> None:
    for group in in_groups(parameters):
        bounded = new_of_each(tape, "_foreach_maximum", group)
        del bounded
        mean = tape.new("mean", (), group[0].dtype, False)  # of one weight after the other, read on the host
        root = tape.new("sqrt", (), group[0].dtype, False)
        del mean, root


def describe(optimizer: str, itemsize: int) -> str:
    """What the states are."""
    kahan = ", and what rounding left out of the weight" if itemsize == 2 else ""
    return f"{optimizer}: two moments{kahan}, {itemsize} B each"
