"""GaLore as galore-torch 1.0 has it: AdamW in a subspace of each gradient of a linear layer (arXiv:2403.03507).

Who is projected: the weights of the linear layers inside the blocks, which is what the recipe of its authors and of
the Trainer of Transformers (`optim_target_modules: [attn, mlp]`) means; all else has plain AdamW moments. Experts that
lie in one tensor of three dimensions are no linear layers.

The step that is modelled is one of those that decompose every gradient anew, each `update_proj_gap` steps (200 by
default): no other step needs more. The workspace that cuSOLVER asks for inside such a decomposition is not public, and
not counted.

Where devices share the rows of each matrix (FSDP2), its gradient is gathered whole to be decomposed. A matrix with
fewer rows than columns is projected from the left: each device has a part of the sum, which is added up for each use,
and so its moments are whole on every device, as is the update, of which each then takes its rows.
Source: torch/distributed/tensor/_ops/_math_ops.py, linalg_replicate_strategy; _ops/_matrix_ops.py, mm_like_strategy.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.observers import Sharding
from vramplan.replay.optimizers import one_by_one, own_states
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.tensors import FP32, INT32, DType, Parameter, Shape, Tensor

WORD = "galore-adamw"
WITHOUT_UPDATE = "galore-adamw-between"  # the same on a step that keeps its projections
LARGEST_BATCHED_SIDE = 32  # BatchLinearAlgebraLib.cpp, svd_cusolver: up to it another routine runs


def rank_of(optimizer: str) -> int:
    """`galore-adamw:128` -> 128."""
    return int(optimizer.partition(":")[2])


def is_projected(parameter: Parameter) -> bool:
    """Whether the gradient of a parameter is projected."""
    return parameter.in_linear and bool(parameter.path)


def low_rank_shape(shape: Shape, rank: int) -> Shape:
    """A gradient in its subspace: the shorter side becomes the rank, unless it is shorter still.

    Source: galore_torch/galore_projector.py, GaLoreProjector.project, proj_type "std".
    """
    rows, columns = shape
    return (rows, min(rank, columns)) if rows >= columns else (min(rank, rows), columns)


def whole_shape(parameter: Parameter) -> Shape:
    """That of the matrix of which the parameter may be the rows of one device."""
    return parameter.tape.role(Sharding).whole_shape(parameter)


def is_summed(parameter: Parameter) -> bool:
    """Whether each device has a part of the sum that the projected gradient is."""
    rows, columns = whole_shape(parameter)
    return rows < columns and parameter.shape[0] < rows


def projected_shape(parameter: Parameter, rank: int) -> Shape:
    """Its gradient in its subspace, on one device."""
    if is_summed(parameter):
        return low_rank_shape(whole_shape(parameter), rank)
    rows, columns = low_rank_shape(whole_shape(parameter), rank)
    return (min(rows, parameter.shape[0]), columns)


def projection_bytes(parameter: Parameter, rank: int, dtype: DType) -> int:
    """Bytes of the projection that is kept: rank times the shorter side, or all of it where the gradient is fp32.

    Of a decomposition in the gradient's own fp32 a slice of the square factor is kept, and the slice keeps the factor.
    A 16-bit gradient is cast to fp32 before, and the slice back to 16 bits after, which makes a tensor of its own.
    Source: galore_torch/galore_projector.py, GaLoreProjector.get_orthogonal_matrix.
    """
    side = min(whole_shape(parameter))
    if dtype is FP32:
        return rounded(side * side * FP32.itemsize)
    return rounded(min(rank, side) * side * dtype.itemsize)


def states(parameter: Parameter, optimizer: str, implementation: str, wide_embeddings: bool) -> int:
    """Two moments of the projected gradient and the projection; two of the parameter's own shape for all else.

    Source: galore_torch/adamw.py, AdamW.step.
    """
    if not is_projected(parameter):
        return own_states(parameter, "adamw", implementation)
    rank = rank_of(optimizer)
    rows, columns = projected_shape(parameter, rank)
    return 2 * rounded(rows * columns * parameter.dtype.itemsize) + projection_bytes(parameter, rank, parameter.dtype)


def shared_bytes(parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def managed_bytes(parameter: Parameter, optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def step(tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
    """Parameter by parameter, those that are not projected first; locals live until the next parameter replaces them.

    A projected gradient is decomposed, multiplied by its projection, stepped in its subspace, and the update multiplied
    back and scaled: two tensors of the weight's shape.
    Source: galore_torch/adamw.py, AdamW.step; galore_torch/galore_projector.py, GaLoreProjector.project_back.
    """
    rank, updates = rank_of(optimizer), not optimizer.startswith(WITHOUT_UPDATE)
    gradient: Tensor | None = None
    denominator: Tensor | None = None
    update: Tensor | None = None
    plain = [one for one in parameters if not is_projected(one)]
    for parameter in one_by_one(tape, [*plain, *(one for one in parameters if is_projected(one))]):
        shape, dtype = parameter.shape, parameter.dtype
        gradient = None  # the parameter's own
        if is_projected(parameter):
            if updates:
                projection = decompose(tape, parameter, rank, dtype)
                del projection  # it replaces the one that is among the states
            shape = projected_shape(parameter, rank)
            if is_summed(parameter):
                columns = tape.new("clone", (shape[0], parameter.shape[0]), dtype, False)
                gradient = tape.new("mm", shape, dtype, False)
                del columns
                for times in (1, 2):  # for the first moment, and twice for the second
                    sums = [tape.new("all_reduce", shape, dtype, False) for _ in range(times)]
                    del sums
            else:
                gradient = tape.new("mm", shape, dtype, False)
        denominator = tape.new("sqrt", shape, dtype, False)
        update = tape.new("div", shape, dtype, False)
        if is_projected(parameter):
            back = whole_shape(parameter) if is_summed(parameter) else parameter.shape
            full = tape.new("mm", back, dtype, False)
            scaled = tape.new("mul", back, dtype, False)
            del full
            update = scaled
            del scaled
            if is_summed(parameter):
                own = tape.new("clone", parameter.shape, dtype, False)
                del own
    del gradient, denominator, update


def decompose(tape: Tape, parameter: Parameter, rank: int, dtype: DType) -> Tensor:
    """A singular value decomposition of the gradient in fp32, and the factor that projects, in the gradient's own type.

    The kernel gets a copy of the matrix, beside its three results; of matrices up to 32 x 32 the longer factor is made
    whole first. The product of the other factor and the singular values is made too, and not used.
    Source: galore_torch/galore_projector.py, GaLoreProjector.get_orthogonal_matrix; aten/src/ATen/native/cuda/linalg/
    BatchLinearAlgebraLib.cpp, svd_cusolver and svd_cusolver_gesvdjBatched; BatchLinearAlgebra.cpp, _linalg_svd_out.
    """
    rows, columns = whole_shape(parameter)
    side = min(rows, columns)
    half = dtype is not FP32
    _matrix = tape.new("_to_copy", parameter.shape, FP32, False) if half else None
    gathered: Tensor | None = None
    if parameter.shape[0] < rows:
        gathered = tape.new("all_gather", (parameter.shape[0] * tape.role(Sharding).rows_among, columns), FP32, False)
    left = tape.new("_linalg_svd", (rows, side), FP32, False)
    right = tape.new("_linalg_svd", (side, columns), FP32, False)
    _values = tape.new("_linalg_svd", (side,), FP32, False)
    info = tape.new("_linalg_svd", (), INT32, False, category="workspace")
    copy = tape.new("_linalg_svd", (rows, columns), FP32, False, category="workspace")
    longest = max(rows, columns)
    if longest <= LARGEST_BATCHED_SIDE and rows != columns:
        whole = tape.new("_linalg_svd", (longest, longest), FP32, False, category="workspace")
        del whole
    del info, copy, gathered
    rank = min(rank, side)
    diagonal = tape.new("diag_embed", (rank, rank), FP32, False)
    _product = tape.new("mm", low_rank_shape((rows, columns), rank), FP32, False)
    del diagonal
    if half:
        return tape.new("_to_copy", (rank, columns) if rows >= columns else (rows, rank), dtype, False)
    return right if rows >= columns else left


def describe(optimizer: str, itemsize: int) -> str:
    """What the states are."""
    rank = rank_of(optimizer)
    kept = "the whole square factor that it is a slice of" if itemsize == FP32.itemsize else "its projection"
    what = f"of each linear weight in a block two moments of rank {rank} and {kept}"
    return f"{WORD}: {what}, two moments of all else, {itemsize} B each"
