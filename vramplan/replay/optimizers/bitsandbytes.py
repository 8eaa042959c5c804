"""The optimizers of bitsandbytes 0.50: each with states in fp32, most in 8 bits or paged as well.

Every update is one kernel per parameter, in place. States are fp32 whatever the weights are, or 8 bits in blocks. Paged
states lie in CUDA managed memory (cudaMallocManaged): the allocator does not count them, the driver moves them to the
host when the GPU is full, and their kernels run whether they are resident or not.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.options.words import kernel_of
from vramplan.replay.optimizers import one_by_one
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.tensors import FP32, Parameter, Tensor

STATES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("adamw", "adam-32bit", "lamb"), (1, 1)),
    **dict.fromkeys(("lion", "lars", "sgd-momentum", "rmsprop", "adagrad"), (1,)),
    "ademamix": (2, 1),
}
"""How many moments each state tensor of a kernel holds: AdEMAMix has its fast and its slow average in one.

Source: bitsandbytes/optim/optimizer.py, Optimizer2State and Optimizer1State; ademamix.py, AdEMAMix.init_state and
_get_state_double_buffer.
"""
SMALLEST_8BIT = 4096  # elements (optim/optimizer.py, min_8bit_size); smaller parameters have fp32 states
SMALLEST_PAGED = 100_000  # elements (optim/optimizer.py, Optimizer8bit.get_state_buffer)
BLOCK = 256  # elements that share one fp32 maximum (optim/optimizer.py, init_state, blocksize)
CODE_BOOK_BYTES = rounded(256 * FP32.itemsize)  # functional.py, create_dynamic_map: one fp32 value for each code
LAYERWISE = ("lamb", "lars")  # max_unorm > 0: the norms of weights and updates are compared


def tensors_of(optimizer: str) -> tuple[int, ...]:
    """The moments of each state tensor of an optimizer: `lion-8bit-paged` has those of `lion`."""
    return STATES[kernel_of(optimizer)]


def is_8bit(parameter: Parameter, optimizer: str, wide_embeddings: bool) -> bool:
    """Whether the states of a parameter have 8 bits."""
    if "8bit" not in optimizer or parameter.elements < SMALLEST_8BIT:
        return False
    return not (wide_embeddings and parameter.is_table)


def tensor_bytes(parameter: Parameter, optimizer: str, wide_embeddings: bool) -> tuple[int, ...]:
    """Bytes of each state tensor of one copy of a parameter."""
    width = 1 if is_8bit(parameter, optimizer, wide_embeddings) else FP32.itemsize
    return tuple(rounded(moments * parameter.elements * width) for moments in tensors_of(optimizer))


def is_paged(parameter: Parameter, optimizer: str) -> bool:
    """Whether the moments of a parameter lie in managed memory."""
    return "paged" in optimizer and parameter.elements >= SMALLEST_PAGED


def states(parameter: Parameter, optimizer: str, implementation: str, wide_embeddings: bool) -> int:
    """Moments of a byte an element with one fp32 maximum per 256, or of fp32; LAMB and LARS also one update norm.

    Parameters below 4096 elements keep fp32 moments, and so do embeddings under the Trainer of Transformers. Paged
    moments of 100 000 elements or more are not in the allocator; their maxima are. The two averages of AdEMAMix that
    share a tensor have their maxima in one tensor too.
    Source: bitsandbytes/optim/optimizer.py, Optimizer2State.init_state, Optimizer1State.init_state and
    Optimizer8bit.get_state_buffer; bitsandbytes/optim/ademamix.py, AdEMAMix.init_state; transformers/trainer.py,
    Trainer.create_optimizer.
    """
    size = 0 if is_paged(parameter, optimizer) else sum(tensor_bytes(parameter, optimizer, wide_embeddings))
    if is_8bit(parameter, optimizer, wide_embeddings):
        blocks = -(-parameter.elements // BLOCK)
        size += sum(rounded(moments * blocks * FP32.itemsize) for moments in tensors_of(optimizer))
    if optimizer in LAYERWISE:
        size += rounded(FP32.itemsize)
    return size


def shared_bytes(parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool) -> int:
    """The code book of each state tensor, as soon as one parameter has 8-bit states: a signed one, and an unsigned one.

    Source: bitsandbytes/optim/optimizer.py, Optimizer8bit.fill_qmap, Optimizer2State.init_state and
    Optimizer1State.init_state, which has the signed one alone.
    """
    if any(is_8bit(parameter, optimizer, wide_embeddings) for parameter in parameters):
        return len(tensors_of(optimizer)) * CODE_BOOK_BYTES
    return 0


def managed_bytes(parameter: Parameter, optimizer: str, wide_embeddings: bool) -> int:
    """Moments in managed memory, outside the allocator."""
    return sum(tensor_bytes(parameter, optimizer, wide_embeddings)) if is_paged(parameter, optimizer) else 0


def step(tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
    """In place; LAMB and LARS take the norm of each weight first, of an fp32 copy where it has 16 bits.

    Source: bitsandbytes/functional.py, optimizer_update_32bit and optimizer_update_8bit_blockwise.
    """
    if optimizer not in LAYERWISE:
        return
    for parameter in one_by_one(tape, parameters):
        copy: Tensor | None = None
        if parameter.dtype is not FP32:
            copy = tape.new("_to_copy", parameter.shape, FP32, False)
        norm = tape.new("linalg_vector_norm", (), FP32, False)
        del copy, norm


def describe(optimizer: str, itemsize: int) -> str:
    """What the states are."""
    moments = ("one moment", "two moments", "three moments")[sum(tensors_of(optimizer)) - 1]
    where = ", in managed memory from 100,000 elements on" if "paged" in optimizer else ""
    if "8bit" in optimizer:
        small = f"of 4 B below {SMALLEST_8BIT:,} elements"
        return f"{optimizer}: {moments} of 1 B{where}, and 4 B per {BLOCK} elements; {small}"
    return f"{optimizer}: {moments} of 4 B{where}"
