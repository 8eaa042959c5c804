"""Muon as modded-nanogpt has it, with Adam for all that is no matrix of a block: devices share the matrices in turn.

Matrices of one size are a group. Of each run of as many matrices as there are devices every device orthogonalizes one,
and all of them get all results, in a buffer in bf16 for each device. A matrix has a momentum where it is orthogonalized
alone, so the device that comes first has the most.
Source: KellerJordan/modded-nanogpt, the script in the logs of the records of 2024-12-10 and 2024-12-17, Muon.__init__
and Muon.step.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.optimizers import one_by_one, own_states, step_group
from vramplan.replay.optimizers.muon import is_hidden_matrix
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.tensors import BF16, Parameter, Tensor


def states(parameter: Parameter, optimizer: str, implementation: str, wide_embeddings: bool) -> int:
    """What Adam has of all that Muon does not step; the momenta are in `shared_bytes`, as not every matrix has one."""
    return 0 if is_hidden_matrix(parameter) else own_states(parameter, "adam", implementation)


def shared_bytes(parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool) -> int:
    """Of each size a buffer in bf16 for each device, and a momentum of each matrix that the first device has.

    Source: Muon.__init__ (update_buffer) and Muon.step (momentum_buffer, like the gradient).
    """
    devices = int(optimizer.partition(":")[2])
    total = 0
    for group in groups_of(parameters).values():
        one = group[0]
        turns = -(-len(group) // devices)
        total += devices * rounded(one.elements * BF16.itemsize) + turns * rounded(one.elements * one.dtype.itemsize)
    return total


def groups_of(parameters: Sequence[Parameter]) -> dict[int, list[Parameter]]:
    """The matrices of each size."""
    groups: dict[int, list[Parameter]] = {}
    for one in parameters:
        if is_hidden_matrix(one):
            groups.setdefault(one.elements, []).extend([one] * one.copies)
    return groups


def managed_bytes(parameter: Parameter, optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def step(tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
    """Adam, then a matrix at a time: its gradient becomes the update in place, and is orthogonalized in bf16.

    All updates of a turn are gathered into one tensor, and from there into the buffers; it is there until the next
    turn's is. The update itself goes when the gradient of the next matrix takes its name.
    Source: Muon.step; torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, allgather (newLikeFlat).
    """
    step_group(tape, [one for one in parameters if not is_hidden_matrix(one)], "adam", implementation)
    devices = int(optimizer.partition(":")[2])
    for group in groups_of(parameters).values():
        gathered: Tensor | None = None
        for parameter in one_by_one(tape, group[::devices]):
            _update = orthogonalized(tape, parameter)
            gathered = tape.new("all_gather", (devices, parameter.elements), BF16, False)
            del _update
        del gathered


def orthogonalized(tape: Tape, parameter: Parameter) -> Tensor:
    """The update of one matrix, by a compiled function, which has so many tensors at once.

    A square has six of its size; else there are three of the matrix and one of the shorter side's square.
    Source: zeropower_via_newtonschulz5, as Inductor of 2.13 allocates it.
    """
    rows, columns = parameter.shape
    side = min(rows, columns)
    sizes = [(side, side)] * 5 if rows == columns else [parameter.shape, parameter.shape, (side, side)]
    update = tape.new("addmm", parameter.shape, BF16, False)
    _scratch = [tape.new("mm", size, BF16, False) for size in sizes]
    return update


def describe(optimizer: str, itemsize: int) -> str:
    """What the states are."""
    return "muon: buffers of updates in bf16 and momenta of a device's turn, two moments of all else (adam)"


def basis_of_modded(parameters: int) -> dict[str, str]:
    """What the components are, in words."""
    return {
        "weights": f"{parameters:,}, of linear layers 4 B each, others 2 B",
        "optimizer": "muon's momenta of a device's turn and buffers of all; adam",
        "weight_casts": "16-bit copies of linear weights",
    }
