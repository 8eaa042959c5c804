"""Muon as torch.optim 2.13 has it: the matrices of the blocks, with AdamW for all other parameters.

Who is stepped by which: Muon takes two-dimensional weights only (torch/optim/_muon.py, Muon.__init__) and is meant for
hidden layers, while embeddings, output layers, biases and norms go to AdamW (its documentation, and
https://kellerjordan.github.io/posts/muon/). Here: every two-dimensional weight inside a transformer block is Muon's,
and all else is AdamW's. Muon is stepped first.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.observers import Sharding
from vramplan.replay.optimizers import one_by_one, own_states, step_group
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.tensors import BF16, Parameter, Tensor

ITERATIONS = 5  # torch/optim/_muon.py, DEFAULT_NS_STEPS


def is_hidden_matrix(parameter: Parameter) -> bool:
    """Whether Muon steps a parameter: a matrix inside the blocks."""
    return len(parameter.shape) == 2 and bool(parameter.path)


def states(parameter: Parameter, optimizer: str, implementation: str, wide_embeddings: bool) -> int:
    """One momentum of each matrix inside a block, in its gradient's dtype; what AdamW has for all else.

    Source: torch/optim/_muon.py, Muon._init_group; torch/optim/adam.py, Adam._init_group.
    """
    if is_hidden_matrix(parameter):
        return rounded(parameter.elements * parameter.dtype.itemsize)
    return own_states(parameter, "adamw", implementation)


def shared_bytes(parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def managed_bytes(parameter: Parameter, optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def step(tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
    """Matrix by matrix: the update in the weight's dtype, then Newton-Schulz in bf16; AdamW for the others afterwards.

    The update of one matrix lives until that of the next is made. Where rows are shared, the whole update is gathered
    in bf16 first: a shard has no singular vectors of the matrix.
    Source: torch/optim/_muon.py, `_single_tensor_muon`; microsoft/dion, dion/muon.py, muon_update_batch_async.
    """
    among = tape.role(Sharding).rows_among
    update: Tensor | None = None
    for parameter in one_by_one(tape, [one for one in parameters if is_hidden_matrix(one)]):
        update = tape.new("lerp", parameter.shape, parameter.dtype, False)
        if among > 1:
            rows, columns = parameter.shape
            update = tape.new("all_gather_into_tensor", (rows * among, columns), BF16, False)
        update = newton_schulz(tape, update)
    del update
    rest = [one for one in parameters if not is_hidden_matrix(one)]
    step_group(tape, rest, "adamw", implementation)


def newton_schulz(tape: Tape, update: Tensor) -> Tensor:
    """Orthogonalize one matrix in bf16: a copy, unless it has that dtype, and five times two squares and a new matrix.

    The squares are of the shorter side; those of one iteration live until the next has made its own.
    Source: torch/optim/_muon.py, `_zeropower_via_newtonschulz`.
    """
    shape, side = update.shape, min(update.shape)
    matrix = update if update.dtype is BF16 else tape.new("_to_copy", shape, BF16, False)
    norm = tape.new("linalg_vector_norm", (), BF16, False)
    clamped = tape.new("clamp", (), BF16, False)
    del norm, clamped
    gram: Tensor | None = None
    gram_update: Tensor | None = None
    for _ in range(ITERATIONS):
        gram = tape.new("mm", (side, side), BF16, False)
        gram_update = tape.new("addmm", (side, side), BF16, False)
        matrix = tape.new("addmm", shape, BF16, False)
    del gram, gram_update
    return matrix


def describe(optimizer: str, itemsize: int) -> str:
    """What the states are."""
    return f"muon: one momentum of each matrix in a block, two moments of all else (adamw), {itemsize} B each"
