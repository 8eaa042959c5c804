"""The states of an optimizer tensor by tensor, in the order in which its first step makes them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from vramplan.replay.optimizers import (
    LIBRARIES,
    MOMENTS,
    OF_TRANSFORMERS,
    STEP_COUNTER_BYTES,
    adafactor_shapes,
    adafactor_transformers,
    as_stepped,
    bitsandbytes,
    library_of,
    numbers_on_device,
)
from vramplan.replay.precision import Precision
from vramplan.replay.recorder import rounded
from vramplan.replay.tensors import FP32, Parameter


def state_pieces(
    parameters: Sequence[Parameter],
    optimizer: str,
    implementation: str,
    precision: Precision,
    wide_embeddings: bool = False,
) -> tuple[tuple[int, ...], ...]:
    """Bytes of each state tensor, parameter by parameter; they sum to the optimizer's of `optimizer_states`.

    Source: torch/optim/adamw.py, _adafactor.py, `_init_group`; bitsandbytes/optim/optimizer.py, `init_state`.
    """
    pieces: list[tuple[int, ...]] = []
    for parameter in parameters:
        if parameter.node is not None:
            found = _pieces_of(parameter, optimizer, implementation, precision, wide_embeddings)
            pieces += [found] * parameter.copies
    return tuple(pieces)


def _pieces_of(
    parameter: Parameter, optimizer: str, implementation: str, precision: Precision, wide_embeddings: bool
) -> tuple[int, ...]:
    library = library_of(optimizer)
    if library is not None:
        stepped = as_stepped(parameter, precision)
        total = library.states(stepped, optimizer, implementation, wide_embeddings)
        if LIBRARIES.get(optimizer) != "bitsandbytes" or bitsandbytes.is_paged(parameter, optimizer):
            return (total,) if total else ()
        moments = bitsandbytes.tensor_bytes(parameter, optimizer, wide_embeddings)
        return (*moments, total - sum(moments)) if total > sum(moments) else moments
    itemsize = FP32.itemsize if precision.master else parameter.dtype.itemsize
    if implementation == OF_TRANSFORMERS:
        return adafactor_transformers.state_bytes(parameter.shape)
    if optimizer == "adafactor":
        return tuple(rounded(prod(shape) * itemsize) for shape in adafactor_shapes(parameter.shape))
    moments = (rounded(parameter.elements * itemsize),) * MOMENTS[optimizer]
    numbers = numbers_on_device(optimizer, implementation, master=precision.master)
    return (*(STEP_COUNTER_BYTES,) * numbers, *moments)
